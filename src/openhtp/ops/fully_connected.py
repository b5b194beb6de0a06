"""Fully connected layer: out = in[0] as [batch, n] times in[1] transposed, plus in[2]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.quant import AxisScaleOffset
from openhtp.ops._emit import Emitter
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._opdef import Constraint, OpDef, Param, Port, Sample, Weights, Work, touched_bytes
from openhtp.ops._shapes import expect_rank, expect_shape, refuse
from openhtp.ops._tiles import TileAxis
from openhtp.ops._types import WEIGHTED


def _scales_along_features(node: Node) -> bool:
    quant = node.input(1).quant
    return isinstance(quant, AxisScaleOffset) and quant.axis == 1


def _infer(node: Node) -> tuple[Shape, ...]:
    units, features = expect_rank(node, 1, 2)
    elements = node.input().elements
    if elements % features:
        refuse(node, f"input has {elements} elements; expected a multiple of the weights' {features} columns")
    expect_shape(node, 2, (units,), "one bias per row of the weights")
    return ((elements // features, units),)


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    weights = arrays[1]
    out = np.einsum("bn,mn->bm", arrays[0].reshape(-1, weights.shape[1]), weights)
    return (out + arrays[2] if node.has(2) else out,)


def _lower(node: Node, e: Emitter) -> None:
    features = node.shape(1)[1]
    flat = node.input().rank == 2 and node.shape()[1] == features
    integer = not _scales_along_features(node)
    product = e.wide_product(0, 1, (1, 0), None if flat else (-1, features)) if integer else None
    if product:
        bias = e.bias(2, weight=1)
        return e.put(0, e.node("Add", [product, bias]) if bias else product)
    x = e.value(0) if flat else e.reshaped(0, (-1, features))
    weight = e.weight(1, lambda w: w.transpose(1, 0), (1, 0), axis=1, integer=integer)
    bias = e.bias(2, weight=1, integer=integer)
    return e.put(0, e.node("Gemm", [x, weight, bias] if bias else [x, weight]))


def _work(node: Node) -> Work:
    read, written = touched_bytes(node)
    elements = node.outputs[0].elements
    return Work(elements * node.shape(1)[1], elements, read, written)


def _tiles(node: Node) -> tuple[TileAxis, ...]:
    units = TileAxis(axis=1, inputs=(None, 0, 0)[: len(node.inputs)])
    # Rows of the result are rows of the input only where each is one index of its first axis.
    if node.shape()[0] != node.outputs[0].shape[0]:
        return (units,)
    return TileAxis(axis=0, inputs=(0, None, None)[: len(node.inputs)]), units


OPS = (
    OpDef(
        name="FullyConnected",
        summary="out = in[0] as [batch, n] times transposed in[1], plus in[2]",
        inputs=(Port("in[0]"), Port("in[1]"), Port("in[2]", optional=True)),
        outputs=(Port("out[0]"),),
        types=WEIGHTED,
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=_work,
        kind="fully_connected",
        params=(Param("keep_dims", DType.BOOL_8, default=False),),
        constraints=(
            Constraint("keep_dims is false", lambda node: not node.params["keep_dims"]),
            Constraint(
                "per-channel weights have their scales along the output channels where there is a bias",
                lambda node: not (node.has(2) and _scales_along_features(node)),
            ),
        ),
        max_rank=4,
        weights=Weights(channel_axis=0),
        takes_activation=True,
        tile=_tiles,
        samples=(
            Sample(((3, 24), (10, 24), (10,)), static=(1, 2)),
            Sample(((2, 2, 3, 4), (5, 12), None), static=(1,)),
        ),
    ),
)
