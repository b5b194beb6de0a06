"""Pad: a border of a constant, of mirrored or of repeated values."""

from __future__ import annotations

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.quant import ScaleOffset
from openhtp.ops._node import Arrays, Emitter, Layout, Node, Results, Shapes
from openhtp.ops._opdef import Constraint, OpDef, Param, Sample, rows
from openhtp.ops._shapes import refuse

_SCHEMES = {"CONSTANT": 0, "MIRROR_SYMMETRIC": 1, "MIRROR_REFLECT": 2, "EDGE": 3}
_NUMPY = {0: "constant", 1: "symmetric", 2: "reflect", 3: "edge"}


def _infer(node: Node) -> Shapes:
    pads = node.pairs("pad_amount")
    if len(pads) != node.input().rank:
        refuse(node, f"pad_amount has {len(pads)} rows; expected one per axis of {list(node.shape())}")
    return (tuple(size + sum(pad) for size, pad in zip(node.shape(), pads, strict=True)),)


def _fill(node: Node) -> float:
    """The constant as a real value; an integer is a stored number of input 0."""
    value, quant = node.params["pad_constant_value"], node.input().quant
    if value is None:
        return 0.0
    if isinstance(value, int) and isinstance(quant, ScaleOffset):
        return quant.scale * (value + quant.offset)
    return float(value)


def _reference(node: Node, arrays: Arrays) -> Results:
    mode = _NUMPY[node.params["scheme"]]
    if mode == "constant":
        return (np.pad(arrays[0], node.pairs("pad_amount"), constant_values=_fill(node)),)
    return (np.pad(arrays[0], node.pairs("pad_amount"), mode=mode),)  # type: ignore[call-overload]


def _lower(node: Node, e: Emitter) -> None:
    scheme, pads = node.params["scheme"], node.pairs("pad_amount")
    x = e.value(0)
    if scheme == _SCHEMES["MIRROR_SYMMETRIC"]:
        # ONNX has no such mode: pick the mirrored places axis by axis.
        for axis, (size, pad) in enumerate(zip(node.shape(), pads, strict=True)):
            if any(pad):
                places = np.pad(np.arange(size), pad, mode="symmetric")
                x = e.node("Gather", [x, e.const(places.astype(np.int64))], axis=e.axis(axis))
        return e.put(0, x)
    numbers = e.vector([before for before, _ in pads]) + e.vector([after for _, after in pads])
    inputs = [x, e.ints(numbers)]
    if scheme == _SCHEMES["CONSTANT"]:
        dtype = np.int32 if node.input().dtype is DType.INT_32 else np.float32
        inputs.append(e.const(np.array(_fill(node), dtype)))
    mode = {0: "constant", 2: "reflect", 3: "edge"}[scheme]
    return e.put(0, e.node("Pad", inputs, mode=mode))


def _mirror_fits(node: Node) -> bool:
    slack = {1: 0, 2: 1}.get(node.params["scheme"])
    if slack is None:
        return True
    return all(max(pad) <= size - slack for size, pad in zip(node.shape(), node.pairs("pad_amount"), strict=True))


_SHAPE = ((1, 4, 5, 3),)
_PADS = [[0, 0], [1, 2], [2, 1], [0, 0]]

OPS = (
    OpDef(
        name="Pad",
        summary="in[0] with a border on each axis",
        types=rows("T > T : f16 f32 u16 u8 s8 i32"),
        infer=_infer,
        reference=_reference,
        lower=_lower,
        kind="move",
        params=(
            Param("scheme", mandatory=True, choices=_SCHEMES),
            Param("pad_amount", rank=2, mandatory=True),
            Param("pad_constant_value", DType.FLOAT_32, stored_or_real=True),
        ),
        constraints=(Constraint("mirrored borders are no wider than the input", _mirror_fits),),
        layout=Layout.ANY,
        values_kept=True,
        moves_only=True,
        samples=(
            Sample(_SHAPE, {"scheme": "CONSTANT", "pad_amount": _PADS}),
            Sample(_SHAPE, {"scheme": "CONSTANT", "pad_amount": _PADS, "pad_constant_value": 1.0}),
            Sample(_SHAPE, {"scheme": "MIRROR_SYMMETRIC", "pad_amount": _PADS}),
            Sample(_SHAPE, {"scheme": "MIRROR_REFLECT", "pad_amount": _PADS}),
            Sample(_SHAPE, {"scheme": "EDGE", "pad_amount": _PADS}),
        ),
    ),
)
