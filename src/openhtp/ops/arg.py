"""Argmax, Argmin and TopK: where the extreme values are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._opdef import Constraint, OpDef, Param, Port, Sample, Work, touched_bytes
from openhtp.ops._shapes import axis_in_range
from openhtp.ops._types import rows

_TYPES = rows("f16|f32 > i32", "u16|u8|s8|n32|i32 > n32|i32")


def _infer(node: Node) -> tuple[Shape, ...]:
    shape = list(node.shape())
    axis = axis_in_range(node, node.params["axis"], len(shape))
    if node.params["keep_dims"]:
        shape[axis] = 1
    else:
        del shape[axis]
    return (tuple(shape) or (1,),)


def _work(node: Node) -> Work:
    read, written = touched_bytes(node)
    elements = max(node.input().elements, node.outputs[0].elements)
    return Work(vector_ops=2 * elements, bytes_read=read, bytes_written=written)


def _extreme(name: str, onnx_op: str) -> OpDef:
    largest = name == "Argmax"

    def reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
        x = arrays[0].astype(np.float64)
        found = np.argmax(x if largest else -x, axis=node.params["axis"])
        return (found.reshape(_infer(node)[0]),)

    def lower(node: Node, e: Emitter) -> None:
        x = e.value(0)
        if node.input().dtype is DType.UINT_32:
            x = e.node("Cast", [x], to="float64")
        keep = int(node.params["keep_dims"])
        found = e.node(onnx_op, [x], axis=e.axis(node.params["axis"]), keepdims=keep)
        if not keep and node.input().rank == 1:
            found = e.node("Reshape", [found, e.const(np.array([1], np.int64))])
        e.put_stored(0, e.node("Cast", [found], to=node.outputs[0].dtype.numpy.name))

    return OpDef(
        name=name,
        summary=f"index of the {'largest' if largest else 'smallest'} value along axis, the first if several",
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0]"),),
        types=_TYPES,
        infer=_infer,
        reference=reference,
        lower=lower,
        work=_work,
        kind="reduce",
        params=(Param("axis", mandatory=True), Param("keep_dims", DType.BOOL_8, default=False)),
        layout=Layout.ANY,
        samples=(
            Sample(((1, 4, 5, 9),), {"axis": 3}),
            Sample(((3, 7),), {"axis": 0, "keep_dims": True}, high=90.0),
        ),
    )


def _topk_infer(node: Node) -> tuple[Shape, ...]:
    shape = (*node.shape()[:-1], node.params["k"])
    return shape, shape


def _topk_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    x, sign = arrays[0], -1 if node.params["largest"] else 1
    # Of equal values the last one comes first.
    order = np.argsort(sign * x[..., ::-1].astype(np.float64), axis=-1, kind="stable")[..., : node.params["k"]]
    order = x.shape[-1] - 1 - order
    return np.take_along_axis(x, order, axis=-1), order


def _topk_lower(node: Node, e: Emitter) -> None:
    count = e.const(np.array([node.params["k"]], np.int64))
    back = [e.const(np.array([number], np.int64)) for number in (-1, np.iinfo(np.int64).min, -1, -1)]
    turned = e.node("Slice", [e.value(0), *back])
    values, places = e.nodes("TopK", [turned, count], 2, axis=-1, largest=int(node.params["largest"]))
    e.put(0, values)
    places = e.node("Sub", [e.const(np.array(node.shape()[-1] - 1, np.int64)), places])
    e.put_stored(1, e.node("Cast", [places], to=node.outputs[1].dtype.numpy.name))


OPS = (
    _extreme("Argmax", "ArgMax"),
    _extreme("Argmin", "ArgMin"),
    OpDef(
        name="TopK",
        summary="the k largest (or smallest) of the last axis, of equal ones the last first, and their indices",
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0]"), Port("out[1]")),
        types=rows("T > T n32|i32 : f16 f32 u16 u8 s8 i32"),
        infer=_topk_infer,
        reference=_topk_reference,
        lower=_topk_lower,
        work=_work,
        kind="reduce",
        params=(Param("k", mandatory=True), Param("largest", DType.BOOL_8, default=True)),
        constraints=(
            Constraint("k is at least 1 and at most the last axis", lambda n: 1 <= n.params["k"] <= n.shape()[-1]),
        ),
        values_kept=True,
        samples=(Sample(((2, 3, 12),), {"k": 4}), Sample(((2, 9),), {"k": 2, "largest": False})),
    ),
)
