"""MatMul, the product of the last two axes (leading axes broadcast), and FullyConnected, that of flat rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.quant import AxisScaleOffset
from openhtp.core.tensor import TensorKind
from openhtp.ops._node import Arrays, Emitter, Node, Results, Shape, Shapes
from openhtp.ops._opdef import (
    WEIGHTED,
    WEIGHTED_INPUTS,
    Constraint,
    OnnxRule,
    OpDef,
    Param,
    Sample,
    Weights,
    Work,
    channel_scales,
)
from openhtp.ops._shapes import broadcast, expect_rank, expect_shape, refuse
from openhtp.ops._tiles import TileAxis, broadcast_axes


def _matrix(node: Node, index: int) -> tuple[Shape, int, int]:
    shape = node.shape(index)
    if len(shape) < 2:
        refuse(node, f"input {index} has shape {list(shape)}; expected rank 2 or more")
    high, wide = shape[-2:]
    return (shape[:-2], wide, high) if node.params[f"transpose_in{index}"] else (shape[:-2], high, wide)


def _infer(node: Node) -> Shapes:
    batch0, rows, inner0 = _matrix(node, 0)
    batch1, inner1, columns = _matrix(node, 1)
    if inner0 != inner1:
        refuse(node, f"inner sizes differ: input 0 gives {inner0}, input 1 gives {inner1}")
    expect_shape(node, 2, (columns,), "one bias per output column")
    batch = broadcast(node, batch0, batch1) if batch0 or batch1 else ()
    return ((*batch, rows, columns),)


def _reference(node: Node, arrays: Arrays) -> Results:
    left = "...km" if node.params["transpose_in0"] else "...mk"
    right = "...nk" if node.params["transpose_in1"] else "...kn"
    out = np.einsum(f"{left},{right}->...mn", arrays[0], arrays[1])
    return (out + arrays[2] if node.has(2) else out,)


def _like_several_rows(node: Node, e: Emitter, left: str, product: Callable[[str], str]) -> str:
    """``product`` of the rows ``left``; a single row of 16-bit numbers goes in twice and comes out once.

    An HTP adds integers, so a row's result does not depend on how many others are computed with it; graphs of a
    language model for 1 and for 128 tokens rely on that. The runtime multiplies a single row with a kernel of its
    own, which adds in another order.
    """
    if e.dynamic or node.outputs[0].shape[-2] != 1 or not node.is_wide():
        return product(left)
    both = product(e.node("Concat", [left, left], axis=-2))
    return e.node("Slice", [both, *(e.ints([number]) for number in (0, 1, -2))])


def _swapped(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def _lower(node: Node, e: Emitter) -> None:
    rank0, rank1 = node.input(0).rank, node.input(1).rank
    perm = _swapped(rank1) if node.params["transpose_in1"] else tuple(range(rank1))
    if not node.params["transpose_in0"]:
        product = e.wide_product(0, 1, perm)
        if product:
            bias = e.bias(2, weight=1)
            return e.put(0, e.node("Add", [product, bias]) if bias else product)
    left = e.permuted(0, _swapped(rank0)) if node.params["transpose_in0"] else e.value(0)
    if node.input(1).kind is TensorKind.STATIC:
        right = e.weight(1, lambda w: w.transpose(perm), perm, axis=rank1 - 1)
    else:
        right = e.permuted(1, _swapped(rank1)) if node.params["transpose_in1"] else e.value(1)
    bias = e.bias(2, weight=1)
    if rank0 == 2 and rank1 == 2 and bias:
        return e.put(0, e.node("Gemm", [left, right, bias]))
    out = _like_several_rows(node, e, left, lambda rows: e.node("MatMul", [rows, right]))
    return e.put(0, e.node("Add", [out, bias]) if bias else out)


def _work(node: Node) -> Work:
    elements = node.outputs[0].elements
    return Work.on(node, macs=elements * _matrix(node, 0)[2], vector_ops=elements)


def _tiles(node: Node) -> tuple[TileAxis, ...]:
    rank, rank0, rank1 = node.outputs[0].rank, node.input(0).rank, node.input(1).rank
    places = ((*broadcast_axes(node, axis - rank)[:2], None) for axis in range(rank - 2))
    rows = rank0 - 1 if node.params["transpose_in0"] else rank0 - 2
    columns = rank1 - 2 if node.params["transpose_in1"] else rank1 - 1
    cuts = (*places, (rows, None, None), (None, columns, 0))
    return tuple(TileAxis(axis=axis, inputs=cut[: len(node.inputs)]) for axis, cut in enumerate(cuts))


def _scales_along_features(node: Node) -> bool:
    quant = node.input(1).quant
    return isinstance(quant, AxisScaleOffset) and quant.axis == 1


def _connected_infer(node: Node) -> Shapes:
    units, features = expect_rank(node, 1, 2)
    elements = node.input().elements
    if elements % features:
        refuse(node, f"input has {elements} elements; expected a multiple of the weights' {features} columns")
    expect_shape(node, 2, (units,), "one bias per row of the weights")
    return ((elements // features, units),)


def _connected_reference(node: Node, arrays: Arrays) -> Results:
    weights = arrays[1]
    out = np.einsum("bn,mn->bm", arrays[0].reshape(-1, weights.shape[1]), weights)
    return (out + arrays[2] if node.has(2) else out,)


def _connected_lower(node: Node, e: Emitter) -> None:
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


def _connected_work(node: Node) -> Work:
    elements = node.outputs[0].elements
    return Work.on(node, macs=elements * node.shape(1)[1], vector_ops=elements)


def _connected_tiles(node: Node) -> tuple[TileAxis, ...]:
    units = TileAxis(axis=1, inputs=(None, 0, 0)[: len(node.inputs)])
    # Rows of the result are rows of the input only where each is one index of its first axis.
    if node.shape()[0] != node.outputs[0].shape[0]:
        return (units,)
    return TileAxis(axis=0, inputs=(0, None, None)[: len(node.inputs)]), units


OPS = (
    OpDef(
        name="MatMul",
        summary="out = in[0] times in[1] (each transposed if asked), plus in[2]",
        inputs=WEIGHTED_INPUTS,
        types=WEIGHTED,
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=_work,
        kind="matmul",
        params=(
            Param("transpose_in0", DType.BOOL_8, default=False),
            Param("transpose_in1", DType.BOOL_8, default=False),
        ),
        constraints=(channel_scales(lambda node: -2 if node.params["transpose_in1"] else -1),),
        weights=Weights(),
        takes_activation=True,
        tile=_tiles,
        onnx=(OnnxRule("MatMul"),),
        samples=(
            Sample(((2, 3, 5, 8), (2, 3, 8, 4))),
            Sample(((1, 6, 12), (12, 10), (10,)), static=(1, 2)),
            Sample(((6, 5), (7, 6), None), {"transpose_in0": True, "transpose_in1": True}),
            Sample(((5, 12), (10, 12), (10,)), {"transpose_in1": True}, static=(1, 2)),
        ),
    ),
    OpDef(
        name="FullyConnected",
        summary="out = in[0] as [batch, n] times transposed in[1], plus in[2]",
        inputs=WEIGHTED_INPUTS,
        types=WEIGHTED,
        infer=_connected_infer,
        reference=_connected_reference,
        lower=_connected_lower,
        work=_connected_work,
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
        tile=_connected_tiles,
        samples=(
            Sample(((3, 24), (10, 24), (10,)), static=(1, 2)),
            Sample(((2, 2, 3, 4), (5, 12), None), static=(1,)),
        ),
    ),
)
