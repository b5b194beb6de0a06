"""An image read at places that a second tensor gives.

GridSample takes the places themselves, from -1 (first edge) to 1 (last edge). ImageProjectionTransform takes a
projective map for each pixel of the output: the first eight elements of the matrix, row by row; the ninth is 1.
Outside of the image there are zeros.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._node import Array, Arrays, Emitter, Layout, Node, Results, Shapes
from openhtp.ops._opdef import FIXED_SHAPES, TWO_INPUTS, OpDef, Param, Sample, rows, vector_work
from openhtp.ops._shapes import expect_rank, refuse

_MODES = {"BILINEAR": 0, "NEAREST": 1}
_PADDINGS = {"ZEROS": 0, "BORDER": 1, "REFLECTION": 2}


def _infer(node: Node) -> Shapes:
    shape, grid = expect_rank(node, 0, 4, 5), node.shape(1)
    if len(grid) != len(shape) or grid[0] != shape[0] or grid[-1] != len(shape) - 2:
        refuse(
            node, f"grid has shape {list(grid)}; expected [{shape[0]}, ..., {len(shape) - 2}] of rank {len(shape)}"
        )
    return ((*grid[:-1], shape[-1]),)


def _reflected(coordinate: Array, size: int, corners: bool) -> Array:
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    span = max(high - low, 1e-9)
    folded = np.abs(np.mod(coordinate - low, 2 * span))
    return np.asarray(low + np.where(folded > span, 2 * span - folded, folded))


def _reference(node: Node, arrays: Arrays) -> Results:
    x, grid = arrays
    sizes, corners, padding = x.shape[1:-1], node.params["align_corners"], node.params["padding_mode"]
    places = []
    for axis, size in enumerate(sizes):
        coordinate = grid[..., len(sizes) - 1 - axis]
        position = (coordinate + 1) / 2 * (size - 1) if corners else ((coordinate + 1) * size - 1) / 2
        if padding == _PADDINGS["REFLECTION"]:
            position = _reflected(position, size, corners)
        if padding != _PADDINGS["ZEROS"]:
            position = np.clip(position, 0, size - 1)
        places.append(position)
    if node.params["mode"] == _MODES["NEAREST"]:
        return (_pick(x, [np.rint(position).astype(int) for position in places]),)
    return (_interpolate(x, places),)


def _interpolate(x: Array, places: Sequence[Array]) -> Array:
    out = np.zeros((*places[0].shape, x.shape[-1]))
    floors = [np.floor(position).astype(int) for position in places]
    for corner in itertools.product((0, 1), repeat=len(places)):
        weight = np.ones(places[0].shape)
        for side, position, floor in zip(corner, places, floors, strict=True):
            weight = weight * (position - floor if side else 1 - (position - floor))
        out += weight[..., None] * _pick(x, [floor + side for side, floor in zip(corner, floors, strict=True)])
    return out


def _pick(x: Array, places: Sequence[Array]) -> Array:
    """Pixels at whole places; zero outside the image."""
    inside = np.ones(places[0].shape, bool)
    for index, size in zip(places, x.shape[1:-1], strict=True):
        inside &= (index >= 0) & (index < size)
    batch = np.arange(x.shape[0]).reshape(-1, *[1] * (places[0].ndim - 1))
    nearest = [np.clip(index, 0, size - 1) for index, size in zip(places, x.shape[1:-1], strict=True)]
    return np.asarray(np.where(inside[..., None], x[(batch, *nearest)], 0.0))


def _put_sampled(node: Node, e: Emitter, image: str, grid: str, mode: int, **attrs: Any) -> None:
    rank = node.input().rank
    out = e.node("GridSample", [image, grid], mode=("linear", "nearest")[mode], **attrs)
    e.put(0, e.node("Transpose", [out], perm=[0, *range(2, rank), 1]))


def _lower(node: Node, e: Emitter) -> None:
    rank, params = node.input().rank, node.params
    _put_sampled(
        node,
        e,
        e.permuted(0, (0, rank - 1, *range(1, rank - 1))),
        e.value(1),
        params["mode"],
        align_corners=int(params["align_corners"]),
        padding_mode=("zeros", "border", "reflection")[params["padding_mode"]],
    )


_SHAPES = ((1, 5, 6, 3), (1, 4, 4, 2))
_PLACES = {1: (-1.2, 1.2)}

_PROJECTION_MODES = {"BILINEAR": 0, "NEAREST_NEIGHBOR": 1}
# Far outside of any image: where a point has no place because its line of sight is parallel to the image.
_NOWHERE = -16.0


def _projection_infer(node: Node) -> Shapes:
    shape, matrix_shape = expect_rank(node, 0, 4), node.shape(1)
    if matrix_shape not in ((8,), (1, 8), (shape[0], 8)):
        refuse(node, f"input 1 has shape {list(matrix_shape)}; expected [8] or [{shape[0]}, 8]")
    return (shape,)


def _places(matrix: Array, height: int, width: int) -> tuple[Array, Array]:
    """Where in the input each pixel of the output is: rows and columns."""
    a0, a1, a2, b0, b1, b2, c0, c1 = matrix
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    depth = c0 * x + c1 * y + 1
    safe = np.where(depth == 0, 1.0, depth)
    columns, rows_ = (a0 * x + a1 * y + a2) / safe, (b0 * x + b1 * y + b2) / safe
    return np.where(depth == 0, _NOWHERE, rows_), np.where(depth == 0, _NOWHERE, columns)


def _projection_reference(node: Node, arrays: Arrays) -> Results:
    images = arrays[0]
    matrices = np.broadcast_to(arrays[1].reshape(-1, 8), (len(images), 8))
    out = []
    for image, matrix in zip(images, matrices, strict=True):
        row, column = _places(matrix, *image.shape[:2])
        places = [row[None], column[None]]
        if node.params["interpolation_mode"]:
            # Of two pixels that are equally near, the one further from the first pixel.
            out.append(_pick(image[None], [(np.sign(p) * np.floor(np.abs(p) + 0.5)).astype(int) for p in places]))
        else:
            out.append(_interpolate(image[None], places))
    return (np.concatenate(out),)


def _emit_places(node: Node, e: Emitter) -> str:
    """Columns and rows of all output pixels in the input, [batch, height * width, 2]."""
    batch, height, width, _ = node.shape()
    y, x = np.mgrid[0:height, 0:width].reshape(2, -1)
    points = e.const(np.stack([x, y, np.ones_like(x)]).astype(np.float32))
    matrices = e.node("Reshape", [e.value(1), e.ints([-1, 8])])
    if node.input(1).elements == 8 and batch > 1:
        matrices = e.node("Expand", [matrices, e.ints([batch, 8])])
    ones = e.const(np.ones((batch, 1), np.float32))
    square = e.node("Reshape", [e.node("Concat", [matrices, ones], axis=1), e.ints([batch, 3, 3])])
    mapped = e.node("Transpose", [e.node("MatMul", [square, points])], perm=[0, 2, 1])
    lateral, depth = e.nodes("Split", [mapped, e.ints([2, 1])], 2, axis=2)
    parallel = e.node("Equal", [depth, e.floats(0.0)])
    safe = e.node("Where", [parallel, e.floats(1.0), depth])
    return e.node("Where", [parallel, e.floats(_NOWHERE), e.node("Div", [lateral, safe])])


def _emit_nearest(e: Emitter, places: str) -> str:
    """The nearest pixel; of two, the one further from the first pixel."""
    away = e.node("Floor", [e.node("Add", [e.node("Abs", [places]), e.floats(0.5)])])
    return e.node("Mul", [e.node("Sign", [places]), away])


def _projection_lower(node: Node, e: Emitter) -> None:
    batch, height, width, _ = node.shape()
    places = _emit_places(node, e)
    nearest = bool(node.params["interpolation_mode"])
    if nearest:
        places = _emit_nearest(e, places)
    # The runtime counts from -1 at the image's first edge to 1 at its last.
    scaled = e.node("Mul", [places, e.floats([2 / width, 2 / height])])
    grid = e.node("Add", [scaled, e.floats([1 / width - 1, 1 / height - 1])])
    grid = e.node("Reshape", [grid, e.ints([batch, height, width, 2])])
    image = e.permuted(0, (0, 3, 1, 2))
    _put_sampled(node, e, image, grid, nearest, align_corners=0, padding_mode="zeros")


OPS = (
    OpDef(
        name="GridSample",
        summary="in[0] at the places in[1], interpolated",
        inputs=TWO_INPUTS,
        types=rows("T T > T : f16 f32 u16 u8"),
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=vector_work(16),
        kind="resize",
        params=(
            Param("align_corners", DType.BOOL_8, default=False),
            Param("mode", default=0, choices=_MODES),
            Param("padding_mode", default=0, choices=_PADDINGS),
        ),
        layout=Layout.OWN,
        samples=(
            Sample(_SHAPES, ranges=_PLACES),
            Sample(_SHAPES, {"align_corners": True, "padding_mode": 1}, ranges=_PLACES),
            Sample(_SHAPES, {"padding_mode": 2}, ranges=_PLACES),
        ),
    ),
    OpDef(
        name="ImageProjectionTransform",
        summary="in[0] read at the places that the projective map in[1] gives for each pixel; zeros outside",
        inputs=TWO_INPUTS,
        types=rows("f32 f32 > f32"),
        infer=_projection_infer,
        reference=_projection_reference,
        lower=_projection_lower,
        work=vector_work(20),
        params=(Param("interpolation_mode", default=0, choices=_PROJECTION_MODES),),
        constraints=(FIXED_SHAPES,),
        samples=(
            Sample(((2, 5, 6, 3), (2, 8)), ranges={1: (0.1, 0.9)}),
            Sample(((2, 5, 6, 3), (8,)), {"interpolation_mode": "NEAREST_NEIGHBOR"}, ranges={1: (0.1, 0.9)}),
        ),
    ),
)
