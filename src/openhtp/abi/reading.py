"""C structures as tensors, parameters and operations: what a library describes, or a client hands over.

The writer of a structure is not trusted: counts are bounded, NULL is refused, and what lies at an
address is copied by ``memory``, so that a structure filled in wrongly is an error with a name.

Weights of four bits in blocks (low power blockwise quantization) are expanded as the hardware does it: a channel
has one scale, and each of its blocks a small whole number by which that is multiplied. So a weight times the
number of its block is a number of eight bits in the channel's scale: a per-channel encoding, to the bit.
"""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.abi import memory
from openhtp.abi.numbers import (
    DEFINED,
    SPARSE_FORMAT,
    UNDEFINED,
    VERSION_1,
    VERSION_2,
    EncodingKind,
    MemoryKind,
    ParamKind,
)
from openhtp.abi.structs import struct
from openhtp.abi.writing import Array
from openhtp.core import status as st
from openhtp.core.dtype import DType
from openhtp.core.enumerations import DataFormat
from openhtp.core.errors import InvalidArgument
from openhtp.core.opcall import OpCall
from openhtp.core.quant import AxisScaleOffset, Encoding, ScaleOffset
from openhtp.core.tensor import MAX_RANK, TensorKind, TensorSpec

_MOST_CHANNELS = 1 << 20
_MOST_TENSORS = 1 << 16
_NUMBERS = {0: ctypes.c_uint8, 1: ctypes.c_uint16}
_MOST_BLOCKS = 1 << 26
_FOUR_BITS = (-8, 15)  # as they are, or the lower halves of bytes
_EIGHT_BITS = (-128, 127)
_NARROW = {DType.SFIXED_POINT_8: DType.SFIXED_POINT_4, DType.UFIXED_POINT_8: DType.UFIXED_POINT_4}


def spec_of(tensor: Any) -> TensorSpec:
    """A tensor of either version as a spec. One in blocks is described as ``data_of`` gives its data: expanded."""
    name = memory.text(tensor.name)
    if tensor.version not in (VERSION_1, VERSION_2):
        raise _bad_tensor(f"tensor {name!r} has version {tensor.version}; expected 1 or 2")
    shape = tuple(_array(ctypes.c_uint32, tensor.rank, tensor.dims, MAX_RANK, f"dimensions of tensor {name!r}"))
    quant, width = _encoding_of(tensor.quant, shape, name)
    if isinstance(quant, AxisScaleOffset):
        quant = _for_all_groups(quant, shape)
    dtype = DType.parse(tensor.data_type)
    dynamic: tuple[bool, ...] = ()
    elements = None
    if tensor.version == VERSION_2:
        if tensor.dynamic:
            dynamic = tuple(map(bool, memory.read(tensor.dynamic, tensor.rank, "flags of dynamic dimensions")))
        elements = tensor.sparse.elements or None
    data_format = tensor.data_format
    if data_format == SPARSE_FORMAT:
        if elements is None:
            raise _bad_tensor(
                f"tensor {name!r} is sparse and says of no element that it is specified; expected version 2, with"
                " the most elements that may be in its sparse parameters"
            )
        data_format = DataFormat.DENSE  # in the client's memory, whatever number of elements is specified
    return TensorSpec(
        name,
        shape,
        _NARROW.get(dtype, dtype) if width == 4 else dtype,
        quant,
        TensorKind.parse(tensor.kind),
        dynamic if any(dynamic) else (),
        elements,
        DataFormat.parse(data_format),
    )


def _for_all_groups(quant: AxisScaleOffset, shape: tuple[int, ...]) -> AxisScaleOffset:
    """The bias of a convolution in groups may have the scales of one group's channels, which are those of all."""
    groups = len(quant.scales)
    if len(shape) != 1 or quant.axis != 0 or groups >= shape[0] or shape[0] % groups:
        return quant
    times = shape[0] // groups
    return AxisScaleOffset(0, quant.scales * times, quant.offsets * times)


def widened(spec: TensorSpec) -> TensorSpec:
    """Numbers of four bits in bytes, the form in which they are computed with."""
    wide = {narrow: wide for wide, narrow in _NARROW.items()}
    return dataclasses.replace(spec, dtype=wide.get(spec.dtype, spec.dtype))


