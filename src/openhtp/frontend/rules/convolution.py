"""Conv and ConvTranspose in one, two and three dimensions.

A one-dimensional convolution is a two-dimensional one on images of height 1, which is what the HTP computes.
"""

from __future__ import annotations

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.quant import AxisScaleOffset, Encoding, ScaleOffset
from openhtp.core.tensor import TensorSpec
from openhtp.frontend import values as vs
from openhtp.frontend.rules import _windows as windows
from openhtp.frontend.site import Site
from openhtp.frontend.values import OnnxValue, Perm


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
    window = windows.read(site, site.type(1).shape[2:])
    channels, groups = site.type(0).shape[1], site.attr("group", 1)
    x = site.assembly.form(site.wide_enough(site.value(0)), vs.channel_last(rank))
    x = _padded(site, x, window)
    params = {"stride": window.strides, "pad_amount": window.pads, "dilation": window.dilations}
    depthwise = groups == channels > 1 and rank < 5
    if rank == 3:
        x = site_reshaped(site, x, (x.shape[0], 1, *x.shape[1:]))
        params = windows.with_height(params)
    weight = _weight(site, rank, (*range(2, rank), 1, 0))
    if not depthwise:
        params["group"] = groups
    op = "Conv3d" if rank == 5 else "DepthWiseConv2d" if depthwise else "Conv2d"
    _finish(site, op, [x, weight, bias(site, 2, x, weight)], rank, params)


def _conv_transpose(site: Site) -> None:
    rank = len(site.type(0).shape)
    if rank not in (3, 4, 5):
        site.refuse(f"input has rank {rank}", "1, 2 and 3 dimensional transposed convolutions are supported")
    window = windows.read_transposed(site, site.type(1).shape[2:])
    if any(size != 1 for size in window.dilations):
        site.refuse(f"dilations are {window.dilations}", "use 1 on every axis")
    x = site.assembly.form(site.wide_enough(site.value(0)), vs.channel_last(rank))
    params = {"stride": window.strides, "pad_amount": window.pads, "output_padding": window.extra}
    if rank == 3:
        x = site_reshaped(site, x, (x.shape[0], 1, *x.shape[1:]))
        params = windows.with_height(params)
    params["group"] = site.attr("group", 1)
    weight = _weight(site, rank, (*range(2, rank), 0, 1))
    op = "TransposeConv3d" if rank == 5 else "TransposeConv2d"
    _finish(site, op, [x, weight, bias(site, 2, x, weight)], rank, params)


def _finish(site: Site, op: str, inputs: list[TensorSpec | None], rank: int, params: dict[str, object]) -> None:
    out = site.give(0, vs.channel_last(rank))
    if rank > 3:
        site.emit(op, inputs, [out], params)
        return
    wide = site.between((out.shape[0], 1, *out.shape[1:]), out)
    site.emit(op, inputs, [wide], params)
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


def _padded(site: Site, x: TensorSpec, window: windows.SpatialWindow) -> TensorSpec:
    """QNN takes less padding than the kernel reaches; more than that is a Pad of its own."""
    reach = [d * (k - 1) + 1 for d, k in zip(window.dilations, window.kernel, strict=True)]
    if all(max(pair) < limit for pair, limit in zip(window.pads, reach, strict=True)):
        return x
    pads = [[0, 0], *(list(pair) for pair in window.pads), [0, 0]]
    shape = tuple(size + sum(pair) for size, pair in zip(x.shape, pads, strict=True))
    made = site.between(shape, x)
    site.emit("Pad", [x], [made], {"scheme": "CONSTANT", "pad_amount": pads})
    window.pads[:] = [[0, 0] for _ in window.pads]
    return made


def site_reshaped(site: Site, spec: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    """A tensor in another shape, stored the same way."""
    made = site.between(shape, spec)
    site.emit("Reshape", [spec], [made])
    return made


RULES = {"Conv": _conv, "ConvTranspose": _conv_transpose}
