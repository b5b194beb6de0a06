"""Operators that pick or place elements by index."""

from __future__ import annotations

import functools
import logging

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.quant import AxisScaleOffset
from openhtp.core.tensor import TensorSpec
from openhtp.frontend import encodings, values as vs
from openhtp.frontend.site import Site

log = logging.getLogger(__name__)
# Operators that pick from a table by indices.
TABLES = ("Gather", "GatherElements", "GatherND")
_REDUCTIONS = {"none": 0, "add": 1, "mul": 2, "max": 3, "min": 4}


def _indices(site: Site, index: int, size: int | None) -> TensorSpec:
    """Indices as 32-bit integers. The HTP takes none below 0: constants are made positive, others must be."""
    value = site.value(index)
    if value.data is not None and size is not None:
        data = np.asarray(value.data, np.int64)
        if data.size and (data.min() < -size or data.max() >= size):
            site.refuse(f"an index is out of range for an axis of size {size}")
        return site.static(np.where(data < 0, data + size, data).astype(np.int32), DType.INT_32)
    log.info(
        "node %r (%s): its indices are computed; the HTP takes none below 0, the emulator does as ONNX does",
        site.node.name,
        site.node.op_type,
    )
    return site.take(index)


def _table(site: Site) -> TensorSpec:
    """The table to pick from. Embeddings are constants, stored unsigned with one scale like activations."""
    value = site.value(0)
    if site.is_fixed and value.data is not None and value.quant is not None:
        stored = encodings.activation(value.dtype, value.quant)
        if isinstance(value.quant, AxisScaleOffset):
            real = value.quant.dequantize(value.data)
            stored = site.fixed_type, encodings.covering(real, site.fixed_type)
        value = site.assembly.converted(value, *stored)
    return site.assembly.form(value, vs.identity(value.rank))


def _gather(site: Site) -> None:
    shape = site.type(0).shape
    axis = site.axis(site.attr("axis", 0), len(shape))
    indices = _indices(site, 1, shape[axis])
    x, out = _table(site), site.give()
    gathered = (*shape[:axis], *indices.shape, *shape[axis + 1 :])
    if gathered == out.shape:
        site.emit_kept("Gather", [x, indices], [out], {"axis": axis})
        return
    # A scalar index leaves an axis of size 1 behind.
    whole = site.between(gathered, out)
    site.emit_kept("Gather", [x, indices], [whole], {"axis": axis})
    site.emit("Reshape", [whole], [out])


def _gather_elements(site: Site) -> None:
    shape = site.type(0).shape
    axis = site.axis(site.attr("axis", 0), len(shape))
    site.emit_kept("GatherElements", [_table(site), _indices(site, 1, shape[axis])], [site.give()], {"axis": axis})


def _gather_nd(site: Site) -> None:
    params = {"batch_dims": site.attr("batch_dims", 0)}
    site.emit_kept("GatherNd", [_table(site), _indices(site, 1, None)], [site.give()], params)


def _scatter(op: str, site: Site) -> None:
    reduction = site.attr("reduction", "none")
    if reduction not in _REDUCTIONS:
        site.refuse(f"reduction {reduction!r}", f"use {', '.join(_REDUCTIONS)}")
    params = {"reduction": _REDUCTIONS[reduction]}
    size = None
    if op == "ScatterElements":
        shape = site.type(0).shape
        params["axis"] = site.axis(site.attr("axis", 0), len(shape))
        size = shape[params["axis"]]
    values = (site.matched(site.value(index)) for index in (0, 2))
    data, updates = (site.assembly.form(value, vs.identity(value.rank)) for value in values)
    site.emit(op, [data, _indices(site, 1, size), updates], [site.give()], params)


def _top_k(site: Site) -> None:
    shape = site.type(0).shape
    rank = len(shape)
    count = site.ints(1)[0] if site.has(1) else site.attr("k")
    axis = site.axis(site.attr("axis", -1), rank)
    # QNN looks along the last axis.
    perm = (*(other for other in range(rank) if other != axis), axis)
    outputs = [site.give(0, perm)]
    if site.is_used(1):
        outputs.append(site.give(1, perm))
    else:
        outputs.append(site.assembly.native(f"{site.node.name}_indices", outputs[0].shape, DType.INT_32, None))
    params = {"k": int(count), "largest": bool(site.attr("largest", 1))}
    site.emit_kept("TopK", [site.take(0, perm)], outputs, params)


def _cumulative_sum(site: Site) -> None:
    rank = len(site.type(0).shape)
    params = {
        "axis": site.axis(site.ints(1)[0], rank),
        "exclusive": bool(site.attr("exclusive", 0)),
        "reverse": bool(site.attr("reverse", 0)),
    }
    site.emit("CumulativeSum", [site.take(0)], [site.give()], params)


RULES = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": functools.partial(_scatter, "ScatterElements"),
    "ScatterND": functools.partial(_scatter, "ScatterNd"),
    "TopK": _top_k,
    "CumSum": _cumulative_sum,
}

KEEPS = (*TABLES, "TopK")
