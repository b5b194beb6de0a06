"""Damaged files that tell tools what to do or show: configs, data formats, test cases, switches, profiles."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import openhtp as htp
from openhtp.config import read_config
from openhtp.frontend.data_formats import read_data_formats
from openhtp.report.profile_log import read_log, read_schematic
from openhtp.report.viewing import LogReader, ViewRequest, read_features, view
from openhtp.tools.throughput import read_test_case
from tests.conftest import relu_graph
from tests.hostile.fuzz_model_files import damage, remove
from tests.hostile.leaks import Holdings
from tests.hostile.tally import Budget, Watch

SHORT = 800
"""Rounds of the short form."""

_FORMAT = "QNN_TENSOR_DATA_FORMAT_HMX_WEIGHT_LAYOUT"
_CONTENT: dict[str, Any] = {
    "backend.json": {
        "graphs": [{"graph_names": ["a"], "vtcm_mb": 4, "O": 3, "hvx_threads": 2}],
        "devices": [{"device_id": 0, "soc_model": 57, "cores": [{"core_id": 0, "perf_profile": "burst"}]}],
        "context": {"priority": "high", "init_acceleration": True},
    },
    "general.json": {
        "backend_extensions": {"shared_library_path": "x.so", "config_file_path": "backend.json"},
        "context_configs": {"context_priority": "high", "async_execute_queue_depth": 20},
        "graph_configs": [{"graph_name": "a", "graph_priority": "low"}],
    },
    "formats.json": {"graphs": [{"graph_name": "a", "tensors": [{"tensor_name": "x", "dataFormat": _FORMAT}]}]},
    "features.json": {"features": {"qhas_json": True}},
    "case.json": {
        "backends": [{"backendName": "b", "backendPath": "libQnnHtp.so"}],
        "models": [{"modelName": "m", "modelPath": "m.onnx"}],
        "contexts": [{"contextName": "c"}],
        "testCase": {
            "iteration": 1,
            "threads": [{"threadName": "t", "backend": "b", "context": "c", "model": "m"}],
        },
    },
}


def attack(rng: random.Random, budget: Budget, watch: Watch) -> None:
    """One damaged file after the other."""
    with tempfile.TemporaryDirectory(prefix="hostile-configs") as place:
        folder = Path(place)
        targets = _targets(folder)
        holdings = Holdings()
        while budget:
            path, read = rng.choice(targets)
            good = path.read_bytes()
            words = damage(rng, path)
            with watch.call(f"{path.name}: {words}"):
                read()
            remove(path)
            path.write_bytes(good)
        holdings.check(watch)


def _targets(folder: Path) -> list[tuple[Path, Callable[[], object]]]:
    paths = {name: folder / name for name in _CONTENT}
    for name, path in paths.items():
        path.write_text(json.dumps(_CONTENT[name]))
    log, schematic = _profiled(folder)

    def config(name: str) -> Callable[[], object]:
        return lambda: read_config(paths[name]).graph_options("a")

    def shown() -> None:
        read_log(log)
        read_schematic(schematic)
        for reader in (LogReader.DEFAULT, LogReader.HTP, LogReader.JSON):
            view(ViewRequest(logs=(log,), reader=reader))
        view(ViewRequest(logs=(log,), reader=LogReader.OPTRACE, schematic=schematic, output=folder / "out.json"))

    return [
        (paths["backend.json"], config("backend.json")),
        (paths["backend.json"], config("general.json")),
        (paths["general.json"], config("general.json")),
        (paths["formats.json"], lambda: read_data_formats(paths["formats.json"])),
        (paths["features.json"], lambda: read_features(paths["features.json"])),
        (paths["case.json"], lambda: read_test_case(paths["case.json"])),
        (log, shown),
        (schematic, shown),
    ]


def _profiled(folder: Path) -> tuple[Path, Path]:
    """A log with an op trace, and its schematic."""
    with htp.Backend() as backend:
        graph = relu_graph(backend.create_device().create_context())
        profile = backend.create_profile("detailed", optrace=True)
        with htp.ProfileLog(folder / "profile.log") as log:
            graph.execute({"x": np.ones((1, 8), np.float32)}, profile=profile)
            log.add(profile)
    return folder / "profile.log", next(iter(log.schematics.values()))
