"""Points per second of sweeps: estimates, plans, and Ray against the local pool. ``make sweep-bench``.

Workers start and networks are compiled within the time that is measured. Numbers hold for a quiet machine only.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openhtp import sweep

EXAMPLES = Path(__file__).parents[1] / "examples" / "sweeps"
NETWORKS = ("mobilenet_v2", "resnet18", "resnet50", "small_cnn", "tiny_mlp", "transformer_blocks")
SOCS = ["SM8450", "SM8475", "SM8550", "SM8650", "SM8750", "SM8850", "QCS8550", "SC8380XP"]


def estimates() -> dict[str, Any]:
    """100,800 points of six networks."""
    axes = {
        "model": [f"zoo:{name}" for name in NETWORKS],
        "soc": SOCS,
        "precision": ["float", "w8a8", "w8a16"],
        "vtcm_mb": [1, 2, 3, 4, 5, 6, 8],
        "hvx_threads": [1, 2, 3, 4],
        "ddr_gbs": {"from": 4.0, "to": 52.0, "step": 2.0},
    }
    return {"measure": "estimate", "axes": axes}


def plans(points: int) -> dict[str, Any]:
    """Plans of a scenario of one second."""
    axes = {
        "scenario": str(EXAMPLES / "cabin.yaml"),
        "policy": ["strict", "edf"],
        "clients.cabin.depth": [1, 2, 4, 8, 10],
        "seed": {"from": 0, "to": points // 10 - 1},
    }
    return {"measure": "plan", "axes": axes}


def seconds(study: dict[str, Any], on: str) -> float:
    """Run a study into a fresh store, and say how fast it was."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        result = sweep(study, store=Path(folder, "store"), on=on, workers=2 if on == "local" else None)
        taken = time.perf_counter() - begin
    failed = f", {len(result.failed):,} failed" if result.failed else ""
    rate = len(result.rows) / taken
    print(
        f"{study['measure']:9} {on:6} {len(result.rows):8,} points {taken:7.1f} s {rate:9,.0f} per second{failed}"
    )
    return taken


@contextmanager
def two_nodes() -> Iterator[None]:
    """A Ray cluster of two nodes with a core each, and this process connected to it."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    ray.init(cluster.address, logging_level="ERROR", log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ray", action="store_true", help="also on a Ray cluster of two nodes of one core, here")
    parser.add_argument("--plans", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3, help="local and Ray in turns, for the medians")
    asked = parser.parse_args()
    seconds(estimates(), "local")
    if not asked.ray:
        seconds(plans(asked.plans), "local")
        return
    with two_nodes():
        pairs = [
            (seconds(plans(asked.plans), "local"), seconds(plans(asked.plans), "ray")) for _ in range(asked.rounds)
        ]
    local, ray = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(
        f"Ray takes {ray / local - 1:+.1%} against the local pool (medians of {asked.rounds}, measured in turns)"
    )


if __name__ == "__main__":
    main()
