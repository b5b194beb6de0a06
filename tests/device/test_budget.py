"""What a client may hold: so many pieces, and so many bytes in its process domains."""

from __future__ import annotations

import pytest

import openhtp as htp
from openhtp.device import sessions as module
from openhtp.device.contexts import DeviceContext
from openhtp.device.sessions import Domains, Pieces, Session
from openhtp.memory.ledger import Ledger
from openhtp.rpc.shm import SharedBuffer
from tests.conftest import relu_graph


def test_the_number_of_pieces_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "most_pieces", lambda: 2)
    pieces = Pieces("session 1")
    pieces.take()
    pieces.take()
    with pytest.raises(htp.OutOfMemory, match="holds 2 pieces of shared memory, and may hold 2"):
        pieces.take()
    pieces.give_back()
    pieces.take()


def test_memory_that_is_refused_is_not_kept() -> None:
    session = Session(1, pid=1, label="", domains=Domains(1, Ledger(limit=100)))
    context = session.contexts[2] = DeviceContext(2, session, 1, 1)
    buffer = SharedBuffer.create(64)
    session.map(3, context, buffer)
    with pytest.raises(htp.OutOfMemory):
        session.map(4, context, buffer)
    assert list(session.memories) == list(context.memories) == [3]
    session.unmap(3)
    assert session.ledger.used == session.pieces.held == 0
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
    assert loaded["vtcm_backup"] == 4096, "a page: eight numbers are in VTCM"
    context.register_memory(1 << 20)
    assert held() == {**loaded, "io": loaded["io"] + (1 << 20)}
    context.free()
    assert held() == nothing == {"weights": 0, "spill_fill": 0, "vtcm_backup": 0, "io": 0, "reserve": 0}
