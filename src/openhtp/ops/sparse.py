"""CreateSparse, GetSparseIndices, GetSparseValues and SparseToDense.

Sparse tensors are held dense here. So what is specified in one is what is not zero, SparseToDense is a copy, and
its cost is that of writing the output. Lists that turn out shorter than their tensor end in rows of -1 (indices)
and of zeros (values); CreateSparse skips such rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._moving import move
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._opdef import Constraint, OpDef, Port, Sample
from openhtp.ops._places import coordinates, emit_coordinates, emit_first_places, first_places
from openhtp.ops._shapes import expect_rank, expect_shape, refuse, same_as_input
from openhtp.ops._types import rows


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    return (arrays[0],)


def _lower(node: Node, e: Emitter) -> None:
    move(e, lambda x: x)


def _create_infer(node: Node) -> tuple[Shape, ...]:
    count, depth = expect_rank(node, 0, 2)
    out = node.outputs[0].shape
    if not 1 <= depth <= len(out):
        refuse(node, f"indices of {depth} numbers do not fit an output of rank {len(out)}")
    expect_shape(node, 1, (count, *out[depth:]), "what stands at each index")
    return (out,)


def _flat_indices(indices: Array, sizes: Shape) -> Array:
    """Places in the sparse axes taken as one; behind their end where an index is outside."""
    inside: Array = np.all((indices >= 0) & (indices < np.array(sizes)), axis=1)
    flat = np.ravel_multi_index(tuple(np.where(inside[:, None], indices, 0).T), sizes)
    return np.where(inside, flat, math.prod(sizes))


def _create_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    out, depth = node.outputs[0].shape, node.shape(0)[1]
    dense = np.zeros((math.prod(out[:depth]) + 1, *out[depth:]))
    dense[_flat_indices(arrays[0].astype(np.int64), out[:depth])] = arrays[1]
    return (dense[:-1].reshape(out),)


def _create_lower(node: Node, e: Emitter) -> None:
    out, depth = node.outputs[0].shape, node.shape(0)[1]
    size = math.prod(out[:depth])
    sizes = np.array(out[:depth], np.int64)
    strides = np.array([math.prod(out[axis + 1 : depth]) for axis in range(depth)], np.int64)

    def ints(*numbers: int) -> str:
        return e.const(np.array(numbers, np.int64))

    indices = e.node("Cast", [e.stored(0)], to="int64")
    held = e.node("Clip", [indices, e.const(np.array(0, np.int64)), e.const(np.array(sizes.max() - 1, np.int64))])
    held = e.node("Min", [held, e.const(sizes - 1)])
    moved = e.node("Cast", [e.node("Not", [e.node("Equal", [held, indices])])], to="int64")
    outside = e.node("ReduceMax", [moved, ints(1)], keepdims=0)
    flat = e.node("ReduceSum", [e.node("Mul", [held, e.const(strides)]), ints(1)], keepdims=0)
    # One place more takes the rows that belong nowhere.
    place = e.node("Where", [e.node("Cast", [outside], to="bool"), e.const(np.array(size, np.int64)), flat])
    empty = e.const(np.zeros((size + 1, *out[depth:]), np.float32))
    dense = e.node("ScatterND", [empty, e.node("Unsqueeze", [place, ints(1)]), e.value(1)])
    kept = e.node("Slice", [dense, ints(0), ints(size), ints(0)])
    e.put(0, e.node("Reshape", [kept, ints(*out)]))


def _depth_of_values(node: Node) -> int:
    """How many axes are sparse: those that the list of values has joined into one."""
    return node.input().rank - node.outputs[0].rank + 1


def _specified(node: Node, x: Array, depth: int, count: int) -> Array:
    there = (x != 0).reshape(math.prod(x.shape[:depth]), -1).any(axis=1)
    return first_places(there, count)


def _emit_specified(node: Node, e: Emitter, depth: int, count: int) -> str:
    shape = node.shape()
    size, rest = math.prod(shape[:depth]), math.prod(shape[depth:])
    sizes = e.const(np.array([size, rest], np.int64))
    far = e.node("Reshape", [e.node("Abs", [e.value(0)]), sizes])
    most = e.node("ReduceMax", [far, e.const(np.array([1], np.int64))], keepdims=0)
    return emit_first_places(e, e.node("Cast", [most], to="bool"), size, count)


def _indices_infer(node: Node) -> tuple[Shape, ...]:
    out = node.outputs[0].shape
    if len(out) != 2 or not 1 <= out[1] <= node.input().rank:
        refuse(node, f"output 0 has shape {list(out)}; expected [elements, 1..{node.input().rank}]")
    return (out,)


def _indices_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    count, depth = node.outputs[0].shape
    places = _specified(node, arrays[0], depth, count)
    return (coordinates(places, node.shape()[:depth]),)


def _indices_lower(node: Node, e: Emitter) -> None:
    count, depth = node.outputs[0].shape
    spelled = emit_coordinates(e, _emit_specified(node, e, depth, count), node.shape()[:depth])
    e.put_stored(0, e.node("Cast", [spelled], to=node.outputs[0].dtype.numpy.name))


def _values_infer(node: Node) -> tuple[Shape, ...]:
    out, shape, depth = node.outputs[0].shape, node.shape(), _depth_of_values(node)
    if not 1 <= depth <= len(shape) or out[1:] != shape[depth:]:
        refuse(node, f"output 0 has shape {list(out)}; expected [elements, the last axes of {list(shape)}]")
    return (out,)


def _values_reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    out, depth = node.outputs[0].shape, _depth_of_values(node)
    flat = np.concatenate([arrays[0].reshape(-1, *out[1:]), np.zeros((1, *out[1:]))])
    return (flat[_specified(node, arrays[0], depth, out[0])],)


def _values_lower(node: Node, e: Emitter) -> None:
    out, shape, depth = node.outputs[0].shape, node.shape(), _depth_of_values(node)
    sizes = e.const(np.array([math.prod(shape[:depth]), *out[1:]], np.int64))
    flat = e.node("Reshape", [e.value(0), sizes])
    ended = e.node("Concat", [flat, e.const(np.zeros((1, *out[1:]), np.float32))], axis=0)
    e.put(0, e.node("Gather", [ended, _emit_specified(node, e, depth, out[0])], axis=0))


_FIXED = Constraint("the input is not dynamic", lambda node: not any(s.is_dynamic for s in node.inputs if s))

OPS = (
    OpDef(
        name="CreateSparse",
        summary="a sparse tensor that has in[1] at the indices in[0] and zeros elsewhere",
        inputs=(Port("in[0]"), Port("in[1]")),
        outputs=(Port("out[0]"),),
        types=rows("n32|i32 u8 > u8"),
        infer=_create_infer,
        reference=_create_reference,
        lower=_create_lower,
        constraints=(_FIXED,),
        moves_only=True,
        samples=(
            Sample(((5, 2), (5, 3)), ranges={0: (0, 4)}, outputs=((5, 6, 3),)),
            Sample(((3, 3), (3,)), ranges={0: (0, 5)}, outputs=((2, 6, 6),)),
        ),
    ),
    OpDef(
        name="GetSparseIndices",
        summary="indices of what a sparse tensor specifies, in order; -1 in rows left over",
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0]"),),
        types=rows("u8 > n32|i32"),
        infer=_indices_infer,
        reference=_indices_reference,
        lower=_indices_lower,
        constraints=(_FIXED,),
        samples=(
            Sample(((3, 4, 2),), low=0.0, outputs=((8, 2),)),
            Sample(((6, 5),), low=0.0, outputs=((40, 2),)),
        ),
    ),
    OpDef(
        name="GetSparseValues",
        summary="what a sparse tensor specifies, in the order of its indices; zeros in rows left over",
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0]"),),
        types=rows("u8 > u8"),
        infer=_values_infer,
        reference=_values_reference,
        lower=_values_lower,
        constraints=(_FIXED,),
        values_kept=True,
        moves_only=True,
        samples=(
            Sample(((3, 4, 2),), low=0.0, outputs=((8, 2),)),
            Sample(((6, 5),), low=0.0, outputs=((40,),)),
        ),
    ),
    OpDef(
        name="SparseToDense",
        summary="in[0] with every element in place, zeros included",
        inputs=(Port("in[0]"),),
        outputs=(Port("out[0]"),),
        types=rows("T > T : u8 f16 f32"),
        infer=same_as_input,
        reference=_reference,
        lower=_lower,
        layout=Layout.ANY,
        values_kept=True,
        moves_only=True,
        samples=(Sample(((1, 4, 5, 3),)),),
    ),
)
