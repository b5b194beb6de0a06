"""Whom a client talks to under the name of a device: nobody but this user's, and not without end."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import openhtp as htp
from openhtp.rpc import channel, rendezvous
from tests.waiting import PATIENCE_S


@pytest.fixture
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(rendezvous, "PATIENCE_S", 0.3, raising=False)
    return rendezvous.directory()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket outside of the meeting place, which records nothing and answers nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        with rendezvous.address(tmp_path / "elsewhere.sock") as where:
            sock.bind(where)
        sock.listen(8)
        yield sock


def create(name: str) -> BaseException | None:
    """Create a device by name on a thread, so that one that waits forever is a failure and not a hang."""
    caught: list[BaseException] = []

    def run() -> None:
        with htp.Backend() as backend:
            try:
                backend.create_device(name=name)
            except BaseException as error:
                caught.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "still waiting"
    return caught[0] if caught else None


def test_a_mute_listener_is_given_up(runtime_dir: Path) -> None:
    with rendezvous.listen("mute"):
        error = create("mute")
    assert isinstance(error, htp.QnnError)
    assert "did not answer" in str(error)
    assert str(runtime_dir / "mute.sock") in str(error)


def test_a_listener_that_does_not_even_accept_is_given_up(runtime_dir: Path) -> None:
    with rendezvous.listen("full") as sock:
        sock.listen(0)
        waiting = []
        for _ in range(3):
            caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            caller.setblocking(False)
            waiting.append(caller)
            try:
                with rendezvous.address(runtime_dir / "full.sock") as where:
                    caller.connect(where)
            except BlockingIOError:
                break
        error = create("full")
        for caller in waiting:
            caller.close()
    assert isinstance(error, htp.QnnError)
    assert "did not answer" in str(error)


def test_a_link_is_not_followed(runtime_dir: Path, tmp_path: Path, listener: socket.socket) -> None:
    (runtime_dir / "linked.sock").symlink_to(tmp_path / "elsewhere.sock")
    error = create("linked")
    assert isinstance(error, htp.QnnError)
    assert "is not the socket of a device" in str(error)
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_a_file_is_not_a_device(runtime_dir: Path) -> None:
    (runtime_dir / "file.sock").write_text("not a socket")
    assert "no socket" in str(create("file"))


def test_another_users_listener_is_told_nothing(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "peer_credentials", lambda sock: (1, os.getuid() + 1))
    with rendezvous.listen("theirs") as sock:
        error = create("theirs")
        assert isinstance(error, htp.QnnError)
        assert f"user {os.getuid() + 1} listens there" in str(error)
        caller, _ = sock.accept()
        with caller:
            assert caller.recv(100) == b""
