"""The published latencies that the cost model is fitted on, and the kernels of their networks, as small tables.

The networks themselves are large; their kernels, counted, are all that the model looks at. So the accuracy can be
checked again without any of them.
"""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from openhtp.compiler.driver import compile_graph
from openhtp.cost.sizes import KernelSize, sizes_of
from openhtp.frontend.onnx_import import load

DATA = Path(__file__).parent.parent / "tests" / "cost" / "data"
# Kernels are the same for every SoC that the latencies are of.
TARGET = "SM8650"
SOURCE = "Qualcomm AI Hub Models 0.65.0, October 2026"
_WHOLE = ("read", "written", "weights", "macs", "taps", "edge", "packed")
_RATIOS = ("vector8", "vector16", "rows8", "rows16", "channels")
FAMILIES = {
    "bert": "albert_base_v2_hf bert_base_uncased_hf electra_bert_base_discrim_google",
    "detr": "detr_resnet50 detr_resnet101",
    "mediapipe": "mediapipe_face mediapipe_hand",
    "mobilenet": "mobilenet_v2 mobilenet_v3_large mobilenet_v3_small mobilenet_v4 mnasnet05",
    "quicksrnet": "quicksrnetlarge quicksrnetmedium quicksrnetsmall",
    "resnet": "resnet18 resnet50 resnet101 wideresnet50 resnext50 resnext101 fcn_resnet50",
    "vit": "vit beit depth_anything",
    "whisper": "whisper_base whisper_small",
    "yolo": "yolov3 yolov5 yolov8_det yolov8_obb yolov8_seg",
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


def read_latencies(folder: Path = DATA) -> list[Latency]:
    """All published times."""
    with (folder / "latencies.csv").open(newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return [Latency(row["network"], row["precision"], row["soc"], float(row["latency_us"])) for row in rows]


def read_kernels(folder: Path = DATA) -> dict[str, list[KernelSize]]:
    """The kernels of every network, without names; their order is lost, which the model does not mind."""
    found: dict[str, list[KernelSize]] = {}
    with (folder / "kernels.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            ratios = [float(row[name]) for name in _RATIOS]
            kernel = KernelSize(
                name=row["kind"],
                op=row["kind"],
                kind=row["kind"],
                vector_padding=(ratios[0], ratios[1]),
                row_padding=(ratios[2], ratios[3]),
                channel_padding=ratios[4],
                **{name: int(row[name] or 0) for name in _WHOLE},
            )
            found.setdefault(row["network"], []).extend([kernel] * int(row["count"]))
    return found


def extract(source: Path, folder: Path = DATA) -> list[str]:
    """Make both tables from a folder with latency*.csv and graphs/*.onnx.gz; return what could not be read."""
    folder.mkdir(parents=True, exist_ok=True)
    failures = []
    with (folder / "kernels.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["network", "count", "kind", *_WHOLE, *_RATIOS])
        for path in sorted((source / "graphs").glob("*.onnx.gz")):
            name = path.name.removesuffix(".onnx.gz")
            try:
                kernels = sizes_of(compile_graph(load(gzip.decompress(path.read_bytes())), TARGET))
            except Exception as error:
                failures.append(f"{name}: {error}")
                continue
            for row, count in Counter(map(_row, kernels)).items():
                table.writerow([name, count, *row])
    known = set(read_kernels(folder))
    with (folder / "latencies.csv").open("w", newline="") as file:
        file.write(
            f"# {SOURCE}: minima of about 100 runs, burst mode, runtime qnn_dlc (whisper: context binary)\n"
        )
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["network", "precision", "soc", "latency_us"])
        for path in sorted(source.glob("latency*.csv")):
            for row in csv.DictReader(path.open(newline="")):
                name = row["graph_file"].removesuffix(".onnx.gz")
                if name in known:
                    table.writerow([name, row["precision"], row["soc"].upper(), f"{float(row['latency_us']):g}"])
    return failures


def _row(kernel: KernelSize) -> tuple[object, ...]:
    ratios = (*kernel.vector_padding, *kernel.row_padding, kernel.channel_padding)
    counts = [getattr(kernel, name) for name in _WHOLE]
    return (kernel.kind, *(count or "" for count in counts), *(f"{ratio:.5g}" for ratio in ratios))
