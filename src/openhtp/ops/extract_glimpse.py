"""ExtractGlimpse: a window of each image, at a place that a second input gives; noise where it hangs over."""

from __future__ import annotations

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._node import Array, Arrays, Emitter, Node, Results, Shapes
from openhtp.ops._opdef import FIXED_SHAPES, TWO_INPUTS, OpDef, Param, Sample, rows, vector_work
from openhtp.ops._shapes import expect_rank, expect_shape, refuse

_NOISES = {"UNIFORM": 0, "GAUSSIAN": 1, "ZEROES": 2}


def _size(node: Node) -> tuple[int, int]:
    size = node.ints("size")
    if len(size) != 2 or min(size) < 1:
        refuse(node, f"size is {list(size)}; expected a height and a width of at least 1")
    return size[0], size[1]


def _infer(node: Node) -> Shapes:
    batch, _, _, channels = expect_rank(node, 0, 4)
    expect_shape(node, 1, (batch, 2), "a row and a column per image")
    return ((batch, *_size(node), channels),)


def _placing(node: Node) -> tuple[Array, Array]:
    """The first row and column are ``place * factor + shift``, cut off towards zero.

    Normalized places count in sizes of the image, centred ones from its middle in halves of it. A place that is
    both names the window's centre; any other place names its first corner, as on the HTP.
    """
    image, window = np.array(node.shape()[1:3], np.float64), np.array(_size(node), np.float64)
    centred, normalized = node.params["centered"], node.params["normalized"]
    if centred and normalized:
        return image / 2, image / 2 - window / 2
    return (image if normalized else np.ones(2)), (image / 2 if centred else np.zeros(2))


def _noise(node: Node, image: Array, rng: np.random.Generator) -> Array:
    shape = (*_size(node), image.shape[-1])
    if node.params["noise"] == _NOISES["UNIFORM"]:
        return rng.uniform(image.min(), image.max(), shape)
    if node.params["noise"] == _NOISES["GAUSSIAN"]:
        return rng.normal(image.mean(), image.std(), shape)
    return np.zeros(shape)


def _reference(node: Node, arrays: Arrays) -> Results:
    images, places = arrays
    factor, shift = _placing(node)
    height, width = _size(node)
    rng = np.random.default_rng(0)
    out = np.stack([_noise(node, image, rng) for image in images])
    for number, (top, left) in enumerate(np.trunc(places * factor + shift).astype(int)):
        for row in range(max(top, 0), min(top + height, images.shape[1])):
            for column in range(max(left, 0), min(left + width, images.shape[2])):
                out[number, row - top, column - left] = images[number, row, column]
    return (out,)


def _lowered_noise(node: Node, e: Emitter, images: str) -> str:
    """Noise with the range, or the mean and spread, of each image; new in every execution."""
    zero = e.floats(0.0)
    if node.params["noise"] == _NOISES["ZEROES"]:
        return zero
    shape = list(_infer(node)[0])
    axes = e.ints([1, 2, 3])
    if node.params["noise"] == _NOISES["UNIFORM"]:
        low, high = (e.node(op, [images, axes], keepdims=1) for op in ("ReduceMin", "ReduceMax"))
        spread = e.node("RandomUniform", [], shape=shape)
        return e.node("Add", [e.node("Mul", [spread, e.node("Sub", [high, low])]), low])
    mean = e.node("ReduceMean", [images, axes], keepdims=1)
    apart = e.node("Sub", [images, mean])
    variance = e.node("ReduceMean", [e.node("Mul", [apart, apart]), axes], keepdims=1)
    spread = e.node("RandomNormal", [], shape=shape)
    return e.node("Add", [e.node("Mul", [spread, e.node("Sqrt", [variance])]), mean])


def _lower(node: Node, e: Emitter) -> None:
    batch, high, wide, channels = node.shape()
    height, width = _size(node)
    images = e.value(0)

    factor, shift = (e.const(array.astype(np.float32)) for array in _placing(node))
    # A cast to integers cuts off towards zero.
    corner = e.node("Cast", [e.node("Add", [e.node("Mul", [e.value(1), factor]), shift])], to="int64")
    top, left = (e.node("Gather", [corner, e.ints([axis])], axis=1) for axis in (0, 1))
    down = e.node(
        "Add", [e.node("Reshape", [top, e.ints([batch, 1, 1])]), e.ints(np.arange(height)[None, :, None])]
    )
    across = e.node(
        "Add", [e.node("Reshape", [left, e.ints([batch, 1, 1])]), e.ints(np.arange(width)[None, None, :])]
    )

    def moved_inside(name: str, size: int) -> tuple[str, str]:
        """Places moved into the image, and which of them were inside already."""
        inside = e.node("Clip", [name, e.ints(0), e.ints(size - 1)])
        return inside, e.node("Equal", [inside, name])

    (row, row_fits), (column, column_fits) = moved_inside(down, high), moved_inside(across, wide)
    first = e.ints((np.arange(batch) * high * wide)[:, None, None])
    flat = e.node("Add", [e.node("Add", [e.node("Mul", [row, e.ints(wide)]), column]), first])
    pixels = e.node("Gather", [e.node("Reshape", [images, e.ints([batch * high * wide, channels])]), flat], axis=0)
    fits = e.node("Unsqueeze", [e.node("And", [row_fits, column_fits]), e.ints([3])])
    e.put(0, e.node("Where", [fits, pixels, _lowered_noise(node, e, images)]))


_ZEROES = {"size": [3, 4], "noise": "ZEROES"}
_PIXELS = {"normalized": False, "centered": False}

OPS = (
    OpDef(
        name="ExtractGlimpse",
        summary="a window of each image of in[0] at the place in[1]; where it hangs over there is noise",
        inputs=TWO_INPUTS,
        types=rows("T T > T : f16 f32", "u8 f32 > u8"),
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=vector_work(4),
        params=(
            Param("size", DType.INT_32, rank=1, mandatory=True),
            Param("centered", DType.BOOL_8, default=True),
            Param("normalized", DType.BOOL_8, default=True),
            Param("noise", DType.INT_32, default=0, choices=_NOISES),
        ),
        constraints=(FIXED_SHAPES,),
        values_kept=True,
        random=True,
        bound_to_shape=True,
        samples=(
            Sample(((2, 7, 8, 3), (2, 2)), _ZEROES, ranges={1: (-0.9, 0.9)}),
            Sample(((2, 7, 8, 3), (2, 2)), {**_ZEROES, "centered": False}, ranges={1: (-0.2, 0.9)}),
            Sample(((2, 7, 8, 1), (2, 2)), {**_ZEROES, "normalized": False}, ranges={1: (-6.0, 6.0)}),
            Sample(((1, 6, 6, 2), (1, 2)), {**_ZEROES, **_PIXELS}, ranges={1: (-2.0, 6.0)}),
            # All inside, so that no noise shows.
            Sample(((2, 9, 9, 3), (2, 2)), {"size": [3, 4]}, ranges={1: (-0.3, 0.3)}),
        ),
    ),
)
