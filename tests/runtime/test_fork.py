"""Forks: the child is told that its copies are the parent's, and the parent does not notice.

Each case is a program of its own: a fork of the test runner would have all of the runner's threads and devices.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from tests.waiting import PATIENCE_S

PRELUDE = """
import os, sys, threading, time
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
import numpy as np
import openhtp as htp
from openhtp.testing import hold, release

x = (np.arange(8, dtype=np.float32) - 3).reshape(1, 8)

def relu(device):
    graph = device.create_context(queue_depth=4).create_graph("g")
    a = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
    b = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
    graph.add_node("Relu", inputs=[a], outputs=[b])
    graph.finalize()
    return graph

def works(graph):
    return bool((graph.execute({"x": x})["y"] == np.maximum(x, 0)).all())

def works_afresh(*_):
    with htp.Backend() as backend:
        return works(relu(backend.create_device(transport=TRANSPORT)))

def refused(call):
    try:
        call()
    except htp.QnnError as error:
        return f"process {os.getppid()}" in str(error) and "Backend" in str(error)
    return False

def in_child(function, leave=os._exit):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if function() else 2
        finally:
            leave(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def run(program: str, transport: str = "rpc") -> None:
    source = f"TRANSPORT = {transport!r}\n" + PRELUDE + textwrap.dedent(program)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", source]
    # ONNX Runtime's telemetry, where it is on, does not survive a fork: the child hangs in its exit handler.
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=PATIENCE_S, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("transport", ["rpc", "inprocess"])
@pytest.mark.parametrize("leave", ["os._exit", "sys.exit"])
def test_a_child_that_exits_leaves_the_parent_as_it_was(leave: str, transport: str) -> None:
    run(
        f"""
        with htp.Backend() as backend:
            device = backend.create_device(transport=TRANSPORT)
            graph = relu(device)
            assert works(graph)
            for _ in range(3):
                assert in_child(lambda: True, {leave}) == 0
                assert works(graph)
            assert device.restarts == 0
        """,
        transport,
    )


@pytest.mark.parametrize("transport", ["rpc", "inprocess"])
def test_handles_of_the_parent_say_whose_they_are(transport: str) -> None:
    run(
        """
        backend = htp.Backend()
        device = backend.create_device(transport=TRANSPORT)
        graph = relu(device)
        memory = graph.context.register_memory(64)

        def child():
            calls = [
                backend.create_device, backend.free, device.info, device.create_context, device.free,
                graph.context.free, lambda: graph.execute({"x": x}), lambda: graph.context.create_graph("h"),
                memory.deregister, lambda: memory.bytes,
            ]
            return all(map(refused, calls)) and works_afresh()

        assert in_child(child) == 0
        assert works(graph)
        memory.bytes[:] = 1
        """,
        transport,
    )


def test_executions_under_way_are_the_parents() -> None:
    run(
        """
        backend = htp.Backend()
        device = backend.create_device()
        graph = relu(device)
        hold(device)
        told = []
        signal = backend.create_signal()
        execution = graph.execute_async({"x": x}, signal=signal, notify=lambda *_: told.append(os.getpid()))

        def child():
            return refused(execution.result) and not execution.cancel() and not told

        assert in_child(child) == 0
        release(device)
        assert (execution.result()["y"] == np.maximum(x, 0)).all()
        backend.free()
        assert told == [os.getpid()]
        """
    )


def test_forks_while_other_threads_hold_locks() -> None:
    run(
        """
        backend = htp.Backend()
        device = backend.create_device()
        graph = relu(device)
        stop, wrong = threading.Event(), []

        def work():
            while not stop.is_set():
                try:
                    graph.execute_async({"x": x}, notify=lambda *_: None).result()
                    device.info()
                except BaseException as error:
                    wrong.append(error)
                    return

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        codes = [in_child(lambda: refused(device.info) and refused(lambda: graph.execute({"x": x})), sys.exit)
                 for _ in range(8)]
        codes.append(in_child(works_afresh))
        stop.set()
        for thread in threads:
            thread.join()
        assert set(codes) == {0}, codes
        assert wrong == []
        assert device.restarts == 0
        """
    )


def test_process_pools() -> None:
    run(
        """
        backend = htp.Backend()
        graph = relu(backend.create_device())
        assert works(graph)
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
            assert all(pool.map(works_afresh, range(2)))
        assert works(graph)
        child = multiprocessing.get_context("fork").Process(target=works_afresh)
        child.start()
        child.join()
        assert child.exitcode == 0
        assert works(graph)
        """
    )


def test_spawned_processes() -> None:
    run(
        """
        backend = htp.Backend()
        graph = relu(backend.create_device())
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            assert pool.submit(eval, "__import__('openhtp').Backend().create_device().info()['pid'] > 0").result()
        assert works(graph)
        """
    )


def test_a_session_in_a_child() -> None:
    """The devices that sessions share are found by kind: a child must not find its parent's."""
    run(
        """
        from openhtp.session import hosts

        kind = hosts.HostKind("SM8650", 1, "rpc")
        stay = hosts.Stay(kind)
        device = stay.begin()

        def child():
            own = hosts.Stay(kind)
            mine = own.begin()
            good = works(relu(mine)) and mine.pid != pid
            own.end()
            return good

        pid = device.pid
        assert in_child(child, sys.exit) == 0
        assert works(relu(device))
        """
    )


def test_a_child_keeps_no_socket_of_an_execution_under_way() -> None:
    """A copy of a socket in a child would keep the device from noticing that its client has gone."""
    run(
        """
        def sockets():
            links = []
            for fd in os.listdir("/proc/self/fd"):
                try:
                    links.append(os.readlink(f"/proc/self/fd/{fd}"))
                except FileNotFoundError:  # the listing's own
                    pass
            return [link for link in links if link.startswith("socket:")]

        with htp.Backend() as backend:
            device = backend.create_device()
            graph = relu(device)
            hold(device)
            caller = threading.Thread(target=works, args=(graph,))
            caller.start()
            while not device.info()["sessions"][0]["pending"]:
                time.sleep(0.001)
            assert sockets()
            assert in_child(lambda: not sockets()) == 0
            release(device)
            caller.join()
        """
    )
