"""Weights in buffers that the client provides: used where they lie, and released once, whatever happens."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal as signals
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.core import tidying
from openhtp.device import loading
from openhtp.device.loading import BinaryFile
from openhtp.program.binary import read_binary
from openhtp.rpc import messages as ms
from openhtp.runtime.binaries.data_provider import ClientBuffers
from tests.device.serving import NAME, serving
from tests.runtime.test_stopping import Gate
from tests.waiting import PATIENCE_S, wait_until

ROWS = 256
X = (np.arange(ROWS, dtype=np.float32).reshape(1, ROWS) - 100) / 64


def build(context: htp.Context, name: str, seed: int) -> htp.Graph:
    graph = context.create_graph(name)
    x = graph.add_tensor("x", (1, ROWS), "float32", kind="app_write")
    w = np.random.default_rng(seed).integers(-4, 5, (ROWS, ROWS)).astype(np.float32) / 8
    shared = np.random.default_rng(99).integers(-4, 5, (ROWS, ROWS)).astype(np.float32) / 64
    t = graph.add_tensor("t", (1, ROWS), "float32")
    y = graph.add_tensor("y", (1, ROWS), "float32", kind="app_read")
    graph.add_node("MatMul", inputs=[x, graph.add_tensor("s", shared.shape, "float32", data=shared)], outputs=[t])
    graph.add_node("MatMul", inputs=[t, graph.add_tensor("w", w.shape, "float32", data=w)], outputs=[y])
    graph.finalize()
    return graph


@pytest.fixture(scope="module")
def made(shared_device: htp.Device) -> tuple[bytes, dict[str, np.ndarray]]:
    with shared_device.create_context() as context:
        graphs = [build(context, name, seed) for seed, name in enumerate("ab")]
        return context.get_binary(), {graph.name: graph.execute({"x": X})["y"] for graph in graphs}


@pytest.fixture(params=["rpc", "inprocess"])
def device(backend: htp.Backend, request: pytest.FixtureRequest) -> htp.Device:
    return backend.create_device(transport=request.param)


class Keeper:
    """A client that keeps the weights of a binary in memfds, and counts."""

    def __init__(self, binary: bytes, change: Callable[[htp.DmaData, Keeper], Any] | None = None) -> None:
        self.binary = binary
        self.change = change
        self.asked: list[htp.DataRequest] = []
        self.open: list[int] = []
        self.released: list[int] = []
        self.params: set[object] = set()

    def provide(self, request: htp.DataRequest, param: object) -> Any:
        self.asked.append(request)
        self.params.add(param)
        fd = os.memfd_create("weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, request.size)
        os.pwrite(fd, self.binary[request.offset : request.offset + request.size], 0)
        self.open.append(fd)
        data = htp.DmaData(fd, 0, request.size)
        return data if self.change is None else self.change(data, self)

    def release(self, data: htp.DmaData, param: object) -> None:
        self.released.append(data.fd)
        with contextlib.suppress(OSError):
            os.close(data.fd)

    @property
    def callback(self) -> htp.DmaBufferCallback:
        return htp.DmaBufferCallback(self.provide, self.release, "mine")


def without_weights(binary: bytes, requests: list[htp.DataRequest]) -> bytes:
    """The binary with nothing where the provider's pieces are: nobody may look there."""
    data = bytearray(binary)
    for request in requests:
        data[request.offset : request.offset + request.size] = bytes(request.size)
    return bytes(data)


