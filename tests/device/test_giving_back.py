"""Memory of contexts that are gone goes back to the system, not only to the C library's lists."""

from __future__ import annotations

import numpy as np
import pytest

import openhtp as htp
from openhtp.core.machine import WORTH_GIVING_BACK
from openhtp.device import core
from tests.waiting import wait_until

NBYTES = WORTH_GIVING_BACK // 4


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    monkeypatch.setattr(core, "give_back_freed", lambda: calls.append("given back"))
    return calls


@pytest.fixture(scope="module")
def binary() -> bytes:
    data = np.ones((NBYTES // 4 // 512, 512), np.float32)
    with htp.Backend() as backend, backend.create_device().create_context(prepare_only=True) as context:
        graph = context.create_graph("g", precision="float32")
        x = graph.add_tensor("x", (1, 512), "float32", kind="app_write")
        y = graph.add_tensor("y", (1, len(data)), "float32", kind="app_read")
        graph.add_node(
            "FullyConnected", inputs=[x, graph.add_tensor("w", data.shape, "float32", data=data)], outputs=[y]
        )
        graph.finalize()
        return context.get_binary()


def test_small_contexts_add_up_until_it_is_worth_it(given: list[str], backend: htp.Backend, binary: bytes) -> None:
    device = backend.create_device(transport="inprocess")
    for _ in range(3):
        device.create_context_from_binary(binary).free()
    assert given == []
    device.create_context_from_binary(binary).free()
    wait_until(lambda: given == ["given back"])
    device.create_context_from_binary(binary).free()
    assert given == ["given back"]


def test_so_does_what_a_client_leaves_behind(given: list[str], binary: bytes) -> None:
    with htp.Backend() as backend:
        device = backend.create_device(transport="inprocess")
        kept = [device.create_context_from_binary(binary) for _ in range(4)]
        assert given == []
    assert given == ["given back"]
    del kept
