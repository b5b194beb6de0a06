"""Tensors, parameters and operations as C structures.

A library that reads them checks little and crashes on much (missing dimensions, short static data, NULL names), so
all is checked here before a structure exists. Each function takes a ``keep`` list and puts there whatever the
structure points at; the caller holds it for as long as the other side may look.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from openhtp.abi.numbers import (
    DEFINED,
    SPARSE_FORMAT,
    UNDEFINED,
    VERSION_1,
    VERSION_2,
    EncodingKind,
    ParamKind,
    SparseKind,
)
from openhtp.abi.structs import struct
from openhtp.core import status as st
from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument
from openhtp.core.opcall import OpCall
from openhtp.core.quant import AxisScaleOffset, Encoding, ScaleOffset
from openhtp.core.tensor import MAX_RANK, TensorKind, TensorSpec

Array = npt.NDArray[Any]
# An operation's parameters with the forms and types that its definition prescribes.
Params = Mapping[str, tuple[Any, DType, Literal["scalar", "tensor"]]]

_U32_MAX = 0xFFFFFFFF
_I32 = (-(1 << 31), (1 << 31) - 1)


def c_text(text: str, what: str, keep: list[Any]) -> int:
    """Address of a C string. Empty names and names with a zero byte are refused."""
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidArgument(f"{what} is {text!r}; expected text without zero bytes, at least one character")
    buffer = ctypes.create_string_buffer(text.encode())
    keep.append(buffer)
    return ctypes.addressof(buffer)


def check_spec(spec: TensorSpec) -> None:
    """Refuse what the other side would misread, crash on, or accept and then compute nonsense from."""
    if spec.rank > MAX_RANK:
        raise _bad_tensor(f"tensor {spec.name!r} has rank {spec.rank}; expected at most {MAX_RANK}")
    if any(not 1 <= size <= _U32_MAX for size in spec.shape):
        raise _bad_tensor(f"tensor {spec.name!r} has shape {list(spec.shape)}; expected sizes of at least 1")
    if spec.nbytes > _U32_MAX:
        raise _bad_tensor(f"tensor {spec.name!r} takes {spec.nbytes} bytes; expected less than 4 GiB")
    if spec.quant is not None:
        _check_encoding(spec, spec.quant)


def _check_encoding(spec: TensorSpec, quant: Encoding) -> None:
    if isinstance(quant, AxisScaleOffset):
        if not 0 <= quant.axis < spec.rank or len(quant.scales) != spec.shape[quant.axis]:
            raise _bad_tensor(
                f"tensor {spec.name!r} {list(spec.shape)} has {len(quant.scales)} scales on axis"
                f" {quant.axis}; expected one per index of an existing axis"
            )
        scales, offsets = quant.scales, quant.offsets
    else:
        scales, offsets = (quant.scale,), (quant.offset,)
    with np.errstate(over="ignore", under="ignore"):
        small = [float(np.float32(scale)) for scale in scales]
    if not all(scale > 0 and math.isfinite(scale) for scale in small):
        raise _bad_tensor(f"tensor {spec.name!r} has a scale that is 0 or infinite in 32 bits")
    if not all(_I32[0] <= offset <= _I32[1] for offset in offsets):
        raise _bad_tensor(f"tensor {spec.name!r} has an offset that does not fit 32 bits")


def _bad_tensor(message: str) -> InvalidArgument:
    return InvalidArgument(message, st.QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM)


def tensor_struct(spec: TensorSpec, data: Array | None, keep: list[Any]) -> ctypes.Structure:
    """The C form of a tensor, with its data if it is static; version 2 only where version 1 cannot say it."""
    check_spec(spec)
    tensor = struct("Tensor")(version=VERSION_1, kind=int(spec.kind), rank=spec.rank)
    if spec.is_dynamic or spec.sparse_elements is not None:
        _fill_version_2(tensor, spec, keep)
    tensor.name = c_text(spec.name, "tensor name", keep)
    tensor.data_type = int(_stored_type(spec.dtype))
    tensor.data_format = int(spec.data_format) if spec.sparse_elements is None else SPARSE_FORMAT
    # Never NULL: the library reads the dimensions whatever the rank says.
    dims = (ctypes.c_uint32 * max(1, spec.rank))(*spec.shape)
    tensor.dims = ctypes.addressof(dims)
    keep.append(dims)
    fill_encoding(tensor.quant, spec, keep)
    if spec.kind.is_static:
        if data is None:
            raise _bad_tensor(f"static tensor {spec.name!r} has no data")
        stored = static_bytes(spec, data)
        keep.append(stored)
        tensor.buffer.data, tensor.buffer.size = stored.ctypes.data, stored.nbytes
    elif data is not None:
        raise _bad_tensor(f"tensor {spec.name!r} is {spec.kind.name}; only static tensors have data")
    keep.append(tensor)
    return tensor  # type: ignore[no-any-return]


def _fill_version_2(tensor: Any, spec: TensorSpec, keep: list[Any]) -> None:
    tensor.version = VERSION_2
    tensor.sparse.layout = UNDEFINED
    if spec.is_dynamic:
        flags = (ctypes.c_uint8 * spec.rank)(*spec.dynamic)
        tensor.dynamic = ctypes.addressof(flags)
        keep.append(flags)
    if spec.sparse_elements is not None:
        tensor.sparse.layout, tensor.sparse.elements = SparseKind.HYBRID_COO, spec.sparse_elements
        tensor.sparse.dimensions = spec.rank


def null_tensor() -> ctypes.Structure:
    """The tensor that stands for an optional input left out before one that is given."""
    tensor = struct("Tensor")(version=VERSION_1, kind=int(TensorKind.NULL), data_type=UNDEFINED)
    tensor.quant.definition = tensor.quant.encoding = UNDEFINED
    return tensor  # type: ignore[no-any-return]


def given_inputs(call: OpCall) -> tuple[TensorSpec | None, ...]:
    """A node's inputs without the optional ones left out at the end, which the library wants absent."""
    count = len(call.inputs)
    while count and call.inputs[count - 1] is None:
        count -= 1
    return call.inputs[:count]


