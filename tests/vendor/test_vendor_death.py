"""The vendor's library in its device process: how it dies, and what is left."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S
from vendor_cases import add_case

import openhtp as htp
from openhtp.runtime.instruments.device_queries import library_binary, open_library_binary
from openhtp.testing import hold, oracle

pytestmark = pytest.mark.vendor


@pytest.fixture
def device() -> Iterator[htp.Device]:
    """A device that a test may kill."""
    with htp.Backend(library="vendor") as backend:
        yield backend.create_device()


def test_the_signal_that_ended_the_process_is_named(device: htp.Device) -> None:
    context = device.create_context()
    graph = relu_graph(context)
    expected = graph.execute({"x": ramp()})["y"]
    hold(device)
    execution = graph.execute_async({"x": ramp()})
    os.kill(device.pid, signal.SIGSEGV)
    with pytest.raises(htp.DeviceLost, match="ended by SIGSEGV") as caught:
        execution.result(PATIENCE_S)
    assert caught.value.code == 1007
    with device.create_context() as again:
        np.testing.assert_array_equal(relu_graph(again).execute({"x": ramp()})["y"], expected)
    assert device.restarts == 1


def test_a_damaged_binary_of_the_librarys_own_hurts_nobody(device: htp.Device) -> None:
    with device.create_context() as context:
        relu_graph(context)
        blob = library_binary(context)
    for broken in (b"x", blob[: len(blob) // 2], bytes(4096)):
        with pytest.raises(htp.BadBinary):
            open_library_binary(device, broken)
    with open_library_binary(device, blob) as restored:
        assert restored.graph("g").execute({"x": ramp()})["y"].any()
    assert device.restarts == 0


def test_the_oracle_starts_again() -> None:
    case = add_case()
    device = oracle.device_for()
    before = device.pid
    assert case.steps_from_exact(oracle.run_op(case.call, case.inputs)) <= 0.51
    assert device.pid == before
    os.kill(before, signal.SIGKILL)
    with contextlib.suppress(htp.DeviceLost):  # the loss is noticed by this call, or before
        oracle.run_op(case.call, case.inputs)
    assert case.steps_from_exact(oracle.run_op(case.call, case.inputs)) <= 0.51
    assert device.restarts == 1
    oracle.close()


def test_the_oracle_ends_a_library_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    case = add_case()
    device = oracle.device_for()
    monkeypatch.setattr(oracle, "TIMEOUT_S", 0.1)
    os.kill(device.pid, signal.SIGSTOP)
    with pytest.raises(htp.DeviceLost):
        oracle.run_op(case.call, case.inputs)
    monkeypatch.undo()
    assert case.steps_from_exact(oracle.run_op(case.call, case.inputs)) <= 0.51
    oracle.close()
