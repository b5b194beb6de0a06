"""Convolutions of one, two and three dimensions on channel-last tensors.

Weights are [kernel..., channels in / group, channels out]; a depthwise convolution is one with as many groups as
input channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._opdef import Constraint, OpDef, Param, Port, Sample, Weights, Work, channel_scales, touched_bytes
from openhtp.ops._shapes import expect_rank, expect_shape, refuse, window_size
from openhtp.ops._tiles import TileAxis
from openhtp.ops._types import WEIGHTED
from openhtp.ops._windows import (
    batch_and_rows,
    dilation_param,
    dimensions,
    groups,
    is_depthwise,
    onnx_pads,
    patches,
    window_params,
    windows,
)


def _infer(node: Node) -> tuple[Shape, ...]:
    rank = dimensions(node) + 2
    batch, *sizes, channels = expect_rank(node, 0, rank)
    *_, per_group, filters = expect_rank(node, 1, rank)
    count = groups(node)
    if count < 1 or channels % count or filters % count:
        refuse(node, f"{count} groups do not divide {channels} input and {filters} output channels")
    if per_group != channels // count:
        refuse(node, f"weights take {per_group} channels per group; input has {channels} in {count} groups")
    expect_shape(node, 2, (filters,), "one bias per output channel")
    out = [
        window_size(node, size, w.kernel, w.stride, (w.before, w.after), w.dilation)
        for size, w in zip(sizes, windows(node), strict=True)
    ]
    return ((batch, *out, filters),)


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    x, weights = arrays[0], arrays[1]
    count, filters, rank = groups(node), weights.shape[-1], dimensions(node)
    sizes = _infer(node)[0][1:-1]
    seen = patches(x, windows(node), sizes, 0.0)
    seen = seen.reshape(*seen.shape[:-1], count, x.shape[-1] // count)
    kernels = weights.reshape(*weights.shape[:-1], count, filters // count)
    places, kernel = "xyz"[:rank], "ijk"[:rank]
    out = np.einsum(f"n{places}{kernel}gc,{kernel}cgf->n{places}gf", seen, kernels)
    out = out.reshape(x.shape[0], *sizes, filters)
    return (out + arrays[2] if node.has(2) else out,)


def _lower(node: Node, e: Emitter) -> None:
    each, rank = windows(node), dimensions(node)
    perm = (rank + 1, rank, *range(rank))
    weight = e.weight(1, lambda w: w.transpose(perm), perm, axis=0)
    bias = e.bias(2, weight=1)
    out = e.node(
        "Conv",
        [e.value(0), weight, bias] if bias else [e.value(0), weight],
        group=groups(node),
        kernel_shape=[w.kernel for w in each],
        strides=[w.stride for w in each],
        dilations=[w.dilation for w in each],
        pads=onnx_pads(each),
    )
    e.put(0, out)


def _work(node: Node) -> Work:
    read, written = touched_bytes(node)
    elements = node.outputs[0].elements
    return Work(elements * math.prod(node.shape(1)[:-1]), elements, read, written)


def _tiles(node: Node) -> tuple[TileAxis, ...]:
    last, rows = node.input().rank - 1, batch_and_rows(node, windows(node))
    # Filters are cut with their channels; a group's input channels would have to be cut with them.
    if groups(node) == 1:
        return (*rows, TileAxis(axis=last, inputs=(None, last, 0)[: len(node.inputs)]))
    if is_depthwise(node) and node.shape(1)[-1] == node.shape()[-1]:
        return (*rows, TileAxis(axis=last, inputs=(last, last, 0)[: len(node.inputs)]))
    return rows


_PADS_BELOW_KERNEL = Constraint(
    "padding on each side is smaller than the dilated kernel",
    lambda node: all(max(w.before, w.after) < w.dilation * (w.kernel - 1) + 1 for w in windows(node)),
)


def _convolution(name: str, samples: tuple[Sample, ...]) -> OpDef:
    count, depthwise = int(name[-2]), name.startswith("DepthWise")
    params = (*window_params(count), dilation_param(count))
    if not depthwise:
        params += (Param("group", default=1), Param(f"reuse_sparse_indic{'i' if count == 3 else ''}es"))
    subject = "each channel of in[0]" if depthwise else "in[0]"
    return OpDef(
        name=name,
        summary=f"convolution of {subject} with filters in[1], plus bias in[2]",
        inputs=(Port("in[0]"), Port("in[1]"), Port("in[2]", optional=True)),
        outputs=(Port("out[0]"),),
        types=WEIGHTED,
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=_work,
        kind="depthwise" if depthwise else "conv",
        params=params,
        constraints=(_PADS_BELOW_KERNEL, channel_scales(lambda node: -1)),
        layout=Layout.CHANNEL_FIRST,
        weights=Weights(channel_axis=3 if count == 2 else None),
        takes_activation=True,
        tile=_tiles,
        samples=samples,
    )


OPS = (
    _convolution(
        "Conv2d",
        (
            Sample(
                ((1, 8, 9, 4), (3, 3, 4, 8), (8,)),
                {"stride": [2, 1], "pad_amount": [[1, 1], [0, 1]]},
                static=(1, 2),
            ),
            Sample(
                ((2, 7, 7, 6), (3, 1, 3, 4), None),
                {"stride": [1, 1], "pad_amount": [[2, 1], [0, 0]], "group": 2, "dilation": [2, 1]},
                static=(1,),
            ),
            Sample(
                ((1, 6, 6, 32), (1, 1, 32, 16), (16,)),
                {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]},
                static=(1, 2),
            ),
        ),
    ),
    _convolution(
        "DepthWiseConv2d",
        (
            Sample(
                ((1, 8, 8, 16), (3, 3, 1, 16), (16,)),
                {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]},
                static=(1, 2),
            ),
            Sample(
                ((1, 9, 7, 3), (2, 3, 1, 6), None),
                {"stride": [2, 2], "pad_amount": [[0, 1], [1, 1]]},
                static=(1,),
            ),
        ),
    ),
    _convolution(
        "Conv1d",
        (Sample(((1, 9, 4), (3, 4, 8), (8,)), {"stride": 2, "pad_amount": [1, 1]}, static=(1, 2)),),
    ),
    _convolution(
        "DepthWiseConv1d",
        (Sample(((1, 9, 4), (3, 1, 4), (4,)), {"stride": 1, "pad_amount": [2, 0], "dilation": 2}, static=(1, 2)),),
    ),
    _convolution(
        "Conv3d",
        (
            Sample(
                ((1, 4, 5, 6, 3), (2, 3, 3, 3, 4), (4,)),
                {"stride": [1, 2, 1], "pad_amount": [[0, 1], [1, 1], [1, 1]]},
                static=(1, 2),
            ),
        ),
    ),
)
