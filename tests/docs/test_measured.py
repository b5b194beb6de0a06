"""The README's section *Measured* is what one run said."""

from __future__ import annotations

import datetime
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = {
    "async": {
        "quiet_pieces": 9,
        "noisy_pieces": 1,
        "submit_us_p50": 11.2,
        "roundtrip_us_p50": 63.9,
        "peers_us": {"onnxruntime": 56.0, "openvino": None},
        "rows": [
            {"network": "trivial", "depth": 50, "client_work": 0.0, "async_ips": 25_000, "ratio": 1.4},
            {"network": "mobilenet_v2", "depth": 2, "client_work": 0.5, "async_ips": 100, "ratio": 1.52},
            {"network": "mobilenet_v2", "depth": 2, "client_work": 1.0, "async_ips": 100, "ratio": 1.87},
        ],
    },
    "preempt": {"wait_ms_p50": 1.24, "wait_share_p99": 0.131, "yield_points_cost": 0.03},
    "networks": {"quiet_pieces": 5, "rows": [{"times_onnxruntime": 1.1}, {"times_onnxruntime": 2.8}]},
    "load": {"rows": [{"network": "resnet50", "way": "OpenHTP, from ONNX", "ready_s": 0.4}]},
    "plan": {"events_per_second": 250_000.0},
}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measured", ROOT / "tools" / "measured.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_section_has_the_date_and_every_figure(tool: ModuleType) -> None:
    text = tool.section(RESULTS, datetime.date(2026, 11, 18), 2)
    for words in (
        "18 November 2026, 2 cores, 93% of its pieces\nundisturbed",
        "40 us per inference (onnxruntime 56)",
        "11 us; 64 us",
        "1.5x with client work of half an inference, 1.9x with a whole one",
        "1.1 to 2.8 times as fast",
        "OpenHTP, from ONNX: 400 ms",
        "starts after 1.2 ms; p99 13% of the long run's time; yield points cost it 3.0%",
        "250,000 scheduling events",
    ):
        assert words in text


def test_only_the_section_is_replaced(tool: ModuleType) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    new = tool.section(RESULTS, datetime.date(2026, 11, 18), 2)
    changed = tool.written(readme, new)
    assert changed.count("## ") == readme.count("## ")
    assert tool.written(changed, new) == changed
    with pytest.raises(SystemExit, match="lacks the markers"):
        tool.written("# no section", new)
