"""Images in another size, or sampled at given places: Resize, Upsample, GridSample."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from openhtp.frontend import values as vs
from openhtp.frontend.model import Array, Shape
from openhtp.frontend.site import Site
from openhtp.frontend.values import Perm

_PLACES = {
    "half_pixel": "HALF_PIXEL",
    # Differs from half_pixel only where the output's size is rounded, which is refused below.
    "half_pixel_symmetric": "HALF_PIXEL",
    "pytorch_half_pixel": "PYTORCH_HALF_PIXEL",
    "align_corners": "ALIGN_CORNERS",
    "asymmetric": "ASYMMETRIC",
}
_KINDS = {"nearest": "NEAREST", "linear": "LINEAR", "bilinear": "LINEAR", "cubic": "CUBIC"}
_GRID_MODES = {"bilinear": "BILINEAR", "linear": "BILINEAR", "nearest": "NEAREST"}


def _resize(site: Site) -> None:
    before, after = site.type(0).shape, site.out_type().shape
    old = site.node.op_type == "Upsample" or site.node.opset < 11
    scales = _scales(site, old)
    if scales is not None:
        _check_exact(site, before, after, scales)
    for name, plain in (("antialias", 0), ("keep_aspect_ratio_policy", "stretch")):
        if site.attr(name, plain) != plain:
            site.refuse(f"{name} is {site.attr(name)!r}", f"only {plain!r} is supported")
    places = "asymmetric" if old else site.attr("coordinate_transformation_mode", "half_pixel")
    kind = site.attr("mode", "nearest")
    if places not in _PLACES:
        site.refuse(f"coordinate_transformation_mode is {places!r}", f"use one of {', '.join(_PLACES)}")
    if kind not in _KINDS or (kind != "cubic" and site.attr("exclude_outside", 0)):
        site.refuse(
            f"mode {kind!r}, exclude_outside {site.attr('exclude_outside', 0)}", f"use {', '.join(_KINDS)}"
        )
    # QNN refuses parameters of another mode than the one chosen.
    params: dict[str, object] = {"interpolation_mode": _KINDS[kind], "transformation_mode": _PLACES[places]}
    if kind == "nearest":
        params["nearest_mode"] = "FLOOR" if old else site.attr("nearest_mode", "round_prefer_floor").upper()
    if kind == "cubic":
        params["cubic_coeff"] = float(site.attr("cubic_coeff_a", -0.75))
        params["exclude_outside"] = bool(site.attr("exclude_outside", 0))
    perm = _image_order(site, before, after)
    x, out = site.take(0, perm), site.give(0, perm)
    simple = _simple_nearest(x.shape, out.shape, params) if kind == "nearest" else None
    if simple is not None:
        site.emit("ResizeNearestNeighbor", [x], [out], simple)
    else:
        site.emit("Resize", [x], [out], params)


def _simple_nearest(before: Shape, after: Shape, params: Mapping[str, object]) -> dict[str, object] | None:
    """Parameters of the HTP's own op for nearest pixels, which rounds in two ways, if it picks the same ones."""
    if len(before) != 4:
        return None
    sizes = [(size, out) for size, out in zip(before[1:3], after[1:3], strict=True) if size != out]
    mode, places = str(params["nearest_mode"]), str(params["transformation_mode"])
    picked = [_picked(size, out, places, mode) for size, out in sizes]
    for centers in (True, False):
        offset = 0.5 if centers else 0.0
        own = [np.minimum((np.arange(out) + offset) * size // out, size - 1) for size, out in sizes]
        if all(np.array_equal(one, other) for one, other in zip(picked, own, strict=True)):
            return {"half_pixel_centers": centers}
    return None


def _picked(size: int, out: int, places: str, mode: str) -> Array:
    """Which pixel each output pixel is, by ONNX's definition."""
    index = np.arange(out, dtype=np.float64)
    where = index * size / out
    if places == "ALIGN_CORNERS":
        where = index * (size - 1) / max(1, out - 1)
    elif places == "HALF_PIXEL" or (places == "PYTORCH_HALF_PIXEL" and out > 1):
        where = (index + 0.5) * size / out - 0.5
    elif places == "PYTORCH_HALF_PIXEL":
        where = np.zeros(out)
    rounded = {
        "FLOOR": np.floor(where),
        "CEIL": np.ceil(where),
        "ROUND_PREFER_FLOOR": np.ceil(where - 0.5),
        "ROUND_PREFER_CEIL": np.floor(where + 0.5),
    }[mode]
    return np.clip(rounded, 0, size - 1)


def _scales(site: Site, old: bool) -> Array | None:
    if "scales" in site.node.attrs:
        return np.asarray(site.attr("scales"))
    index = 1 if old else 2
    constant = site.constant(index) if site.has(index) else None
    return constant if constant is not None and constant.size else None


def _check_exact(site: Site, before: tuple[int, ...], after: tuple[int, ...], scales: Array) -> None:
    """Refuse a scale that leads to a fraction of a pixel: the HTP scales by the ratio of whole sizes."""
    axes = [site.axis(axis, len(before)) for axis in site.attr("axes") or range(len(before))]
    for axis, scale in zip(axes, scales.reshape(-1).tolist(), strict=True):
        if abs(before[axis] * scale - after[axis]) > 1e-3:
            site.refuse(
                f"scale {scale:g} makes {before[axis]} pixels {before[axis] * scale:g}",
                "give sizes, or a scale that leads to whole pixels",
            )


def _image_order(site: Site, before: tuple[int, ...], after: tuple[int, ...]) -> Perm:
    """An order of axes whose first and last are not resized."""
    rank = len(before)
    kept = [axis for axis in range(rank) if before[axis] == after[axis]]
    for perm in (vs.channel_last(rank), vs.identity(rank)):
        if rank > 2 and perm[0] in kept and perm[-1] in kept:
            return perm
    return site.refuse(f"it resizes {list(before)} to {list(after)}", "batch and channels must stay as they are")


def _grid_sample(site: Site) -> None:
    rank = len(site.type(0).shape)
    mode = site.attr("mode", "bilinear")
    if mode not in _GRID_MODES:
        site.refuse(f"mode is {mode!r}", f"use one of {', '.join(_GRID_MODES)}")
    params = {
        "align_corners": bool(site.attr("align_corners", 0)),
        "mode": _GRID_MODES[mode],
        "padding_mode": site.attr("padding_mode", "zeros").upper(),
    }
    grid = site.matched(site.value(1))
    perm = vs.channel_last(rank)
    inputs = [site.take(0, perm), site.assembly.form(grid, vs.identity(rank))]
    site.emit("GridSample", inputs, [site.give(0, perm)], params)


RULES = {"Resize": _resize, "Upsample": _resize, "GridSample": _grid_sample}
