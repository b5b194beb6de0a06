"""How numbers are stored: Quantize, Dequantize and Convert keep real values, Cast keeps stored numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._elementwise import elementwise
from openhtp.ops._node import Arrays, Emitter, Node, Results
from openhtp.ops._opdef import OnnxRule, OpDef, Param, Sample, TypeRow, rows

_CONVERT_TYPES = rows(
    "f16|f32 > u8|u16|s8|s16|f16|f32",
    "u16 > u8|s8|b|u16|s16|f16|f32",
    "n8|u8|s8|b|s16 > u8|s8|b|u16|s16|f16|f32",
    "s32 > u8|s8|u16|s16|f16|f32",
)
_CAST_TYPES = rows(
    "f16|f32 > i32|f16|f32|n8|u8|s8|b|u16|n32|i64",
    "u16|s16 > n8|u8|s8|b|u16|s16|i32|f32",
    "n8|u8|s8|b > n8|u8|s8|b|n32|i32|f32|f16",
    "n32|i32 > n8|u8|s8|b|u16|n32|i32|i64|f32|f16",
    "i64 > n32|i32|i64|f32",
)
# What -1.0 or 300.0 becomes as one of these is up to the processor; of an integer, all keep the lowest bits.
_BETWEEN = {"uint8": "int32", "int8": "int32", "uint16": "int32", "int16": "int32", "uint32": "int64"}


def _lower_real(node: Node, e: Emitter) -> None:
    if e.same_encoding():
        return e.put_stored(0, e.stored(0))
    value, out = e.value(0), node.outputs[0].dtype
    if node.input().dtype in (DType.UINT_8, DType.BOOL_8):
        value = e.node("Cast", [value], to="float32")
    if out is DType.BOOL_8:
        return e.put_stored(0, e.node("Cast", [value], to="bool"))
    return e.put(0, value)


def _cast_reference(node: Node, arrays: Arrays) -> Results:
    source, target = node.input(), node.outputs[0]
    x = arrays[0]
    stored = x
    if source.quant is not None and source.dtype.is_fixed_point:
        stored = source.quant.quantize(x, *source.dtype.integer_range)
    if target.dtype is DType.BOOL_8:
        return (stored != 0,)
    if target.dtype.is_float:
        return (stored.astype(np.float64),)
    whole = np.trunc(stored).astype(np.int64).astype(target.dtype.numpy)
    if target.quant is not None and target.dtype.is_fixed_point:
        return (target.quant.dequantize(whole),)
    return (whole,)


def _lower_cast(node: Node, e: Emitter) -> None:
    source, target = node.input().dtype, node.outputs[0].dtype
    stored = e.value(0) if source.is_float else e.stored(0)
    if target.is_float:
        return e.put(0, stored if source.is_float else e.node("Cast", [stored], to="float32"))
    if source.numpy == target.numpy:
        return e.put_stored(0, stored)
    if source.is_float and target.numpy.name in _BETWEEN:
        between = np.dtype(_BETWEEN[target.numpy.name])
        whole = e.node("Cast", [stored], to=between.name)
        # The runtime makes one cast of two in a row.
        stored = e.node("BitwiseAnd", [whole, e.const(np.array(-1, between))])
    return e.put_stored(0, e.node("Cast", [stored], to=target.numpy.name))


def _storing(name: str, summary: str, types: tuple[TypeRow, ...], *, cast: bool = False, **facts: Any) -> OpDef:
    return elementwise(
        name,
        summary,
        types,
        _cast_reference if cast else lambda node, arrays: (arrays[0],),
        _lower_cast if cast else _lower_real,
        kind="affine",
        moves_only=True,
        by_stored_number=cast,
        onnx=(OnnxRule("Cast"),) if cast else (),
        samples=(Sample(((1, 5, 4, 3),), low=-3.0, high=3.0),),
        **facts,
    )


OPS = (
    _storing("Quantize", "in[0] in the output's encoding", rows("f32|f16 > u16|u8|s8|s16|s32")),
    _storing("Dequantize", "real values of in[0]", rows("u16|u8|s8|s16|s32 > f16|f32")),
    _storing(
        "Convert",
        "the same real values in the output's type and encoding",
        _CONVERT_TYPES,
        params=(
            Param("dynamic_input_data", DType.BOOL_8, default=False),
            Param("dynamic_output_data", DType.BOOL_8, default=False),
        ),
    ),
    _storing("Cast", "the same stored numbers in the output's type", _CAST_TYPES, cast=True),
)
