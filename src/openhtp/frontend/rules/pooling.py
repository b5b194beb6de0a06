"""Pools: windows over the spatial axes. One-dimensional ones run on images of height 1."""

from __future__ import annotations

from typing import Any

from openhtp.core.dtype import DType
from openhtp.core.tensor import TensorSpec
from openhtp.frontend import values as vs
from openhtp.frontend.rules import _windows as windows
from openhtp.frontend.rules.convolution import site_reshaped
from openhtp.frontend.site import Site


def _pool(site: Site, kind: str, params: dict[str, Any]) -> None:
    rank = len(site.type(0).shape)
    if rank not in (3, 4, 5):
        site.refuse(f"input has rank {rank}", "pools of 1, 2 and 3 dimensions are supported")
    op = f"Pool{kind}{3 if rank == 5 else 2}d"
    x, out = site.take(0, vs.channel_last(rank)), site.give(0, vs.channel_last(rank))
    if not site.value(0).is_real:
        _pool_integers(site, op, x, out, params)
        return
    if rank > 3:
        site.emit(op, [x], [out], params)
        return
    x = site_reshaped(site, x, (x.shape[0], 1, *x.shape[1:]))
    wide = site.between((out.shape[0], 1, *out.shape[1:]), out)
    site.emit(op, [x], [wide], windows.with_height(params))
    site.emit("Reshape", [wide], [out])


def _pool_integers(site: Site, op: str, x: TensorSpec, out: TensorSpec, params: dict[str, Any]) -> None:
    """Plain integers are pooled as floats, which hold those of 8 bits exactly."""
    if site.type(0).dtype.itemsize > 1 or len(x.shape) == 3:
        site.refuse(f"it pools {site.type(0).dtype}", "use floats, 8-bit integers, or quantize")
    real = [site.assembly.native(f"{spec.name}_real", spec.shape, DType.FLOAT_32, None) for spec in (x, out)]
    site.emit("Cast", [x], real[:1])
    site.emit(op, real[:1], real[1:], params)
    site.emit("Cast", real[1:], [out])


def _windowed(site: Site, kind: str) -> None:
    if site.is_used(1):
        site.refuse("its second output (indices) is used", "only the first is supported")
    window = windows.read(site, site.attr("kernel_shape") or [])
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


def _rounding(site: Site, window: windows.SpatialWindow) -> str:
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
    "MaxPool": lambda site: _windowed(site, "Max"),
    "AveragePool": lambda site: _windowed(site, "Avg"),
    "GlobalMaxPool": lambda site: _global(site, "Max"),
    "GlobalAveragePool": lambda site: _global(site, "Avg"),
}

KEEPS = ("GlobalMaxPool", "MaxPool")
