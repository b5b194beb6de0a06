"""GridSample: an image read at places that a second tensor gives, from -1 (first edge) to 1 (last edge)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._opdef import OpDef, Param, Port, Sample, vector_work
from openhtp.ops._shapes import expect_rank, refuse
from openhtp.ops._types import rows

_MODES = {"BILINEAR": 0, "NEAREST": 1}
_PADDINGS = {"ZEROS": 0, "BORDER": 1, "REFLECTION": 2}


def _infer(node: Node) -> tuple[Shape, ...]:
    shape, grid = expect_rank(node, 0, 4, 5), node.shape(1)
    if len(grid) != len(shape) or grid[0] != shape[0] or grid[-1] != len(shape) - 2:
        refuse(
            node, f"grid has shape {list(grid)}; expected [{shape[0]}, ..., {len(shape) - 2}] of rank {len(shape)}"
        )
    return ((*grid[:-1], shape[-1]),)


def _reflected(place: Array, size: int, corners: bool) -> Array:
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    span = max(high - low, 1e-9)
    folded = np.abs(np.mod(place - low, 2 * span))
    return np.asarray(low + np.where(folded > span, 2 * span - folded, folded))


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    x, grid = arrays
    sizes, corners, padding = x.shape[1:-1], node.params["align_corners"], node.params["padding_mode"]
    places = []
    for axis, size in enumerate(sizes):
        given = grid[..., len(sizes) - 1 - axis]
        place = (given + 1) / 2 * (size - 1) if corners else ((given + 1) * size - 1) / 2
        if padding == _PADDINGS["REFLECTION"]:
            place = _reflected(place, size, corners)
        if padding != _PADDINGS["ZEROS"]:
            place = np.clip(place, 0, size - 1)
        places.append(place)
    if node.params["mode"] == _MODES["NEAREST"]:
        return (_pick(x, [np.rint(place).astype(int) for place in places]),)
    out = np.zeros((*grid.shape[:-1], x.shape[-1]))
    floors = [np.floor(place).astype(int) for place in places]
    for corner in itertools.product((0, 1), repeat=len(sizes)):
        weight = np.ones(grid.shape[:-1])
        for side, place, floor in zip(corner, places, floors, strict=True):
            weight = weight * (place - floor if side else 1 - (place - floor))
        out += weight[..., None] * _pick(x, [floor + side for side, floor in zip(corner, floors, strict=True)])
    return (out,)


def _pick(x: Array, places: Sequence[Array]) -> Array:
    """Pixels at whole places; zero outside the image."""
    inside = np.ones(places[0].shape, bool)
    for place, size in zip(places, x.shape[1:-1], strict=True):
        inside &= (place >= 0) & (place < size)
    batch = np.arange(x.shape[0]).reshape(-1, *[1] * (places[0].ndim - 1))
    held = [np.clip(place, 0, size - 1) for place, size in zip(places, x.shape[1:-1], strict=True)]
    return np.asarray(np.where(inside[..., None], x[(batch, *held)], 0.0))


def _lower(node: Node, e: Emitter) -> None:
    rank = node.input().rank
    image = e.permuted(0, (0, rank - 1, *range(1, rank - 1)))
    out = e.node(
        "GridSample",
        [image, e.value(1)],
        align_corners=int(node.params["align_corners"]),
        mode=("linear", "nearest")[node.params["mode"]],
        padding_mode=("zeros", "border", "reflection")[node.params["padding_mode"]],
    )
    e.put(0, e.node("Transpose", [out], perm=[0, *range(2, rank), 1]))


_SHAPES = ((1, 5, 6, 3), (1, 4, 4, 2))
_PLACES = {1: (-1.2, 1.2)}

OPS = (
    OpDef(
        name="GridSample",
        summary="in[0] at the places in[1], interpolated",
        inputs=(Port("in[0]"), Port("in[1]")),
        outputs=(Port("out[0]"),),
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
            Sample(((1, 5, 6, 3), (1, 4, 4, 2)), ranges={1: (-1.2, 1.2)}),
            Sample(
                ((1, 5, 6, 3), (1, 4, 4, 2)), {"align_corners": True, "padding_mode": 1}, ranges={1: (-1.2, 1.2)}
            ),
            Sample(((1, 5, 6, 3), (1, 4, 4, 2)), {"padding_mode": 2}, ranges={1: (-1.2, 1.2)}),
        ),
    ),
)
