"""Ops that only rename dimensions: the data stays in order."""

from __future__ import annotations

import math

from openhtp.core.dtype import DType
from openhtp.ops._node import Emitter, Node, Shapes, move
from openhtp.ops._opdef import Infer, OpDef, Param, Port, Sample, rows, vector_work
from openhtp.ops._shapes import axes_in_range, refuse

_TYPES = rows("T i32 > T : f16 f32 u16 s16 u8 s8 n8 b n32 i32 i64", "s8 i32 > u8", "f32 i32 > u8|s8")


def _reshape_infer(node: Node) -> Shapes:
    out = node.outputs[0]
    elements, wanted = node.input().elements, out.elements
    if elements == wanted:
        return (out.shape,)
    if node.input().is_dynamic and sum(out.dynamic) == 1:
        # One dimension may vary: solve for it.
        axis = out.dynamic.index(True)
        rest = math.prod(size for index, size in enumerate(out.shape) if index != axis)
        if elements % rest == 0:
            return ((*out.shape[:axis], elements // rest, *out.shape[axis + 1 :]),)
    return refuse(node, f"{list(node.shape())} has {elements} elements, {list(out.shape)} has {wanted}")


def _lower(node: Node, e: Emitter) -> None:
    out = node.outputs[0]
    sizes = [
        -1 if e.dynamic and out.dynamic and out.dynamic[axis] else size for axis, size in enumerate(out.shape)
    ]
    move(e, lambda x: e.node("Reshape", [x, e.ints(sizes)]))


def _squeeze_infer(node: Node) -> Shapes:
    shape = node.shape()
    if node.params["axes"] is None:
        out = node.outputs[0].shape
        if [size for size in out if size != 1] != [size for size in shape if size != 1] or len(out) > len(shape):
            refuse(node, f"output has shape {list(out)}; expected {list(shape)} without some of its 1s")
        return (out,)
    axes = axes_in_range(node, node.ints("axes"), len(shape))
    if any(shape[axis] != 1 for axis in axes):
        refuse(node, f"axes {list(axes)} of shape {list(shape)} are not all of size 1")
    return (tuple(size for axis, size in enumerate(shape) if axis not in axes),)


def _expand_infer(node: Node) -> Shapes:
    axes = node.ints("axes") if node.params["axes"] is not None else (node.params["axis"],)
    axes = axes_in_range(node, axes, node.input().rank + len(axes))
    sizes = list(node.shape())
    for axis in axes:
        sizes.insert(axis, 1)
    return (tuple(sizes),)


def _renaming(name: str, summary: str, infer: Infer, params: tuple[Param, ...], sample: Sample) -> OpDef:
    takes_shape = name == "Reshape"
    return OpDef(
        name=name,
        summary=summary,
        inputs=(Port("in[0]"), Port("in[1]", optional=True)) if takes_shape else (Port("in[0]"),),
        types=_TYPES,
        infer=infer,
        reference=lambda node, arrays: (arrays[0].reshape(node.outputs[0].shape),),
        lower=_lower,
        work=vector_work(0),
        kind="reshape",
        params=params,
        values_kept=True,
        moves_only=True,
        samples=(sample,),
    )


OPS = (
    _renaming(
        "Reshape",
        "the elements of in[0], in order, in the output's shape",
        _reshape_infer,
        (),
        Sample(((2, 3, 4, 5),), outputs=((6, 20),)),
    ),
    _renaming(
        "Squeeze",
        "in[0] without the named axes, each of size 1; without names, in the output's shape",
        _squeeze_infer,
        (Param("axes", rank=1),),
        Sample(((1, 3, 1, 5),), {"axes": [0, 2]}),
    ),
    _renaming(
        "ExpandDims",
        "in[0] with new axes of size 1",
        _expand_infer,
        (Param("axis", DType.UINT_32, default=0), Param("axes", rank=1)),
        Sample(((3, 5),), {"axes": [0, 2]}),
    ),
)
