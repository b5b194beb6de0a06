"""The device as a process: hostile clients, several clients, deaths on either side, nothing left behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

import openhtp as htp
from openhtp.rpc import channel, frames, messages as ms, rendezvous
from openhtp.runtime.instruments.device_queries import number_of
from openhtp.testing import hold
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


@pytest.fixture
def named(backend: htp.Backend, runtime_dir: Path) -> Iterator[htp.Device]:
    return backend.create_device(name="car")


def gone(pid: int) -> bool:
    """Whether a process ends (a zombie has ended)."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], PATIENCE_S)[0])
    finally:
        os.close(fd)


def test_device_ends_with_its_client(backend: htp.Backend) -> None:
    device = backend.create_device()
    pid = device.pid
    device.free()
    assert gone(pid)


def test_a_named_device_whose_starter_dies_at_once_ends(runtime_dir: Path) -> None:
    """As when an app crashes while it starts its NPU again: no client ever speaks to that device."""
    starter = textwrap.dedent(
        """
        import os, signal
        import openhtp as htp
        from openhtp.runtime.links import device_process

        start = device_process._start

        def start_and_die(*arguments):
            start(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        device_process._start = start_and_die
        htp.Backend().create_device(name="car")
        """
    )
    done = subprocess.run([sys.executable, "-c", starter], check=False)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: not rendezvous.names())


def test_named_device_is_shared_and_ends_with_the_last_client(runtime_dir: Path) -> None:
    with htp.Backend() as first, htp.Backend() as second:
        a, b = first.create_device(name="car"), second.create_device(name="car")
        assert a.pid == b.pid
        sessions = a.info()["sessions"]
        assert len({session["session"] for session in sessions}) == 2
        pid = a.pid
        a.free()
        graph = relu_graph(b.create_context())
        np.testing.assert_array_equal(graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))
        assert list(runtime_dir.iterdir())
    assert gone(pid)
    assert list(runtime_dir.iterdir()) == []


CLIENT = """
    import sys, time, numpy as np, openhtp as htp
    from tests.conftest import relu_graph, ramp
    device = htp.Backend().create_device(name=sys.argv[1] if len(sys.argv) > 1 else None)
    graph = relu_graph(device.create_context(queue_depth=100))
    memory = device.create_context().register_memory(1 << 20)
    print(device.pid, flush=True)
    while True:
        graph.execute_async({"x": ramp()})
"""


def start_client(*args: str) -> tuple[subprocess.Popen[str], int]:
    root = Path(__file__).parents[2]
    client = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CLIENT), *args], stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert client.stdout is not None
    return client, int(client.stdout.readline())


def traces_of_ours() -> list[str]:
    """What has a name in a file system: shared memory must have none, ever."""
    return [path.name for path in Path("/dev/shm").iterdir() if "openhtp" in path.name]


def test_killed_client_leaves_nothing_behind() -> None:
    client, device_pid = start_client()
    assert traces_of_ours() == []
    with client:
        client.kill()
    assert gone(device_pid)
    assert traces_of_ours() == []


def test_killed_client_does_not_disturb_others(named: htp.Device) -> None:
    graph = relu_graph(named.create_context())
    client, device_pid = start_client("car")
    assert device_pid == named.pid
    with client:
        client.kill()
    wait_until(lambda: len(named.info()["sessions"]) == 1)
    np.testing.assert_array_equal(graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))


def test_restart(backend: htp.Backend) -> None:
    device = backend.create_device()
    context = device.create_context(queue_depth=50)
    graph = relu_graph(context)
    memory = context.register_memory(64)
    statuses: list[int] = []
    hold(device)
    pending = [graph.execute_async({"x": ramp()}, notify=lambda p, s: statuses.append(s)) for _ in range(40)]
    old = device.pid
    os.kill(old, signal.SIGKILL)
    for execution in pending:
        assert isinstance(execution.exception(PATIENCE_S), htp.DeviceLost)
    for stale in (
        lambda: graph.execute({"x": ramp()}),
        lambda: graph.execute_async({"x": ramp()}),
        lambda: context.create_graph("new"),
        lambda: memory.array("x"),
        context.get_binary,
    ):
        with pytest.raises(htp.QnnError) as caught:
            stale()
        assert caught.value.name == "QNN_COMMON_ERROR_SYSTEM_COMMUNICATION"
    assert device.pid != old  # waits for the fresh process
    assert gone(old)
    fresh = relu_graph(device.create_context())
    np.testing.assert_array_equal(fresh.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))
    assert statuses == [1007] * 40
    assert device.restarts == 1
    context.free()


