"""Operators that choose boxes, and that read the regions they name."""

from __future__ import annotations

import numpy as np

from openhtp.core.dtype import DType
from openhtp.frontend import values as vs
from openhtp.frontend.site import Site

# Below every score in half precision: the same as no threshold.
_LOWEST = -65504.0


def _scalar(site: Site, index: int, default: float) -> float:
    constant = site.constant(index)
    if constant is None and site.has(index):
        site.refuse(f"input {index} ({site.node.inputs[index]!r}) is computed", "make it a constant")
    return default if constant is None else float(np.asarray(constant).reshape(-1)[0])


def _non_max_suppression(site: Site) -> None:
    if site.attr("center_point_box", 0):
        site.refuse("center_point_box is 1", "give boxes by their corners")
    batch, boxes, _ = site.type(0).shape
    threshold = _scalar(site, 4, _LOWEST)
    if site.has(4):
        # ONNX drops what equals the threshold, QNN keeps it.
        threshold = float(np.nextafter(np.float32(threshold), np.float32(np.inf)))
    params = {
        "iou_threshold": _scalar(site, 3, 0.0),
        "score_threshold": threshold,
        "max_boxes_selected": min(site.ints(2)[0], boxes),
    }
    count = site.assembly.native(f"{site.node.outputs[0]}_count", (batch,), DType.UINT_32, None)
    site.emit("NonMaxSuppression", [site.take(0), site.take(1)], [site.give(), count], params)


def _roi_align(site: Site) -> None:
    if site.attr("mode", "avg") != "avg":
        site.refuse(f"mode is {site.attr('mode')!r}", "use avg")
    image, regions = site.matched(site.value(0)), site.value(1)
    if site.is_fixed:
        wide = regions.dtype.bits == 16
        regions = site.like(regions, DType.UFIXED_POINT_16 if wide else DType.UFIXED_POINT_8)
    # Before opset 16 there was no choice.
    default = "half_pixel" if site.node.opset >= 16 else "output_half_pixel"
    samples = site.attr("sampling_ratio", 0) or -1
    params = {
        "img_size_ratio": [1.0 / site.attr("spatial_scale", 1.0)] * 2,
        "num_samples_y": samples,
        "num_samples_x": samples,
        "aligned": site.attr("coordinate_transformation_mode", default) == "half_pixel",
    }
    inputs = [
        site.assembly.form(image, vs.channel_last(4)),
        site.assembly.form(regions, vs.identity(2)),
        site.take(2),
    ]
    site.emit("RoiAlign", inputs, [site.give(0, vs.channel_last(4))], params)


RULES = {"NonMaxSuppression": _non_max_suppression, "RoiAlign": _roi_align}
