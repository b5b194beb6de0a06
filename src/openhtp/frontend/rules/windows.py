"""Windows over the spatial axes: convolutions and pools in one, two and three dimensions.

Those of one dimension compute on images of height 1, which is what the HTP does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.quant import AxisScaleOffset, Encoding, ScaleOffset
from openhtp.core.tensor import TensorSpec
from openhtp.frontend import values as vs
from openhtp.frontend.site import Site
from openhtp.frontend.values import OnnxValue, Perm


@dataclass(slots=True)
class SpatialWindow:
    """One entry per spatial axis; ``pads`` holds pairs before, after."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: list[list[int]]
    extra: list[int]


def read_window(site: Site, kernel: Sequence[int]) -> SpatialWindow:
    """The window of a Conv or pool, with automatic padding worked out."""
    window = _attributes(site, kernel)
    mode = site.attr("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        sizes = site.type(0).shape[2:]
        spans = zip(sizes, window.kernel, window.strides, window.dilations, strict=True)
        window.pads = [_same_padding(mode, *span) for span in spans]
    elif mode == "VALID":
        window.pads = [[0, 0] for _ in kernel]
    return window


def read_transposed(site: Site, kernel: Sequence[int]) -> SpatialWindow:
    """The window of a ConvTranspose: padding is what makes the output as large as it is."""
    window = _attributes(site, kernel)
    mode, wanted = site.attr("auto_pad", "NOTSET"), site.attr("output_shape")
    if wanted is None and mode not in ("SAME_UPPER", "SAME_LOWER"):
        return window
    sizes, outs = site.type(0).shape[2:], site.out_type().shape[2:]
    pads = []
    for index, (size, out) in enumerate(zip(sizes, outs, strict=True)):
        reach = window.dilations[index] * (window.kernel[index] - 1) + 1
        total = window.strides[index] * (size - 1) + window.extra[index] + reach - out
        if total < 0:
            window.extra[index] -= total
            total = 0
        small, large = total // 2, total - total // 2
        pads.append([small, large] if mode == "SAME_UPPER" else [large, small])
    window.pads = pads
    return window


def with_height(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a one-dimensional window for images of height 1."""
    neutral = {"stride": 1, "dilation": 1, "filter_size": 1, "output_padding": 0, "pad_amount": [0, 0]}
    return {name: [neutral[name], *value] if name in neutral else value for name, value in params.items()}


def _attributes(site: Site, kernel: Sequence[int]) -> SpatialWindow:
    count = len(kernel)
    flat = list(site.attr("pads") or [0] * (2 * count))
    if len(flat) != 2 * count:
        site.refuse(f"pads has {len(flat)} numbers for {count} spatial axes")
    if any(pad < 0 for pad in flat):
        site.refuse(f"pads {flat} are negative", "cut the input with Slice instead")
    return SpatialWindow(
        list(kernel),
        list(site.attr("strides") or [1] * count),
        list(site.attr("dilations") or [1] * count),
        [[before, after] for before, after in zip(flat[:count], flat[count:], strict=True)],
        list(site.attr("output_padding") or [0] * count),
    )


def _same_padding(mode: str, size: int, kernel: int, stride: int, dilation: int) -> list[int]:
    out = -(-size // stride)
    total = max(0, (out - 1) * stride + dilation * (kernel - 1) + 1 - size)
    small, large = total // 2, total - total // 2
    return [small, large] if mode == "SAME_UPPER" else [large, small]


def bias(site: Site, index: int, x: TensorSpec, weight: TensorSpec) -> TensorSpec | None:
    """The bias; in fixed point it is stored with 32 bits in steps of the product, as integer kernels add it."""
    if not site.has(index):
        return None
    value = site.value(index) if not site.is_fixed else None
    if value is not None:
        return site.assembly.form(value, vs.identity(value.rank))
    real = site.constant(index)
    if real is None:
        site.refuse("the bias is computed", "make it a constant, or add it in a node of its own")
    quant = product_encoding(x.quant, weight.quant)
    return site.static(vs.stored(real, DType.SFIXED_POINT_32, quant), DType.SFIXED_POINT_32, quant)


def product_encoding(x: Encoding | None, weight: Encoding | None) -> Encoding | None:
    """Steps of a sum of products."""
    assert isinstance(x, ScaleOffset)
    if isinstance(weight, AxisScaleOffset):
        return AxisScaleOffset(0, tuple(x.scale * scale for scale in weight.scales))
    assert isinstance(weight, ScaleOffset)
    return ScaleOffset(x.scale * weight.scale)


def _conv(site: Site) -> None:
    rank = len(site.type(0).shape)
    if rank not in (3, 4, 5):
        site.refuse(f"input has rank {rank}", "1, 2 and 3 dimensional convolutions are supported")
    window = read_window(site, site.type(1).shape[2:])
    channels, groups = site.type(0).shape[1], site.attr("group", 1)
    x = site.assembly.form(site.wide_enough(site.value(0)), vs.channel_last(rank))
    x = _padded(site, x, window)
    params = {"stride": window.strides, "pad_amount": window.pads, "dilation": window.dilations}
    depthwise = groups == channels > 1 and rank < 5
    weight = _weight(site, rank, (*range(2, rank), 1, 0))
    if not depthwise:
        params["group"] = groups
    op = "Conv3d" if rank == 5 else "DepthWiseConv2d" if depthwise else "Conv2d"
    _emit_windowed(site, op, [x, weight, bias(site, 2, x, weight)], params)


def _conv_transpose(site: Site) -> None:
    rank = len(site.type(0).shape)
    if rank not in (3, 4, 5):
        site.refuse(f"input has rank {rank}", "1, 2 and 3 dimensional transposed convolutions are supported")
    window = read_transposed(site, site.type(1).shape[2:])
    if any(size != 1 for size in window.dilations):
        site.refuse(f"dilations are {window.dilations}", "use 1 on every axis")
    x = site.assembly.form(site.wide_enough(site.value(0)), vs.channel_last(rank))
    params = {"stride": window.strides, "pad_amount": window.pads, "output_padding": window.extra}
    params["group"] = site.attr("group", 1)
    weight = _weight(site, rank, (*range(2, rank), 0, 1))
    op = "TransposeConv3d" if rank == 5 else "TransposeConv2d"
    _emit_windowed(site, op, [x, weight, bias(site, 2, x, weight)], params)


def _emit_windowed(site: Site, op: str, inputs: list[TensorSpec | None], params: dict[str, Any]) -> None:
    """Emit an op on images; one of a single spatial axis computes on images of height 1."""
    x, out = inputs[0], site.give(0, vs.channel_last(len(site.type(0).shape)))
    assert x is not None
    if len(out.shape) > 3:
        site.emit(op, inputs, [out], params)
        return
    flat = site_reshaped(site, x, (x.shape[0], 1, *x.shape[1:]))
    wide = site.between((out.shape[0], 1, *out.shape[1:]), out)
    site.emit(op, [flat, *inputs[1:]], [wide], with_height(params))
    site.emit("Reshape", [wide], [out])


def _weight(site: Site, rank: int, perm: Perm) -> TensorSpec:
    """Filters in QNN's order; those of a one-dimensional convolution get a height of 1."""
    value = site.weight(1)
    if rank > 3:
        return site.assembly.form(value, perm)
    if value.data is None:
        return site_reshaped(site, site.assembly.form(value, perm), (1, *vs.permuted(value.shape, perm)))
    tall = OnnxValue(value.name, (*value.shape[:2], 1, value.shape[2]), value.dtype, value.quant)
    tall.data = value.data[:, :, np.newaxis]
    return site.assembly.form(tall, (2, 3, *perm[1:]))


def _padded(site: Site, x: TensorSpec, window: SpatialWindow) -> TensorSpec:
    """The input, after a Pad for padding as large as the kernel or larger, which QNN does not take."""
    reach = [d * (k - 1) + 1 for d, k in zip(window.dilations, window.kernel, strict=True)]
    if all(max(pair) < limit for pair, limit in zip(window.pads, reach, strict=True)):
        return x
    pads = [[0, 0], *(list(pair) for pair in window.pads), [0, 0]]
    shape = tuple(size + sum(pair) for size, pair in zip(x.shape, pads, strict=True))
    padded = site.between(shape, x)
    site.emit("Pad", [x], [padded], {"scheme": "CONSTANT", "pad_amount": pads})
    window.pads[:] = [[0, 0] for _ in window.pads]
    return padded


def site_reshaped(site: Site, spec: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    """A tensor in another shape, stored the same way."""
    target = site.between(shape, spec)
    site.emit("Reshape", [spec], [target])
    return target


def _pool(site: Site, kind: str, params: dict[str, Any]) -> None:
    rank = len(site.type(0).shape)
    if rank not in (3, 4, 5):
        site.refuse(f"input has rank {rank}", "pools of 1, 2 and 3 dimensions are supported")
    op = f"Pool{kind}{3 if rank == 5 else 2}d"
    x = site.take(0, vs.channel_last(rank))
    if site.value(0).is_real:
        _emit_windowed(site, op, [x], params)
        return
    if site.type(0).dtype.itemsize > 1 or rank == 3:
        site.refuse(f"it pools {site.type(0).dtype}", "use floats, 8-bit integers, or quantize")
    # Floats hold plain integers of 8 bits exactly.
    site.emit_cast(op, x, site.give(0, vs.channel_last(rank)), DType.FLOAT_32, params)


def _windowed(site: Site, kind: str) -> None:
    if site.is_used(1):
        site.refuse("its second output (indices) is used", "only the first is supported")
    window = read_window(site, site.attr("kernel_shape") or [])
    if any(size != 1 for size in window.dilations):
        site.refuse(f"dilations are {window.dilations}", "use 1 on every axis")
    params = {
        "filter_size": window.kernel,
        "stride": window.strides,
        "pad_amount": window.pads,
        "rounding_mode": _rounding(site, window),
    }
    if kind == "Avg":
        params["count_pad_for_edges"] = bool(site.attr("count_include_pad", 0))
    _pool(site, kind, params)


def _rounding(site: Site, window: SpatialWindow) -> str:
    """Whether sizes are rounded up. ONNX drops a last window that lies in the padding; then they are not."""
    before, after = site.type(0).shape[2:], site.out_type().shape[2:]
    whole = [
        (size + sum(pads) - kernel) // stride + 1
        for size, pads, kernel, stride in zip(before, window.pads, window.kernel, window.strides, strict=True)
    ]
    return "FLOOR" if whole == list(after) else "CEIL"


def _global(site: Site, kind: str) -> None:
    sizes = list(site.type(0).shape[2:])
    pads = [[0, 0] for _ in sizes]
    _pool(site, kind, {"filter_size": sizes, "stride": [1] * len(sizes), "pad_amount": pads})


RULES = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": lambda site: _windowed(site, "Max"),
    "AveragePool": lambda site: _windowed(site, "Avg"),
    "GlobalMaxPool": lambda site: _global(site, "Max"),
    "GlobalAveragePool": lambda site: _global(site, "Avg"),
}

KEEPS = ("GlobalMaxPool", "MaxPool")
