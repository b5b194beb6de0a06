"""Power votes."""

from __future__ import annotations

import itertools

import pytest

from openhtp.core.errors import InvalidArgument
from openhtp.hw.power import PERFORMANCE_MODES, DcvsVote, PowerMode, VoltageCorner


@pytest.mark.parametrize("part", ["bus", "core"])
def test_corners_must_rise(part: str) -> None:
    for low, target, high in itertools.product(
        (VoltageCorner.SVS, VoltageCorner.NOM, VoltageCorner.MAX), repeat=3
    ):
        if low <= target <= high:
            assert getattr(DcvsVote(**{part: (low, target, high)}), part) == (low, target, high)
        else:
            with pytest.raises(InvalidArgument, match=f"{part} corners .* expected lowest, target, highest"):
                DcvsVote(**{part: (low, target, high)})


def test_modes_are_single_bits() -> None:
    """The API combines them nowhere, and numbers them as if it did."""
    assert [mode.bit_count() for mode in PowerMode] == [1] * len(PowerMode)


def test_performance_modes_have_distinct_names() -> None:
    assert len(set(PERFORMANCE_MODES)) == len(PERFORMANCE_MODES)
    assert "default" in PERFORMANCE_MODES
