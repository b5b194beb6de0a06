"""ArgbToRgb, Nv12ToRgb and Nv21ToRgb: pictures as cameras give them, made into red, green and blue.

An NV12 picture is a plane of brightness (Y), then one of colour at half the resolution each way, in which blue (U)
and red (V) differences take turns; NV21 has V first. Bytes are pixels whatever their encoding says: the HTP
computes on stored numbers and rounds down.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorSpec
from openhtp.ops._node import Arrays, Emitter, Node, Results, Shapes, move
from openhtp.ops._opdef import Constraint, OpDef, Param, Sample, rows, vector_work
from openhtp.ops._shapes import expect_rank, refuse

# How much of U and V each colour takes, besides all of Y.
_FROM_U_V = np.array([[0.0, 1.403], [-0.344, -0.714], [1.773, 0.0]])
_MIDDLE = 128.0


def _argb_infer(node: Node) -> Shapes:
    shape = expect_rank(node, 0, 4)
    if shape[-1] != 4:
        refuse(node, f"input 0 has {shape[-1]} channels; expected 4")
    return ((*shape[:-1], 3),)


def _argb_reference(node: Node, arrays: Arrays) -> Results:
    return (arrays[0][..., 0:3] if node.params["input_order"] else arrays[0][..., 1:4],)


def _argb_lower(node: Node, e: Emitter) -> None:
    # The colours begin behind the opacity, or before it.
    first = 0 if node.params["input_order"] else 1
    places = [e.ints([number]) for number in (first, first + 3, 3)]
    move(e, lambda x: e.node("Slice", [x, *places]))


def _picture(node: Node) -> tuple[int, int, int]:
    """Batch, height and width; they are in the output's shape only, since the input is flat."""
    shape = node.outputs[0].shape
    if len(shape) != 4 or shape[3] != 3 or shape[1] % 2 or shape[2] % 2:
        refuse(node, f"output 0 has shape {list(shape)}; expected [batch, even height, even width, 3]")
    flat = (shape[0], shape[1] * shape[2] * 3 // 2)
    if node.shape() != flat:
        refuse(node, f"input 0 has shape {list(node.shape())}; expected {list(flat)} for this output")
    return shape[0], shape[1], shape[2]


def _yuv_infer(node: Node) -> Shapes:
    batch, height, width = _picture(node)
    return ((batch, height, width, 3),)


def _steps(spec: TensorSpec) -> ScaleOffset:
    return spec.quant if isinstance(spec.quant, ScaleOffset) else ScaleOffset(1.0, 0)


def _yuv(name: str, u_first: bool, words: str, samples: tuple[Sample, ...]) -> OpDef:
    weights = _FROM_U_V if u_first else _FROM_U_V[:, ::-1]

    def reference(node: Node, arrays: Arrays) -> Results:
        batch, height, width = _picture(node)
        source, target = _steps(node.input()), _steps(node.outputs[0])
        is_stored = node.input().dtype.is_fixed_point
        pixels = np.rint(arrays[0] / source.scale - source.offset) if is_stored else arrays[0]
        bright = pixels[:, : height * width].reshape(batch, height, width)
        pairs = pixels[:, height * width :].reshape(batch, height // 2, width // 2, 2) - _MIDDLE
        pairs = pairs.repeat(2, axis=1).repeat(2, axis=2)
        colours = bright[..., None] + np.einsum("bhwp,cp->bhwc", pairs, weights)
        if not is_stored:
            return (np.clip(colours, 0, 255),)
        return (target.dequantize(np.clip(np.floor(colours), 0, 255)),)

    def lower(node: Node, e: Emitter) -> None:
        batch, height, width = _picture(node)
        pixels = e.node("Cast", [e.stored(0)], to="float32")

        def part(begin: int, end: int, shape: Sequence[int]) -> str:
            places = [e.ints([number]) for number in (begin, end, 1)]
            return e.node("Reshape", [e.node("Slice", [pixels, *places]), e.ints(shape)])

        ones = (batch, height // 2, 1, width // 2, 1)
        pairs = part(height * width, height * width * 3 // 2, (*ones, 2))
        centred = e.node("Sub", [pairs, e.floats(_MIDDLE)])
        shares = e.node("MatMul", [centred, e.const(weights.T.astype(np.float32))])
        bright = part(0, height * width, (batch, height // 2, 2, width // 2, 2, 1))
        whole = e.node("Add", [bright, shares])
        colours = e.node("Reshape", [whole, e.ints([batch, height, width, 3])])
        if node.input().dtype.is_fixed_point:
            colours = e.node("Floor", [colours])
        limits = [e.floats(limit) for limit in (0.0, 255.0)]
        colours = e.node("Clip", [colours, *limits])
        if node.input().dtype.is_fixed_point:
            e.put_stored(0, e.node("Cast", [colours], to="uint8"))
        else:
            e.put(0, colours)

    return OpDef(
        name=name,
        summary=f"RGB image from an {name[:4].upper()} picture, which is flat: the output's shape tells its size",
        types=rows(words),
        infer=_yuv_infer,
        reference=reference,
        lower=lower,
        work=vector_work(6),
        params=(Param("output_order", DType.INT_32, mandatory=True, choices={"RGB": 0, "BGR": 1}),),
        constraints=(Constraint("output_order is RGB", lambda node: node.params["output_order"] == 0),),
        by_stored_number=True,
        samples=samples,
    )


def _sample(batch: int, height: int, width: int) -> Sample:
    flat = (batch, height * width * 3 // 2)
    return Sample((flat,), {"output_order": 0}, outputs=((batch, height, width, 3),), low=0.0, high=255.0)


_PICTURES = (_sample(1, 4, 6), _sample(2, 8, 2))

OPS = (
    OpDef(
        name="ArgbToRgb",
        summary="in[0] without its opacity, the first channel (input_order ARGB) or the last (RGBA)",
        types=rows("u8 > u8"),
        infer=_argb_infer,
        reference=_argb_reference,
        lower=_argb_lower,
        params=(
            Param("input_order", default=0, choices={"ARGB": 0, "RGBA": 1}),
            Param("reverse_output", DType.BOOL_8, mandatory=True),
        ),
        constraints=(Constraint("reverse_output is false", lambda node: not node.params["reverse_output"]),),
        values_kept=True,
        moves_only=True,
        samples=(
            Sample(((1, 3, 5, 4),), {"reverse_output": False}),
            Sample(((2, 2, 3, 4),), {"reverse_output": False, "input_order": "RGBA"}),
        ),
    ),
    _yuv("Nv12ToRgb", True, "T > T : f16 f32 u8", _PICTURES),
    _yuv("Nv21ToRgb", False, "u8 > u8", _PICTURES),
)