def data_of(tensor: Any, spec: TensorSpec) -> Array | None:
    """A copy of the data that a tensor carries, in bytes; None if it carries none. Its size must be the spec's."""
    if tensor.mem_type != MemoryKind.RAW or not tensor.buffer.data:
        return None
    if tensor.buffer.size != spec.nbytes:
        raise _bad_tensor(
            f"tensor {spec.name!r} has {tensor.buffer.size} bytes of data; expected {spec.nbytes} for {spec}"
        )
    content = memory.read(tensor.buffer.data, spec.nbytes, f"data of tensor {spec.name!r}")
    stored = np.frombuffer(content, spec.dtype.numpy).reshape(spec.shape)
    if spec.dtype is DType.SFIXED_POINT_4:
        # The sign is in the lower half of the byte.
        return (np.left_shift(stored, 4) >> 4).astype(np.int8)
    if _is_in_blocks(tensor.quant):
        return _expand(tensor.quant.of.expansion, spec, stored)
    return stored


def _is_in_blocks(params: Any) -> bool:
    return bool(params.definition == DEFINED and params.encoding == EncodingKind.BLOCKWISE_EXPANSION)


def _encoding_of(params: Any, shape: tuple[int, ...], name: str) -> tuple[Encoding | None, int | None]:
    """The encoding and, where it says so, the width of the stored numbers."""
    if params.definition != DEFINED:
        return None, None
    body = params.of
    if params.encoding == EncodingKind.SCALE_OFFSET and not body.scale_offset.scale:
        # A client's way to say that it has none, as for a bias whose scales follow from the weights'.
        return None, None
    if params.encoding == EncodingKind.SCALE_OFFSET:
        return ScaleOffset(body.scale_offset.scale, body.scale_offset.offset), None
    if params.encoding == EncodingKind.BW_SCALE_OFFSET:
        return ScaleOffset(body.bw.scale, body.bw.offset), body.bw.bitwidth
    if params.encoding == EncodingKind.AXIS_SCALE_OFFSET:
        axis = body.axis
        pairs = _array(struct("ScaleOffset"), axis.count, axis.scale_offsets, _MOST_CHANNELS, "scales of an axis")
        return AxisScaleOffset(axis.axis, tuple(p.scale for p in pairs), tuple(p.offset for p in pairs)), None
    if params.encoding == EncodingKind.BW_AXIS_SCALE_OFFSET:
        wide = body.bw_axis
        scales = _array(ctypes.c_float, wide.count, wide.scales, _MOST_CHANNELS, "scales of an axis")
        # Without offsets all are symmetric.
        offsets = (
            memory.array(ctypes.c_int32, wide.count, wide.offsets, "offsets of an axis") if wide.offsets else ()
        )
        return AxisScaleOffset(wide.axis, tuple(scales), tuple(offsets)), wide.bitwidth
    if _is_in_blocks(params):
        return _expansion_of(body.expansion, shape, name), None
    if params.encoding == UNDEFINED:
        return None, None
    raise _bad_tensor(
        f"tensor {name!r} has an encoding of kind {params.encoding}; expected one of"
        f" {', '.join(f'{kind.name.lower()} ({int(kind)})' for kind in EncodingKind)}"
    )


def static_inputs(config: Any) -> dict[str, Array]:
    """The data of an operation's constant inputs, as far as they are given."""
    arrays: dict[str, Array] = {}
    for tensor in _array(struct("Tensor"), config.num_inputs, config.inputs, _MOST_TENSORS, "inputs"):
        if tensor.kind == TensorKind.STATIC:
            spec = spec_of(tensor)
            data = data_of(tensor, spec)
            if data is not None:
                arrays[spec.name] = data
    return arrays


def op_parts(config: Any) -> tuple[Any, Any, Any]:
    """Inputs, outputs and parameters of an operation, as copies of their structures."""
    where = f"{memory.text(config.type)} {memory.text(config.name)!r}"
    inputs, outputs, params = (
        _array(struct(kind), count, first, _MOST_TENSORS, f"{what} of {where}")
        for what, kind, count, first in (
            ("inputs", "Tensor", config.num_inputs, config.inputs),
            ("outputs", "Tensor", config.num_outputs, config.outputs),
            ("parameters", "Param", config.num_params, config.params),
        )
    )
    return inputs, outputs, params


def call_of(config: Any) -> OpCall:
    """An operation as a call; a tensor of the kind NULL is an input left out."""
    if config.version != VERSION_1:
        raise _bad_config(f"an operation's description has version {config.version}; expected 1")
    name, op = memory.text(config.name), memory.text(config.type)
    where = f"{op} {name!r}"
    inputs, outputs, params = op_parts(config)
    return OpCall(
        op,
        name,
        tuple(None if tensor.kind == TensorKind.NULL else spec_of(tensor) for tensor in inputs),
        tuple(map(spec_of, outputs)),
        dict(param_of(param, where) for param in params),
        memory.text(config.package),
    )


