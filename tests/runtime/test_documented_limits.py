"""What the documents have on some platforms only: refused on others that are named, told once where none is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import openhtp as htp
from openhtp.core import telling
from tests.conftest import relu_graph
from tests.waiting import PATIENCE_S

SOC = "SM8850"


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has told nothing yet."""
    monkeypatch.setattr(telling, "told", set())


@pytest.fixture(scope="module")
def binary(shared_backend: htp.Backend) -> bytes:
    """Of the chip that the devices below are: those with a named platform refuse another architecture's."""
    with shared_backend.create_device(soc=SOC, host="thread") as device, device.create_context() as context:
        relu_graph(context)
        return context.get_binary()


@pytest.fixture
def device(request: pytest.FixtureRequest, shared_backend: htp.Backend) -> Iterator[htp.Device]:
    with shared_backend.create_device(soc=SOC, platform=request.param, host="thread") as device:
        yield device


def _in_a_list(**options: Any) -> Callable[[htp.Device, bytes], object]:
    return lambda device, binary: device.create_contexts_from_binaries([binary], **options).result(PATIENCE_S)


def _profile_heap_later(device: htp.Device, binary: bytes) -> None:
    device.create_context_from_binary(binary).set_config(dsp_memory_profiling_enabled=True)


def _never(*_: object) -> int:
    raise AssertionError("a graph without weights asks for none")


CALLBACK = htp.DmaBufferCallback(data_provider=_never, data_release=_never)
GROUP = htp.GroupRegistration(max_spill_fill_buffer=1 << 20)
LIMITED: dict[str, Callable[[htp.Device, bytes], object]] = {
    "register_concurrent_resource_sharing": lambda device, binary: device.create_context_from_binary(
        binary, register_concurrent_resource_sharing=GROUP
    ),
    "dsp_memory_profiling_enabled": lambda device, binary: device.create_context_from_binary(
        binary, dsp_memory_profiling_enabled=True
    ),
    "dsp_memory_profiling_enabled, later": _profile_heap_later,
    "concurrent_optimization": _in_a_list(
        share_resources=True, share_resources_optimization_type="concurrent_optimization"
    ),
    "create_contexts_from_binaries": _in_a_list(),
    "a context with a callback": lambda device, binary: device.create_context_from_binary(
        binary, callback=CALLBACK
    ),
    "slc_alloc_enable": lambda device, _: device.create_context().create_graph("g", slc_alloc_enable=True),
    "rpc_polling_us": lambda device, _: device.create_power_config().set(rpc_polling_us=10),
    "rpc_control_latency_us": lambda device, _: device.create_power_config().set(rpc_control_latency_us=10),
    "rpc_polling_us, with a profile": lambda device, _: device.set_perf_profile("burst", rpc_polling_us=10),
}


@pytest.mark.parametrize(
    ("what", "device", "limit", "level"),
    [
        ("register_concurrent_resource_sharing", "any", "on android only", "WARNING"),
        ("dsp_memory_profiling_enabled", "any", "on android and qnx only", "WARNING"),
        ("concurrent_optimization", "any", "on android only", "WARNING"),
        ("create_contexts_from_binaries", "any", "on android and windows only", "INFO"),
        ("a context with a callback", "any", "on android only", "INFO"),
        ("slc_alloc_enable", "any", "on some chips only", "WARNING"),
        ("slc_alloc_enable", "linux", "on some chips only", "WARNING"),
    ],
    indirect=["device"],
)
def test_c10_a_limit_is_named_once(
    device: htp.Device, binary: bytes, what: str, limit: str, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "openhtp")
    for _ in range(2):
        LIMITED[what](device, binary)
    told = [record for record in caplog.records if what in record.message and limit in record.message]
    assert [record.levelname for record in told] == [level]


@pytest.mark.parametrize(
    ("what", "device", "code"),
    [
        ("register_concurrent_resource_sharing", "linux", "QNN_CONTEXT_ERROR_INVALID_CONFIG"),
        ("register_concurrent_resource_sharing", "qnx", "QNN_CONTEXT_ERROR_INVALID_CONFIG"),
        ("dsp_memory_profiling_enabled", "linux", "QNN_CONTEXT_ERROR_INVALID_CONFIG"),
        ("dsp_memory_profiling_enabled", "windows", "QNN_CONTEXT_ERROR_INVALID_CONFIG"),
        ("dsp_memory_profiling_enabled, later", "windows", "QNN_CONTEXT_ERROR_INVALID_CONFIG"),
        ("concurrent_optimization", "windows", "QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE"),
        ("concurrent_optimization", "linux", "QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE"),
        ("create_contexts_from_binaries", "qnx", "QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE"),
        ("create_contexts_from_binaries", "linux", "QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE"),
        ("a context with a callback", "linux", "QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE"),
        ("a context with a callback", "windows", "QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE"),
        ("rpc_polling_us", "qnx", "QNN_HTP_PERF_INFRASTRUCTURE_ERROR_UNSUPPORTED_CONFIG"),
        ("rpc_control_latency_us", "qnx", "QNN_HTP_PERF_INFRASTRUCTURE_ERROR_UNSUPPORTED_CONFIG"),
        ("rpc_polling_us, with a profile", "qnx", "QNN_HTP_PERF_INFRASTRUCTURE_ERROR_UNSUPPORTED_CONFIG"),
    ],
    indirect=["device"],
)
def test_c10_what_a_named_platform_does_not_have_is_refused(
    device: htp.Device, binary: bytes, what: str, code: str
) -> None:
    with pytest.raises(htp.UnsupportedFeature) as caught:
        LIMITED[what](device, binary)
    assert caught.value.name == code
    assert what.split(",")[0] in caught.value.message
    assert device.platform in caught.value.message


@pytest.mark.parametrize(
    ("what", "device"),
    [
        ("register_concurrent_resource_sharing", "android"),
        ("concurrent_optimization", "android"),
        ("create_contexts_from_binaries", "windows"),
        ("a context with a callback", "android"),
        ("dsp_memory_profiling_enabled", "qnx"),
        ("dsp_memory_profiling_enabled, later", "android"),
        ("rpc_polling_us", "android"),
        ("rpc_polling_us, with a profile", "any"),
    ],
    indirect=["device"],
)
def test_c10_nothing_is_said_within_the_limit(
    device: htp.Device, binary: bytes, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    LIMITED[what](device, binary)
    assert not [record for record in caplog.records if "documents" in record.message]


@pytest.mark.parametrize("device", ["qnx"], indirect=True)
def test_c10_a_profile_goes_without_the_times_that_its_platform_lacks(device: htp.Device) -> None:
    device.set_perf_profile("burst")
    (config,) = device.info()["power"]["configs"]
    assert (config["perf_profile"], config["rpc_polling_us"]) == ("burst", None)
