"""The transport's parts by themselves: shared memory, sockets, frames, messages, meeting places."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as some

from openhtp.core.errors import InvalidArgument, OutOfMemory, ResourceError
from openhtp.rpc import channel, frames, messages as ms, rendezvous
from openhtp.rpc.channel import Disconnected, ProtocolError
from openhtp.rpc.shm import SharedBuffer


def test_both_ends_of_shared_memory_see_the_same() -> None:
    ours = SharedBuffer.create(4096)
    theirs = SharedBuffer.attach(os.dup(ours.fd))
    ours.array(64, (4,), np.uint16)[:] = [1, 2, 3, 4]
    assert theirs.array(64, (4,), np.uint16).tolist() == [1, 2, 3, 4]
    ours.close()
    theirs.close()


def test_shared_memory_cannot_be_shrunk_by_its_owner() -> None:
    buffer = SharedBuffer.create(4096)
    with pytest.raises(PermissionError):
        os.ftruncate(buffer.fd, 1)
    buffer.close()


def test_unsealed_memory_is_refused() -> None:
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    with pytest.raises(InvalidArgument, match="sealed"):
        SharedBuffer.attach(fd)
    with pytest.raises(InvalidArgument, match="sealed"):
        SharedBuffer.attach(os.open("/dev/null", os.O_RDWR))


def test_no_room_for_shared_memory_is_said_so() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(OutOfMemory, match="1 MiB of shared memory"):
            SharedBuffer.create(1 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_arrays_outlive_the_buffer() -> None:
    buffer = SharedBuffer.create(4096)
    array = buffer.array(0, (8,), np.float32)
    buffer.close()
    array[:] = 3
    assert array.sum() == 24


def test_messages_keep_their_borders_and_descriptors() -> None:
    left, right = channel.socket_pair()
    with left, right, Path("/dev/null").open() as file:
        channel.send(left, b"one", (file.fileno(),))
        channel.send(left, b"two")
        data, fds = channel.receive(right)
        assert data == b"one"
        assert len(fds) == 1
        channel.close_all(fds)
        assert channel.receive(right) == (b"two", [])
        left.close()
        with pytest.raises(Disconnected):
            channel.receive(right)


def test_too_large_a_message_is_refused_on_both_sides() -> None:
    left, right = channel.socket_pair()
    with left, right:
        with pytest.raises(ProtocolError):
            channel.send(left, b"x" * (channel.MAX_MESSAGE + 1))
        left.send(b"x" * (channel.MAX_MESSAGE + 1))
        with pytest.raises(ProtocolError):
            channel.receive(right)


def test_too_many_descriptors_are_closed() -> None:
    left, right = channel.socket_pair()
    with left, right, Path("/dev/null").open() as file:
        before = len(os.listdir("/proc/self/fd"))
        channel.send(left, b"many", (file.fileno(),) * 50)
        with pytest.raises(ProtocolError):
            channel.receive(right)
        assert len(os.listdir("/proc/self/fd")) == before


bindings = some.lists(
    some.builds(
        frames.Binding, some.integers(0, 2**32 - 1), some.integers(0, 2**32 - 1), some.integers(0, 2**64 - 1)
    ),
    max_size=8,
)


@given(bindings, some.data())
def test_bindings_survive_packing(bound: list[frames.Binding], data: some.DataObject) -> None:
    shapes = some.lists(some.integers(0, 2**32 - 1), max_size=8).map(tuple)
    dims = data.draw(some.none() | some.lists(shapes, min_size=len(bound), max_size=len(bound)))
    packed = frames.pack_bindings(bound, dims)
    assert frames.unpack_bindings(packed, len(bound), with_dims=dims is not None) == (bound, dims)


@given(some.binary(max_size=200), some.integers(0, 2000), some.booleans())
def test_unpacking_never_reads_outside(junk: bytes, count: int, with_dims: bool) -> None:
    try:
        bound, _ = frames.unpack_bindings(junk, count, with_dims=with_dims)
        assert len(bound) == count
    except ValueError:
        pass


@given(some.binary(max_size=300))
def test_junk_is_no_request(junk: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        ms.decode_request(junk)


def test_requests_survive_encoding() -> None:
    request = ms.LoadGraphs(context=3, nbytes=99, graphs=[ms.WantedGraph(place=0, priority=200)])
    assert ms.decode_request(ms.encode(request)) == request


def test_meeting_place_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    path = rendezvous.directory()
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o755)
    with pytest.raises(ResourceError, match="0700"):
        rendezvous.directory()


@pytest.mark.parametrize("name", ["", "../x", "a/b", "x" * 65, ".hidden", 3])
def test_bad_device_names(name: str) -> None:
    with pytest.raises(InvalidArgument, match="device name"):
        rendezvous.socket_path(name)


def test_socket_of_a_killed_device_is_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    with rendezvous.listen("x"):
        pass  # closed without clearing the path away, as a kill does
    assert rendezvous.names() == ["x"]
    assert rendezvous.connect("x") is None
    assert rendezvous.names() == []


def test_door_takes_the_last_moment_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    door = rendezvous.Door("x", rendezvous.listen("x"))
    caller = rendezvous.connect("x")
    assert isinstance(caller, socket.socket)
    newcomer = door.close_unless_called()
    assert newcomer is not None
    assert door.close_unless_called() is None
    assert rendezvous.names() == []
    caller.close()
    newcomer.close()


def test_memory_is_filled_by_pieces_and_sealed() -> None:
    buffer = SharedBuffer.holding([b"ab", memoryview(b""), memoryview(bytes(range(200)))[100:], b"c" * 70_000])
    assert bytes(buffer.view) == b"ab" + bytes(range(100, 200)) + b"c" * 70_000
    again = SharedBuffer.attach(os.dup(buffer.fd))
    assert again.nbytes == buffer.nbytes
    with pytest.raises(OSError):
        os.ftruncate(again.fd, 10)
    again.close()
    buffer.close()
