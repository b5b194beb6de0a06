"""NonZero, CreateSparse, GetSparseIndices, GetSparseValues and SparseToDense: where a tensor is not zero.

A list of places has room for every element; unused rows hold -1.

Sparse tensors are stored dense here. The elements that a sparse tensor specifies are those that are not zero, and
SparseToDense is a copy that costs what writing its output costs. Lists that turn out shorter than their tensor end
in rows of -1 (indices) and of zeros (values); CreateSparse skips such rows.
"""

from __future__ import annotations

import math

import numpy as np

from openhtp.ops._elementwise import truth_of
from openhtp.ops._node import Array, Arrays, Emitter, Layout, Node, Results, Shape, Shapes, move, put_integers
from openhtp.ops._opdef import FIXED_SHAPES, TWO_INPUTS, OpDef, Sample, rows, vector_work
from openhtp.ops._shapes import expect_rank, expect_shape, refuse, same_as_input


def _first_places(truth: Array, count: int) -> Array:
    """Flat places of the true elements in order; the number of elements stands for none."""
    places = np.flatnonzero(truth)[:count]
    return np.concatenate([places, np.full(count - len(places), truth.size)])


def _emit_first_places(e: Emitter, truth: str, size: int, count: int) -> str:
    """``_first_places`` in ONNX. Sorting keeps every shape fixed; the runtime's own NonZero would not."""
    flat = e.node("Reshape", [truth, e.ints([size])])
    marked = e.node("Where", [flat, e.ints(np.arange(size)), e.ints(size)])
    kept = min(count, size)
    first, _ = e.nodes("TopK", [marked, e.ints([kept])], 2, axis=0, largest=0)
    if kept == count:
        return first
    return e.node("Concat", [first, e.ints(np.full(count - kept, size))], axis=0)


def _emit_coordinates(e: Emitter, places: str, shape: Shape) -> str:
    """Flat places as one coordinate per axis, [count, rank]; -1 for none."""
    strides = np.array([int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))], np.int64)
    column = e.node("Unsqueeze", [places, e.ints([1])])
    steps = e.node("Div", [column, e.const(strides)])
    spelled = e.node("Mod", [steps, e.ints(shape)])
    exists = e.node("Less", [column, e.ints(np.prod(shape))])
    return e.node("Where", [exists, spelled, e.ints(-1)])


def _coordinates(places: Array, shape: Shape) -> Array:
    """``_emit_coordinates`` in numpy."""
    size = int(np.prod(shape))
    spelled = np.stack(np.unravel_index(np.minimum(places, size - 1), shape), axis=-1)
    return np.where((places < size)[:, None], spelled, -1)


def _create_infer(node: Node) -> Shapes:
    count, depth = expect_rank(node, 0, 2)
    out = node.outputs[0].shape
    if not 1 <= depth <= len(out):
        refuse(node, f"indices of {depth} numbers do not fit an output of rank {len(out)}")
    expect_shape(node, 1, (count, *out[depth:]), "what stands at each index")
    return (out,)


def _flat_indices(indices: Array, sizes: Shape) -> Array:
    """Places in the sparse axes, joined into one; an index outside becomes the place behind their end."""
    inside: Array = np.all((indices >= 0) & (indices < np.array(sizes)), axis=1)
    flat = np.ravel_multi_index(tuple(np.where(inside[:, None], indices, 0).T), sizes)
    return np.where(inside, flat, math.prod(sizes))


def _create_reference(node: Node, arrays: Arrays) -> Results:
    out, depth = node.outputs[0].shape, node.shape(0)[1]
    dense = np.zeros((math.prod(out[:depth]) + 1, *out[depth:]))
    dense[_flat_indices(arrays[0].astype(np.int64), out[:depth])] = arrays[1]
    return (dense[:-1].reshape(out),)


def _create_lower(node: Node, e: Emitter) -> None:
    out, depth = node.outputs[0].shape, node.shape(0)[1]
    size = math.prod(out[:depth])
    sizes = np.array(out[:depth], np.int64)
    strides = np.array([math.prod(out[axis + 1 : depth]) for axis in range(depth)], np.int64)
    indices = e.node("Cast", [e.stored(0)], to="int64")
    nearest = e.node("Clip", [indices, e.ints(0), e.ints(sizes.max() - 1)])
    nearest = e.node("Min", [nearest, e.const(sizes - 1)])
    moved = e.node("Cast", [e.node("Not", [e.node("Equal", [nearest, indices])])], to="int64")
    outside = e.node("ReduceMax", [moved, e.ints([1])], keepdims=0)
    flat = e.node("ReduceSum", [e.node("Mul", [nearest, e.const(strides)]), e.ints([1])], keepdims=0)
    # One extra place takes the rows whose index is outside.
    target = e.node("Where", [e.node("Cast", [outside], to="bool"), e.ints(size), flat])
    empty = e.const(np.zeros((size + 1, *out[depth:]), np.float32))
    dense = e.node("ScatterND", [empty, e.node("Unsqueeze", [target, e.ints([1])]), e.value(1)])
    kept = e.node("Slice", [dense, e.ints([0]), e.ints([size]), e.ints([0])])
    e.put(0, e.node("Reshape", [kept, e.ints(out)]))


def _depth_of_values(node: Node) -> int:
    """How many axes are sparse: those that the list of values has joined into one."""
    return node.input().rank - node.outputs[0].rank + 1


def _specified(node: Node, x: Array, depth: int, count: int) -> Array:
    is_specified = (x != 0).reshape(math.prod(x.shape[:depth]), -1).any(axis=1)
    return _first_places(is_specified, count)


