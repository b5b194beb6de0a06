"""The portable program: QNN ops and encodings, ready for any chip and independent of any engine.

Context binaries hold portable programs, and the vendor's library is given them. The emulator turns them into an
``HtpProgram``.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, error_context
from openhtp.core.quant import Encoding
from openhtp.core.tensor import TensorSpec
from openhtp.ir.def_use import order_problem
from openhtp.ir.graph import Graph, QnnNode
from openhtp.ops import op_of
from openhtp.options import GRAPH, OptionValues

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
_Sizes = tuple[tuple[str, Shape], ...]
# Executions tend to come in a few sizes; the results for this many are kept.
_KEPT_SIZES = 64


@dataclass(frozen=True, slots=True, eq=False)
class QnnProgram(Graph):
    """A graph without unused nodes and tensors, and its options. ``statics`` arrays are read-only views."""

    options: OptionValues = field(default_factory=GRAPH.defaults)
    _dims: dict[_Sizes, dict[str, Shape]] = field(default_factory=dict, init=False, repr=False)

    @property
    def is_dynamic(self) -> bool:
        """Whether any input's size may vary between executions."""
        return any(spec.is_dynamic for spec in self.inputs)

    @property
    def updateables(self) -> tuple[TensorSpec, ...]:
        """Tensors whose encoding, and data if static, may be exchanged after the program was loaded."""
        return tuple(spec for spec in self.tensors.values() if spec.kind.is_updateable)

    @property
    def updateable_statics(self) -> tuple[TensorSpec, ...]:
        """Tensors whose data may be exchanged."""
        return tuple(spec for spec in self.updateables if spec.kind.is_static)

    def updated(self, encodings: Mapping[str, Encoding], data: Mapping[str, Array]) -> QnnProgram:
        """The program with other encodings and other data. Raises InvalidArgument if an op cannot have them."""
        tensors = {
            name: dataclasses.replace(spec, quant=encodings[name]) if name in encodings else spec
            for name, spec in self.tensors.items()
        }
        statics = {**self.statics, **{name: frozen_array(array) for name, array in data.items()}}
        program = QnnProgram(self.name, tensors, statics, self.nodes, self.options)
        verify_program(program)
        return program

    @property
    def static_bytes(self) -> int:
        """Bytes of all constant data."""
        return sum(data.nbytes for data in self.statics.values())

    def infer_dims(self, inputs: Mapping[str, Shape]) -> dict[str, Shape]:
        """Sizes of all outputs when inputs have these sizes; other inputs have their largest size.

        Raises InvalidArgument with QNN_GRAPH_ERROR_DYNAMIC_TENSOR_SHAPE when a size is above its maximum, or
        differs in a dimension that is not dynamic.
        """
        key = tuple((name, tuple(int(size) for size in shape)) for name, shape in inputs.items())
        if key not in self._dims:
            with error_context(graph=self.name):
                shapes = {spec.name: spec.shape for spec in self.tensors.values()}
                for name, shape in key:
                    shapes[name] = _checked_dims(self.tensors, name, shape)
                for node in self.nodes:
                    self._infer_node(node, shapes)
            if len(self._dims) >= _KEPT_SIZES:
                self._dims.clear()
            self._dims[key] = {spec.name: shapes[spec.name] for spec in self.outputs}
        return dict(self._dims[key])

    def _infer_node(self, node: QnnNode, shapes: dict[str, Shape]) -> None:
        def sized(spec: TensorSpec) -> TensorSpec:
            return dataclasses.replace(spec, shape=shapes[spec.name])

        whole = self.resolved(node)
        small = dataclasses.replace(
            whole, inputs=tuple(None if spec is None else sized(spec) for spec in whole.inputs)
        )
        if small.inputs == whole.inputs:
            return
        try:
            inferred = op_of(whole).infer(small)
        except InvalidArgument as error:
            error.status = st.QNN_GRAPH_ERROR_DYNAMIC_TENSOR_SHAPE
            raise
        shapes.update({spec.name: shape for spec, shape in zip(whole.outputs, inferred, strict=True)})

    def to_bytes(self) -> bytes:
        """The program alone in a context binary."""
        from openhtp.program.binary import BinaryInfo, write_binary

        return write_binary([self], BinaryInfo())

    @classmethod
    def from_bytes(cls, buffer: memoryview | bytes) -> QnnProgram:
        """Read what ``to_bytes`` wrote; weights are views into ``buffer``. Raises BadBinary."""
        from openhtp.program.binary import read_binary

        binary = read_binary(buffer)
        return binary.program(binary.graph_names[0])


def _checked_dims(tensors: Mapping[str, TensorSpec], name: str, shape: Shape) -> Shape:
    spec = tensors.get(name)
    if spec is None or not spec.kind.is_input:
        raise InvalidArgument(f"{name!r} is not an input", st.QNN_GRAPH_ERROR_INVALID_TENSOR)
    if not spec.accepts(shape):
        expected = [f"1..{size}" if free else str(size) for size, free in zip(spec.shape, spec.free, strict=True)]
        raise InvalidArgument(
            f"input {name!r} has size {list(shape)}; expected [{', '.join(expected)}]",
            st.QNN_GRAPH_ERROR_DYNAMIC_TENSOR_SHAPE,
        )
    return shape


def verify_program(program: QnnProgram) -> None:
    """Check the order of nodes, their names, and each node against its op.

    A program that we compiled passes by construction; this check is for programs from a file. It covers all
    requirements of the compiler's passes, so that the error blames the file.
    """
    problem = order_problem(program.nodes, program.given_names, program.output_names) or _name_problem(program)
    if problem is not None:
        raise InvalidArgument(problem)
    for node in program.nodes:
        program.resolved(node)


def _name_problem(program: QnnProgram) -> str | None:
    counts = Counter(node.name for node in program.nodes)
    name, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
    if not count:
        return "there are no nodes; expected at least one"
    return f"{count} nodes are named {name!r}; expected distinct names" if count > 1 else None


def frozen_array(array: Array) -> Array:
    """A read-only view, so that a shared weight cannot be changed through one program."""
    view = np.asarray(array, order="C").view()
    view.flags.writeable = False
    return view
