"""Where an emulated NPU lives, and who shares it: settled when a device is made."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

import openhtp as htp
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S


def npu_of(device: htp.Device) -> object:
    return device.link.lease.host


def test_by_default_a_device_is_a_process_and_an_npu_of_its_own(backend: htp.Backend) -> None:
    first, second = backend.create_device(), backend.create_device()
    assert len({first.pid, second.pid, os.getpid()}) == 3


@pytest.mark.parametrize("words", [{"host": "thread"}, {"transport": "inprocess"}])
def test_a_thread_of_this_process(backend: htp.Backend, words: dict[str, str]) -> None:
    first, second = (backend.create_device(**words) for _ in range(2))
    assert first.pid == os.getpid()
    assert npu_of(first) is not npu_of(second)
    executions = [relu_graph(device.create_context()).execute_async({"x": ramp()}) for device in (first, second)]
    for execution in executions:
        assert np.array_equal(execution.result(PATIENCE_S)["y"], np.maximum(ramp(), 0))


@pytest.mark.parametrize("host", ["thread", "process"])
def test_devices_that_share_are_one_npu_with_one_budget(backend: htp.Backend, host: str) -> None:
    first, second = (backend.create_device(host=host, npu="shared") for _ in range(2))
    other = backend.create_device(host=host, npu="shared", soc="SM8550")
    assert first.pid == second.pid
    relu_graph(first.create_context())
    sessions = second.info()["sessions"]
    assert len(sessions) == 2
    assert len({session["bytes"] for session in sessions}) == 1, "both tell what both hold"
    assert sessions[0]["bytes"] > 0
    assert len(other.info()["sessions"]) == 1


@pytest.mark.parametrize("host", ["thread", "process"])
def test_the_number_of_a_device_says_which_of_equal_chips_it_is(backend: htp.Backend, host: str) -> None:
    first, second = (
        backend.create_device(config={"devices": [{"device_id": number}]}, host=host, npu="shared")
        for number in (0, 1)
    )
    again = backend.create_device(device_id=1, host=host, npu="shared")
    assert [len(device.info()["sessions"]) for device in (first, second, again)] == [1, 2, 2]
    private = backend.create_device(device_id=3, host=host)
    assert [device.info()["device_id"] for device in (first, second, again, private)] == [0, 1, 1, 3]


@pytest.mark.parametrize("host", ["thread", "process"])
def test_signed_process_domains_are_apart_from_the_unsigned_ones(backend: htp.Backend, host: str) -> None:
    first, second, other = (
        backend.create_device(config={"devices": [{"pd_session": kind}]}, host=host, npu="shared")
        for kind in ("signed", "signed", "unsigned")
    )
    relu_graph(first.create_context())
    sessions = other.info()["sessions"]
    assert [session["pd_session"] for session in sessions] == ["signed", "signed", "unsigned"]
    signed, same, unsigned = (session["bytes"] for session in sessions)
    assert signed == same > unsigned == 0
    relu_graph(other.create_context())
    assert [session["bytes"] for session in second.info()["sessions"]] == [signed] * 3


@pytest.mark.parametrize("host", ["thread", "process"])
def test_who_leaves_takes_only_its_own(backend: htp.Backend, host: str) -> None:
    first, second = (backend.create_device(host=host, npu="shared") for _ in range(2))
    relu_graph(first.create_context())
    kept = relu_graph(second.create_context())
    held = second.info()["sessions"][0]["bytes"]
    first.free()
    (session,) = second.info()["sessions"]
    assert 0 < session["bytes"] < held
    assert np.array_equal(kept.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))


def test_an_npu_ends_with_the_last_device_on_it(backend: htp.Backend) -> None:
    for device in [backend.create_device(host="thread", npu="shared") for _ in range(3)]:
        device.free()
    assert not [thread for thread in threading.enumerate() if thread.name == "openhtp-npu"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"host": "process", "transport": "inprocess"}, "contradict each other"),
        ({"host": "thread", "name": "car"}, "its host is a process"),
        ({"host": "cloud"}, "expected one of process, thread"),
        ({"npu": "mine"}, "expected one of private, shared"),
    ],
)
def test_what_cannot_be_is_refused(backend: htp.Backend, options: dict[str, str], words: str) -> None:
    with pytest.raises(htp.InvalidArgument, match=words):
        backend.create_device(**options)  # type: ignore[arg-type]


def test_who_joins_must_want_the_same(backend: htp.Backend) -> None:
    backend.create_device(host="thread", npu="shared")
    with pytest.raises(htp.InvalidArgument, match="other settings"):
        backend.create_device(host="thread", npu="shared", policy="edf")


def test_a_failing_step_is_its_callers(backend: htp.Backend) -> None:
    from openhtp.core import status
    from openhtp.testing import fail_next

    graph = relu_graph(backend.create_device(host="thread").create_context())
    graph.execute({"x": ramp()})
    fail_next(graph, status.QNN_COMMON_ERROR_SYSTEM)
    with pytest.raises(htp.ExecutionError):
        graph.execute({"x": ramp()})
    assert np.array_equal(graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))
