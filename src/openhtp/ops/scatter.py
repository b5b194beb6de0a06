"""Scatter: a copy of the data with elements replaced or combined by index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._node import Array, Arrays, Emitter, Node, Results, Shapes
from openhtp.ops._opdef import Constraint, OpDef, Param, Port, Sample, rows
from openhtp.ops._shapes import axis_in_range, expect_shape, refuse

_REDUCTIONS = {"NONE": 0, "ADD": 1, "MUL": 2}
_ELEMENT_REDUCTIONS = _REDUCTIONS | {"MAX": 3}
_ONNX = {0: "none", 1: "add", 2: "mul", 3: "max"}
_COMBINED_BY = {1: np.add, 2: np.multiply, 3: np.maximum}


def _combined(node: Node, data: Array, places: Sequence[Array], updates: Array) -> Array:
    out = data.copy()
    combine = _COMBINED_BY.get(node.params["reduction"])
    if combine is None:
        out[tuple(places)] = updates
    else:
        combine.at(out, tuple(places), updates)
    return out


# The last of the reductions that an HTP has for elements of a type.
_MOST_REDUCTION = {DType.UFIXED_POINT_8: 3, DType.INT_32: 3, DType.UFIXED_POINT_16: 2}


def _elements_infer(node: Node) -> Shapes:
    if node.input(1).rank != node.input(0).rank:
        refuse(node, f"indices have rank {node.input(1).rank}; expected that of the data, {node.input(0).rank}")
    axis_in_range(node, node.params["axis"], node.input().rank)
    expect_shape(node, 2, node.shape(1), "one update per index")
    return (node.shape(),)


def _elements_reference(node: Node, arrays: Arrays) -> Results:
    indices = arrays[1].astype(np.int64)
    places: list[Array] = [*np.indices(indices.shape)]
    places[node.params["axis"]] = indices
    return (_combined(node, arrays[0], places, arrays[2]),)


def _nd_infer(node: Node) -> Shapes:
    shape, indices = node.shape(), node.shape(1)
    if indices[-1] > len(shape):
        refuse(node, f"indices of {indices[-1]} numbers are too long for data of rank {len(shape)}")
    expect_shape(node, 2, (*indices[:-1], *shape[indices[-1] :]), "one slice per index")
    return (shape,)


def _nd_reference(node: Node, arrays: Arrays) -> Results:
    places = list(np.moveaxis(arrays[1].astype(np.int64), -1, 0))
    return (_combined(node, arrays[0], places, arrays[2]),)


def _lower_as(onnx_op: str, node: Node, e: Emitter) -> None:
    indices = e.node("Cast", [e.stored(1)], to="int64")
    attrs = {"reduction": _ONNX[node.params["reduction"]]}
    if onnx_op == "ScatterElements":
        attrs["axis"] = node.params["axis"]
    if e.same_encoding() and node.params["reduction"] == 0:
        e.put_stored(0, e.node(onnx_op, [e.stored(0), indices, e.stored(2)], **attrs))
    else:
        e.put(0, e.node(onnx_op, [e.value(0), indices, e.value(2)], **attrs))


# Types whose updates can be combined with what is there; flags are only replaced.
_SUMMED = ("f16", "f32", "u16", "u8", "s8", "i32")
_PORTS = (Port("in[0]"), Port("in[1]"), Port("in[2]"))

OPS = (
    OpDef(
        name="ScatterElements",
        summary="in[0] with the elements at in[1] along axis replaced by, or combined with, in[2]",
        inputs=_PORTS,
        types=rows("T n32|i32 T > T : f16 f32 u16 u8 i32 n16"),
        infer=_elements_infer,
        reference=_elements_reference,
        lower=lambda node, e: _lower_as("ScatterElements", node, e),
        kind="gather",
        params=(Param("axis", default=0), Param("reduction", default=0, choices=_ELEMENT_REDUCTIONS)),
        constraints=(
            Constraint(
                "floats are replaced, not combined; MAX takes numbers of 8 and 32 bits only",
                lambda node: node.params["reduction"] <= _MOST_REDUCTION.get(node.input().dtype, 0),
            ),
        ),
        shares_encoding=True,
        samples=(
            Sample(((5, 6), (1, 6), (1, 6)), {"axis": 0}, ranges={1: (0, 4)}),
            Sample(
                ((5, 6), (2, 4), (2, 4)),
                {"axis": 1, "reduction": "ADD"},
                ranges={1: (0, 5)},
                types=("u8", "u16", "i32"),
            ),
            Sample(
                ((5, 6), (2, 4), (2, 4)), {"axis": 1, "reduction": "MAX"}, ranges={1: (0, 5)}, types=("u8", "i32")
            ),
        ),
    ),
    OpDef(
        name="ScatterNd",
        summary="in[0] with the slices at in[1] replaced by, or combined with, in[2]",
        inputs=_PORTS,
        types=rows("T n32|i32 T > T : f16 f32 u16 u8 s8 i32 b"),
        infer=_nd_infer,
        reference=_nd_reference,
        lower=lambda node, e: _lower_as("ScatterND", node, e),
        kind="gather",
        params=(Param("reduction", default=0, choices=_REDUCTIONS),),
        constraints=(
            Constraint(
                "flags are replaced, not combined",
                lambda node: node.input().dtype is not DType.BOOL_8 or node.params["reduction"] == 0,
            ),
        ),
        max_rank=6,
        shares_encoding=True,
        samples=(
            Sample(((6, 3), (1, 1), (1, 3)), ranges={1: (0, 5)}),
            Sample(((4, 5), (3, 2), (3,)), {"reduction": "ADD"}, ranges={1: (0, 3)}, types=_SUMMED),
        ),
    ),
)