def test_contexts_can_be_built_as_soon_as_the_loss_is_notified(backend: htp.Backend) -> None:
    device = backend.create_device()
    graph = relu_graph(device.create_context())
    results: list[object] = []
    rebuilt = threading.Event()

    def on_lost(param: object, status: int) -> None:
        try:
            results.append(relu_graph(device.create_context()).execute({"x": ramp()})["y"])
        except htp.QnnError as error:
            results.append(error)
        rebuilt.set()

    hold(device)
    graph.execute_async({"x": ramp()}, notify=on_lost)
    os.kill(device.pid, signal.SIGKILL)
    assert rebuilt.wait(PATIENCE_S)
    np.testing.assert_array_equal(results[0], np.maximum(ramp(), 0))


def test_restart_wakes_a_blocked_submitter(backend: htp.Backend) -> None:
    device = backend.create_device()
    graph = relu_graph(device.create_context(queue_depth=1))
    hold(device)
    graph.execute_async({"x": ramp()})
    caught: list[BaseException] = []

    def submit() -> None:
        try:
            graph.execute_async({"x": ramp()})
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=submit)
    thread.start()
    wait_until(lambda: graph.context.opened.places.waiters)
    os.kill(device.pid, signal.SIGKILL)
    thread.join(PATIENCE_S)
    assert [type(error) for error in caught] == [htp.DeviceLost]


def test_restart_of_a_named_device(named: htp.Device, runtime_dir: Path) -> None:
    with htp.Backend() as other:
        same = other.create_device(name="car")
        old = named.pid
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: old not in (same.pid, named.pid))
        assert same.pid == named.pid  # both clients meet at one fresh device
    pid = named.pid
    named.free()
    assert gone(pid)
    assert list(runtime_dir.iterdir()) == []  # its successor has cleared away what the killed one left


class Raw:
    """A client that speaks the protocol by hand, to say the wrong things."""

    def __init__(self, name: str) -> None:
        control = rendezvous.connect(name)
        assert control is not None
        self.control = control
        self.control.settimeout(PATIENCE_S)
        self.data, theirs = channel.socket_pair()
        with theirs:
            hello = ms.Hello(version=ms.PROTOCOL_VERSION, pid=os.getpid())
            self.ask(hello, (theirs.fileno(),))
        self.data.settimeout(PATIENCE_S)

    def ask(self, message: ms.Request, fds: tuple[int, ...] = ()) -> ms.Reply:
        channel.send(self.control, ms.encode(message), fds)
        return ms.decode_reply(channel.receive(self.control)[0])

    def is_cut_off(self) -> bool:
        try:
            return self.control.recv(100) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.control.close()
        self.data.close()


@pytest.fixture
def raw(named: htp.Device) -> Iterator[Raw]:
    client = Raw("car")
    yield client
    client.close()


def execute_frame(**fields: int) -> bytes:
    values = {
        "kind": 1,
        "flags": 0,
        "count": 0,
        "graph": 0,
        "batch": 1,
        "level": 0,
        "job": 1,
        "timeout": 0,
        "deadline": 0,
    }
    values.update(fields)
    return frames.EXECUTE_HEAD.pack(*values.values())


@pytest.mark.parametrize(
    "message",
    [
        b"junk",
        b"\xc1" * 100,
        b"x" * 70_000,
        msgspec.msgpack.encode({"type": "Nonsense"}),
        msgspec.msgpack.encode({"type": "CreateContext", "queue_depth": "many", "priority": 1}),
        ms.encode(ms.Hello(version=1, pid=1)),
        ms.encode(ms.RegisterMemory(context=1)),
    ],
    ids=lambda message: repr(message[:24]),
)
def test_malformed_control_message_ends_only_that_connection(named: htp.Device, raw: Raw, message: bytes) -> None:
    raw.ask(ms.CreateContext(queue_depth=1, priority=1))
    try:
        raw.control.send(message)
        if b"RegisterMemory" not in message:
            assert raw.is_cut_off()
    except OSError:
        pass
    graph = relu_graph(named.create_context())
    np.testing.assert_array_equal(graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))


@pytest.mark.parametrize(
    "frame", [b"", b"\x01", b"\x09" * 40, execute_frame()[:-1], b"\x02"], ids=lambda frame: repr(frame[:8])
)
def test_malformed_frame_ends_only_that_connection(named: htp.Device, raw: Raw, frame: bytes) -> None:
    raw.data.send(frame)
    assert raw.is_cut_off()
    relu_graph(named.create_context()).execute({"x": ramp()})


