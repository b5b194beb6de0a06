"""Clients of one device that speak the protocol by hand, and what they cannot do to each other."""

from __future__ import annotations

import gc
import os
import resource
import select
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import openhtp as htp
from openhtp.rpc import channel, frames, messages as ms, rendezvous
from openhtp.rpc.shm import SharedBuffer
from openhtp.runtime.instruments.device_queries import number_of
from tests.conftest import ramp, relu_graph
from tests.device.test_process import Raw, execute_frame
from tests.waiting import PATIENCE_S

HOUR_LONG = 10**18
FIFO_FULL = "QNN_GRAPH_ERROR_EXECUTION_ASYNC_FIFO_FULL"


@pytest.fixture(autouse=True)
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


@pytest.fixture
def named(backend: htp.Backend) -> htp.Device:
    return backend.create_device(name="car")


@pytest.fixture
def neighbour(named: htp.Device) -> htp.Graph:
    return relu_graph(named.create_context(priority="high"), priority="high")


@pytest.fixture
def raw(named: htp.Device) -> Iterator[Raw]:
    client = Raw("car")
    yield client
    client.close()


def works(graph: htp.Graph) -> None:
    result = graph.execute_async({"x": ramp()}).result(PATIENCE_S)["y"]
    np.testing.assert_array_equal(result, np.maximum(ramp(), 0))


def add_app(raw: Raw, depth: int = 10) -> int:
    context = raw.ask(ms.CreateContext(queue_depth=depth, priority=1)).value
    app = ms.AddApp(context=context, name="app", priority=1, hmx=0, hvx=1, vtcm_bytes=0)
    return raw.ask(app).value


def app_frame(app: int, job: int, run_ns: int, timeout_at: int = 0) -> bytes:
    return execute_frame(graph=app, job=job, timeout=timeout_at) + frames.APP_RUN.pack(run_ns, 0)


def statuses(raw: Raw, count: int) -> dict[int, int]:
    """Status by job of the next executions to end."""
    found: dict[int, int] = {}
    while len(found) < count:
        packet = raw.data.recv(65536)
        size = frames.RECORD.size
        records = frames.BATCH_HEAD.unpack_from(packet)[2]
        for index in range(records):
            job, status, *_ = frames.RECORD.unpack_from(packet, frames.BATCH_HEAD.size + index * size)
            found[job] = status
    return found


# Times


@pytest.mark.parametrize(
    ("run_ns", "timeout_at"),
    [(HOUR_LONG, 0), (2**64 - 1, 0), (HOUR_LONG, 3 * 10**15), (HOUR_LONG, 10**20 % 2**64), (1000, 2**64 - 1)],
)
def test_no_time_is_too_long(neighbour: htp.Graph, raw: Raw, run_ns: int, timeout_at: int) -> None:
    app = add_app(raw)
    raw.data.send(app_frame(app, 1, run_ns, timeout_at))
    raw.ask(ms.Inspect())
    works(neighbour)
    raw.data.send(frames.EXECUTE_HEAD.pack(frames.CANCEL, 0, 0, 0, 0, 0, 1, 0, 0))
    raw.ask(ms.Inspect())
    works(neighbour)


def test_what_a_client_started_ends_with_it(named: htp.Device) -> None:
    """Equal priority, so nothing but the client's end takes the resources from its app."""
    raw = Raw("car")
    app = add_app(raw)
    raw.data.send(app_frame(app, 1, HOUR_LONG))
    raw.ask(ms.Inspect())
    waiting = relu_graph(named.create_context(priority="low"), priority="low").execute_async({"x": ramp()})
    raw.close()
    waiting.result(PATIENCE_S)


# Descriptors


def open_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.parametrize(
    "message",
    [
        ms.Inspect(),
        ms.CreateContext(queue_depth=1, priority=1),
        ms.RegisterMemory(context=999),
        ms.LoadGraphs(context=999, nbytes=1, graphs=[]),
        ms.FreeContext(context=999),
    ],
    ids=lambda message: type(message).__name__,
)
def test_descriptors_that_nobody_wants_are_closed(named: htp.Device, raw: Raw, message: ms.Request) -> None:
    raw.ask(ms.Inspect())
    before = open_descriptors(named.pid)
    with open("/dev/null", "rb") as null:
        for _ in range(50):
            raw.ask(message, (null.fileno(),) * channel.MAX_DESCRIPTORS)
    assert open_descriptors(named.pid) == before


