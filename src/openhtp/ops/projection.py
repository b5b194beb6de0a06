"""ImageProjectionTransform: an image read at places that a projective map gives for each pixel of the output.

The matrix is given as its first eight elements, row by row; the ninth is 1. Outside of the image there are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.ops._emit import Emitter
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._opdef import Constraint, OpDef, Param, Port, Sample, vector_work
from openhtp.ops._shapes import expect_rank, refuse
from openhtp.ops._types import rows

_MODES = {"BILINEAR": 0, "NEAREST_NEIGHBOR": 1}
# Far outside of any image: where a point has no place because its line of sight is parallel to the image.
_NOWHERE = -16.0


def _infer(node: Node) -> tuple[Shape, ...]:
    shape, given = expect_rank(node, 0, 4), node.shape(1)
    if given not in ((8,), (1, 8), (shape[0], 8)):
        refuse(node, f"input 1 has shape {list(given)}; expected [8] or [{shape[0]}, 8]")
    return (shape,)


def _places(matrix: Array, height: int, width: int) -> tuple[Array, Array]:
    """Where in the input each pixel of the output is: rows and columns."""
    a0, a1, a2, b0, b1, b2, c0, c1 = matrix
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    depth = c0 * x + c1 * y + 1
    safe = np.where(depth == 0, 1.0, depth)
    columns, rows_ = (a0 * x + a1 * y + a2) / safe, (b0 * x + b1 * y + b2) / safe
    return np.where(depth == 0, _NOWHERE, rows_), np.where(depth == 0, _NOWHERE, columns)


def _pixels(image: Array, row: Array, column: Array) -> Array:
    inside = (row >= 0) & (row < image.shape[0]) & (column >= 0) & (column < image.shape[1])
    held = np.clip(row, 0, image.shape[0] - 1), np.clip(column, 0, image.shape[1] - 1)
    return np.asarray(np.where(inside[..., None], image[held], 0.0))


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    images = arrays[0]
    matrices = np.broadcast_to(arrays[1].reshape(-1, 8), (len(images), 8))
    out = []
    for image, matrix in zip(images, matrices, strict=True):
        row, column = _places(matrix, *image.shape[:2])
        if node.params["interpolation_mode"]:
            away = [(np.sign(place) * np.floor(np.abs(place) + 0.5)).astype(int) for place in (row, column)]
            out.append(_pixels(image, away[0], away[1]))
            continue
        top, left = np.floor(row).astype(int), np.floor(column).astype(int)
        down, right = (row - top)[..., None], (column - left)[..., None]
        upper = (1 - right) * _pixels(image, top, left) + right * _pixels(image, top, left + 1)
        lower = (1 - right) * _pixels(image, top + 1, left) + right * _pixels(image, top + 1, left + 1)
        out.append((1 - down) * upper + down * lower)
    return (np.stack(out),)


def _emit_places(node: Node, e: Emitter) -> str:
    """Columns and rows of all output pixels in the input, [batch, height * width, 2]."""
    batch, height, width, _ = node.shape()
    y, x = np.mgrid[0:height, 0:width].reshape(2, -1)
    points = e.const(np.stack([x, y, np.ones_like(x)]).astype(np.float32))
    matrices = e.node("Reshape", [e.value(1), e.const(np.array([-1, 8], np.int64))])
    if node.input(1).elements == 8 and batch > 1:
        matrices = e.node("Expand", [matrices, e.const(np.array([batch, 8], np.int64))])
    ones = e.const(np.ones((batch, 1), np.float32))
    square = e.node(
        "Reshape",
        [e.node("Concat", [matrices, ones], axis=1), e.const(np.array([batch, 3, 3], np.int64))],
    )
    mapped = e.node("Transpose", [e.node("MatMul", [square, points])], perm=[0, 2, 1])
    split = e.const(np.array([2, 1], np.int64))
    place, depth = e.nodes("Split", [mapped, split], 2, axis=2)
    parallel = e.node("Equal", [depth, e.const(np.array(0.0, np.float32))])
    safe = e.node("Where", [parallel, e.const(np.array(1.0, np.float32)), depth])
    return e.node("Where", [parallel, e.const(np.array(_NOWHERE, np.float32)), e.node("Div", [place, safe])])


def _emit_nearest(e: Emitter, places: str) -> str:
    """The nearest pixel; of two, the one further from the first pixel."""
    half = e.const(np.array(0.5, np.float32))
    away = e.node("Floor", [e.node("Add", [e.node("Abs", [places]), half])])
    return e.node("Mul", [e.node("Sign", [places]), away])


def _lower(node: Node, e: Emitter) -> None:
    batch, height, width, _ = node.shape()
    places = _emit_places(node, e)
    nearest = bool(node.params["interpolation_mode"])
    if nearest:
        places = _emit_nearest(e, places)
    # The runtime counts from -1 at the image's first edge to 1 at its last.
    scale, edge = (
        np.array(pair, np.float32) for pair in ((2 / width, 2 / height), (1 / width - 1, 1 / height - 1))
    )
    grid = e.node("Add", [e.node("Mul", [places, e.const(scale)]), e.const(edge)])
    grid = e.node("Reshape", [grid, e.const(np.array([batch, height, width, 2], np.int64))])
    found = e.node(
        "GridSample",
        [e.permuted(0, (0, 3, 1, 2)), grid],
        align_corners=0,
        mode="nearest" if nearest else "linear",
        padding_mode="zeros",
    )
    e.put(0, e.node("Transpose", [found], perm=[0, 2, 3, 1]))


_SHAPES = ((2, 5, 6, 3), (2, 8))

OPS = (
    OpDef(
        name="ImageProjectionTransform",
        summary="in[0] read at the places that the projective map in[1] gives for each pixel; zeros outside",
        inputs=(Port("in[0]"), Port("in[1]")),
        outputs=(Port("out[0]"),),
        types=rows("f32 f32 > f32"),
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=vector_work(20),
        params=(Param("interpolation_mode", default=0, choices=_MODES),),
        constraints=(Constraint("the input is not dynamic", lambda node: not node.input().is_dynamic),),
        samples=(
            Sample(_SHAPES, ranges={1: (0.1, 0.9)}),
            Sample(((2, 5, 6, 3), (8,)), {"interpolation_mode": "NEAREST_NEIGHBOR"}, ranges={1: (0.1, 0.9)}),
        ),
    ),
)