def test_requests_for_others_objects_are_refused(named: htp.Device, raw: Raw) -> None:
    context = named.create_context()
    graph = relu_graph(context)
    for request in (
        ms.FreeContext(context=context.opened.number),
        ms.SetPriority(graph=number_of(graph), priority=1),
        ms.DeregisterMemory(memory=3),
    ):
        reply = raw.ask(request)
        assert "does not exist in this session" in reply.error
    raw.data.send(execute_frame(graph=number_of(graph)))
    packet = raw.data.recv(4096)
    assert packet[0] == frames.FAILED
    assert frames.RECORD.unpack_from(packet, frames.BATCH_HEAD.size)[1] == 6039
    graph.execute({"x": ramp()})


def test_lies_about_memory_are_caught_on_the_device(named: htp.Device) -> None:
    """The client library checks all this too; here it is bypassed."""
    context = named.create_context()
    graph = relu_graph(context)
    memory = context.register_memory(64)
    link = context.opened.link
    good = [frames.Binding(0, memory.number, 0), frames.Binding(1, memory.number, 32)]
    lies = [
        [frames.Binding(0, memory.number, 40), good[1]],
        [frames.Binding(0, memory.number, 2**63), good[1]],
        [frames.Binding(0, 999, 0), good[1]],
        [good[0]],
        [good[0], good[0]],
        [frames.Binding(7, memory.number, 0), *good],
        [frames.Binding(0, memory.number, 1), good[1]],
    ]

    class Collector:
        _call = None  # nothing that could be completed together with others

        def __init__(self) -> None:
            self.job = link.next_job()
            self._status = 0
            self._told = threading.Event()

        def _complete(self, record: frames.Record, text: str = "") -> None:
            self._status = record.status
            self._told.set()

        @property
        def status(self) -> int:
            assert self._told.wait(PATIENCE_S)
            return self._status

    for lie in lies:
        collector = Collector()
        head = execute_frame(graph=number_of(graph), count=len(lie), job=collector.job)
        link.submit(collector, head + frames.pack_bindings(lie), lambda job: None)  # type: ignore[arg-type]
        assert collector.status in (6000, 6004)
    collector = Collector()
    head = execute_frame(graph=number_of(graph), count=2, job=collector.job)
    link.submit(collector, head + frames.pack_bindings(good), lambda job: None)  # type: ignore[arg-type]
    assert collector.status == 0


def test_program_that_is_junk_is_refused(named: htp.Device, raw: Raw) -> None:
    from openhtp.rpc.shm import SharedBuffer

    context = raw.ask(ms.CreateContext(queue_depth=1, priority=1)).value
    buffer = SharedBuffer.create(4096)
    wanted = [ms.WantedGraph(place=0, priority=100)]
    reply = raw.ask(ms.LoadGraphs(context=context, nbytes=4096, graphs=wanted), (buffer.fd,))
    buffer.close()
    assert reply.error
    relu_graph(named.create_context()).execute({"x": ramp()})


def test_a_graph_that_nobody_lent_is_refused(named: htp.Device, raw: Raw) -> None:
    """Graphs are lent within a process; a client of another one cannot name any."""
    context = raw.ask(ms.CreateContext(queue_depth=1, priority=1)).value
    wanted = [ms.WantedGraph(place=0, priority=100)]
    reply = raw.ask(ms.LoadGraphs(context=context, nbytes=4096, graphs=wanted, lent=1))
    assert reply.error
    assert "lent" in reply.error
    assert not raw.ask(ms.CreateContext(queue_depth=1, priority=1)).error


def test_client_that_does_not_read_does_not_stop_the_device(named: htp.Device, raw: Raw) -> None:
    for job in range(1, 3000):
        raw.data.setblocking(False)
        try:
            raw.data.send(execute_frame(job=job))  # each is answered with a failure that nobody reads
        except BlockingIOError:
            break
    graph = relu_graph(named.create_context())
    np.testing.assert_array_equal(graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))


def test_socket_is_private(named: htp.Device, runtime_dir: Path) -> None:
    assert runtime_dir.stat().st_mode & 0o777 == 0o700
    window, door = sorted(path.name for path in runtime_dir.iterdir())
    assert door == "car.sock"
    assert window.startswith(f"{named.pid}-")
    assert window.endswith(".window")
    sock = rendezvous.connect("car")
    assert sock is not None
    sock.close()
