"""Windows of devices: others may look, and do nothing else; what is left of the dead is cleared away."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import openhtp as htp
from openhtp.device.onlookers import MOST
from openhtp.rpc import channel, messages as ms, rendezvous, windows
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


def at_window(place: Path) -> socket.socket:
    (path,) = place.glob("*.window")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(PATIENCE_S)
    with rendezvous.address(path) as where:
        sock.connect(where)
    return sock


def test_a_window_is_the_users_alone(backend: htp.Backend, place: Path) -> None:
    device = backend.create_device()
    assert [seen["pid"] for seen in windows.look()] == [device.pid]
    assert place.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "message",
    [
        ms.encode(ms.Hello(version=ms.PROTOCOL_VERSION, pid=1)),
        ms.encode(ms.Shutdown(now=True, number=3)),
        ms.encode(ms.CreateContext(queue_depth=1, priority=100, number=3)),
        b"nonsense",
        b"",
    ],
    ids=["hello", "shutdown", "context", "nonsense", "nothing"],
)
def test_at_a_window_one_can_only_look(backend: htp.Backend, place: Path, message: bytes) -> None:
    device = backend.create_device()
    with at_window(place) as sock:
        sock.send(message)
        assert sock.recv(100) == b""
    (session,) = device.info()["sessions"]
    assert session["contexts"] == 0


def test_so_many_look_at_once_and_then_no_more(backend: htp.Backend, place: Path) -> None:
    device = backend.create_device()
    there = [at_window(place) for _ in range(MOST)]
    for sock in there:
        channel.send(sock, ms.encode(ms.Inspect(number=7)))
        assert ms.decode_reply(sock.recv(1 << 16)).number == 7
    with at_window(place) as late:
        assert late.recv(100) == b""
    for sock in there:
        sock.close()
    wait_until(lambda: [seen["pid"] for seen in windows.look()] == [device.pid])


def test_a_device_goes_with_its_last_client_whoever_looks(place: Path) -> None:
    with htp.Backend() as backend:
        backend.create_device()
        looking = at_window(place)
    with looking:
        assert looking.recv(100) == b""
    assert list(place.glob("*.window")) == []


def test_the_window_of_a_device_that_was_killed_is_cleared_away(backend: htp.Backend, place: Path) -> None:
    device = backend.create_device()
    old, gone = device.pid, list(place.glob("*.window"))
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: device.restarts == 1)
    assert device.pid != old
    assert [seen["pid"] for seen in windows.look()] == [device.pid]
    assert not any(path.exists() for path in gone)


def test_a_device_without_a_place_for_a_window_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", "/dev/null/nowhere")
    with htp.Backend() as backend:
        assert len(backend.create_device().info()["sessions"]) == 1


def test_what_is_too_long_for_a_message_is_seen_too(backend: htp.Backend, place: Path) -> None:
    device = backend.create_device()
    for _ in range(900):
        device.create_context()
    ((session,),) = (seen["sessions"] for seen in windows.look())
    assert session["contexts"] == 900
    assert len(session["domains"][0]["contexts"]) == 900


def test_the_window_of_a_process_that_was_not_yet_waited_for_is_cleared_away(place: Path) -> None:
    """As of a device whose client was killed with it: nobody has to have read how it ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    left = rendezvous.directory() / f"{child.pid}-0.window"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as gone, rendezvous.address(left) as where:
        gone.bind(where)
    own = windows.open_window()
    assert own is not None
    own.close()
    child.wait()
    assert not left.exists()
