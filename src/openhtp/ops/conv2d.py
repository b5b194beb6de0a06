"""Two-dimensional convolutions on channel-last images.

Weights are [height, width, channels in / group, channels out]; a depthwise convolution is one with as many groups
as input channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._opdef import Constraint, OpDef, Param, Port, Sample, TileAxis, TileRule, Work, touched_bytes
from openhtp.ops._shapes import expect_rank, expect_shape, refuse, window_size
from openhtp.ops._types import WEIGHTED
from openhtp.ops._windows import PAD, STRIDE, Window, onnx_pads, patches, rows_and_channels

_DILATION = Param("dilation", rank=1, default=(1, 1))


def _groups(node: Node) -> int:
    return node.shape()[3] if node.op == "DepthWiseConv2d" else int(node.params["group"])


def _windows(node: Node) -> tuple[Window, ...]:
    if len(node.ints("stride")) != 2 or len(node.ints("dilation")) != 2 or len(node.ints("pad_amount")) != 4:
        refuse(node, "stride and dilation take 2 numbers each, pad_amount 2 x 2")
    return tuple(
        Window(kernel, stride, before, after, dilation)
        for kernel, stride, (before, after), dilation in zip(
            node.shape(1)[:2],
            node.ints("stride"),
            node.pairs("pad_amount"),
            node.ints("dilation"),
            strict=True,
        )
    )


def _infer(node: Node) -> tuple[Shape, ...]:
    batch, height, width, channels = expect_rank(node, 0, 4)
    _, _, per_group, filters = expect_rank(node, 1, 4)
    groups = _groups(node)
    if groups < 1 or channels % groups or filters % groups:
        refuse(node, f"{groups} groups do not divide {channels} input and {filters} output channels")
    if per_group != channels // groups:
        refuse(node, f"weights take {per_group} channels per group; input has {channels} in {groups} groups")
    expect_shape(node, 2, (filters,), "one bias per output channel")
    sizes = [
        window_size(node, size, w.kernel, w.stride, (w.before, w.after), w.dilation)
        for size, w in zip((height, width), _windows(node), strict=True)
    ]
    return ((batch, *sizes, filters),)


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    x, weights = arrays[0], arrays[1]
    groups, filters = _groups(node), weights.shape[3]
    windows = _windows(node)
    sizes = _infer(node)[0][1:3]
    seen = patches(x, windows, sizes, 0.0)
    seen = seen.reshape(*seen.shape[:-1], groups, x.shape[3] // groups)
    kernels = weights.reshape(*weights.shape[:3], groups, filters // groups)
    out = np.einsum("nhwijgc,ijcgf->nhwgf", seen, kernels).reshape(x.shape[0], *sizes, filters)
    return (out + arrays[2] if node.has(2) else out,)


def _lower(node: Node, e: Emitter) -> None:
    windows = _windows(node)
    weight = e.weight(1, lambda w: w.transpose(3, 2, 0, 1), (3, 2, 0, 1), axis=0)
    bias = e.bias(2, weight=1)
    out = e.node(
        "Conv",
        [e.value(0), weight, bias] if bias else [e.value(0), weight],
        group=_groups(node),
        kernel_shape=[w.kernel for w in windows],
        strides=[w.stride for w in windows],
        dilations=[w.dilation for w in windows],
        pads=onnx_pads(windows),
    )
    e.put(0, out)


def _work(node: Node) -> Work:
    kernel = node.shape(1)
    read, written = touched_bytes(node)
    macs = node.outputs[0].elements * kernel[0] * kernel[1] * kernel[2]
    return Work(macs=macs, vector_ops=node.outputs[0].elements, bytes_read=read, bytes_written=written)


def _tiles(node: Node) -> tuple[TileAxis, ...]:
    return rows_and_channels(node, _windows(node))


_PORTS = (Port("in[0]"), Port("in[1]"), Port("in[2]", optional=True))
_PADS_BELOW_KERNEL = Constraint(
    "padding on each side is smaller than the dilated kernel",
    lambda node: all(max(w.before, w.after) < w.dilation * (w.kernel - 1) + 1 for w in _windows(node)),
)

OPS = (
    OpDef(
        name="Conv2d",
        summary="convolution of in[0] with filters in[1], plus bias in[2]",
        inputs=_PORTS,
        outputs=(Port("out[0]"),),
        types=WEIGHTED,
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=_work,
        params=(STRIDE, PAD, Param("group", default=1), _DILATION, Param("reuse_sparse_indices")),
        constraints=(_PADS_BELOW_KERNEL,),
        max_rank=4,
        layout=Layout.CHANNEL_FIRST,
        takes_activation=True,
        tile=TileRule(_tiles),
        samples=(
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
    OpDef(
        name="DepthWiseConv2d",
        summary="convolution of each channel of in[0] with its own filters in[1], plus bias in[2]",
        inputs=_PORTS,
        outputs=(Port("out[0]"),),
        types=WEIGHTED,
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=_work,
        params=(STRIDE, PAD, _DILATION),
        constraints=(_PADS_BELOW_KERNEL,),
        max_rank=4,
        layout=Layout.CHANNEL_FIRST,
        takes_activation=True,
        tile=TileRule(_tiles),
        samples=(
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
)