def _stored_type(dtype: DType) -> DType:
    # 4-bit weights are declared as 8-bit ones whose encoding says 4 bits.
    return {DType.SFIXED_POINT_4: DType.SFIXED_POINT_8, DType.UFIXED_POINT_4: DType.UFIXED_POINT_8}.get(
        dtype, dtype
    )


def static_bytes(spec: TensorSpec, data: Array) -> Array:
    """A private copy of static data in the form the library reads: it trusts the size it computes itself."""
    array = as_stored(spec, data, spec.shape)
    if spec.dtype.bits == 4:
        low, high = spec.dtype.integer_range
        if array.size and not (low <= array.min() and array.max() <= high):
            raise _bad_tensor(f"tensor {spec.name!r} has values outside {low}..{high}")
        # The upper half of each byte must be clear: the library does not ignore it.
        return (array.view(np.uint8) & 0x0F).copy()
    return array.copy()


def as_stored(spec: TensorSpec, data: Array, shape: Sequence[int]) -> Array:
    """Contiguous data of exactly the tensor's type and of ``shape``, or an error naming the difference."""
    array = np.asarray(data)
    if array.dtype != spec.dtype.numpy:
        raise InvalidArgument(
            f"tensor {spec.name!r} got data of type {array.dtype}; expected {spec.dtype.numpy}",
            st.QNN_GRAPH_ERROR_INVALID_TENSOR,
        )
    if array.shape != tuple(shape):
        raise InvalidArgument(
            f"tensor {spec.name!r} got data of shape {list(array.shape)}; expected {list(shape)}",
            st.QNN_GRAPH_ERROR_INVALID_TENSOR,
        )
    return np.ascontiguousarray(array).reshape(shape)


def as_target(spec: TensorSpec, array: Array, shape: Sequence[int]) -> Array:
    """An array that the library may write a tensor into: right in type and shape, and in one piece."""
    as_stored(spec, array, shape)
    if not (array.flags.c_contiguous and array.flags.writeable):
        raise InvalidArgument(
            f"tensor {spec.name!r} cannot be written into its array; expected a contiguous, writable one",
            st.QNN_GRAPH_ERROR_INVALID_TENSOR,
        )
    return array


