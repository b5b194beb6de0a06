"""Operators that cut, join or surround: Slice, Split, Concat, Pad, DepthToSpace, SpaceToDepth."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from openhtp.frontend import values as vs
from openhtp.frontend.site import Site

_PADS = {"constant": "CONSTANT", "reflect": "MIRROR_REFLECT", "edge": "EDGE"}


def _concat(site: Site) -> None:
    rank = len(site.out_type().shape)
    axis = site.axis(site.attr("axis", 1), rank)
    indexes = [index for index in range(len(site.node.inputs)) if site.has(index)]
    perm = site.common_perm(indexes, rank)
    values = [site.value(index) for index in indexes]
    if site.is_fixed:
        values = [site.like(value, site.fixed_type) for value in values]
    inputs = [site.assembly.form(value, perm) for value in values]
    site.emit("Concat", inputs, [site.give(0, perm)], {"axis": perm.index(axis)})


def _split(site: Site) -> None:
    rank = len(site.type(0).shape)
    axis = site.axis(site.attr("axis", 0), rank)
    perm = site.common_perm([0], rank)
    sizes = [site.out_type(index).shape[axis] for index in range(len(site.node.outputs))]
    cuts = list(itertools.accumulate(sizes[:-1]))
    outputs = [site.give(index, perm) for index in range(len(sizes))]
    if len(outputs) == 1:
        site.emit("Transpose", [site.take(0, perm)], outputs, {"perm": vs.identity(rank)})
        return
    site.emit("Split", [site.take(0, perm)], outputs, {"axis": perm.index(axis), "split_index": cuts})


def _slice(site: Site) -> None:
    shape = site.type(0).shape
    rank = len(shape)
    if "starts" in site.node.attrs:
        starts, ends, steps = site.attr("starts"), site.attr("ends"), None
        axes = site.attr("axes")
    else:
        starts, ends = site.ints(1), site.ints(2)
        axes = site.ints(3) if site.has(3) else None
        steps = site.ints(4) if site.has(4) else None
    axes = axes if axes is not None else list(range(len(starts)))
    ranges = [[0, size, 1] for size in shape]
    for index, axis in enumerate(axes):
        axis = site.axis(axis, rank)
        step = steps[index] if steps is not None else 1
        if step == 0:
            site.refuse("a step is 0")
        begin, end, step = slice(starts[index], ends[index], step).indices(shape[axis])
        # Going backwards, -1 is "before the first"; QNN counts it from the end unless it is below the size.
        ranges[axis] = [begin, end if end >= 0 else -shape[axis] - 1, step]
    perm = site.common_perm([0], rank)
    placed = [ranges[axis] for axis in perm]
    site.emit("StridedSlice", [site.take(0, perm)], [site.give(0, perm)], {"ranges": np.array(placed, np.int32)})


def _pad(site: Site) -> None:
    shape = site.type(0).shape
    rank = len(shape)
    mode = site.attr("mode", "constant")
    if mode not in _PADS:
        site.refuse(f"mode {mode!r}", f"use {', '.join(_PADS)}")
    flat = list(site.attr("pads") or site.attr("paddings") or site.ints(1))
    axes = [site.axis(axis, rank) for axis in site.ints(3)] if site.has(3) else list(range(rank))
    pads = [[0, 0] for _ in shape]
    for index, axis in enumerate(axes):
        pads[axis] = [flat[index], flat[index + len(axes)]]
    fill = site.constant(2)
    if fill is None and site.has(2):
        site.refuse("the value to pad with is computed", "make it a constant")
    number = float(fill.reshape(-1)[0]) if fill is not None and fill.size else float(site.attr("value", 0.0))
    perm = site.common_perm([0], rank)
    x, out = site.take(0, perm), site.give(0, perm)
    placed = [pads[axis] for axis in perm]
    if any(pad < 0 for pair in placed for pad in pair):
        cut = [
            [max(0, -before), size - max(0, -after), 1]
            for size, (before, after) in zip(x.shape, placed, strict=True)
        ]
        inner = site.between(tuple(end - begin for begin, end, _ in cut), x)
        site.emit("StridedSlice", [x], [inner], {"ranges": np.array(cut, np.int32)})
        x, placed = inner, [[max(0, before), max(0, after)] for before, after in placed]
    params: dict[str, Any] = {"scheme": _PADS[mode], "pad_amount": placed}
    if mode == "constant":
        params["pad_constant_value"] = number
    site.emit("Pad", [x], [out], params)


def _depth_to_space(site: Site) -> None:
    block = site.attr("blocksize")
    perm = vs.channel_last(4)
    mode = site.attr("mode", "DCR")
    params = {"block_size": [block, block], "mode": mode}
    site.emit_kept("DepthToSpace", [site.take(0, perm)], [site.give(0, perm)], params)


def _space_to_depth(site: Site) -> None:
    block = site.attr("blocksize")
    perm = vs.channel_last(4)
    params = {"block_size": [block, block], "mode": site.attr("mode", "DCR")}
    site.emit_kept("SpaceToDepth", [site.take(0, perm)], [site.give(0, perm)], params)


RULES = {
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
}

KEEPS = ("DepthToSpace", "Slice", "SpaceToDepth", "Split")