def test_weights_come_from_the_provider_alone(
    device: htp.Device, made: tuple[bytes, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    binary, expected = made
    keeper = Keeper(binary)
    with device.create_context_from_binary(binary, callback=keeper.callback):
        pass
    assert keeper.asked
    assert all(request.offset % 4096 == request.size % 4096 == 0 for request in keeper.asked)
    assert sum(request.size for request in keeper.asked) >= 3 * ROWS * ROWS * 2, "in half precision"
    empty = without_weights(binary, keeper.asked)
    path = tmp_path / "empty.bin"
    path.write_bytes(empty)
    for source in (empty, path):
        keeper = Keeper(binary)
        with device.create_context_from_binary(source, callback=keeper.callback) as context:
            assert keeper.params == {"mine"}
            assert keeper.released == []
            for name, result in expected.items():
                np.testing.assert_array_equal(context.graph(name).execute({"x": X})["y"], result)
        assert sorted(keeper.released) == sorted(keeper.open)
    with pytest.raises(htp.BadBinary):
        device.create_context_from_binary(empty)


def test_a_bare_descriptor_and_an_offset_do_too(
    device: htp.Device, made: tuple[bytes, dict[str, np.ndarray]]
) -> None:
    binary, expected = made

    def later(data: htp.DmaData, keeper: Keeper) -> htp.DmaData:
        request = keeper.asked[-1]
        os.ftruncate(data.fd, request.size + 8192)
        os.pwrite(data.fd, binary[request.offset : request.offset + request.size], 8192)
        return htp.DmaData(data.fd, 8192)

    for change in (later, lambda data, keeper: data.fd):
        keeper = Keeper(binary, change)
        with device.create_context_from_binary(binary, callback=keeper.callback) as context:
            np.testing.assert_array_equal(context.graph("a").execute({"x": X})["y"], expected["a"])
        assert keeper.released == keeper.open[::-1]


def test_pieces_are_used_where_they_lie() -> None:
    """What the device reads of a piece is the client's own memory: a change of that shows."""
    whole = os.memfd_create("binary", os.MFD_ALLOW_SEALING)
    os.write(whole, bytes(3 * 4096))
    mine = os.memfd_create("weights", os.MFD_ALLOW_SEALING)
    os.ftruncate(mine, 8192)
    fcntl.fcntl(mine, 1033, 2)
    file = BinaryFile(whole)
    file.overlay([ms.ExternalPiece(begin=4096, end=8192, offset=4096)], [os.dup(mine)])
    seen = file.source.read(5000, 5004)
    os.pwrite(mine, b"here", 4096 + 5000 - 4096)
    assert bytes(seen) == b"here"
    assert bytes(file.source.read(9000, 9004)) == bytes(4)
    file.close()
    os.close(mine)


def test_the_client_s_own_buffers_are_sent(made: tuple[bytes, dict[str, np.ndarray]]) -> None:
    keeper = Keeper(made[0])
    buffers = ClientBuffers(keeper.callback)
    binary = read_binary(made[0])
    buffers.collect(binary, binary.graph_names)
    assert keeper.open
    same = [os.path.sameopenfile(*pair) for pair in zip(buffers.descriptors, keeper.open, strict=True)]
    assert all(same), "the same memory, and no copy"
    buffers.release()


def raising(data: htp.DmaData, keeper: Keeper) -> Any:
    raise RuntimeError("no memory today")


def short(data: htp.DmaData, keeper: Keeper) -> Any:
    os.ftruncate(data.fd, keeper.asked[-1].size - 4096)
    return data


def damaged(data: htp.DmaData, keeper: Keeper) -> Any:
    os.pwrite(data.fd, b"\1\2\3\4\5\6\7\7", keeper.asked[-1].size // 2)
    return data


def a_file(data: htp.DmaData, keeper: Keeper) -> Any:
    fd = os.open("/tmp", os.O_TMPFILE | os.O_RDWR)
    os.truncate(fd, keeper.asked[-1].size)
    os.dup2(fd, data.fd)
    os.close(fd)
    return data


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (raising, "data_provider failed.*no memory today"),
        (short, "cannot be used"),
        (damaged, "damaged|checksum"),
        (a_file, "no shared memory"),
        (lambda data, keeper: htp.DmaData(data.fd, 100), "multiple of 4096"),
        (lambda data, keeper: htp.DmaData(data.fd, -4096), "multiple of 4096"),
        (lambda data, keeper: htp.DmaData(data.fd, 0, 4096), "aligned_size of 4096"),
        (lambda data, keeper: None, "gave None"),
        (lambda data, keeper: "fd", "gave 'fd'"),
        (lambda data, keeper: -1, "gave -1"),
    ],
)
def test_what_a_provider_does_wrong_is_told_and_all_is_released(
    device: htp.Device, made: tuple[bytes, dict[str, np.ndarray]], change: Any, words: str
) -> None:
    binary = made[0]
    keeper = Keeper(binary, change)
    with pytest.raises(htp.QnnError, match=words):
        device.create_context_from_binary(binary, callback=keeper.callback)
    given = [fd for fd in keeper.released if fd in keeper.open]
    assert len(given) == len(set(given)), "released twice"
    (session,) = device.info()["sessions"]
    assert (session["contexts"], session["bytes"], session["tasks"]) == (0, 0, [])
    for fd in keeper.open:
        with contextlib.suppress(OSError):
            os.close(fd)
    with device.create_context_from_binary(binary) as context:
        assert context.graph("a").execute({"x": X})


def test_the_same_descriptor_twice(backend: htp.Backend, made: tuple[bytes, dict[str, np.ndarray]]) -> None:
    """Asked directly: which pieces there are depends on the binary."""
    from openhtp.runtime.binaries.data_provider import ClientBuffers, DataRequest

    keeper = Keeper(made[0])
    external = ClientBuffers(keeper.callback)
    fd = os.memfd_create("w", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 8192)
    external.take(DataRequest(4096, 4096), fd)
    with pytest.raises(htp.InvalidArgument, match="again"):
        external.take(DataRequest(8192, 4096), fd)
    copy = os.dup(fd)
    with pytest.raises(htp.InvalidArgument, match="memory of another"):
        external.take(DataRequest(8192, 4096), copy)
    external.release()
    external.release()
    assert sorted(keeper.released) == sorted([fd, copy])


@pytest.mark.parametrize("how", ["freed", "lost", "backend", "signal", "interrupt", "release raises"])
def test_buffers_are_released_once_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: tuple[bytes, dict[str, np.ndarray]], how: str
) -> None:
    keeper = Keeper(made[0])
    with htp.Backend() as backend:
        if how in ("signal", "interrupt"):
            monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
            with serving():
                device = backend.create_device(name=NAME)
                gate = Gate(monkeypatch, loading, "_make_ready")
                signal = backend.create_signal()

                def end() -> None:
                    assert gate.reached.wait(PATIENCE_S)
                    if how == "signal":
                        signal.trigger()
                    else:
                        signals.pthread_kill(threading.main_thread().ident, signals.SIGINT)  # type: ignore[arg-type]

                thread = threading.Thread(target=end)
                thread.start()
                with pytest.raises((htp.Aborted, KeyboardInterrupt)):
                    device.create_context_from_binary(made[0], callback=keeper.callback, signal=signal)
                thread.join()
                tidying.flush()
                gate.open.set()
        else:
            device = backend.create_device()
            context = device.create_context_from_binary(made[0], callback=keeper.callback)
            if how == "release raises":
                monkeypatch.setattr(
                    keeper, "release", lambda data, param: (keeper.released.append(data.fd), 1 / 0)
                )
                object.__setattr__(context.opened.client_buffers._callback, "data_release", keeper.release)  # type: ignore[union-attr]
            if how == "lost":
                os.kill(device.pid, signals.SIGKILL)
                wait_until(lambda: len(keeper.released) == len(keeper.open))
            if how != "backend":
                context.free()
    assert sorted(keeper.released) == sorted(keeper.open)


