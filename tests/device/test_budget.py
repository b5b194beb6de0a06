"""What a session may hold is granted before it is taken, and given back once."""

from __future__ import annotations

import pytest

import openhtp as htp
from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.device import budget as module
from openhtp.device.budget import Budget, Use
from openhtp.device.contexts import DeviceContext
from openhtp.device.sessions import Session
from openhtp.rpc.shm import SharedBuffer
from tests.conftest import relu_graph


def test_a_session_is_bounded() -> None:
    """A session addresses 3.75 GB; the device refuses more, and what was there before goes on."""
    budget = Session(7, pid=1, label="").budget
    budget.take(SESSION_LIMIT_BYTES - 10, Use.WEIGHTS, "the graph")
    with pytest.raises(htp.OutOfMemory, match=r"the memory needs 11 .*session 7 holds .*3.75 GiB") as caught:
        budget.take(11, Use.IO, "the memory")
    assert caught.value.name == "QNN_CONTEXT_ERROR_MEM_ALLOC"
    assert budget.used == SESSION_LIMIT_BYTES - 10
    budget.take(10, Use.IO, "the memory")


def test_the_number_of_pieces_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "most_pieces", lambda: 2)
    budget = Budget("session 1")
    first = budget.take(1, Use.IO, "the memory")
    budget.take(1, Use.IO, "the memory")
    with pytest.raises(htp.OutOfMemory, match="holds 2 pieces of shared memory, and may hold 2"):
        budget.take(1, Use.IO, "the memory")
    first.give_back()
    budget.take(1, Use.IO, "the memory")


def test_a_grant_is_given_back_once() -> None:
    budget = Budget("session 1", limit=100)
    weights = budget.take(60, Use.WEIGHTS, "the graph")
    budget.take(30, Use.IO, "the memory")
    assert budget.by_use() == {"weights": 60, "io": 30}
    weights.give_back()
    weights.give_back()
    assert budget.by_use() == {"weights": 0, "io": 30}
    assert budget.used == 30


def test_memory_that_is_refused_is_not_kept() -> None:
    session = Session(1, pid=1, label="")
    session.budget = Budget("session 1", limit=100)
    context = session.contexts[2] = DeviceContext(2, session, 1, 1)
    buffer = SharedBuffer.create(64)
    session.map(3, context, buffer)
    with pytest.raises(htp.OutOfMemory):
        session.map(4, context, buffer)
    assert list(session.memories) == list(context.memories) == [3]
    session.unmap(3)
    assert session.budget.used == 0
    assert not session.memories
    assert not context.memories


def test_what_memory_is_for_is_told(backend: htp.Backend) -> None:
    """And all of a context's is given back with it."""

    def held() -> dict[str, int]:
        (session,) = device.info()["sessions"]
        assert session["bytes"] == sum(session["memory"].values())
        return session["memory"]

    device = backend.create_device()
    nothing = held()
    context = device.create_context()
    relu_graph(context)
    loaded = held()
    assert loaded["weights"] > 0
    context.register_memory(1 << 20)
    assert held() == {**loaded, "io": loaded["io"] + (1 << 20)}
    context.free()
    assert held() == nothing == {"weights": 0, "io": 0}
