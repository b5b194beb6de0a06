"""Reductions over axes, and the places of extremes."""

from __future__ import annotations

import functools

import numpy as np

from openhtp.core.dtype import DType
from openhtp.frontend.site import Site
from openhtp.frontend.values import Perm


def _axes(site: Site, rank: int) -> list[int] | None:
    """Axes to reduce, from the attribute or the input; None for a node that does nothing."""
    axes = site.attr("axes")
    if axes is None and site.has(1):
        axes = site.ints(1)
    if not axes:
        return None if site.attr("noop_with_empty_axes", 0) else list(range(rank))
    return sorted({site.axis(axis, rank) for axis in axes})


def _without(perm: Perm, axes: list[int]) -> Perm:
    """Order of the axes that are left when some are gone."""
    kept = [axis for axis in perm if axis not in axes]
    return tuple(sorted(kept).index(axis) for axis in kept) or (0,)


def _reduce(op: str, site: Site) -> None:
    rank = len(site.type(0).shape)
    axes = _axes(site, rank)
    if axes is None:
        site.result(0, site.value(0))
        return
    keep = bool(site.attr("keepdims", 1))
    perm = site.common_perm([0], rank)
    x, out = site.take(0, perm), site.give(0, perm if keep else _without(perm, axes))
    params = {"axes": sorted(perm.index(axis) for axis in axes), "keep_dims": keep}
    if x.dtype is not DType.BOOL_8:
        site.emit(op, [x], [out], params)
        return
    # Booleans are reduced as numbers.
    site.emit_cast(op, x, out, DType.INT_32, params)


def _arg(op: str, site: Site) -> None:
    rank = len(site.type(0).shape)
    axis, keep = site.axis(site.attr("axis", 0), rank), bool(site.attr("keepdims", 1))
    perm = site.common_perm([0], rank)
    x, out = site.take(0, perm), site.give(0, perm if keep else _without(perm, [axis]))
    params = {"axis": perm.index(axis), "keep_dims": keep}
    if not site.attr("select_last_index", 0):
        site.emit(op, [x], [out], params)
        return
    # The last of equal values is the first when looking from the other end.
    ranges = [[0, size, 1] for size in x.shape]
    last = x.shape[params["axis"]] - 1
    ranges[params["axis"]] = [last, -last - 2, -1]
    turned, index = site.between(x.shape, x), site.between(out.shape, out)
    site.emit("StridedSlice", [x], [turned], {"ranges": np.array(ranges, np.int32)})
    site.emit(op, [turned], [index], params)
    site.emit("ElementWiseSubtract", [site.static(np.full(1, last), DType.INT_32), index], [out])


RULES = {
    **{
        name: functools.partial(_reduce, name)
        for name in ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare")
    },
    "ArgMax": functools.partial(_arg, "Argmax"),
    "ArgMin": functools.partial(_arg, "Argmin"),
}

KEEPS = ("ReduceMax", "ReduceMin")
