"""Ops that deal an image's pixels out over other axes: depth, batch, or a new order of channels.

All are a reshape, a transposition and a reshape. They are written once, on shapes with the batch first, and
lowered on stored numbers when the encoding stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from openhtp.ops._node import Arrays, Emitter, Node, Results, Shape, move
from openhtp.ops._opdef import FIXED_SHAPES, OpDef, Param, Sample, rows
from openhtp.ops._shapes import axis_in_range, expect_rank, last_axis, refuse

_TYPES = rows("T > T : f16 f32 u16 u8 s8")
_BLOCK = Param("block_size", rank=1, mandatory=True)
_MODE = Param("mode", default=0, choices={"DCR": 0, "CRD": 1})


@dataclass(frozen=True, slots=True)
class Deal:
    """Pad, split axes, reorder, join, crop."""

    split: Shape
    order: tuple[int, ...]
    joined: Shape
    pads: tuple[tuple[int, int], ...] = ()
    crops: tuple[tuple[int, int], ...] = ()

    @property
    def result(self) -> Shape:
        """Shape after cropping."""
        if not self.crops:
            return self.joined
        return tuple(size - sum(crop) for size, crop in zip(self.joined, self.crops, strict=True))


def _block(node: Node) -> tuple[int, int]:
    block = node.ints("block_size")
    if len(block) != 2 or min(block) < 1:
        refuse(node, f"block_size is {list(block)}; expected two numbers of at least 1")
    return block[0], block[1]


def _depth_to_space(node: Node) -> Deal:
    (n, h, w, depth), (bh, bw) = expect_rank(node, 0, 4), _block(node)
    if depth % (bh * bw):
        refuse(node, f"depth {depth} is not a multiple of the block's {bh} x {bw}")
    channels = depth // (bh * bw)
    joined = (n, h * bh, w * bw, channels)
    if node.params["mode"]:
        return Deal((n, h, w, channels, bh, bw), (0, 1, 4, 2, 5, 3), joined)
    return Deal((n, h, w, bh, bw, channels), (0, 1, 3, 2, 4, 5), joined)


def _space_to_depth(node: Node) -> Deal:
    (n, h, w, channels), (bh, bw) = expect_rank(node, 0, 4), _block(node)
    if h % bh or w % bw:
        refuse(node, f"image {h} x {w} is not a multiple of the block {bh} x {bw}")
    split = (n, h // bh, bh, w // bw, bw, channels)
    order = (0, 1, 3, 5, 2, 4) if node.params["mode"] else (0, 1, 3, 2, 4, 5)
    return Deal(split, order, (n, h // bh, w // bw, channels * bh * bw))


def _space_to_batch(node: Node) -> Deal:
    (n, h, w, channels), (bh, bw) = expect_rank(node, 0, 4), _block(node)
    (top, bottom), (left, right) = node.pairs("pad_amount")
    h, w = h + top + bottom, w + left + right
    if h % bh or w % bw:
        refuse(node, f"padded image {h} x {w} is not a multiple of the block {bh} x {bw}")
    split = (n, h // bh, bh, w // bw, bw, channels)
    pads = ((0, 0), (top, bottom), (left, right), (0, 0))
    return Deal(split, (2, 4, 0, 1, 3, 5), (n * bh * bw, h // bh, w // bw, channels), pads)


def _batch_to_space(node: Node) -> Deal:
    (n, h, w, channels), (bh, bw) = expect_rank(node, 0, 4), _block(node)
    if n % (bh * bw):
        refuse(node, f"batch {n} is not a multiple of the block's {bh} x {bw}")
    (top, bottom), (left, right) = node.pairs("crops")
    if top + bottom >= h * bh or left + right >= w * bw:
        refuse(node, f"crops leave nothing of the image {h * bh} x {w * bw}")
    split = (bh, bw, n // (bh * bw), h, w, channels)
    crops = ((0, 0), (top, bottom), (left, right), (0, 0))
    return Deal(split, (2, 3, 0, 4, 1, 5), (n // (bh * bw), h * bh, w * bw, channels), crops=crops)


def _channel_shuffle(node: Node) -> Deal:
    shape, groups = node.shape(), node.params["num_groups"]
    axis = axis_in_range(node, node.params["axis"], len(shape))
    if groups < 1 or shape[axis] % groups:
        refuse(node, f"{groups} groups do not divide the {shape[axis]} channels")
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    return Deal((before, groups, shape[axis] // groups, after), (0, 2, 1, 3), shape)


def _dealing(
    name: str, summary: str, deal: Callable[[Node], Deal], params: tuple[Param, ...], samples: tuple[Sample, ...]
) -> OpDef:
    def reference(node: Node, arrays: Arrays) -> Results:
        plan, x = deal(node), arrays[0]
        if plan.pads:
            x = np.pad(x, plan.pads)
        x = x.reshape(plan.split).transpose(plan.order).reshape(plan.joined)
        for axis, (begin, end) in enumerate(plan.crops):
            x = np.take(x, range(begin, x.shape[axis] - end), axis=axis)
        return (x,)

    def lower(node: Node, e: Emitter) -> None:
        plan = deal(node)

        def emit(x: str) -> str:
            x = e.node("Reshape", [x, e.ints(plan.split)])
            x = e.node("Transpose", [x], perm=list(plan.order))
            x = e.node("Reshape", [x, e.ints(plan.joined)])
            if plan.crops:
                begins = [begin for begin, _ in plan.crops]
                ends = [size - end for size, (_, end) in zip(plan.joined, plan.crops, strict=True)]
                x = e.node("Slice", [x, *(e.ints(numbers) for numbers in (begins, ends))])
            return x

        if any(map(any, plan.pads)):
            # Padding is with real zeros, so it is done on real values.
            numbers = [before for before, _ in plan.pads] + [after for _, after in plan.pads]
            e.put(0, emit(e.node("Pad", [e.value(0), e.ints(numbers)])))
        else:
            move(e, emit)

    return OpDef(
        name=name,
        summary=summary,
        types=_TYPES,
        infer=lambda node: (deal(node).result,),
        reference=reference,
        lower=lower,
        kind="transpose",
        params=params,
        constraints=(FIXED_SHAPES,),
        values_kept=True,
        moves_only=True,
        samples=samples,
    )


_EDGES = Param("pad_amount", rank=2, default=((0, 0), (0, 0)))
_CROPS = Param("crops", rank=2, default=((0, 0), (0, 0)))

OPS = (
    _dealing(
        "DepthToSpace",
        "blocks of channels become blocks of pixels",
        _depth_to_space,
        (_BLOCK, _MODE),
        (
            Sample(((1, 3, 4, 12),), {"block_size": [2, 3]}),
            Sample(((1, 3, 4, 8),), {"block_size": [2, 2], "mode": 1}),
        ),
    ),
    _dealing(
        "SpaceToDepth",
        "blocks of pixels become blocks of channels",
        _space_to_depth,
        (_BLOCK, _MODE),
        (
            Sample(((1, 4, 6, 3),), {"block_size": [2, 3]}),
            Sample(((1, 4, 4, 3),), {"block_size": [2, 2], "mode": 1}),
        ),
    ),
    _dealing(
        "SpaceToBatch",
        "blocks of pixels are dealt out over the batch",
        _space_to_batch,
        (_BLOCK, _EDGES),
        (Sample(((2, 3, 5, 3),), {"block_size": [2, 3], "pad_amount": [[0, 1], [1, 0]]}),),
    ),
    _dealing(
        "BatchToSpace",
        "images of the batch are interleaved into larger ones",
        _batch_to_space,
        (_BLOCK, _CROPS),
        (Sample(((8, 3, 2, 3),), {"block_size": [2, 2], "crops": [[1, 0], [0, 1]]}),),
    ),
    _dealing(
        "ChannelShuffle",
        "channels of the groups, taken in turn",
        _channel_shuffle,
        (Param("num_groups", mandatory=True), Param("axis", default=last_axis)),
        (Sample(((1, 3, 4, 12),), {"num_groups": 3}), Sample(((1, 6, 4, 2),), {"num_groups": 2, "axis": 1})),
    ),
)