def fill_encoding(params: Any, spec: TensorSpec, keep: list[Any]) -> None:
    """Write a tensor's encoding, or that it has none, into its place in a structure."""
    quant, four_bit = spec.quant, spec.dtype.bits == 4
    if quant is None:
        if four_bit:
            raise _bad_tensor(
                f"4-bit tensor {spec.name!r} has no encoding; the library needs one to tell its width"
            )
        params.definition = params.encoding = UNDEFINED
        return
    params.definition = DEFINED
    if isinstance(quant, ScaleOffset):
        params.encoding = EncodingKind.BW_SCALE_OFFSET if four_bit else EncodingKind.SCALE_OFFSET
        body = params.of.bw if four_bit else params.of.scale_offset
        body.scale, body.offset = quant.scale, quant.offset
        if four_bit:
            body.bitwidth = 4
        return
    count = len(quant.scales)
    if four_bit:
        params.encoding = EncodingKind.BW_AXIS_SCALE_OFFSET
        scales, offsets = (ctypes.c_float * count)(*quant.scales), (ctypes.c_int32 * count)(*quant.offsets)
        wide = params.of.bw_axis
        wide.bitwidth, wide.axis, wide.count = 4, quant.axis, count
        wide.scales, wide.offsets = ctypes.addressof(scales), ctypes.addressof(offsets)
        keep += [scales, offsets]
    else:
        params.encoding = EncodingKind.AXIS_SCALE_OFFSET
        pairs = (struct("ScaleOffset") * count)(*zip(quant.scales, quant.offsets, strict=True))
        axis = params.of.axis
        axis.axis, axis.count, axis.scale_offsets = quant.axis, count, ctypes.addressof(pairs)
        keep.append(pairs)


def param_value(name: str, value: Any, dtype: DType, node: str) -> Array:
    """A parameter's value as an array of its type, refusing values that the type cannot hold."""
    try:
        exact_array = np.asarray(value)
        array = exact_array.astype(dtype.numpy)
        exact = dtype.is_float or np.array_equal(array, exact_array)
    except (TypeError, ValueError, OverflowError):
        exact = False
    if not exact:
        raise InvalidArgument(
            f"parameter {name!r} of {node!r} is {value!r}; expected {dtype.short}",
            st.QNN_GRAPH_ERROR_INVALID_OP_CONFIG,
        )
    return np.ascontiguousarray(array).reshape(array.shape)


def scalar_param(name: str, value: Any, dtype: DType, node: str, keep: list[Any]) -> ctypes.Structure:
    """A parameter given by value."""
    array = param_value(name, value, dtype, node)
    if array.size != 1:
        raise InvalidArgument(
            f"parameter {name!r} of {node!r} has {array.size} values; expected one",
            st.QNN_GRAPH_ERROR_INVALID_OP_CONFIG,
        )
    param = struct("Param")(kind=ParamKind.SCALAR, name=c_text(name, f"parameter name of {node!r}", keep))
    param.of.scalar.data_type = int(dtype)
    stored = array.tobytes()
    param.of.scalar.raw.bytes[: len(stored)] = stored
    return param  # type: ignore[no-any-return]


def tensor_param(name: str, tensor: ctypes.Structure, node: str, keep: list[Any]) -> ctypes.Structure:
    """A parameter that is a static tensor, already created in the graph where there is one."""
    param = struct("Param")(kind=ParamKind.TENSOR, name=c_text(name, f"parameter name of {node!r}", keep))
    param.of.tensor = tensor
    return param  # type: ignore[no-any-return]


def op_config(
    call: OpCall,
    inputs: Sequence[ctypes.Structure],
    outputs: Sequence[ctypes.Structure],
    params: Sequence[ctypes.Structure],
    keep: list[Any],
) -> ctypes.Structure:
    """The C form of a node from the C forms of everything it uses (copied, ids included)."""
    config = struct("OpConfig")(version=VERSION_1)
    config.name = c_text(call.name, "node name", keep)
    config.package = c_text(call.package, f"package of {call.name!r}", keep)
    config.type = c_text(call.op, f"operation of {call.name!r}", keep)
    for count, field, kind, items in (
        ("num_params", "params", "Param", params),
        ("num_inputs", "inputs", "Tensor", inputs),
        ("num_outputs", "outputs", "Tensor", outputs),
    ):
        array = (struct(kind) * max(1, len(items)))(*items)
        keep.append(array)
        setattr(config, count, len(items))
        setattr(config, field, ctypes.addressof(array) if items else None)
    return config  # type: ignore[no-any-return]