def _emit_specified(node: Node, e: Emitter, depth: int, count: int) -> str:
    shape = node.shape()
    size, rest = math.prod(shape[:depth]), math.prod(shape[depth:])
    sizes = e.ints([size, rest])
    far = e.node("Reshape", [e.node("Abs", [e.value(0)]), sizes])
    most = e.node("ReduceMax", [far, e.ints([1])], keepdims=0)
    return _emit_first_places(e, e.node("Cast", [most], to="bool"), size, count)


def _indices_infer(node: Node) -> Shapes:
    out = node.outputs[0].shape
    if len(out) != 2 or not 1 <= out[1] <= node.input().rank:
        refuse(node, f"output 0 has shape {list(out)}; expected [elements, 1..{node.input().rank}]")
    return (out,)


def _indices_reference(node: Node, arrays: Arrays) -> Results:
    count, depth = node.outputs[0].shape
    places = _specified(node, arrays[0], depth, count)
    return (_coordinates(places, node.shape()[:depth]),)


def _indices_lower(node: Node, e: Emitter) -> None:
    count, depth = node.outputs[0].shape
    spelled = _emit_coordinates(e, _emit_specified(node, e, depth, count), node.shape()[:depth])
    put_integers(node, e, 0, spelled)


def _values_infer(node: Node) -> Shapes:
    out, shape, depth = node.outputs[0].shape, node.shape(), _depth_of_values(node)
    if not 1 <= depth <= len(shape) or out[1:] != shape[depth:]:
        refuse(node, f"output 0 has shape {list(out)}; expected [elements, the last axes of {list(shape)}]")
    return (out,)


def _values_reference(node: Node, arrays: Arrays) -> Results:
    out, depth = node.outputs[0].shape, _depth_of_values(node)
    flat = np.concatenate([arrays[0].reshape(-1, *out[1:]), np.zeros((1, *out[1:]))])
    return (flat[_specified(node, arrays[0], depth, out[0])],)


def _values_lower(node: Node, e: Emitter) -> None:
    out, shape, depth = node.outputs[0].shape, node.shape(), _depth_of_values(node)
    sizes = e.ints([math.prod(shape[:depth]), *out[1:]])
    flat = e.node("Reshape", [e.value(0), sizes])
    ended = e.node("Concat", [flat, e.const(np.zeros((1, *out[1:]), np.float32))], axis=0)
    e.put(0, e.node("Gather", [ended, _emit_specified(node, e, depth, out[0])], axis=0))


def _nonzero_reference(node: Node, arrays: Arrays) -> Results:
    places = _coordinates(_first_places(arrays[0] != 0, arrays[0].size), node.shape())
    return (places.astype(np.int64),)


def _nonzero_lower(node: Node, e: Emitter) -> None:
    size = node.input().elements
    places = _emit_first_places(e, truth_of(node, e, 0), size, size)
    put_integers(node, e, 0, _emit_coordinates(e, places, node.shape()))


OPS = (
    OpDef(
        name="CreateSparse",
        summary="a sparse tensor that has in[1] at the indices in[0] and zeros elsewhere",
        inputs=TWO_INPUTS,
        types=rows("n32|i32 u8 > u8"),
        infer=_create_infer,
        reference=_create_reference,
        lower=_create_lower,
        constraints=(FIXED_SHAPES,),
        moves_only=True,
        samples=(
            Sample(((5, 2), (5, 3)), ranges={0: (0, 4)}, outputs=((5, 6, 3),)),
            Sample(((3, 3), (3,)), ranges={0: (0, 5)}, outputs=((2, 6, 6),)),
        ),
    ),
    OpDef(
        name="GetSparseIndices",
        summary="indices of what a sparse tensor specifies, in order; -1 in rows left over",
        types=rows("u8 > n32|i32"),
        infer=_indices_infer,
        reference=_indices_reference,
        lower=_indices_lower,
        constraints=(FIXED_SHAPES,),
        samples=(Sample(((3, 4, 2),), low=0.0, outputs=((8, 2),)), Sample(((6, 5),), low=0.0, outputs=((40, 2),))),
    ),
    OpDef(
        name="GetSparseValues",
        summary="what a sparse tensor specifies, in the order of its indices; zeros in rows left over",
        types=rows("u8 > u8"),
        infer=_values_infer,
        reference=_values_reference,
        lower=_values_lower,
        constraints=(FIXED_SHAPES,),
        values_kept=True,
        moves_only=True,
        samples=(Sample(((3, 4, 2),), low=0.0, outputs=((8, 2),)), Sample(((6, 5),), low=0.0, outputs=((40,),))),
    ),
    OpDef(
        name="SparseToDense",
        summary="in[0] with every element in place, zeros included",
        types=rows("T > T : u8 f16 f32"),
        infer=same_as_input,
        reference=lambda node, arrays: (arrays[0],),
        lower=lambda node, e: move(e, lambda x: x),
        layout=Layout.ANY,
        values_kept=True,
        moves_only=True,
        samples=(Sample(((1, 4, 5, 3),)),),
    ),
    OpDef(
        name="NonZero",
        summary="coordinates of the elements of in[0] that are not 0, one row each in order; -1 in rows left over",
        types=rows("u8|b > n32|i32"),
        infer=lambda node: ((node.input().elements, node.input().rank),),
        reference=_nonzero_reference,
        lower=_nonzero_lower,
        work=vector_work(8),
        constraints=(FIXED_SHAPES,),
        max_rank=4,
        samples=(Sample(((3, 4, 2),), low=0.0, high=3.0), Sample(((9,),), low=0.0, high=1.0)),
    ),
)
