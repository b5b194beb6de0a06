"""Transposed convolutions: every input pixel adds its filter, scaled, to the output.

Weights are [kernel..., channels in, channels out / group].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._opdef import Constraint, OpDef, Param, Port, Sample, Weights, Work, channel_scales, touched_bytes
from openhtp.ops._shapes import expect_rank, expect_shape, refuse
from openhtp.ops._types import WEIGHTED
from openhtp.ops._windows import dimensions, onnx_pads, window_params, windows


def _infer(node: Node) -> tuple[Shape, ...]:
    rank = dimensions(node) + 2
    batch, *sizes, channels = expect_rank(node, 0, rank)
    *_, taken, per_group = expect_rank(node, 1, rank)
    count = node.params["group"]
    if count < 1 or channels % count or taken != channels:
        refuse(node, f"weights take {taken} channels in {count} groups; input has {channels}")
    expect_shape(node, 2, (per_group * count,), "one bias per output channel")
    extra = node.ints("output_padding")
    out = [
        w.stride * (size - 1) + w.kernel - w.before - w.after + more
        for size, w, more in zip(sizes, windows(node), extra, strict=True)
    ]
    if min(out) < 1:
        refuse(node, f"output would have size {out}: padding takes all of it")
    return ((batch, *out, per_group * count),)


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    x, weights = arrays[0], arrays[1]
    each, count, shape = windows(node), node.params["group"], _infer(node)[0]
    batch, *sizes, channels = x.shape
    per_group = weights.shape[-1]
    whole = [
        w.stride * (s - 1) + w.kernel + m for w, s, m in zip(each, sizes, node.ints("output_padding"), strict=True)
    ]
    canvas = np.zeros((batch, *whole, count, per_group))
    pixels = x.reshape(batch, *sizes, count, channels // count)
    for place in itertools.product(*(range(w.kernel) for w in each)):
        filters = weights[place].reshape(count, channels // count, per_group)
        strided = tuple(
            slice(k, k + w.stride * (s - 1) + 1, w.stride) for k, w, s in zip(place, each, sizes, strict=True)
        )
        canvas[(slice(None), *strided)] += np.einsum("...gc,gcf->...gf", pixels, filters)
    kept = tuple(slice(w.before, w.before + s) for w, s in zip(each, shape[1:-1], strict=True))
    out = canvas[(slice(None), *kept)].reshape(shape)
    return (out + arrays[2] if node.has(2) else out,)


def _lower(node: Node, e: Emitter) -> None:
    each, rank = windows(node), dimensions(node)
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


def _work(node: Node) -> Work:
    read, written = touched_bytes(node)
    elements = node.outputs[0].elements
    # Each input channel meets each filter once per kernel place.
    macs = node.input().elements * math.prod(node.shape(1)) // node.shape()[-1]
    return Work(macs, elements, read, written)


def _transposed(count: int, samples: tuple[Sample, ...]) -> OpDef:
    extra = (
        Param("output_padding", default=0) if count == 1 else Param("output_padding", rank=1, default=(0,) * count)
    )
    return OpDef(
        name=f"TransposeConv{count}d",
        summary="transposed convolution of in[0] with filters in[1], plus bias in[2]",
        inputs=(Port("in[0]"), Port("in[1]"), Port("in[2]", optional=True)),
        outputs=(Port("out[0]"),),
        types=WEIGHTED,
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=_work,
        kind="conv",
        params=(*window_params(count), Param("group", default=1), extra),
        constraints=(
            channel_scales(lambda node: -1),
            Constraint(
                "output_padding is smaller than the stride",
                lambda node: all(
                    more < w.stride for more, w in zip(node.ints("output_padding"), windows(node), strict=True)
                ),
            ),
        ),
        layout=Layout.CHANNEL_FIRST,
        weights=Weights(channel_axis=3 if count == 2 else None),
        takes_activation=True,
        samples=samples,
    )


OPS = (
    _transposed(1, (Sample(((1, 5, 4), (3, 4, 6), (6,)), {"stride": 2, "pad_amount": [1, 0]}, static=(1, 2)),)),
    _transposed(
        2,
        (
            Sample(
                ((1, 4, 5, 4), (3, 3, 4, 6), (6,)),
                {"stride": [2, 2], "pad_amount": [[1, 1], [0, 1]], "output_padding": [1, 0]},
                static=(1, 2),
            ),
            Sample(
                ((1, 4, 4, 6), (2, 2, 6, 2), None),
                {"stride": [2, 1], "pad_amount": [[0, 0], [0, 0]], "group": 3},
                static=(1,),
            ),
        ),
    ),
    _transposed(
        3,
        (
            Sample(
                ((1, 3, 3, 4, 2), (2, 2, 2, 2, 3), None),
                {"stride": [2, 1, 2], "pad_amount": [[0, 0], [0, 1], [0, 0]]},
                static=(1,),
            ),
            # The vendor's library does equal strides only.
            Sample(
                ((1, 3, 3, 4, 2), (2, 2, 2, 2, 3), (3,)),
                {"stride": [2, 2, 2], "pad_amount": [[0, 0], [0, 1], [0, 0]]},
                static=(1, 2),
            ),
        ),
    ),
)
