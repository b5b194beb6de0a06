"""RoiAlign: regions of an image, each resampled to the same size by averaging bilinear samples."""

from __future__ import annotations

import math

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._node import Array, Arrays, Emitter, Layout, Node, Results, Shapes
from openhtp.ops._opdef import FIXED_SHAPES, Constraint, OpDef, Param, Port, Sample, Work, rows
from openhtp.ops._shapes import expect_rank, expect_shape, refuse


def _infer(node: Node) -> Shapes:
    channels = expect_rank(node, 0, 4)[3]
    regions = expect_rank(node, 1, 2)[0]
    expect_shape(node, 1, (regions, 4), "x1, y1, x2, y2 per region")
    expect_shape(node, 2, (regions,), "an image per region")
    out = node.outputs[0].shape
    if len(out) != 4 or (out[0], out[3]) != (regions, channels):
        refuse(node, f"output 0 has shape {list(out)}; expected [{regions}, height, width, {channels}]")
    return (out,)


def _samples(node: Node, extent: float, bins: int, axis: str) -> int:
    """Samples per bin: as given, or about one per pixel."""
    chosen = int(node.params[f"num_samples_{axis}"])
    return chosen if chosen > 0 else max(math.ceil(extent / bins), 1)


def _weights(node: Node, begin: float, end: float, size: int, bins: int, axis: str) -> Array:
    """How much of each pixel along one axis a bin takes, [bins, size]."""
    shift = 0.5 if node.params["aligned"] else 0.0
    begin, end = begin - shift, end - shift
    extent = end - begin if node.params["aligned"] else max(end - begin, 1.0)
    count = _samples(node, extent, bins, axis)
    weights = np.zeros((bins, size))
    for number in range(bins):
        for sample in range(count):
            position = begin + (number + (sample + 0.5) / count) * extent / bins
            if -1.0 <= position <= size:
                position = min(max(position, 0.0), size - 1.0)
                low = min(math.floor(position), size - 1)
                high = min(low + 1, size - 1)
                weights[number, low] += (1 - (position - low)) / count
                weights[number, high] += (position - low) / count
    return weights


def _reference(node: Node, arrays: Arrays) -> Results:
    images, regions, numbers = arrays
    _, height, width, _ = images.shape
    ratio_y, ratio_x = np.asarray(node.params["img_size_ratio"], np.float64)
    _, high, wide, _ = node.outputs[0].shape
    out = np.zeros(node.outputs[0].shape)
    for index, (x1, y1, x2, y2) in enumerate(regions):
        down = _weights(node, y1 / ratio_y, y2 / ratio_y, height, high, "y")
        across = _weights(node, x1 / ratio_x, x2 / ratio_x, width, wide, "x")
        out[index] = np.einsum("yh,xw,hwc->yxc", down, across, images[int(numbers[index])])
    return (out,)


def _lower(node: Node, e: Emitter) -> None:
    down, across = int(node.params["num_samples_y"]), int(node.params["num_samples_x"])
    _, high, wide, _ = node.outputs[0].shape
    ratio_y, ratio_x = (float(ratio) for ratio in node.params["img_size_ratio"])
    # The runtime knows one ratio for both axes.
    factors = np.array([1 / ratio_x, 1 / ratio_y, 1 / ratio_x, 1 / ratio_y], np.float32)
    regions = e.node("Mul", [e.value(1), e.const(factors)])
    numbers = e.node("Cast", [e.stored(2)], to="int64")
    # It knows one number of samples, too: finer bins of one sample each, averaged, are the same.
    split = down != across and down > 0
    bins = e.node(
        "RoiAlign",
        [e.permuted(0, (0, 3, 1, 2)), regions, numbers],
        coordinate_transformation_mode="half_pixel" if node.params["aligned"] else "output_half_pixel",
        output_height=high * down if split else high,
        output_width=wide * across if split else wide,
        sampling_ratio=1 if split else max(down, 0),
    )
    if split:
        bins = e.node("AveragePool", [bins], kernel_shape=[down, across], strides=[down, across])
    e.put(0, e.node("Transpose", [bins], perm=[0, 2, 3, 1]))


def _work(node: Node) -> Work:
    samples = max(node.params["num_samples_y"], 2) * max(node.params["num_samples_x"], 2)
    return Work.on(node, vector_ops=8 * samples * node.outputs[0].elements)


def _both_or_neither(node: Node) -> bool:
    return bool((node.params["num_samples_y"] > 0) == (node.params["num_samples_x"] > 0))


_SHAPES = ((2, 6, 8, 3), (4, 4), (4,))
# The number of an image is at least 0, a coordinate may lie outside of it.
_RANGES = {1: (-1.0, 9.0), 2: (0.0, 1.0)}
_RATIO = {"img_size_ratio": [1.0, 1.0]}

OPS = (
    OpDef(
        name="RoiAlign",
        summary="for every region in[1] of the image in[2] of in[0], the averages of bins, by bilinear samples",
        inputs=(Port("in[0]"), Port("in[1]"), Port("in[2]")),
        types=rows("T T i32 > T : f16 f32", "T u8|u16 n32|i32 > T : u16 u8"),
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=_work,
        params=(
            Param("img_size_ratio", DType.FLOAT_32, rank=1, mandatory=True),
            Param("num_samples_y", DType.INT_32, default=-1),
            Param("num_samples_x", DType.INT_32, default=-1),
            Param("aligned", DType.BOOL_8, default=False),
            Param("allow_invalid_roi", DType.BOOL_8, default=False),
        ),
        constraints=(
            Constraint("numbers of samples are given for both axes or for neither", _both_or_neither),
            FIXED_SHAPES,
        ),
        layout=Layout.OWN,
        samples=(
            Sample(_SHAPES, _RATIO, ranges=_RANGES, outputs=((4, 2, 3, 3),)),
            Sample(
                _SHAPES,
                {"img_size_ratio": [1.5, 2.0], "num_samples_y": 2, "num_samples_x": 2, "aligned": True},
                ranges=_RANGES,
                outputs=((4, 3, 3, 3),),
            ),
            Sample(
                _SHAPES,
                {**_RATIO, "num_samples_y": 2, "num_samples_x": 3},
                ranges=_RANGES,
                outputs=((4, 2, 2, 3),),
            ),
        ),
    ),
)
