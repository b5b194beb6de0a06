"""The published latencies that the cost model is fitted on, and the kernels of their networks, as small tables.

The networks themselves are large; their kernels are all that the model looks at. So the accuracy can be checked
again without any of them. ``held_out.csv`` has what fits that had not seen a network's family said of it.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openhtp.compiler.sizes import KernelSize

SOURCE = "Qualcomm AI Hub Models 0.65.0, October 2026"
WHOLE = (
    "read",
    "written",
    "weights",
    "macs",
    "taps",
    "edge_in",
    "edge_out",
    "packed",
    "matrices",
    "planes",
    "strips",
    "scalar_ops",
)
RATIOS = ("vector8", "vector16", "read8", "read16", "rows8", "rows16", "channels")
FAMILIES = {
    "bert": "albert_base_v2_hf bert_base_uncased_hf electra_bert_base_discrim_google distil_bert_base_uncased_hf"
    " minilm_v2 mobile_bert_uncased_google",
    "convnext": "convnext_tiny convnext_base convnext_v2_base",
    "detr": "detr_resnet50 detr_resnet101",
    "efficientnet": "efficientnet_b0 efficientnet_b4 efficientnet_lite4 efficientnet_v2_s",
    "inception": "googlenet inception_v3 inception_v4",
    "mediapipe": "mediapipe_face mediapipe_hand mediapipe_pose",
    "mobilenet": "mobilenet_v2 mobilenet_v3_large mobilenet_v3_small mobilenet_v4 mnasnet05",
    "pyramid_pooling": "ddrnet23_slim pidnet",
    "regnet": "regnet regnet_y_800mf",
    "resnet": "resnet18 resnet50 resnet101 wideresnet50 resnext50 resnext101 fcn_resnet50 ffnet_122ns_lowres",
    "super_resolution": "quicksrnetlarge quicksrnetmedium quicksrnetsmall sesr_m5 xlsr",
    "swin": "swin_base swin_small swin_tiny",
    "video_resnet": "resnet_3d resnet_2plus1d",
    "vit": "vit beit depth_anything depth_anything_v2 siglip2",
    "whisper": "whisper_base whisper_small whisper_medium whisper_tiny",
    "yolo": "yolov3 yolov5 yolov8_det yolov8_obb yolov8_seg yolov10_det yolov11_det yolov11_seg yolo26_det",
}
"""Networks of one kind are kept out of the fit together; those that are not named are families of their own."""
_FAMILY_BY_MODEL = {model: family for family, models in FAMILIES.items() for model in models.split()}


@dataclass(frozen=True, slots=True)
class Latency:
    """One published time: the shortest of about a hundred runs on a warm device in burst mode."""

    network: str
    precision: str
    soc: str
    us: float

    @property
    def family(self) -> str:
        """What the network is kept out of the fit with."""
        model = self.network.partition("__")[0]
        return _FAMILY_BY_MODEL.get(model, model)


def _text(name: str) -> str:
    data = Path(__file__).with_name(name).read_bytes()
    return (gzip.decompress(data) if name.endswith(".gz") else data).decode()


def _rows(name: str) -> csv.DictReader[str]:
    lines = (line for line in io.StringIO(_text(name)) if not line.startswith("#"))
    return csv.DictReader(lines)


@functools.cache
def published_latencies() -> tuple[Latency, ...]:
    """All published times."""
    return tuple(
        Latency(row["network"], row["precision"], row["soc"], float(row["latency_us"]))
        for row in _rows("latencies.csv")
    )


@functools.cache
def published_kernels() -> Mapping[str, tuple[KernelSize, ...]]:
    """The kernels of every network in running order, without names."""
    found: dict[str, list[KernelSize]] = {}
    for row in _rows("kernels.csv.gz"):
        ratios = [float(row[name]) for name in RATIOS]
        place = len(found.setdefault(row["network"], []))
        counts: dict[str, Any] = {name: int(row[name] or 0) for name in WHOLE}
        kernel = KernelSize(
            name=row["kind"],
            op=row["kind"],
            kind=row["kind"],
            vector_padding=(ratios[0], ratios[1]),
            read_padding=(ratios[2], ratios[3]),
            row_padding=(ratios[4], ratios[5]),
            channel_padding=ratios[6],
            reads=tuple(place - int(back) for back in row["reads"].split()),
            **counts,
        )
        found[row["network"]].append(kernel)
    return {network: tuple(kernels) for network, kernels in found.items()}


@functools.cache
def held_out_times() -> tuple[float, ...]:
    """What fits without a network's family say of it, for each row of the published times."""
    return tuple(float(row["modelled_us"]) for row in _rows("held_out.csv"))
