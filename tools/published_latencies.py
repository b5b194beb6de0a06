"""Makes the tables of ``tools/published`` from published latencies and the networks they are of."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

from openhtp.compiler.driver import compile_graph
from openhtp.compiler.sizes import KernelSize, sizes_of
from openhtp.frontend.onnx_import import load
from published import RATIOS, SOURCE, WHOLE

DATA = Path(__file__).parent / "published"
# Kernels are the same for every SoC that the latencies are of.
TARGET = "SM8650"


def extract(source: Path, folder: Path = DATA) -> list[str]:
    """Make both tables from a folder with latency*.csv and graphs/*.onnx.gz; return what could not be read."""
    failures, known = [], set()
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["network", "kind", "reads", *WHOLE, *RATIOS])
    for path in sorted((source / "graphs").glob("*.onnx.gz")):
        name = path.name.removesuffix(".onnx.gz")
        try:
            kernels = sizes_of(compile_graph(load(gzip.decompress(path.read_bytes())), TARGET))
        except Exception as error:
            failures.append(f"{name}: {error}")
            continue
        known.add(name)
        for place, kernel in enumerate(kernels):
            table.writerow([name, *_row(kernel, place)])
    # Without the time in it, the file stays the same for the same data.
    (folder / "kernels.csv.gz").write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))
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


def _row(kernel: KernelSize, place: int) -> tuple[object, ...]:
    ratios = (*kernel.vector_padding, *kernel.read_padding, *kernel.row_padding, kernel.channel_padding)
    counts = [getattr(kernel, name) for name in WHOLE]
    reads = " ".join(str(place - maker) for maker in kernel.reads)
    return (kernel.kind, reads, *(count or "" for count in counts), *(f"{ratio:.5g}" for ratio in ratios))
