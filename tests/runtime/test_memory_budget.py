"""Memory is asked for before it is taken: what the device refuses was never allocated."""

from __future__ import annotations

import errno
import os
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from tests.conftest import ramp, relu_graph


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of shared memory that this process really took, in order."""
    sizes: list[int] = []
    real = os.posix_fallocate

    def record(fd: int, offset: int, nbytes: int) -> None:
        sizes.append(nbytes)
        assert nbytes < 1 << 30, "this would have been taken"
        real(fd, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", record)
    return sizes


def used_bytes(device: htp.Device) -> int:
    return sum(session["bytes"] for session in device.info()["sessions"])


@pytest.mark.parametrize("size", [4 << 30, 6 << 30, 1 << 40])
def test_too_much_memory_is_refused_before_it_is_taken(context: htp.Context, taken: list[int], size: int) -> None:
    before = used_bytes(context.device)
    with pytest.raises(htp.OutOfMemory, match=r"of 3.75 GiB"):
        context.register_memory(size)
    assert taken == []
    assert used_bytes(context.device) == before
    context.register_memory(1 << 20)
    assert taken == [1 << 20]


def test_a_huge_batch_is_refused_before_it_is_taken(context: htp.Context, taken: list[int]) -> None:
    graph = relu_graph(context, shape=(1, 1 << 20))
    taken.clear()
    wide = np.broadcast_to(np.zeros((1, 1), np.float32), (4000, 1 << 20))
    with pytest.raises(htp.OutOfMemory, match=r"of 3.75 GiB"):
        graph.execute({"x": wide})
    assert taken == []
    graph.execute({"x": ramp((1, 1 << 20))})


def test_what_the_machine_refuses_goes_back_to_the_budget(
    context: htp.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = relu_graph(context)
    before = used_bytes(context.device)

    def full(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(htp.OutOfMemory, match="No space left"):
            context.register_memory(1 << 20)
        with pytest.raises(htp.OutOfMemory, match="No space left"):
            graph.execute({"x": ramp()})
    assert used_bytes(context.device) == before
    graph.execute({"x": ramp()})


def test_a_graph_that_cannot_fit_is_not_copied_first(
    context: htp.Context, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from openhtp.runtime.binaries import send as module

    monkeypatch.setattr(module, "SESSION_LIMIT_BYTES", 10)
    graph = context.create_graph("g")
    x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
    y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
    graph.add_node("Relu", inputs=[x], outputs=[y])
    with pytest.raises(htp.OutOfMemory, match="graph"):
        graph.finalize()
    assert taken == []
    monkeypatch.undo()
    graph.finalize()
    graph.execute({"x": ramp()})


@pytest.mark.parametrize("size", [10**30, 1 << 63, (1 << 40) + 1, True, float("inf"), "8"])
def test_sizes_that_no_memory_has(context: htp.Context, size: Any) -> None:
    with pytest.raises(htp.InvalidArgument, match="expected a whole number") as caught:
        context.register_memory(size)
    assert caught.value.name == "QNN_MEM_ERROR_INVALID_ARGUMENT"


def test_numbers_of_numpy_are_sizes(context: htp.Context) -> None:
    assert context.register_memory(np.int64(64)).nbytes == 64  # type: ignore[arg-type]
