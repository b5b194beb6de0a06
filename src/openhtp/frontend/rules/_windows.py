"""Kernel, strides, dilations and padding as ONNX's sliding-window operators give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openhtp.frontend.site import Site


@dataclass(slots=True)
class SpatialWindow:
    """One entry per spatial axis; ``pads`` holds pairs before, after."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    pads: list[list[int]]
    extra: list[int]


def read(site: Site, kernel: Sequence[int]) -> SpatialWindow:
    """The window of a Conv or pool, with automatic padding worked out."""
    window = _attributes(site, kernel)
    mode = site.attr("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        sizes = site.type(0).shape[2:]
        window.pads = [_same(mode, *each) for each in zip(sizes, *_lists(window), strict=True)]
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


def _lists(window: SpatialWindow) -> tuple[list[int], list[int], list[int]]:
    return window.kernel, window.strides, window.dilations


def _same(mode: str, size: int, kernel: int, stride: int, dilation: int) -> list[int]:
    out = -(-size // stride)
    total = max(0, (out - 1) * stride + dilation * (kernel - 1) + 1 - size)
    small, large = total // 2, total - total // 2
    return [small, large] if mode == "SAME_UPPER" else [large, small]
