"""Matrix product of the last two axes; leading axes broadcast."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.tensor import TensorKind
from openhtp.ops._emit import Emitter
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._onnx import OnnxRule
from openhtp.ops._opdef import OpDef, Param, Port, Sample, Weights, Work, channel_scales, touched_bytes
from openhtp.ops._rows import like_several_rows
from openhtp.ops._shapes import broadcast, expect_shape, refuse
from openhtp.ops._tiles import TileAxis, broadcast_axes
from openhtp.ops._types import WEIGHTED


def _matrix(node: Node, index: int) -> tuple[Shape, int, int]:
    shape = node.shape(index)
    if len(shape) < 2:
        refuse(node, f"input {index} has shape {list(shape)}; expected rank 2 or more")
    high, wide = shape[-2:]
    return (shape[:-2], wide, high) if node.params[f"transpose_in{index}"] else (shape[:-2], high, wide)


def _infer(node: Node) -> tuple[Shape, ...]:
    batch0, rows, inner0 = _matrix(node, 0)
    batch1, inner1, columns = _matrix(node, 1)
    if inner0 != inner1:
        refuse(node, f"inner sizes differ: input 0 gives {inner0}, input 1 gives {inner1}")
    expect_shape(node, 2, (columns,), "one bias per output column")
    batch = broadcast(node, batch0, batch1) if batch0 or batch1 else ()
    return ((*batch, rows, columns),)


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    left = "...km" if node.params["transpose_in0"] else "...mk"
    right = "...nk" if node.params["transpose_in1"] else "...kn"
    out = np.einsum(f"{left},{right}->...mn", arrays[0], arrays[1])
    return (out + arrays[2] if node.has(2) else out,)


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
    out = like_several_rows(node, e, left, lambda rows: e.node("MatMul", [rows, right]))
    return e.put(0, e.node("Add", [out, bias]) if bias else out)


def _work(node: Node) -> Work:
    read, written = touched_bytes(node)
    elements = node.outputs[0].elements
    return Work(elements * _matrix(node, 0)[2], elements, read, written)


def _tiles(node: Node) -> tuple[TileAxis, ...]:
    rank, rank0, rank1 = node.outputs[0].rank, node.input(0).rank, node.input(1).rank
    places = ((*broadcast_axes(node, axis - rank)[:2], None) for axis in range(rank - 2))
    rows = rank0 - 1 if node.params["transpose_in0"] else rank0 - 2
    columns = rank1 - 2 if node.params["transpose_in1"] else rank1 - 1
    cuts = (*places, (rows, None, None), (None, columns, 0))
    return tuple(TileAxis(axis=axis, inputs=cut[: len(node.inputs)]) for axis, cut in enumerate(cuts))


OPS = (
    OpDef(
        name="MatMul",
        summary="out = in[0] times in[1] (each transposed if asked), plus in[2]",
        inputs=(Port("in[0]"), Port("in[1]"), Port("in[2]", optional=True)),
        outputs=(Port("out[0]"),),
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
)
