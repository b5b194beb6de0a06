"""Power votes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from openhtp.core.errors import InvalidArgument
from openhtp.hw.power import ClockLevel, DcvsVote, HmxCorner, HmxVote, PowerMode, VoltageCorner


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


@pytest.mark.parametrize("given", ["turbo", "TURBO", 128, VoltageCorner.TURBO, ("turbo", 128, "turbo")])
def test_corners_have_names_and_numbers(given: Any) -> None:
    assert DcvsVote(core=given).core == (VoltageCorner.TURBO,) * 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"core": "fast"}, "core corner is 'fast'; expected one of disable, min"),
        ({"core": 129}, "core corner is 129"),
        ({"bus": ("svs", "nom")}, "expected lowest, target, highest, or one for all three"),
        ({"bus": {"svs": 1}}, "bus corner is"),
        ({"power_mode": 3}, "power_mode is 3"),
        ({"dcvs_enable": 1}, "dcvs_enable is 1; expected True or False"),
        ({"sleep_latency_us": 9}, "from 10 to 65535"),
        ({"sleep_latency_us": 65536}, "from 10 to 65535"),
        ({"sleep_latency_us": True}, "from 10 to 65535"),
    ],
)
def test_what_is_no_vote_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        DcvsVote(**arguments)
    assert caught.value.code == 13001


def test_what_a_vote_leaves_open_stays_as_it_was() -> None:
    standing = DcvsVote(core="nom", bus="svs", sleep_latency_us=40)
    over = DcvsVote(core="turbo", dcvs_enable=False).over(standing)
    assert over == DcvsVote(core="turbo", bus="svs", sleep_latency_us=40, dcvs_enable=False)


def test_disabled_clocks_are_no_hvx_vote() -> None:
    assert DcvsVote(core="svs").votes_core
    assert not DcvsVote(core="disable").votes_core
    assert not DcvsVote(bus="max", sleep_latency_us=40).votes_core


def test_hmx_votes() -> None:
    vote = HmxVote(corners="tur", level="low")  # type: ignore[arg-type]
    assert (vote.corners, vote.level) == ((HmxCorner.TUR,) * 3, ClockLevel.LOW)
    for arguments, words in (
        ({}, "neither given"),
        ({"corners": "nom", "pick_default": True}, "both given"),
        ({"corners": ("tur", "nom", "max")}, "in rising order"),
        ({"corners": "turbo"}, "HMX corner is 'turbo'"),
    ):
        with pytest.raises(InvalidArgument, match=words) as caught:
            HmxVote(**arguments)
        assert caught.value.name == "QNN_HTP_PERF_INFRASTRUCTURE_ERROR_INVALID_INPUT"
