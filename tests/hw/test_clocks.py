"""From votes to clocks."""

from __future__ import annotations

import itertools

import pytest

from openhtp.core.errors import InvalidArgument
from openhtp.hw.clocks import FULL, Clocks, StandingVote, clocks_for, max_core_mhz
from openhtp.hw.perf_profiles import PERF_PROFILES, RELAXED, RELEASED, Idle, find_perf_profile
from openhtp.hw.power import DcvsVote, HmxCorner, HmxVote, PowerMode, VoltageCorner

NOMINAL = clocks_for([])


def test_no_vote_is_the_nominal_one() -> None:
    assert clocks_for([StandingVote(dcvs=DcvsVote(core="nom", bus="nom"))]) == NOMINAL
    assert clocks_for([StandingVote()]) == NOMINAL


def test_a_v69_without_a_vote_runs_at_what_was_measured() -> None:
    turbo = clocks_for([StandingVote(dcvs=DcvsVote(core="turbo"))])
    assert turbo.core_mhz(69) == pytest.approx(1400, rel=0.01)
    assert NOMINAL.core_mhz(69) == pytest.approx(790, rel=0.02)


@pytest.mark.parametrize("corner", VoltageCorner)
def test_higher_corners_are_not_slower(corner: VoltageCorner) -> None:
    ordered = [clocks_for([StandingVote(dcvs=DcvsVote(core=each, bus=each))]) for each in VoltageCorner]
    for lower, higher in itertools.pairwise(ordered):
        assert lower.core <= higher.core
        assert lower.bus <= higher.bus
    assert ordered[-1] == FULL
    hmx = [StandingVote(dcvs=DcvsVote(core=corner), hmx=HmxVote(corners=each)) for each in HmxCorner]
    clocks = [clocks_for([each]).hmx for each in hmx]
    assert clocks == sorted(clocks)


def test_the_highest_of_several_votes_wins_clock_by_clock() -> None:
    first = StandingVote(dcvs=DcvsVote(core="svs", bus="max"))
    second = StandingVote(dcvs=DcvsVote(core="turbo", bus="svs2"), hmx=HmxVote(corners="svs"))
    both = clocks_for([first, second])
    alone = [clocks_for([each]) for each in (first, second)]
    assert both == Clocks(
        core=max(each.core for each in alone),
        hmx=max(each.hmx for each in alone),
        bus=max(each.bus for each in alone),
    )
    assert both == clocks_for([second, first])


def test_hmx_follows_the_core_until_it_has_a_vote_of_its_own() -> None:
    dcvs = DcvsVote(core="turbo")
    follows = clocks_for([StandingVote(dcvs=dcvs)])
    assert follows.hmx == follows.core
    own = clocks_for([StandingVote(dcvs=dcvs, hmx=HmxVote(corners="svs"))])
    assert own.hmx < follows.hmx
    assert own.core == follows.core
    low = clocks_for([StandingVote(dcvs=dcvs, hmx=HmxVote(corners="svs", level="low"))])
    assert low.hmx < own.hmx
    assert clocks_for([StandingVote(dcvs=dcvs, hmx=HmxVote(pick_default=True))]) == follows


def test_dcvs_moves_between_the_corners_if_it_may() -> None:
    def core(mode: PowerMode, enable: bool) -> float:
        vote = DcvsVote(power_mode=mode, dcvs_enable=enable, core=("svs", "nom", "turbo"))
        return clocks_for([StandingVote(dcvs=vote)]).core

    assert core(PowerMode.PERFORMANCE, False) == core(PowerMode.POWER_SAVER_AGGRESSIVE, False) == NOMINAL.core
    assert core(PowerMode.PERFORMANCE, True) > NOMINAL.core
    assert core(PowerMode.POWER_SAVER, True) == NOMINAL.core
    assert core(PowerMode.POWER_SAVER_AGGRESSIVE, True) < NOMINAL.core


def test_unknown_architectures_have_the_clock_of_the_one_before() -> None:
    assert max_core_mhz(76) == max_core_mhz(75)
    assert max_core_mhz(1) == max_core_mhz(68)


class TestPerfProfiles:
    def test_the_table(self) -> None:
        """Corner, sleep latency, polling; DCVS is off in all of them."""
        rows = {
            "burst": ("MAX", 40, True),
            "sustained_high_performance": ("TURBO", 100, True),
            "high_performance": ("TURBO", 100, True),
            "balanced": ("NOM_PLUS", 1000, False),
            "low_balanced": ("NOM", 1000, False),
            "high_power_saver": ("SVS_PLUS", 1000, False),
            "power_saver": ("SVS", 1000, False),
            "low_power_saver": ("SVS2", 1000, False),
            "extreme_power_saver": ("DISABLE", 1000, False),
        }
        assert list(PERF_PROFILES) == [*rows, "system_settings"]
        for name, (corner, latency, polling) in rows.items():
            profile = PERF_PROFILES[name]
            corners = (VoltageCorner[corner],) * 3
            expected = DcvsVote(dcvs_enable=False, sleep_latency_us=latency, bus=corners, core=corners)
            assert (profile.dcvs, profile.polling) == (expected, polling)
            assert profile.rpc_polling_us == (9999 if polling else 0)

    def test_what_stands_between_stages(self) -> None:
        svs2, svs, lowest = VoltageCorner.SVS2, VoltageCorner.SVS, VoltageCorner.MIN
        assert (RELAXED.core, RELAXED.bus) == ((svs2, svs, svs),) * 2
        assert (RELEASED.core, RELEASED.bus) == ((lowest,) * 3,) * 2
        assert (RELAXED.sleep_latency_us, RELEASED.sleep_latency_us) == (2000, 65535)
        assert RELAXED.dcvs_enable
        assert RELEASED.dcvs_enable
        assert [name for name, each in PERF_PROFILES.items() if each.sustain_us] == [
            "burst",
            "sustained_high_performance",
        ]
        assert PERF_PROFILES["high_performance"].idle is Idle.RELAXED
        for saver in ("high_power_saver", "power_saver", "low_power_saver"):
            assert PERF_PROFILES[saver].idle is Idle.RELEASED

    def test_profiles_are_ordered_by_speed(self) -> None:
        cores = [each.clocks().core for each in PERF_PROFILES.values() if each.dcvs is not None]
        assert cores == sorted(cores, reverse=True)
        assert PERF_PROFILES["burst"].clocks() == FULL
        assert PERF_PROFILES["system_settings"].clocks() == NOMINAL

    def test_a_misspelt_one_is_told(self) -> None:
        with pytest.raises(InvalidArgument, match="did you mean sustained_high_performance"):
            find_perf_profile("sustained_high_perf")
        with pytest.raises(InvalidArgument, match="expected one of burst, "):
            find_perf_profile(3)
