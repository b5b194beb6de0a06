"""Collects ONNX nodes and constants, and turns them into a model.

Large constants stay numpy arrays beside the model instead of being copied into it: the runtime takes them from
where they are, and a model of any size stays below protobuf's 2 GB.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.engine.onnx_messages import (
    ModelProto,
    TensorProto,
    make_graph,
    make_model,
    make_node,
    make_opset,
    make_value_info,
)

OPSET = 21
IR_VERSION = 10
# Constants below this are in the model itself: each one outside costs as much time as so many bytes inside.
INLINE_BYTES = 4095
# Sizes, axes and the like (always 64 bits wide) must be inside, as shape inference reads them.
_INLINE_SIZES_BYTES = 1 << 16
# The file name that a model gives for a constant. The runtime checks that such a file exists in this folder, but
# never opens it.
IN_MEMORY = "given-in-memory"

Array = npt.NDArray[Any]

_ONE_FOR_EACH = frozenset(("QuantizeLinear", "DequantizeLinear"))
_TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "float64": TensorProto.DOUBLE,
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
    "uint16": TensorProto.UINT16,
    "int16": TensorProto.INT16,
    "int32": TensorProto.INT32,
    "uint32": TensorProto.UINT32,
    "int64": TensorProto.INT64,
    "uint64": TensorProto.UINT64,
    "bool": TensorProto.BOOL,
}
_DTYPES = {number: np.dtype(name) for name, number in _TYPES.items()}


def onnx_type(dtype: npt.DTypeLike) -> int:
    """ONNX's number for a numpy type."""
    return int(_TYPES[np.dtype(dtype).name])


def numpy_type(number: int) -> np.dtype[Any]:
    """The numpy type of ONNX's number."""
    return _DTYPES[number]


def external_tensor(name: str, array: Array) -> Any:
    """An initializer whose data the session is given by name; the location is never opened."""
    tensor = TensorProto(name=name, data_type=onnx_type(array.dtype), dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=IN_MEMORY)
    tensor.external_data.add(key="length", value=str(array.nbytes))
    return tensor


def is_inline(dtype: np.dtype[Any], nbytes: int) -> bool:
    """Whether a constant of this size is kept inside the model."""
    return nbytes <= (_INLINE_SIZES_BYTES if dtype == np.int64 else INLINE_BYTES)


class OnnxGraph:
    """A graph in the making. Names it hands out start with the given prefix, so origins can be told later."""

    def __init__(self) -> None:
        self.external: dict[str, Array] = {}
        self.marks: dict[str, str] = {}
        # Products of one row, by the names of their results.
        self.products: dict[str, Any] = {}
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._initializers: list[Any] = []
        self._known: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._computed: dict[tuple[Any, ...], tuple[str, ...]] = {}
        self._domains: set[str] = set()
        self._count = 0
        self.prefix = "c"

    def fresh(self) -> str:
        """A new name."""
        self._count += 1
        return f"{self.prefix}/{self._count}"

    def node(
        self, op_type: str, inputs: Sequence[str], outputs: int = 1, domain: str = "", **attrs: Any
    ) -> tuple[str, ...]:
        """Add a node, unless an equal one is there; returns the names of its outputs.

        The runtime would merge equal ones as well, and with them the marks of roundings that are looked for later
        (``half.py``). Pairs of quantizing and dequantizing stay: it wants one for each operator.
        """
        if isinstance(attrs.get("to"), str):
            attrs["to"] = _TYPES[attrs["to"]]
        key = (op_type, domain, outputs, *inputs, *((name, _as_key(value)) for name, value in attrs.items()))
        if key in self._computed:
            return self._computed[key]
        names = tuple(self.fresh() for _ in range(outputs))
        if op_type not in _ONE_FOR_EACH:
            self._computed[key] = names
        if domain not in ("", "com.microsoft"):
            self._domains.add(domain)
        self._nodes.append(make_node(op_type, inputs, names, name=names[0], domain=domain, **attrs))
        return names

    def const(self, array: Array) -> str:
        """Add a constant; small equal ones are shared."""
        if not is_inline(array.dtype, array.nbytes):
            name = self.fresh()
            self.external[name] = np.asarray(array, order="C")
            self._initializers.append(external_tensor(name, array))
            return name
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            name = self.fresh()
            self._known[key] = name
            data = TensorProto(name=name, data_type=onnx_type(array.dtype), dims=array.shape)
            data.raw_data = array.tobytes()
            self._initializers.append(data)
        return self._known[key]

    def add_input(self, name: str, dtype: npt.DTypeLike, shape: Sequence[int | str]) -> None:
        """Declare a graph input."""
        self._inputs.append(make_value_info(name, onnx_type(dtype), shape))

    def add_output(self, name: str, source: str, dtype: npt.DTypeLike, shape: Sequence[int | str]) -> None:
        """Declare a graph output that has the value of ``source``."""
        self._nodes.append(make_node("Identity", [source], [name], name=name))
        self._outputs.append(make_value_info(name, onnx_type(dtype), shape))

    def model(self) -> Any:
        """The model, large constants left outside."""
        graph = make_graph(self._nodes, "program", self._inputs, self._outputs, self._initializers)
        opsets = [make_opset("", OPSET), make_opset("com.microsoft", 1)]
        opsets += [make_opset(domain, 1) for domain in sorted(self._domains)]
        return make_model(graph, opsets, IR_VERSION)


def _as_key(value: Any) -> Any:
    """An attribute as a part of a key: equal ones are of one type and have the same value, to the sign of 0."""
    if hasattr(value, "__iter__") and not isinstance(value, (str, bytes)):
        return tuple(map(_as_key, value))
    return type(value), repr(value)


def model_bytes(model: Any) -> bytes:
    """The model as bytes."""
    data: bytes = model.SerializeToString()
    return data


def parse_model(data: bytes) -> Any:
    """A model from bytes."""
    return ModelProto.FromString(data)