def param_of(param: Any, where: str) -> tuple[str, Any]:
    """A parameter's name and value."""
    name = memory.text(param.name)
    if param.kind == ParamKind.SCALAR:
        dtype = DType.parse(param.of.scalar.data_type)
        return name, np.frombuffer(bytes(param.of.scalar.raw.bytes), dtype.numpy, 1)[0].item()
    if param.kind == ParamKind.TENSOR:
        data = data_of(param.of.tensor, spec_of(param.of.tensor))
        if data is None:
            raise _bad_config(f"parameter {name!r} of {where} is a tensor without data")
        return name, data
    raise _bad_config(f"parameter {name!r} of {where} has form {param.kind}; expected scalar (0) or tensor (1)")


def _array(kind: Any, count: int, address: int | None, most: int, what: str) -> Any:
    """An array of structures at an address, which is NULL only if there are none."""
    if count > most or (count and not address):
        raise _bad_tensor(f"{what}: {count} at {'NULL' if not address else 'an address'}; expected at most {most}")
    return memory.array(kind, count, address or 0, what) if count else ()


def _bad_tensor(message: str) -> InvalidArgument:
    return InvalidArgument(message, st.QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM)


def _bad_config(message: str) -> InvalidArgument:
    return InvalidArgument(message, st.QNN_GRAPH_ERROR_INVALID_OP_CONFIG)


def _expansion_of(address: int | None, shape: tuple[int, ...], name: str) -> AxisScaleOffset:
    """The encoding of the expanded weights."""
    layout = _blocks_at(address, shape, name)
    pairs = memory.array(
        struct("ScaleOffset"), shape[layout.axis], layout.scale_offsets or 0, f"scales of tensor {name!r}"
    )
    if any(pair.offset for pair in pairs):
        raise _bad_tensor(
            f"tensor {name!r} is quantized in blocks with an offset; expected none, it must be symmetric"
        )
    return AxisScaleOffset(layout.axis, tuple(pair.scale for pair in pairs))


def _expand(address: int | None, spec: TensorSpec, stored: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    """Weights times the numbers of their blocks."""
    layout = _blocks_at(address, spec.shape, spec.name)
    channels, axis = spec.shape[layout.axis], _block_axis(layout.axis, spec.shape)
    kind = _NUMBERS[layout.storage]
    count = channels * layout.blocks
    if spec.dtype is not DType.SFIXED_POINT_8 or count > _MOST_BLOCKS or spec.shape[axis] % layout.blocks:
        raise _bad_tensor(
            f"tensor {spec} is quantized in {layout.blocks} blocks; expected signed weights and a number of blocks"
            f" that divides the {spec.shape[axis]} elements of axis {axis}"
        )
    numbers = np.frombuffer(
        memory.read(layout.numbers or 0, count * ctypes.sizeof(kind), f"scales of the blocks of {spec.name!r}"),
        kind,
    ).reshape(channels, layout.blocks)
    if stored.size and not (_FOUR_BITS[0] <= stored.min() and stored.max() <= _FOUR_BITS[1]):
        raise _bad_tensor(f"tensor {spec.name!r} is quantized in blocks and has weights of more than four bits")
    spread = np.repeat(numbers.astype(np.int32), spec.shape[axis] // layout.blocks, axis=1)
    shape = [1] * spec.rank
    shape[layout.axis], shape[axis] = channels, spec.shape[axis]
    factors = (spread if layout.axis < axis else spread.T).reshape(shape)
    wide: npt.NDArray[Any] = (np.left_shift(stored, 4) >> 4).astype(np.int32) * factors
    if wide.size and not (_EIGHT_BITS[0] <= wide.min() and wide.max() <= _EIGHT_BITS[1]):
        raise _bad_tensor(
            f"tensor {spec.name!r} has weights of {wide.min()} to {wide.max()} once its blocks are expanded;"
            " expected eight bits, as from numbers of at most 16"
        )
    expanded: npt.NDArray[np.int8] = wide.astype(np.int8)
    return expanded


def _blocks_at(address: int | None, shape: tuple[int, ...], name: str) -> Any:
    layout = memory.structure(struct("BlockwiseExpansion"), address or 0, f"the encoding of tensor {name!r}")
    if len(shape) < 2 or not 0 <= layout.axis < len(shape) or not layout.blocks or layout.storage not in _NUMBERS:
        raise _bad_tensor(
            f"tensor {name!r} {list(shape)} is quantized in {layout.blocks} blocks on axis {layout.axis} with"
            f" scales stored as {layout.storage}; expected an existing axis, at least one block and storage 0 or 1"
        )
    return layout


def _block_axis(axis: int, shape: tuple[int, ...]) -> int:
    """The axis that blocks divide, which is that of the input channels: the last two axes are ``axis`` and it."""
    last = len(shape) - 1
    return last - 1 if axis == last else last
