"""Memory between segments: as large as was asked for, apart, and on large pages where that pays."""

from __future__ import annotations

import numpy as np
import pytest

from openhtp.engine.sessions import make_slots

MIB = 1 << 20


@pytest.mark.parametrize("sizes", [(), (0,), (1, 100), (MIB, 3 * MIB + 1, 7), (MIB // 2, 0, MIB)])
def test_slots_do_not_overlap(sizes: tuple[int, ...]) -> None:
    slots = make_slots(sizes)
    assert [slot.nbytes for slot in slots] == list(sizes)
    for number, slot in enumerate(slots):
        slot[:] = number
    assert all((slot == number).all() for number, slot in enumerate(slots))


def test_large_slots_begin_on_a_large_page_and_outlive_the_call() -> None:
    first, second = make_slots((3 * MIB, 100))
    assert first.ctypes.data % (2 * MIB) == 0
    assert second.ctypes.data % 64 == 0
    del first
    second[:] = 7
    assert np.all(second == 7)
