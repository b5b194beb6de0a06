"""The order of locks: written down, checked in every test, and kept by threads that meet in one process."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import openhtp as htp
from openhtp.core import locks
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S


def test_a_lock_taken_out_of_order_is_refused() -> None:
    first, second = locks.make_lock(locks.ORDER[0]), locks.make_lock(locks.ORDER[1])
    with first, second:
        pass
    with second, pytest.raises(locks.LockOrderError, match=locks.ORDER[0]), first:
        pass
    with first, second:  # nothing was left behind by the refusal
        pass


def test_two_locks_of_one_rank_are_refused_and_a_reentrant_one_is_not() -> None:
    one, other = locks.make_lock("slots"), locks.make_lock("slots")
    with one, pytest.raises(locks.LockOrderError), other:
        pass
    again = locks.make_lock("local", reentrant=True)
    with again, again:
        pass


def test_without_checks_a_lock_is_a_lock() -> None:
    before = locks.check_order(False)
    try:
        assert isinstance(locks.make_lock("slots"), type(threading.Lock()))
    finally:
        locks.check_order(before)


def test_threads_share_an_in_process_device(backend: htp.Backend) -> None:
    """Each new number of executions at once adds slots, which asks the device while another thread runs it."""
    for _ in range(10):
        with backend.create_device(transport="inprocess") as device:
            work_together(relu_graph(device.create_context(queue_depth=8)))


def work_together(graph: htp.Graph) -> None:
    start = threading.Barrier(4)
    wrong: list[BaseException] = []

    def work() -> None:
        start.wait()
        try:
            for _ in range(10):
                np.testing.assert_array_equal(graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "deadlock"
    assert wrong == []