def test_a_client_has_no_more_than_its_share_of_descriptors(neighbour: htp.Graph, raw: Raw) -> None:
    pid = neighbour.context.device.pid
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (200, 200))
    context = raw.ask(ms.CreateContext(queue_depth=1, priority=1)).value
    buffer = SharedBuffer.create(64)
    replies = [raw.ask(ms.RegisterMemory(context=context), (buffer.fd,)) for _ in range(150)]
    buffer.close()
    refused = [reply for reply in replies if reply.error]
    assert refused
    assert "shared memory" in refused[0].error
    neighbour.context.register_memory(64)
    works(neighbour)


def test_newcomers_are_turned_away_when_there_are_no_descriptors(neighbour: htp.Graph) -> None:
    pid = neighbour.context.device.pid
    works(neighbour)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_descriptors(pid) + 4, 1000))
    callers = []
    cut_off = 0
    for _ in range(12):
        caller = rendezvous.connect("car")
        assert caller is not None
        caller.settimeout(PATIENCE_S)
        data, theirs = channel.socket_pair()
        callers += [caller, data]
        with theirs:
            hello = ms.Hello(version=ms.PROTOCOL_VERSION, pid=os.getpid())
            try:
                channel.send(caller, ms.encode(hello), (theirs.fileno(),))
                assert select.select([caller], [], [], PATIENCE_S)[0], "neither a reply nor the end"
                channel.receive(caller)
            except (channel.Disconnected, channel.ProtocolError):
                cut_off += 1
    assert cut_off >= 8
    works(neighbour)
    for caller in callers:
        caller.close()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (1000, 1000))
    Raw("car").close()


# Faults


def test_a_shared_device_takes_no_faults(neighbour: htp.Graph, raw: Raw) -> None:
    assert "--allow-faults" in raw.ask(ms.Inject(hold=True)).error
    assert "--allow-faults" in raw.ask(ms.Inject(fail_graph=number_of(neighbour), fail_status=6000)).error
    works(neighbour)


def test_faults_reach_the_senders_session_only(neighbour: htp.Graph) -> None:
    from openhtp.runtime.links.device_process import DeviceOptions
    from openhtp.runtime.links.rpc_link import RpcLink

    starter = RpcLink(DeviceOptions(name="lab", allow_faults=True), lambda _: None)
    try:
        with htp.Backend() as backend:
            other = relu_graph(backend.create_device(name="lab").create_context())
            raw = Raw("lab")
            app = add_app(raw)
            assert "does not exist" in raw.ask(ms.Inject(fail_graph=number_of(other), fail_status=6000)).error
            assert raw.ask(ms.Inject(hold=True)).error == ""
            later = add_app(raw)
            raw.data.send(app_frame(app, 1, 1000))
            raw.data.send(app_frame(later, 2, 1000))
            works(other)
            raw.ask(ms.Inject(hold=False))
            assert statuses(raw, 2) == {1: 0, 2: 0}
            raw.ask(ms.Inject(hold=True))
            raw.data.send(app_frame(app, 3, 1000))
            raw.close()
            works(other)
    finally:
        starter.close()


# Depth, floods and large heritages


def test_the_device_keeps_to_the_depth(neighbour: htp.Graph, raw: Raw) -> None:
    app = add_app(raw, depth=3)
    for job in range(1, 11):
        raw.data.send(app_frame(app, job, HOUR_LONG))
    full = getattr(htp.core.status, FIFO_FULL).code
    assert statuses(raw, 7) == dict.fromkeys(range(4, 11), full)
    # A cancelled one makes room before it has ended, as whoever cancelled it may not wait for that.
    raw.data.send(frames.EXECUTE_HEAD.pack(frames.CANCEL, 0, 0, 0, 0, 0, 2, 0, 0))
    raw.data.send(app_frame(app, 11, 1000))
    assert list(statuses(raw, 1)) == [2]
    works(neighbour)


