"""What the documents have on some systems only works here on others, too; a warning names the limit, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import openhtp as htp
from openhtp.core import telling
from tests.conftest import relu_graph
from tests.waiting import PATIENCE_S


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has told nothing yet."""
    monkeypatch.setattr(telling, "_told", set())


@pytest.fixture(scope="module")
def binary(shared_device: htp.Device) -> bytes:
    with shared_device.create_context() as context:
        relu_graph(context)
        return context.get_binary()


@pytest.fixture
def device(request: pytest.FixtureRequest, shared_backend: htp.Backend) -> Iterator[htp.Device]:
    with shared_backend.create_device(soc="SM8850", platform=request.param, host="thread") as device:
        yield device


def _in_a_list(**options: Any) -> Callable[[htp.Device, bytes], object]:
    return lambda device, binary: device.create_contexts_from_binaries([binary], **options).result(PATIENCE_S)


GROUP = htp.GroupRegistration(max_spill_fill_buffer=1 << 20)
LIMITED: dict[str, Callable[[htp.Device, bytes], object]] = {
    "register_concurrent_resource_sharing": lambda device, binary: device.create_context_from_binary(
        binary, register_concurrent_resource_sharing=GROUP
    ),
    "dsp_memory_profiling_enabled": lambda device, binary: device.create_context_from_binary(
        binary, dsp_memory_profiling_enabled=True
    ),
    "concurrent_optimization": _in_a_list(
        share_resources=True, share_resources_optimization_type="concurrent_optimization"
    ),
    "create_contexts_from_binaries": _in_a_list(),
    "slc_alloc_enable": lambda device, _: device.create_context().create_graph("g", slc_alloc_enable=True),
    "RPC polling": lambda device, _: device.create_power_config().set(rpc_polling_us=10),
    "RPC control latency": lambda device, _: device.create_power_config().set(rpc_control_latency_us=10),
}


@pytest.mark.parametrize(
    ("what", "device", "limit"),
    [
        ("register_concurrent_resource_sharing", "linux", "on android only"),
        ("dsp_memory_profiling_enabled", "linux", "on android and qnx only"),
        ("concurrent_optimization", "linux", "on android only"),
        ("create_contexts_from_binaries", "qnx", "on android and windows only"),
        ("slc_alloc_enable", "linux", "on some chips only"),
        ("RPC polling", "qnx", "not on qnx"),
        ("RPC control latency", "qnx", "not on qnx"),
    ],
    indirect=["device"],
)
def test_c10_a_limit_is_named_once(
    device: htp.Device, binary: bytes, what: str, limit: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        LIMITED[what](device, binary)
    told = [record for record in caplog.records if what in record.message and limit in record.message]
    assert [record.levelname for record in told] == ["WARNING"]


@pytest.mark.parametrize(
    ("what", "device"),
    [
        ("register_concurrent_resource_sharing", "android"),
        ("create_contexts_from_binaries", "windows"),
        ("dsp_memory_profiling_enabled", "qnx"),
        ("RPC polling", "android"),
    ],
    indirect=["device"],
)
def test_c10_nothing_is_said_within_the_limit(
    device: htp.Device, binary: bytes, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    LIMITED[what](device, binary)
    assert not [record for record in caplog.records if "documents" in record.message]
