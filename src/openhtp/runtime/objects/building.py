"""What a caller says about a tensor or a node, checked and put into the form that the builder takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.checks import is_showable, items_of, shown, whole_number
from openhtp.core.dtype import DType
from openhtp.core.enumerations import DataFormat
from openhtp.core.errors import InvalidArgument, InvalidHandle, UnsupportedFeature
from openhtp.core.opcall import OpCall
from openhtp.core.quant import Encoding
from openhtp.core.tensor import MAX_RANK, TensorKind, TensorSpec
from openhtp.runtime.objects.argument_checks import check_count, check_name, check_shape
from openhtp.runtime.objects.tensor import Tensor

if TYPE_CHECKING:
    from openhtp.runtime.objects.graph import Graph

_PACKAGE = "qti.aisw"
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
    """A spec of checked values; whether they go together is for the builder to say."""
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
    """The data of a constant as an array; numbers that come without a type get the tensor's."""
    if data is None:
        return None
    try:
        return np.asarray(data, None if hasattr(data, "dtype") else spec.dtype.numpy)
    except (TypeError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        raise InvalidArgument(
            f"data of tensor {spec.name!r} is a {type(data).__name__} that cannot become"
            f" {spec.dtype.numpy}{list(spec.shape)}: {error}",
            _BAD_TENSOR,
        ) from error


def op_call(
    graph: Graph, op: object, name: str, inputs: object, outputs: object, params: object, package: object
) -> OpCall:
    """A node on tensors of this graph."""
    if params is not None and not isinstance(params, Mapping):
        raise InvalidArgument(
            f"params is a {type(params).__name__}; expected a mapping from parameter names to values", _BAD_NODE
        )
    for key, value in (params or {}).items():
        if not isinstance(key, str) or not is_showable(value):
            raise InvalidArgument(
                f"params gives {shown(key)} the value {shown(value)}; expected names and values of parameters",
                _BAD_NODE,
            )
    specs_in = tuple(None if item is None else _spec(graph, item) for item in _listed("inputs", inputs))
    specs_out = tuple(_spec(graph, item) for item in _listed("outputs", outputs))
    if not isinstance(package, str) or package != _PACKAGE:
        raise UnsupportedFeature(
            f"op package {shown(package)} is not registered; expected {_PACKAGE!r}",
            st.QNN_BACKEND_ERROR_OP_PACKAGE_NOT_FOUND,
        )
    return OpCall(check_name(op, "op"), name, specs_in, specs_out, dict(params or {}), _PACKAGE)


def _listed(what: str, tensors: object) -> list[Any]:
    items = items_of(tensors)
    if items is None:
        raise InvalidArgument(f"{what} is a {type(tensors).__name__}; expected a list of tensors", _BAD_NODE)
    return items


def _spec(graph: Graph, item: object) -> TensorSpec:
    if isinstance(item, Tensor):
        if item.graph is not graph:
            raise InvalidHandle(
                f"tensor {item.name!r} belongs to graph {item.graph.name!r}", st.QNN_GRAPH_ERROR_INVALID_ARGUMENT
            )
        return item.spec
    tensor = graph._tensors.get(item) if isinstance(item, str) else None
    if tensor is None:
        raise InvalidArgument(f"tensor {shown(item)} is not in this graph; add it first", _BAD_NODE)
    return tensor.spec