@pytest.mark.parametrize("depth", [0, -1, 301, 10**9])
def test_a_depth_out_of_range_is_refused(raw: Raw, depth: int) -> None:
    assert "queue depth" in raw.ask(ms.CreateContext(queue_depth=depth, priority=1)).error


def test_a_flood_does_not_drown_the_neighbour(neighbour: htp.Graph, raw: Raw) -> None:
    app = add_app(raw, depth=300)
    over = threading.Event()

    def flood() -> None:
        try:
            for job in range(1, 50_001):
                raw.data.send(app_frame(app, job, HOUR_LONG))
        except OSError:
            pass
        over.set()

    raw.data.settimeout(PATIENCE_S)
    threading.Thread(target=flood, daemon=True).start()
    completions = 0
    while not over.is_set():
        works(neighbour)
        neighbour.context.device.info()
        completions += 1
    assert completions > 10
    raw.close()
    neighbour.execute_async({"x": ramp()}).result(PATIENCE_S)


def test_a_client_with_many_jobs_is_cleared_away_between_others(neighbour: htp.Graph) -> None:
    raw = Raw("car")
    apps = [add_app(raw, depth=300) for _ in range(20)]
    job = 0
    for app in apps:
        for _ in range(300):
            job += 1
            raw.data.send(app_frame(app, job, HOUR_LONG))
    raw.ask(ms.Inspect())
    raw.close()
    works(neighbour)
    while len(neighbour.context.device.info()["sessions"]) > 1:
        pass
    works(neighbour)


# Memory


def shared_memory() -> int:
    """Mappings and descriptors of shared memory in this process."""
    maps = Path("/proc/self/maps").read_text().count("memfd:openhtp ")
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    return maps + sum("memfd:openhtp " in link for link in links)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def load(raw: Raw, context: int, blob: bytes) -> ms.Reply:
    buffer = SharedBuffer.holding([blob])
    try:
        wanted = [ms.WantedGraph(place=0, priority=100)]
        return raw.ask(ms.LoadGraphs(context=context, nbytes=len(blob), graphs=wanted), (buffer.fd,))
    finally:
        buffer.close()


def test_memory_goes_back_at_once(no_collector: None) -> None:
    """Without help from the garbage collector, in a server in this process."""
    from tests.device.serving import NAME, serving, settled

    with htp.Backend() as backend:
        context = backend.create_device().create_context()
        relu_graph(context)
        blob = context.get_binary()
    gc.collect()
    spoilt = blob[: len(blob) // 2] + bytes(len(blob) - len(blob) // 2)
    with serving() as server:
        raw = Raw(NAME)
        number = raw.ask(ms.CreateContext(queue_depth=4, priority=100)).value
        assert load(raw, number, blob).error == ""  # whatever is kept once is kept now
        raw.ask(ms.FreeContext(context=number))
        number = raw.ask(ms.CreateContext(queue_depth=4, priority=100)).value
        settled(server)
        before = shared_memory()
        for bad in (bytes(4096), b"x" * 4096, blob[:-8], spoilt, blob[:64]):
            assert load(raw, number, bad).error
        settled(server)
        assert shared_memory() == before, "refused graphs"
        memory = SharedBuffer.create(1 << 16)
        for _ in range(3):
            graph = load(raw, number, blob).graphs[0].graph
            shared = raw.ask(ms.RegisterMemory(context=number), (memory.fd,)).value
            bindings = [frames.Binding(0, shared, 0), frames.Binding(1, shared, 64)]
            head = execute_frame(graph=graph, count=2, job=graph)
            raw.data.send(head + frames.pack_bindings(bindings))
            assert statuses(raw, 1) == {graph: 0}
            raw.ask(ms.FreeContext(context=number))
            number = raw.ask(ms.CreateContext(queue_depth=4, priority=100)).value
        memory.close()
        settled(server)
        assert shared_memory() == before, "freed graphs"
        load(raw, number, blob)
        raw.close()
        settled(server)
        assert shared_memory() == before, "a client that has gone"
