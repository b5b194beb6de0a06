"""Operators that move elements and compute nothing.

Reshape and its family, Expand, Tile, Transpose and Identity rename axes or repeat elements; Slice, Split, Concat,
Pad, DepthToSpace and SpaceToDepth cut, join or surround.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from openhtp.frontend import values as vs
from openhtp.frontend.site import Site
from openhtp.frontend.values import OnnxValue

_PADS = {"constant": "CONSTANT", "reflect": "MIRROR_REFLECT", "edge": "EDGE"}


def _same_elements(site: Site) -> None:
    """Rename the axes: the shape of the output is known by now."""
    value, (dtype, quant) = site.value(0), site.stored_as()
    shape = site.out_type().shape
    if value.data is not None and (value.dtype, value.quant) == (dtype, quant):
        result = OnnxValue(site.node.outputs[0], shape, dtype, quant, value.data.reshape(shape))
        site.result(0, result)
        return
    site.emit("Reshape", [site.in_order(0)], [site.give()])


def _transpose(site: Site) -> None:
    """No node: the same tensors, seen with their axes in another order."""
    value = site.value(0)
    perm = [site.axis(axis, value.rank) for axis in site.attr("perm") or reversed(range(value.rank))]
    if sorted(perm) != list(range(value.rank)):
        site.refuse(f"perm {perm} does not name each of {value.rank} axes once")
    shape = tuple(value.shape[axis] for axis in perm)
    dtype, quant = site.stored_as()
    turned = OnnxValue(site.node.outputs[0], shape, value.dtype, vs.moved_encoding(value.quant, tuple(perm)))
    turned.forms = vs.transposed_forms(value, perm)
    if value.data is not None:
        turned.data = value.data.transpose(perm)
    site.result(0, site.assembly.converted(turned, dtype, quant))


def _identity(site: Site) -> None:
    if site.is_used(1):
        site.refuse("its second output (mask) is used", "only the first is supported")
    if site.node.op_type == "Dropout" and site.has(2) and bool(site.constant(2)):
        site.refuse("it is in training mode")
    site.result(0, site.assembly.converted(site.value(0), *site.stored_as()))


def _expand(site: Site) -> None:
    value, shape = site.value(0), site.out_type().shape
    whole = (1,) * (len(shape) - value.rank) + value.shape
    multiples = [size // present if present == 1 else 1 for size, present in zip(shape, whole, strict=True)]
    _tile_by(site, whole, multiples)


def _tile(site: Site) -> None:
    _tile_by(site, site.type(0).shape, site.ints(1))


def _tile_by(site: Site, whole: tuple[int, ...], multiples: list[int]) -> None:
    value = site.value(0)
    if value.shape != whole:
        value = site.reshaped(value, whole)
    if all(times == 1 for times in multiples):
        # No node: the vendor's library does not survive a Tile that repeats nothing.
        site.result(0, site.assembly.converted(value, *site.stored_as()))
        return
    perm = next(iter(value.forms), vs.identity(len(whole)))
    params = {"multiples": vs.permuted(multiples, perm)}
    site.emit_kept("Tile", [site.assembly.form(value, perm)], [site.give(0, perm)], params)


def _concat(site: Site) -> None:
    rank = len(site.out_type().shape)
    axis = site.axis(site.attr("axis", 1), rank)
    indexes = [index for index in range(len(site.node.inputs)) if site.has(index)]
    perm = site.common_perm(indexes, rank)
    inputs = [site.assembly.form(site.matched(site.value(index)), perm) for index in indexes]
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


def _blocks(site: Site) -> None:
    block, perm = site.attr("blocksize"), vs.channel_last(4)
    params = {"block_size": [block, block], "mode": site.attr("mode", "DCR")}
    site.emit_kept(site.node.op_type, [site.take(0, perm)], [site.give(0, perm)], params)


RULES = {
    "Concat": _concat,
    "DepthToSpace": _blocks,
    "Dropout": _identity,
    "Expand": _expand,
    "Flatten": _same_elements,
    "Identity": _identity,
    "Pad": _pad,
    "Reshape": _same_elements,
    "Slice": _slice,
    "SpaceToDepth": _blocks,
    "Split": _split,
    "Squeeze": _same_elements,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _same_elements,
}

KEEPS = tuple(name for name in RULES if name not in ("Concat", "Pad"))
