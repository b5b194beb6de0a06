"""Gather: elements picked by index."""

from __future__ import annotations

from typing import Any

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._node import Array, Arrays, Emitter, Node, Results, Shapes, move
from openhtp.ops._opdef import TWO_INPUTS, Infer, Lower, OnnxRule, OpDef, Param, Reference, Sample, rows
from openhtp.ops._shapes import axis_in_range, refuse


def signed_indices(node: Node, e: Emitter, index: int) -> str:
    """Indices in a type that the runtime takes."""
    name = e.stored(index)
    return e.node("Cast", [name], to="int64") if node.input(index).dtype is DType.UINT_32 else name


def _axis(node: Node) -> int:
    return axis_in_range(node, node.params["axis"], node.input().rank)


def _gather_infer(node: Node) -> Shapes:
    axis, shape = _axis(node), node.shape()
    return ((*shape[:axis], *node.shape(1), *shape[axis + 1 :]),)


def _gather_lower(node: Node, e: Emitter) -> None:
    indices = signed_indices(node, e, 1)
    move(e, lambda x: e.node("Gather", [x, indices], axis=_axis(node)))


def _elements_infer(node: Node) -> Shapes:
    if node.input(0).rank != node.input(1).rank:
        refuse(node, f"indices have rank {node.input(1).rank}; expected that of the data, {node.input(0).rank}")
    _axis(node)
    return (node.shape(1),)


def _elements_reference(node: Node, arrays: Arrays) -> Results:
    axis, indices = _axis(node), arrays[1].astype(np.int64)
    places: list[Array] = [*np.indices(indices.shape)]
    places[axis] = indices
    return (arrays[0][tuple(places)],)


def _elements_lower(node: Node, e: Emitter) -> None:
    indices = signed_indices(node, e, 1)
    move(e, lambda x: e.node("GatherElements", [x, indices], axis=_axis(node)))


def _nd_infer(node: Node) -> Shapes:
    shape, indices, batch = node.shape(), node.shape(1), node.params["batch_dims"]
    depth = indices[-1]
    if batch >= min(len(shape), len(indices)) or shape[:batch] != indices[:batch]:
        refuse(node, f"the first {batch} axes of {list(shape)} and {list(indices)} differ")
    if batch + depth > len(shape):
        refuse(node, f"indices of {depth} numbers are too long for rank {len(shape)} and {batch} batch axes")
    return ((*indices[:-1], *shape[batch + depth :]) or (1,),)


def _nd_reference(node: Node, arrays: Arrays) -> Results:
    x, indices, batch = arrays[0], arrays[1].astype(np.int64), node.params["batch_dims"]
    places = [*np.indices(indices.shape[:-1])[:batch], *np.moveaxis(indices, -1, 0)]
    return (x[tuple(places)],)


def _nd_lower(node: Node, e: Emitter) -> None:
    # The runtime takes 64-bit indices only here.
    indices = e.node("Cast", [e.stored(1)], to="int64")
    move(e, lambda x: e.node("GatherND", [x, indices], batch_dims=node.params["batch_dims"]))


def _gathering(name: str, summary: str, infer: Infer, reference: Reference, lower: Lower, **facts: Any) -> OpDef:
    return OpDef(
        name=name,
        summary=summary,
        inputs=TWO_INPUTS,
        types=rows("T n32|i32 > T : f16 f32 u16 s16 u8 s8 n32 i32 b"),
        infer=infer,
        reference=reference,
        lower=lower,
        kind="gather",
        values_kept=True,
        moves_only=True,
        **facts,
    )


OPS = (
    _gathering(
        "Gather",
        "slices of in[0] along axis, picked by in[1]",
        _gather_infer,
        lambda node, arrays: (np.take(arrays[0], arrays[1].astype(np.int64), axis=_axis(node)),),
        _gather_lower,
        params=(Param("axis", DType.INT_32, mandatory=True),),
        onnx=(OnnxRule("Gather", attrs={"axis": "axis"}),),
        samples=(
            Sample(((5, 6, 3), (4,)), {"axis": 1}, ranges={1: (0, 5)}),
            Sample(((7, 4), (2, 3)), {"axis": 0}, ranges={1: (0, 6)}, static=(1,)),
        ),
    ),
    _gathering(
        "GatherElements",
        "for each index of in[1] the element of in[0] at the same place, but at that index on axis",
        _elements_infer,
        _elements_reference,
        _elements_lower,
        params=(Param("axis", default=0),),
        samples=(Sample(((5, 6, 3), (5, 2, 3)), {"axis": 1}, ranges={1: (0, 5)}),),
    ),
    _gathering(
        "GatherNd",
        "slices of in[0] at the places that the last axis of in[1] spells out",
        _nd_infer,
        _nd_reference,
        _nd_lower,
        params=(Param("batch_dims", default=0),),
        samples=(
            Sample(((4, 4, 3), (5, 2)), ranges={1: (0, 3)}),
            Sample(((2, 4, 3), (2, 5, 1)), {"batch_dims": 1}, ranges={1: (0, 3)}),
        ),
    ),
)
