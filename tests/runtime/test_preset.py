"""A config given for a device holds for its contexts, graphs and votes; calls come before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import openhtp as htp
from tests.conftest import relu_graph

CONFIG: dict[str, Any] = {
    "devices": [{"soc_model": 43, "cores": [{"perf_profile": "balanced", "rpc_control_latency": 7}]}],
    "graphs": [{"graph_names": ["g"], "vtcm_size": 2097152, "hvx_threads": 2}],
    "context": {"io_memory_estimation": True},
}
TOOLS = {"context_configs": {"async_execute_queue_depth": 3, "context_priority": "high"}}


def power_of(device: htp.Device) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = device.info()["power"]["configs"]
    return found


def test_it_holds_for_all_that_is_made_there(shared_backend: htp.Backend, tmp_path: Path) -> None:
    (tmp_path / "htp.json").write_text(json.dumps(CONFIG))
    whole = {**TOOLS, "backend_extensions": {"config_file_path": str(tmp_path / "htp.json")}}
    with shared_backend.create_device(config=whole) as device:
        assert (device.soc, device.perf_profile) == ("SM8550", "balanced")
        (vote,) = power_of(device)
        assert (vote["core"], vote["rpc_control_latency_us"]) == (0, 7)
        context = device.create_context()
        assert (context.queue_depth, context.priority) == (3, htp.Priority.HIGH)
        graph = relu_graph(context)
        assert (graph.options.vtcm_bytes, graph.options.hvx_threads) == (2097152, 2)
        assert relu_graph(context, "other").options.hvx_threads is None
        restored = device.create_context_from_binary(context.get_binary())
        assert restored.queue_depth == 3


def test_what_a_call_gives_comes_first(shared_backend: htp.Backend) -> None:
    with shared_backend.create_device(config=CONFIG, soc="SM8650") as device:
        assert device.soc == "SM8650"
        graph = relu_graph(device.create_context(queue_depth=9), vtcm_mb=4, hvx_threads=1)
        assert (graph.options.vtcm_bytes, graph.options.hvx_threads) == (4 << 20, 1)


@pytest.mark.parametrize(("profile", "polling_us"), [("high_performance", 9999), ("balanced", 0)])
def test_times_of_a_core_that_a_config_leaves_open(
    shared_backend: htp.Backend, profile: str, polling_us: int
) -> None:
    config = {"devices": [{"cores": [{"perf_profile": profile}]}]}
    with shared_backend.create_device(config=config, host="thread") as device:
        (vote,) = power_of(device)
        assert (vote["rpc_control_latency_us"], vote["rpc_polling_us"]) == (100, polling_us)
        assert (vote["hmx_timeout_us"], vote["adaptive_polling_us"]) == (300_000, 0)


def test_a_core_of_its_own(shared_backend: htp.Backend) -> None:
    cores = [{"core_id": 0, "perf_profile": "burst"}, {"core_id": 1, "perf_profile": "power_saver"}]
    config = {"devices": [{"cores": cores}]}
    with shared_backend.create_device(config=config, soc="SA8775P") as device:
        assert {(vote["core"], vote["perf_profile"]) for vote in power_of(device)} == {
            (0, "burst"),
            (1, "power_saver"),
        }
    before = len(shared_backend.devices)
    with pytest.raises(htp.InvalidArgument, match="core 1 does not exist; this device has 1"):
        shared_backend.create_device(config=config)
    assert len(shared_backend.devices) == before


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"devices": [{"cores": [{"perf_profil": "burst"}]}]}, "/devices/0/cores/0/perf_profil is not known"),
        ({"graphs": [{"vtcm_mb": "4"}]}, "/graphs/0/vtcm_mb is '4'; expected a whole number"),
        (7, "expected a path, or a mapping"),
    ],
)
def test_a_bad_config_starts_no_device(shared_backend: htp.Backend, config: Any, words: str) -> None:
    before = set(shared_backend.devices)
    with pytest.raises(htp.InvalidArgument, match=words):
        shared_backend.create_device(config=config)
    assert set(shared_backend.devices) == before
