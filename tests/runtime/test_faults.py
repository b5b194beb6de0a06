"""Faults that calls are ordered to meet: the same on a device of its own process and on one in this one."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import openhtp as htp
from openhtp import zoo
from openhtp.runtime.calls.notify import Notifier
from openhtp.runtime.objects.graph import Graph
from openhtp.testing import inject
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S

X = {"x": ramp()}


@pytest.fixture(params=["rpc", "inprocess"])
def device(request: pytest.FixtureRequest, backend: htp.Backend) -> htp.Device:
    return backend.create_device(transport=request.param)


def test_a_restart_at_an_execution_and_the_recovery(device: htp.Device) -> None:
    graph = relu_graph(device.create_context())
    with inject("ssr@graphExecute:2") as plan:
        wanted = graph.execute(X)["y"].tolist()
        with pytest.raises(htp.DeviceLost) as lost:
            graph.execute(X)
        assert lost.value.name == "QNN_COMMON_ERROR_SYSTEM_COMMUNICATION"
        assert not graph.context.is_usable
        again = relu_graph(device.create_context())
        assert again.execute(X)["y"].tolist() == wanted
    assert device.restarts == 1
    assert [(met.fault.text, met.call) for met in plan.met] == [("ssr@graphExecute:2", 2)]


def test_a_restart_ends_a_queued_execution_with_a_notification(backend: htp.Backend) -> None:
    device = backend.create_device()
    graph = relu_graph(device.create_context())
    told: queue.Queue[tuple[object, int]] = queue.Queue()
    with inject("ssr@graphExecuteAsync:2"):
        assert graph.execute_async(X).exception(timeout=PATIENCE_S) is None
        lost = graph.execute_async(X, notify=lambda param, status: told.put((param, status)), notify_param=7)
        assert isinstance(lost.exception(timeout=PATIENCE_S), htp.DeviceLost)
        assert told.get(timeout=PATIENCE_S) == (7, 1007)


def test_every_other_call_that_may_fail(device: htp.Device) -> None:
    context = device.create_context()
    blob = (relu_graph(context).context).get_binary()
    order = "oom@contextCreate:1, fail@memRegister:1, oom@memRegister:2, fail@graphFinalize:1, corrupt@binary:1"
    with inject(f"{order}, ssr@contextCreateFromBinary:1, slow@contextCreate:1us") as plan:
        with pytest.raises(htp.OutOfMemory) as no_memory:
            device.create_context()
        assert no_memory.value.name == "QNN_CONTEXT_ERROR_MEM_ALLOC"
        with pytest.raises(htp.QnnError) as failed:
            context.register_memory(64)
        assert failed.value.name == "QNN_MEM_ERROR_MAPPING"
        with pytest.raises(htp.OutOfMemory):
            context.register_memory(64)
        context.register_memory(64)
        unready = context.create_graph("other")
        with pytest.raises(htp.QnnError) as unfinished:
            unready.finalize()
        assert unfinished.value.name == "QNN_GRAPH_ERROR_FINALIZE_FAILED"
        with pytest.raises(htp.BadBinary):
            device.create_context_from_binary(blob)
        with pytest.raises(htp.DeviceLost):
            device.create_context_from_binary(blob)
        assert device.create_context_from_binary(blob).graph("g").execute(X)["y"].sum() > 0
    assert len(plan.met) == 9


def test_notifications_are_late_and_the_device_is_not(
    backend: htp.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("openhtp.runtime.instruments.injecting.time.sleep", slept.append)
    device = backend.create_device()
    graph = relu_graph(device.create_context())
    told: queue.Queue[int] = queue.Queue()
    with inject("slow@notify:50ms:2"):
        for _ in range(3):
            graph.execute_async(X, notify=lambda _, status: told.put(status))
        assert [told.get(timeout=PATIENCE_S) for _ in range(3)] == [0, 0, 0]
    assert slept == [0.05]


def test_sessions_meet_them_too() -> None:
    model = zoo.tiny_mlp()
    (feeds,) = zoo.random_feeds(model)
    with htp.InferenceSession(model) as session, inject("ssr@graphExecute:2"):
        (wanted,) = session.run(None, feeds)
        with pytest.raises(htp.DeviceLost):
            session.run(None, feeds)
        with htp.InferenceSession(model) as again:
            assert again.run(None, feeds)[0].tolist() == wanted.tolist()


def test_nothing_is_in_the_way_when_none_are_armed() -> None:
    plain = Graph._enqueue, Notifier.post
    with inject("fail@graphExecute, slow@notify:1s"):
        assert Graph._enqueue is not plain[0]
        with pytest.raises(htp.WrongState), inject("fail@graphExecute"):
            pass
    assert (Graph._enqueue, Notifier.post) == plain
    with inject("fail@memRegister"):
        assert (Graph._enqueue, Notifier.post) == plain, "only what is ordered"


def test_they_are_in_the_trace(device: htp.Device, tmp_path: Path) -> None:
    with htp.trace(tmp_path / "t.json"):
        graph = relu_graph(device.create_context())
        with inject("ssr@graphExecute:1"), pytest.raises(htp.DeviceLost):
            graph.execute(X)
        relu_graph(device.create_context(), name="after").execute(X)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    (fault,) = [event for event in events if event.get("cat") == "fault"]
    assert (fault["name"], fault["args"]["point"]) == ("ssr@graphExecute:1", "graphExecute")
    assert any("after" in str(event.get("args", "")) for event in events), "the fresh process is recorded as well"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Path]:
    text = """
import numpy as np, openhtp as htp
try:
    with htp.Backend() as backend, backend.create_device(transport="inprocess") as device:
        graph = device.create_context().create_graph("g")
        x = graph.add_tensor("x", (1, 4), "float32", kind="app_write")
        y = graph.add_tensor("y", (1, 4), "float32", kind="app_read")
        graph.add_node("Relu", inputs=[x], outputs=[y])
        graph.finalize()
        for number in range(3):
            try:
                graph.execute({"x": np.ones((1, 4), np.float32)})
                print(number, "ok")
            except htp.QnnError as error:
                print(number, error.name)
except htp.QnnError as error:
    print(error.message)
"""
    (tmp_path / "program.py").write_text(text)
    return tmp_path / "program.py"


@pytest.mark.parametrize(
    ("order", "printed"),
    [
        ("fail@graphExecute:2", "0 ok\n1 QNN_GRAPH_ERROR_GENERAL\n2 ok\n"),
        (
            "fail@graphExecut:2",
            "OPENHTP_FAULTS, character 1: 'graphExecut' is no point; did you mean graphExecute?\n",
        ),
    ],
)
def test_the_environment_orders_them(program: Path, order: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "OPENHTP_FAULTS": order},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == printed


def test_a_shared_device_is_restarted_only_if_it_allows_faults(backend: htp.Backend) -> None:
    device = backend.create_device(name=f"faults-{os.getpid()}")
    graph = relu_graph(device.create_context())
    with inject("ssr@graphExecute:1"), pytest.raises(htp.UnsupportedFeature, match="--allow-faults"):
        graph.execute(X)
    assert graph.execute(X)["y"].sum() > 0
    assert device.restarts == 0
