"""A graph while it is built: the caller's tensors and nodes, checked, in the compiler's form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.checks import is_showable, items_of, shown, type_in_words, whole_number
from openhtp.core.dtype import DType
from openhtp.core.enumerations import DataFormat
from openhtp.core.errors import InvalidArgument, InvalidHandle, error_context
from openhtp.core.opcall import OpCall
from openhtp.core.quant import Encoding
from openhtp.core.tensor import MAX_RANK, TensorKind, TensorSpec
from openhtp.ir.builder import GraphBuilder
from openhtp.ir.graph import Graph as IrGraph
from openhtp.runtime.objects.argument_checks import check_count, check_name, check_shape
from openhtp.runtime.objects.tensor import Tensor

if TYPE_CHECKING:
    from openhtp.runtime.objects.graph import Graph

_BAD_TENSOR = st.QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM
_BAD_NODE = st.QNN_GRAPH_ERROR_INVALID_OP_CONFIG


def tensor_spec(
    name: object,
    shape: object,
    dtype: Any,
    quant: object,
    kind: Any,
    dynamic: object,
    sparse_elements: object,
    data_format: Any,
) -> TensorSpec:
    """A spec of checked values; the builder checks whether they go together."""
    name = check_name(name, "tensor")
    if quant is not None and not isinstance(quant, Encoding):
        raise InvalidArgument(
            f"quant of tensor {name!r} is {shown(quant)}; expected a ScaleOffset, an AxisScaleOffset or None",
            _BAD_TENSOR,
        )
    flags = items_of(dynamic, MAX_RANK + 1)
    if flags is None or not all(map(_is_flag, flags)):
        raise InvalidArgument(
            f"dynamic of tensor {name!r} is {shown(dynamic)}; expected one flag per dimension", _BAD_TENSOR
        )
    return TensorSpec(
        name,
        check_shape(f"tensor {name!r}", shape),
        DType.parse(dtype),
        quant,
        TensorKind.parse(kind),
        tuple(bool(flag) for flag in flags),
        None if sparse_elements is None else check_count("sparse_elements", sparse_elements, 1 << 40),
        DataFormat.parse(data_format),
    )


def _is_flag(value: object) -> bool:
    return isinstance(value, bool | np.bool_) or whole_number(value) in (0, 1)


def static_data(spec: TensorSpec, data: npt.ArrayLike | None) -> npt.NDArray[Any] | None:
    """A copy of a constant's data as an array; numbers that come without a type get the tensor's.

    An array on memory that nobody can write any more is taken as it is.
    """
    if data is None or (isinstance(data, np.ndarray) and _lies_in_bytes(data)):
        return data
    try:
        return np.array(data, None if hasattr(data, "dtype") else spec.dtype.numpy)
    except (TypeError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        raise InvalidArgument(
            f"data of tensor {spec.name!r} is {type_in_words(data)} that cannot become"
            f" {spec.dtype.numpy}{list(spec.shape)}: {error}",
            _BAD_TENSOR,
        ) from error


def _lies_in_bytes(array: npt.NDArray[Any]) -> bool:
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return isinstance(owner, bytes)


class GraphDraft:
    """A graph that is being built: its tensors and nodes, in the form that the compiler takes.

    ``tensors`` holds the tensors of the graph; ``next_id`` gives each an id. One thread at a time changes a draft.
    """

    def __init__(self, graph: Graph, tensors: dict[str, Tensor], next_id: Callable[[], int]) -> None:
        self.nodes = 0
        self._graph = graph
        self._tensors = tensors
        self._next_id = next_id
        self._builder = GraphBuilder(graph.name)

    def add_tensor(self, spec: TensorSpec, data: npt.NDArray[Any] | None) -> Tensor:
        """Register a tensor."""
        self._builder.add_tensor(spec, data)
        tensor = self._tensors[spec.name] = Tensor(self._next_id(), spec, self._graph)
        return tensor

    def add_node(
        self, op: object, name: object, inputs: object, outputs: object, params: object, package: object
    ) -> None:
        """Add a node. A node without a name is named by its op and number."""
        op = check_name(op, "op")
        name = check_name(f"{op}_{self.nodes}" if name is None else name, "node")
        with error_context(graph=self._graph.name, node=name):
            call = self._op_call(op, name, inputs, outputs, params, package)
        self._builder.add_node(call)
        self.nodes += 1

    def take_over(self, source: IrGraph) -> None:
        """Begin with a whole graph that was built and verified elsewhere (an importer, say)."""
        self._graph.context.device.backend.op_packages.check(node.package for node in source.nodes)
        self._builder = GraphBuilder.resume(source, name=self._graph.name)
        for spec in source.tensors.values():
            self._tensors[spec.name] = Tensor(self._next_id(), spec, self._graph)
        self.nodes = len(source.nodes)

    def finish(self) -> IrGraph:
        """The graph as it is now, verified."""
        return self._builder.finish()

    def _op_call(
        self, op: str, name: str, inputs: object, outputs: object, params: object, package: object
    ) -> OpCall:
        """A node on tensors of this graph."""
        if params is not None and not isinstance(params, Mapping):
            raise InvalidArgument(
                f"params is {type_in_words(params)}; expected a mapping from parameter names to values",
                _BAD_NODE,
            )
        for key, value in (params or {}).items():
            if not isinstance(key, str) or not is_showable(value):
                raise InvalidArgument(
                    f"params gives {shown(key)} the value {shown(value)}; expected names and values of parameters",
                    _BAD_NODE,
                )
        specs_in = tuple(None if item is None else self._spec(item) for item in _listed("inputs", inputs))
        specs_out = tuple(self._spec(item) for item in _listed("outputs", outputs))
        self._graph.context.device.backend.op_packages.check([package])
        return OpCall(op, name, specs_in, specs_out, dict(params or {}), str(package))

    def _spec(self, item: object) -> TensorSpec:
        if isinstance(item, Tensor):
            if item.graph is not self._graph:
                raise InvalidHandle(
                    f"tensor {item.name!r} belongs to graph {item.graph.name!r}",
                    st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
                )
            return item.spec
        tensor = self._tensors.get(item) if isinstance(item, str) else None
        if tensor is None:
            raise InvalidArgument(f"tensor {shown(item)} is not in this graph; add it first", _BAD_NODE)
        return tensor.spec


def _listed(what: str, tensors: object) -> list[Any]:
    items = items_of(tensors)
    if items is None:
        raise InvalidArgument(f"{what} is {type_in_words(tensors)}; expected a list of tensors", _BAD_NODE)
    return items