def test_bad_arguments_ask_for_nothing(
    shared_device: htp.Device, made: tuple[bytes, dict[str, np.ndarray]]
) -> None:
    keeper = Keeper(made[0])
    for callback in (3, keeper, htp.DmaBufferCallback(3, 4), htp.DmaBufferCallback(None, None)):  # type: ignore[arg-type]
        with pytest.raises(htp.InvalidArgument):
            shared_device.create_context_from_binary(made[0], callback=callback)  # type: ignore[arg-type]
    with pytest.raises(htp.InvalidArgument, match="exclude each other"):
        shared_device.create_context_from_binary(
            made[0], callback=keeper.callback, memory_limit_hint=1, is_persistent_binary=True
        )
    with pytest.raises(htp.InvalidArgument, match="a callback is for create_context_from_binary only"):
        shared_device.create_contexts_from_binaries([made[0]], callback=keeper.callback)  # type: ignore[call-arg]
    assert keeper.asked == []


def test_the_device_checks_pieces_itself(backend: htp.Backend, made: tuple[bytes, dict[str, np.ndarray]]) -> None:
    context = backend.create_device().create_context()
    fd = os.memfd_create("w", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 8192)
    binary = os.memfd_create("b", os.MFD_ALLOW_SEALING)
    os.write(binary, made[0])
    fcntl.fcntl(binary, 1033, 2)
    graphs = [ms.WantedGraph(place=0, priority=100)]
    for piece in (
        ms.ExternalPiece(begin=-4096, end=0, offset=0),
        ms.ExternalPiece(begin=0, end=1 << 60, offset=0),
        ms.ExternalPiece(begin=4096, end=8192, offset=-4096),
        ms.ExternalPiece(begin=4096, end=8192, offset=0),  # not sealed
    ):
        request = ms.LoadGraphs(context=context.opened.number, nbytes=10, graphs=graphs, external=[piece])
        with pytest.raises(htp.QnnError):
            context.opened.link.request(request, (binary, fd))
    (session,) = context.device.info()["sessions"]
    assert (session["graphs"], session["bytes"]) == ([], 0)
    os.close(fd)
    os.close(binary)
