"""Convolutions of one, two and three dimensions on channel-last tensors.

Weights are [kernel..., channels in / group, channels out]; a depthwise convolution is one with as many groups as
input channels.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from openhtp.ops._node import Arrays, Emitter, Layout, Node, Results, Shape, Shapes
from openhtp.ops._opdef import (
    WEIGHTED,
    WEIGHTED_INPUTS,
    Constraint,
    OpDef,
    Param,
    Sample,
    Weights,
    Work,
    channel_scales,
)
from openhtp.ops._shapes import expect_rank, expect_shape, refuse, window_size
from openhtp.ops._tiles import TileAxis
from openhtp.ops._windows import PAD, STRIDE, AxisWindow, batch_and_rows, onnx_pads, patches, read_windows


def _dimensions(node: Node) -> int:
    """How many image axes the op slides along, from its name."""
    return int(node.op[-2])


def _is_depthwise(node: Node) -> bool:
    """Whether every channel has filters of its own."""
    return node.op.startswith("DepthWise")


def _groups(node: Node) -> int:
    """Into how many groups the channels fall."""
    return node.shape()[-1] if _is_depthwise(node) else int(node.params["group"])


def _windows(node: Node) -> tuple[AxisWindow, ...]:
    return read_windows(node, node.shape(1)[: _dimensions(node)], _dimensions(node))


def _window_params(count: int) -> tuple[Param, ...]:
    """Stride and padding in the form that an op of ``count`` dimensions takes them."""
    if count == 1:
        return Param("stride", mandatory=True), Param("pad_amount", rank=1, mandatory=True)
    return STRIDE, PAD


def _dilation_param(count: int) -> Param:
    """Dilation in the form that an op of ``count`` dimensions takes it."""
    return Param("dilation", default=1) if count == 1 else Param("dilation", rank=1, default=(1,) * count)


def _infer(node: Node) -> Shapes:
    rank = _dimensions(node) + 2
    batch, *sizes, channels = expect_rank(node, 0, rank)
    *_, per_group, filters = expect_rank(node, 1, rank)
    count = _groups(node)
    if count < 1 or channels % count or filters % count:
        refuse(node, f"{count} groups do not divide {channels} input and {filters} output channels")
    if per_group != channels // count:
        refuse(node, f"weights take {per_group} channels per group; input has {channels} in {count} groups")
    expect_shape(node, 2, (filters,), "one bias per output channel")
    out = [
        window_size(node, size, w.kernel, w.stride, (w.before, w.after), w.dilation)
        for size, w in zip(sizes, _windows(node), strict=True)
    ]
    return ((batch, *out, filters),)


def _reference(node: Node, arrays: Arrays) -> Results:
    x, weights = arrays[0], arrays[1]
    count, filters, rank = _groups(node), weights.shape[-1], _dimensions(node)
    sizes = _infer(node)[0][1:-1]
    seen = patches(x, _windows(node), sizes, 0.0)
    seen = seen.reshape(*seen.shape[:-1], count, x.shape[-1] // count)
    kernels = weights.reshape(*weights.shape[:-1], count, filters // count)
    places, kernel = "xyz"[:rank], "ijk"[:rank]
    out = np.einsum(f"n{places}{kernel}gc,{kernel}cgf->n{places}gf", seen, kernels)
    out = out.reshape(x.shape[0], *sizes, filters)
    return (out + arrays[2] if node.has(2) else out,)


def _lower(node: Node, e: Emitter) -> None:
    each, rank = _windows(node), _dimensions(node)
    perm = (rank + 1, rank, *range(rank))
    weight = e.weight(1, lambda w: w.transpose(perm), perm, axis=0)
    bias = e.bias(2, weight=1)
    out = e.node(
        "Conv",
        [e.value(0), weight, bias] if bias else [e.value(0), weight],
        group=_groups(node),
        kernel_shape=[w.kernel for w in each],
        strides=[w.stride for w in each],
        dilations=[w.dilation for w in each],
        pads=onnx_pads(each),
    )
    e.put(0, out)


def _work(node: Node) -> Work:
    elements = node.outputs[0].elements
    return Work.on(node, macs=elements * math.prod(node.shape(1)[:-1]), vector_ops=elements)


def _tiles(node: Node) -> tuple[TileAxis, ...]:
    last, rows = node.input().rank - 1, batch_and_rows(node, _windows(node))
    # Filters are cut with their channels; a group's input channels would have to be cut with them.
    if _groups(node) == 1:
        return (*rows, TileAxis(axis=last, inputs=(None, last, 0)[: len(node.inputs)]))
    if _is_depthwise(node) and node.shape(1)[-1] == node.shape()[-1]:
        return (*rows, TileAxis(axis=last, inputs=(last, last, 0)[: len(node.inputs)]))
    return rows


_PADS_BELOW_KERNEL = Constraint(
    "padding on each side is smaller than the dilated kernel",
    lambda node: all(max(w.before, w.after) < w.dilation * (w.kernel - 1) + 1 for w in _windows(node)),
)


def _weighted(name: str, summary: str, samples: tuple[Sample, ...], **facts: Any) -> OpDef:
    return OpDef(
        name=name,
        summary=summary,
        inputs=WEIGHTED_INPUTS,
        types=WEIGHTED,
        layout=Layout.CHANNEL_FIRST,
        weights=Weights(channel_axis=3 if name.endswith("2d") else None),
        takes_activation=True,
        samples=samples,
        **facts,
    )


def _convolution(name: str, samples: tuple[Sample, ...]) -> OpDef:
    count, depthwise = int(name[-2]), name.startswith("DepthWise")
    params = (*_window_params(count), _dilation_param(count))
    if not depthwise:
        params += (Param("group", default=1), Param(f"reuse_sparse_indic{'i' if count == 3 else ''}es"))
    subject = "each channel of in[0]" if depthwise else "in[0]"
    return _weighted(
        name,
        f"convolution of {subject} with filters in[1], plus bias in[2]",
        samples,
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=_work,
        kind="depthwise" if depthwise else "conv",
        params=params,
        constraints=(_PADS_BELOW_KERNEL, channel_scales(lambda node: -1)),
        tile=_tiles,
    )


def _transposed_infer(node: Node) -> Shapes:
    rank = _dimensions(node) + 2
    batch, *sizes, channels = expect_rank(node, 0, rank)
    *_, channels_in, per_group = expect_rank(node, 1, rank)
    count = node.params["group"]
    if count < 1 or channels % count or channels_in != channels:
        refuse(node, f"weights take {channels_in} channels in {count} groups; input has {channels}")
    expect_shape(node, 2, (per_group * count,), "one bias per output channel")
    extra = node.ints("output_padding")
    out = [
        w.stride * (size - 1) + w.kernel - w.before - w.after + more
        for size, w, more in zip(sizes, _windows(node), extra, strict=True)
    ]
    if min(out) < 1:
        refuse(node, f"output would have size {out}: padding takes all of it")
    return ((batch, *out, per_group * count),)


def _transposed_reference(node: Node, arrays: Arrays) -> Results:
    x, weights = arrays[0], arrays[1]
    each, count, shape = _windows(node), node.params["group"], _transposed_infer(node)[0]
    batch, *sizes, channels = x.shape
    per_group = weights.shape[-1]
    whole = [
        w.stride * (s - 1) + w.kernel + m for w, s, m in zip(each, sizes, node.ints("output_padding"), strict=True)
    ]
    canvas = np.zeros((batch, *whole, count, per_group))
    pixels = x.reshape(batch, *sizes, count, channels // count)
    for tap in itertools.product(*(range(w.kernel) for w in each)):
        filters = weights[tap].reshape(count, channels // count, per_group)
        strided = tuple(
            slice(k, k + w.stride * (s - 1) + 1, w.stride) for k, w, s in zip(tap, each, sizes, strict=True)
        )
        canvas[(slice(None), *strided)] += np.einsum("...gc,gcf->...gf", pixels, filters)
    inside = tuple(slice(w.before, w.before + s) for w, s in zip(each, shape[1:-1], strict=True))
    out = canvas[(slice(None), *inside)].reshape(shape)
    return (out + arrays[2] if node.has(2) else out,)


def _transposed_lower(node: Node, e: Emitter) -> None:
    each, rank = _windows(node), _dimensions(node)
    perm = (rank, rank + 1, *range(rank))
    weight = e.weight(1, lambda w: w.transpose(perm), perm, axis=1, integer=False)
    bias = e.bias(2, weight=1, integer=False)
    out = e.node(
        "ConvTranspose",
        [e.value(0), weight, bias] if bias else [e.value(0), weight],
        group=node.params["group"],
        kernel_shape=[w.kernel for w in each],
        strides=[w.stride for w in each],
        pads=onnx_pads(each),
        output_padding=list(node.ints("output_padding")),
    )
    e.put(0, out)


def _transposed_work(node: Node) -> Work:
    elements = node.outputs[0].elements
    # Each input channel meets each filter once per kernel place.
    macs = node.input().elements * math.prod(node.shape(1)) // node.shape()[-1]
    return Work.on(node, macs=macs, vector_ops=elements)


def _transposed(count: int, samples: tuple[Sample, ...]) -> OpDef:
    padding = {"default": 0} if count == 1 else {"rank": 1, "default": (0,) * count}
    return _weighted(
        f"TransposeConv{count}d",
        "transposed convolution of in[0] with filters in[1], plus bias in[2]",
        samples,
        infer=_transposed_infer,
        reference=_transposed_reference,
        lower=_transposed_lower,
        work=_transposed_work,
        kind="conv",
        params=(*_window_params(count), Param("group", default=1), Param("output_padding", **padding)),
        constraints=(
            channel_scales(lambda node: -1),
            Constraint(
                "output_padding is smaller than the stride",
                lambda node: all(
                    more < w.stride for more, w in zip(node.ints("output_padding"), _windows(node), strict=True)
                ),
            ),
        ),
    )


def _sample(x: Shape, weights: Shape, stride: Any, pads: Any, *, biased: bool = True, **params: Any) -> Sample:
    shapes = (x, weights, weights[-1:] if biased else None)
    return Sample(shapes, {"stride": stride, "pad_amount": pads, **params}, static=(1, 2) if biased else (1,))


OPS = (
    _convolution(
        "Conv2d",
        (
            _sample((1, 8, 9, 4), (3, 3, 4, 8), [2, 1], [[1, 1], [0, 1]]),
            _sample((2, 7, 7, 6), (3, 1, 3, 4), [1, 1], [[2, 1], [0, 0]], biased=False, group=2, dilation=[2, 1]),
            _sample((1, 6, 6, 32), (1, 1, 32, 16), [1, 1], [[0, 0], [0, 0]]),
        ),
    ),
    _convolution(
        "DepthWiseConv2d",
        (
            _sample((1, 8, 8, 16), (3, 3, 1, 16), [1, 1], [[1, 1], [1, 1]]),
            _sample((1, 9, 7, 3), (2, 3, 1, 6), [2, 2], [[0, 1], [1, 1]], biased=False),
        ),
    ),
    _convolution("Conv1d", (_sample((1, 9, 4), (3, 4, 8), 2, [1, 1]),)),
    _convolution("DepthWiseConv1d", (_sample((1, 9, 4), (3, 1, 4), 1, [2, 0], dilation=2),)),
    _convolution("Conv3d", (_sample((1, 4, 5, 6, 3), (2, 3, 3, 3, 4), [1, 2, 1], [[0, 1], [1, 1], [1, 1]]),)),
    _transposed(1, (_sample((1, 5, 4), (3, 4, 6), 2, [1, 0]),)),
    _transposed(
        2,
        (
            _sample((1, 4, 5, 4), (3, 3, 4, 6), [2, 2], [[1, 1], [0, 1]], output_padding=[1, 0]),
            _sample((1, 4, 4, 6), (2, 2, 6, 2), [2, 1], [[0, 0], [0, 0]], biased=False, group=3),
        ),
    ),
    _transposed(
        3,
        (
            _sample((1, 3, 3, 4, 2), (2, 2, 2, 2, 3), [2, 1, 2], [[0, 0], [0, 1], [0, 0]], biased=False),
            # The vendor's library does equal strides only.
            _sample((1, 3, 3, 4, 2), (2, 2, 2, 2, 3), [2, 2, 2], [[0, 0], [0, 1], [0, 0]]),
        ),
    ),
)
