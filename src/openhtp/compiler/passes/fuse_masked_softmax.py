"""Attention masks: ``Softmax(Select(keep, x, ReduceMin(x) + B))`` in fixed point is computed as one op.

The HTP recognises this when B is -20 or less, so that masked elements cannot matter. Between Select and Softmax a
graph needs an encoding that reaches down to B and has little left for x. The op in one piece (``SelectSoftmax``)
reads x with its own encoding, and masked elements are exactly 0.

The portable program keeps the ops of QNN's list: the vendor's library takes those, and recognises them by itself.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from openhtp.compiler.kernels import htp_node
from openhtp.core.dtype import DType
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ir.def_use import needed_nodes
from openhtp.ir.graph import QnnNode
from openhtp.program.htp_program import HtpNode, HtpProgram, Kernel

HIGHEST_B = -20.0
# One of ElementWiseBinary's operations.
_ADD = 0
_MASKS = (DType.BOOL_8, DType.UFIXED_POINT_8)


@dataclass(frozen=True, slots=True)
class _Masked:
    """A masked softmax, and the kernels that it may replace."""

    softmax: HtpNode
    parts: tuple[Kernel, ...]


def fuse_masked_softmax(program: HtpProgram) -> HtpProgram:
    """Compute every masked softmax as one op, and drop kernels that are then unused."""
    pattern = _Pattern(program)
    softmaxes = {
        kernel.name: masked for kernel in program.kernels if (masked := pattern.match(kernel)) is not None
    }
    if not softmaxes:
        return program
    kernels = [
        Kernel((softmaxes[kernel.name].softmax,)) if kernel.name in softmaxes else kernel
        for kernel in program.kernels
    ]
    kept = needed_nodes(kernels, program.source.output_names)
    counted = {kernel.name for kernel in kept}
    for index, kernel in enumerate(kept):
        if kernel.name in softmaxes:
            # A part that two softmaxes share counts as the first one's.
            dropped = [part for part in softmaxes[kernel.name].parts if part.name not in counted]
            counted.update(part.name for part in dropped)
            sources = kernel.sources + tuple(name for part in dropped for name in part.sources)
            kept[index] = Kernel((dataclasses.replace(kernel.nodes[0], sources=sources),))
    return dataclasses.replace(program, kernels=tuple(kept))


class _Pattern:
    """The search for one pattern in one program. All kernels still have one node."""

    def __init__(self, program: HtpProgram) -> None:
        self._program = program
        self._tensors = program.tensors
        self._uses = program.def_use()
        self._parts: dict[str, Kernel] = {}

    def match(self, kernel: Kernel) -> _Masked | None:
        """The kernel as a masked softmax, if it is the end of one."""
        node = kernel.nodes[0]
        result = self._tensors[node.outputs[0]]
        if node.op != "Softmax" or not result.dtype.is_fixed_point or result.dtype.signed:
            return None
        self._parts = {}
        params, masked = self._program.source.resolved(node).params, self._spec(node.inputs[0])
        select = self._maker(masked, "ElementWiseSelect")
        if masked is None or select is None or params["axis"] != masked.rank - 1 or params["beta"] != 1.0:
            return None
        keep, x, low = (self._spec(name) for name in select.inputs)
        if keep is None or x is None or keep.dtype not in _MASKS or not self._is_below(low, x):
            return None
        x = self._before_conversion(x)
        if x.dtype != result.dtype or x.shape != masked.shape:
            return None
        call = QnnNode("SelectSoftmax", node.name, (x.name, keep.name), node.outputs)
        return _Masked(htp_node(self._program.source, call, node.sources), tuple(self._parts.values()))

    def _spec(self, name: str | None) -> TensorSpec | None:
        return None if name is None else self._tensors[name]

    def _taken(self, spec: TensorSpec, *ops: str) -> HtpNode | None:
        """The node that makes a tensor, if it is one of these ops and nothing is fused into it."""
        kernel = self._uses.maker(spec.name)
        if kernel is None or kernel.op not in ops or kernel.nodes[0].clamp is not None:
            return None
        self._parts[kernel.name] = kernel
        return kernel.nodes[0]

    def _maker(self, spec: TensorSpec | None, *ops: str) -> HtpNode | None:
        return None if spec is None else self._taken(self._before_conversion(spec), *ops)

    def _before_conversion(self, spec: TensorSpec) -> TensorSpec:
        """The tensor from which this one was made by a change of encoding, or this one."""
        while (convert := self._taken(spec, "Convert")) is not None:
            source = self._spec(convert.inputs[0])
            if source is None or not source.dtype.is_fixed_point:
                break
            spec = source
        return spec

    def _is_below(self, low: TensorSpec | None, x: TensorSpec) -> bool:
        """Whether a tensor is the minimum of each row of x, plus a constant that is low enough."""
        program = self._program.source
        add = self._maker(low, "ElementWiseAdd", "ElementWiseBinary")
        if add is None or program.resolved(add).params.get("operation", _ADD) != _ADD:
            return False
        root = self._before_conversion(x)
        terms = [self._spec(name) for name in add.inputs[:2]]
        for least, other in (terms, terms[::-1]):
            reduce = self._maker(least, "ReduceMin")
            if least is None or reduce is None or other is None or other.kind is not TensorKind.STATIC:
                continue
            source, axes = self._spec(reduce.inputs[0]), program.resolved(reduce).ints("axes")
            over_rows = x.rank - 1 in axes and least.rank == x.rank
            if source is not None and self._before_conversion(source).name == root.name and over_rows:
                return self._highest(other) <= HIGHEST_B
        return False

    def _highest(self, spec: TensorSpec) -> float:
        stored = self._program.statics[spec.name]
        return float(np.max(stored if spec.quant is None else spec.quant.dequantize(stored)))
