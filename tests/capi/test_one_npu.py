"""All clients of a process that name one chip are on one NPU: they contend, by priority and for memory."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.capi import handles
from openhtp.capi.device import DeviceHeld
from openhtp.core.errors import QnnError
from openhtp.core.units import MIB
from openhtp.device.direct import DirectRun
from tests.capi.conftest import ROOT, build_script
from tests.capi.test_c_client import run
from tests.conftest import ramp, relu_graph
from tests.contract import c_table
from tests.waiting import PATIENCE_S, wait_until

LAYERS = 24
DEPTH = 10


@pytest.fixture
def backends(lib_dir: Path) -> Iterator[list[c_table.Backend]]:
    made = [c_table.Backend(lib_dir) for _ in range(2)]
    yield made
    for backend in made:
        backend.free()


def npus() -> set[Any]:
    """What is behind all handles of devices."""
    return {held.device().link.lease.host for held in handles.of_kind(DeviceHeld)}


def long_graph(context: c_table.Context, **options: Any) -> c_table.Graph:
    """A chain of additions that takes some tens of milliseconds, in as many steps."""
    graph = context.create_graph("long", **options)
    shape = (1, 256, 256, 8)
    x = last = graph.add_tensor("x", shape, "float32", kind="app_write")
    for layer in range(LAYERS):
        kind = "app_read" if layer == LAYERS - 1 else "native"
        made = graph.add_tensor(f"y{layer}", shape, "float32", kind=kind)
        graph.add_node("ElementWiseAdd", name=f"add{layer}", inputs=[last, x], outputs=[made])
        last = made
    graph.finalize()
    return graph


def test_a3_clients_of_one_process_share_it(backends: list[c_table.Backend]) -> None:
    for backend in backends:
        relu_graph(backend.create_device().create_context()).execute({"x": ramp()})
    (npu,) = npus()
    sessions = list(npu.core.sessions.values())
    assert len(sessions) == 2
    assert sessions[0].ledger is sessions[1].ledger
    assert {sessions[0].process_domains.numbers[0]} == {sessions[1].process_domains.numbers[0]}


def test_who_asks_for_one_of_its_own_gets_it(
    backends: list[c_table.Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENHTP_NPU", "private")
    for backend in backends:
        relu_graph(backend.create_device().create_context())
    assert len(npus()) == 2


def test_an_npu_ends_with_its_last_client(lib_dir: Path) -> None:
    for _ in range(3):
        backend = c_table.Backend(lib_dir)
        relu_graph(backend.create_device().create_context()).execute({"x": ramp()})
        backend.free()
    assert not [thread for thread in threading.enumerate() if thread.name == "openhtp-npu"]


@pytest.mark.parametrize("way", ["synchronous", "asynchronous"])
def test_a3_an_urgent_context_comes_before_what_another_client_queued(
    backends: list[c_table.Backend], way: str
) -> None:
    """Also before what is left of the execution under way."""
    first, second = (backend.create_device() for backend in backends)
    low = long_graph(first.create_context(), priority="low")
    high = relu_graph(second.create_context(), priority="high")
    x = np.ones((1, 256, 256, 8), np.float32)
    low.execute({"x": x})
    high.execute({"x": ramp()})
    ended: list[int] = []
    started = threading.Event()
    queued = [
        low.execute_async({"x": x}, notify=lambda n, _: (ended.append(n), started.set()), notify_param=n)
        for n in range(8)
    ]
    assert started.wait(PATIENCE_S)
    if way == "synchronous":
        high.execute({"x": ramp()})
    else:
        high.execute_async({"x": ramp()}).result(PATIENCE_S)
    assert len(ended) < 8, "the urgent one waited for all that was queued"
    for execution in queued:
        assert np.array_equal(execution.result(PATIENCE_S)["y23"], x * (LAYERS + 1))


def test_a3_an_urgent_call_comes_between_the_steps_of_one_that_its_caller_computes(
    backends: list[c_table.Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[int] = []
    hand_over = DirectRun._hand_over

    def noting(direct: DirectRun, done: int) -> Any:
        handed.append(done)
        return hand_over(direct, done)

    monkeypatch.setattr(DirectRun, "_hand_over", noting)
    first, second = (backend.create_device() for backend in backends)
    low = long_graph(first.create_context(), priority="low")
    high = relu_graph(second.create_context(), priority="high")
    x = np.ones((1, 256, 256, 8), np.float32)
    low.execute({"x": x})
    high.execute({"x": ramp()})
    over = threading.Event()
    wrong: list[int] = []

    def background() -> None:
        while not over.is_set():
            if not np.array_equal(low.execute({"x": x})["y23"], x * (LAYERS + 1)):
                wrong.append(1)

    thread = threading.Thread(target=background)
    thread.start()
    until = time.monotonic() + PATIENCE_S
    while len(handed) < 5 and time.monotonic() < until:
        high.execute({"x": ramp()})
    over.set()
    thread.join()
    assert len(handed) >= 5
    assert all(0 < done < LAYERS for done in handed)
    assert not wrong


def test_a2_after_asynchronous_calls_everything_can_still_be_done(backends: list[c_table.Backend]) -> None:
    device = backends[0].create_device()
    context = device.create_context()  # with the default depth
    graph = relu_graph(context, "first", priority="low")
    sibling = context.create_graph("sibling")  # under construction all the while
    y = graph.execute_async({"x": ramp()}).result(PATIENCE_S)["y"]
    assert np.array_equal(y, np.maximum(ramp(), 0))
    x = sibling.add_tensor("x", (1, 8), "float32", kind="app_write")
    o = sibling.add_tensor("y", (1, 8), "float32", kind="app_read")
    sibling.add_node("Relu", name="r", inputs=[x], outputs=[o])
    sibling.finalize()
    sibling.execute({"x": ramp()})
    relu_graph(context, "another").execute_async({"x": ramp()}).result(PATIENCE_S)
    (held,) = handles.of_kind(DeviceHeld)
    graphs = next(iter(held.device().contexts)).graphs
    assert {name: graph.priority.name for name, graph in graphs.items()} == {
        "first": "LOW",
        "sibling": "NORMAL",
        "another": "NORMAL",
    }


def test_a_session_has_no_more_of_the_loop_than_its_queue_is_deep(backends: list[c_table.Backend]) -> None:
    """One submits without end; what another asks waits for what was queued before it, and for no more."""
    first, second = (backend.create_device() for backend in backends)
    greedy, modest = long_graph(first.create_context()), relu_graph(second.create_context())
    x = np.ones((1, 256, 256, 8), np.float32)
    told: list[int] = []
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            greedy.execute_async({"x": x}, notify=lambda _, status: told.append(status))

    flooding = threading.Thread(target=flood)
    flooding.start()
    wait_until(lambda: told)
    before = len(told)
    modest.execute_async({"x": ramp()}).result(PATIENCE_S)
    modest.execute({"x": ramp()})
    waited_for = len(told) - before
    over.set()
    flooding.join(PATIENCE_S)
    # Twice what was queued, and as much again that had ended and was still to be told.
    assert waited_for <= 4 * DEPTH


def test_sessions_have_one_budget_and_who_frees_makes_room_for_the_other() -> None:
    place = {"host": "thread", "npu": "shared", "domain_mb": 64, "process_domains": 1}
    with htp.Backend() as one, htp.Backend() as other:
        greedy, modest = (backend.create_device(**place).create_context() for backend in (one, other))
        graph = relu_graph(modest)
        greedy.register_memory(60 * MIB)
        with pytest.raises(htp.OutOfMemory, match="in process domain 0, which has"):
            greedy.register_memory(10 * MIB)
        with pytest.raises(htp.OutOfMemory, match="free contexts or memory"):
            modest.register_memory(20 * MIB)
        graph.execute({"x": ramp()})  # goes on
        greedy.free()
        modest.register_memory(20 * MIB)


def test_a_word_that_is_none_is_refused(backends: list[c_table.Backend], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENHTP_NPU", "mine")
    with pytest.raises(QnnError, match="expected one of shared, private"):
        backends[0].create_device()


def test_the_example_in_c(lib_dir: Path, tmp_path: Path) -> None:
    """Compiled and run as its first lines say."""
    compiler = build_script().compiler()
    assert compiler is not None  # or else there would be no library
    program = tmp_path / "share_by_priority"
    source, include = ROOT / "examples/c/share_by_priority.c", ROOT / "src/openhtp/capi/include"
    words = [
        *compiler,
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{include}",
        str(source),
        "-o",
        str(program),
        "-ldl",
        "-lpthread",
    ]
    subprocess.run(words, check=True)
    done = run(program, lib_dir)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split("median")[0].strip() for line in lines[1:]] == [
        "the urgent network alone",
        "beside the long one, equal priorities",
        "beside the long one, low and high priority",
    ]
