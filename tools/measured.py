"""Measures what the README's section *Measured* says, in one run, and writes the section with the date of the run.

    python tools/measured.py            # about five minutes on a quiet machine; writes README.md
    python tools/measured.py --dry-run  # prints the section and changes nothing

Every number comes from the JSON of an ``openhtp bench`` command that this run makes. How many of its pieces met a
quiet moment is written, too; with fewer than three in four the README is left alone, unless ``--anyway`` is given.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BEGIN = "<!-- Written by tools/measured.py: run it, do not edit this. -->"
END = "<!-- End of what tools/measured.py writes. -->"
LEAST_QUIET = 0.75
_Figures = Mapping[str, Any]

COMMANDS = {
    "async": ("async", "--peers", "--rounds", "2", "--network", "trivial", "--network", "mobilenet_v2"),
    "preempt": ("preempt", "--samples", "200", "--rounds", "20"),
    "networks": ("networks", "--rounds", "2"),
    "load": ("load", "--rounds", "3", "--no-large", "--network", "resnet50"),
    "plan": ("plan", "--rounds", "5"),
}

WAYS = ("OpenHTP, its binary in a file", "OpenHTP, from ONNX", "ONNX Runtime, saved .ort")
"""Of the ways to load a network, those that the README has."""


def measure(commands: Mapping[str, tuple[str, ...]] = COMMANDS) -> dict[str, _Figures]:
    """The JSON of each command."""
    results: dict[str, _Figures] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, words in commands.items():
            file = Path(folder) / f"{name}.json"
            command = [sys.executable, "-m", "openhtp", "bench", *words, "--json", str(file)]
            print(f"openhtp bench {' '.join(words)}", file=sys.stderr)
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            results[name] = json.loads(file.read_text(encoding="utf-8"))
    return results


def quiet_share(results: Mapping[str, _Figures]) -> float:
    """The share of pieces that met a quiet moment."""
    quiet = sum(figures.get("quiet_pieces", 0) for figures in results.values())
    noisy = sum(figures.get("noisy_pieces", 0) for figures in results.values())
    return quiet / max(1, quiet + noisy)


def section(results: Mapping[str, _Figures], day: datetime.date, cores: int) -> str:
    """The text between the markers."""
    rows = "\n".join(f"| {what} | {said} |" for what, said in _rows(results))
    return f"""{BEGIN}

One run of `tools/measured.py` on {day:%-d %B %Y}, {cores} cores, {quiet_share(results):.0%} of its pieces
undisturbed; more is in `docs/measurements.md`. Measure your own before you rely on any: `make bench`.

| what | measured |
|---|---|
{rows}

{END}"""


def _rows(results: Mapping[str, _Figures]) -> list[tuple[str, str]]:
    queued, urgent, planned = results["async"], results["preempt"], results["plan"]
    trivial = [row for row in queued["rows"] if row["network"] == "trivial" and row["depth"] == 50]
    peers = {name: us for name, us in queued.get("peers_us", {}).items() if us}
    beside = ", ".join(f"{name} {us:.0f}" for name, us in peers.items())
    best_us = min(1e6 / row["async_ips"] for row in trivial)
    mobile = [row for row in queued["rows"] if row["network"] == "mobilenet_v2"]
    gains = [
        f"{max(row['ratio'] for row in mobile if row['client_work'] == work):.1f}x {words}"
        for work, words in ((0.5, "with client work of half an inference"), (1.0, "with a whole one"))
    ]
    times = [row["times_onnxruntime"] for row in results["networks"]["rows"]]
    ready = {row["way"]: 1e3 * row["ready_s"] for row in results["load"]["rows"] if row["network"] == "resnet50"}
    ready_words = "; ".join(f"{way}: {ready[way]:.0f} ms" for way in WAYS if way in ready)
    wait = (
        f"starts after {urgent['wait_ms_p50']:.1f} ms; p99 {urgent['wait_share_p99']:.0%} of the long run's time"
    )
    cost = f"yield points cost it {urgent['yield_points_cost']:.1%}"
    return [
        ("trivial graph, queued 50 deep", f"{best_us:.0f} us per inference" + (f" ({beside})" if beside else "")),
        (
            "`execute_async` as the caller sees it; round trip of `execute`",
            f"{queued['submit_us_p50']:.0f} us; {queued['roundtrip_us_p50']:.0f} us",
        ),
        ("quantized MobileNetV2, async over sync", ", ".join(gains)),
        (
            "quantized networks against plain ONNX Runtime on the same file, one thread",
            f"{min(times):.1f} to {max(times):.1f} times as fast",
        ),
        ("quantized ResNet50 ready to run", ready_words),
        ("urgent graph while that ResNet50 runs", f"{wait}; {cost}"),
        ("planning", f"{planned['events_per_second']:,.0f} scheduling events per second of one core"),
    ]


def written(text: str, new: str) -> str:
    """The README with a new section in place of the old one."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"README.md lacks the markers {BEGIN!r} and {END!r}")
    return before + new + after


def main() -> int:
    """Measure, and write or print."""
    parser = argparse.ArgumentParser(description="Writes the README's section Measured from one run.")
    parser.add_argument("--dry-run", action="store_true", help="print the section and change nothing")
    parser.add_argument("--anyway", action="store_true", help="write it even if the machine was busy")
    options = parser.parse_args()
    results = measure()
    cores = len(os.sched_getaffinity(0))
    new = section(results, datetime.datetime.now(tz=datetime.UTC).date(), cores)
    if options.dry_run:
        print(new)
        return 0
    if quiet_share(results) < LEAST_QUIET and not options.anyway:
        share = quiet_share(results)
        print(f"only {share:.0%} of the pieces were undisturbed; README.md is left alone", file=sys.stderr)
        return 1
    README.write_text(written(README.read_text(encoding="utf-8"), new), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
