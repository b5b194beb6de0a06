"""The door of a named device when there is nothing left to open it with: no client hangs, and nothing spins."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from openhtp.device.connection import Entrance
from openhtp.rpc import rendezvous
from tests.device.serving import serving, settled
from tests.waiting import PATIENCE_S


class Listener:
    """A listening socket that fails as it is told to."""

    def __init__(self, *answers: int | socket.socket) -> None:
        self.answers = list(answers)

    def setblocking(self, flag: bool) -> None:
        pass

    def accept(self) -> tuple[socket.socket, object]:
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return answer, None


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_who_cannot_be_let_in_is_turned_away(code: int) -> None:
    ours, theirs = socket.socketpair()
    adopted: list[socket.socket] = []
    entrance = Entrance(Listener(code, theirs), adopted.append)  # type: ignore[arg-type]
    assert entrance.let_in()
    with ours:
        assert ours.recv(1) == b""
    assert adopted == []


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
def test_the_door_rests_when_nothing_helps(code: int) -> None:
    listener = Listener(code, code)
    assert not Entrance(listener, lambda control: None).let_in()  # type: ignore[arg-type]


def test_nobody_there_is_no_reason_to_rest() -> None:
    assert Entrance(Listener(errno.EAGAIN), lambda control: None).let_in()  # type: ignore[arg-type]


def test_who_cannot_be_adopted_is_cut_off() -> None:
    ours, theirs = socket.socketpair()

    def adopt(control: socket.socket) -> None:
        raise MemoryError

    assert Entrance(Listener(theirs), adopt).let_in()  # type: ignore[arg-type]
    with ours:
        assert ours.recv(1) == b""


def test_a_resting_door_opens_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    with serving() as server:
        refusals = [False, False]
        tried = []

        def let_in(original=server._entrance.let_in) -> bool:
            tried.append(len(server._connections))
            return refusals.pop() if refusals else original()

        monkeypatch.setattr(server._entrance, "let_in", let_in)
        caller = rendezvous.connect("here")
        assert caller is not None
        with caller:
            caller.settimeout(PATIENCE_S)
            caller.send(b"not a message")
            assert caller.recv(100) == b""  # let in, heard, and cut off
        settled(server)
        assert len(tried) == 3  # once for each rest, not as often as the loop could
