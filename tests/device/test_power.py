"""Votes of several clients on one device, as tables: what is asked, and what the clocks do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from openhtp.core.errors import InvalidArgument, InvalidHandle, QnnError, UnsupportedFeature
from openhtp.core.units import US
from openhtp.device.power import MAX_CONFIGS, Power, SystemLatency
from openhtp.hw.clocks import COLD_NS, WARM_NS, Clocks, StandingVote, clocks_for
from openhtp.hw.perf_profiles import PERF_PROFILES, SUSTAIN_US
from openhtp.hw.power import DEFAULT_HMX_TIMEOUT_US, DcvsVote, HmxVote
from openhtp.records.trace import ClocksChanged
from openhtp.rpc.looking import UNASKED_NS
from openhtp.rpc.messages import SetPowerConfig

ME, YOU = 1, 2
NOMINAL = clocks_for(())


class Bench:
    """A device's votes with two clients, who have config 10 and 20."""

    def __init__(self, arch: int = 75, cores: int = 1) -> None:
        self.changes: list[ClocksChanged] = []
        self.power = Power(arch, cores, self.changes.append)
        self.power.create(10, ME, 0)
        self.power.create(20, YOU, 0)

    def set(self, number: int, t: int = 0, *, busy: bool = False, **wanted: Any) -> None:
        session = ME if number < 20 else YOU
        self.power.set(session, SetPowerConfig(config=number, **wanted), t, busy=busy)

    def clocks(self, t: int = 0, core: int = 0) -> Clocks:
        return self.power.clocks(core, t)


def only(dcvs: DcvsVote, hmx: HmxVote | None = None) -> Clocks:
    return clocks_for([StandingVote(dcvs=dcvs, hmx=hmx)])


TURBO = DcvsVote(core="turbo", bus="turbo")
SVS = DcvsVote(core="svs", bus="svs")


def test_the_highest_vote_wins_and_goes_with_its_client() -> None:
    bench = Bench()
    bench.set(10, dcvs=SVS)
    bench.set(20, dcvs=TURBO)
    assert bench.clocks() == only(TURBO)
    bench.power.forget(YOU, 5)
    assert bench.clocks(5) == only(SVS)
    bench.power.destroy(ME, 10, 6)
    assert bench.clocks(6) == NOMINAL
    assert [change.t for change in bench.changes] == [0, 0, 5, 6]


def test_cores_have_votes_of_their_own() -> None:
    bench = Bench(cores=2)
    bench.power.create(11, ME, 1)
    bench.set(11, dcvs=TURBO)
    assert (bench.clocks(core=0), bench.clocks(core=1)) == (NOMINAL, only(TURBO))
    with pytest.raises(InvalidArgument, match="core 2 does not exist; this device has 2") as caught:
        bench.power.create(12, ME, 2)
    assert caught.value.code == 13001


class TestHmx:
    """The rules for HMX votes, one by one."""

    HMX = HmxVote(corners="svs")

    def test_only_from_v75_on(self) -> None:
        bench = Bench(arch=73)
        with pytest.raises(UnsupportedFeature, match="v75 or newer; this one is v73") as caught:
            bench.set(10, dcvs=TURBO, hmx=self.HMX)
        assert caught.value.name == "QNN_HTP_PERF_INFRASTRUCTURE_ERROR_UNSUPPORTED"
        assert bench.clocks() == NOMINAL

    @pytest.mark.parametrize("together", [True, False])
    def test_in_the_same_call_or_a_later_one(self, together: bool) -> None:
        bench = Bench()
        if together:
            bench.set(10, dcvs=TURBO, hmx=self.HMX)
        else:
            bench.set(10, dcvs=TURBO)
            bench.set(10, hmx=self.HMX)
        assert bench.clocks() == only(TURBO, self.HMX)

    @pytest.mark.parametrize("before", [None, DcvsVote(bus="max"), DcvsVote(core="disable")])
    def test_denied_without_an_hvx_vote(self, before: DcvsVote | None) -> None:
        bench = Bench()
        if before is not None:
            bench.set(10, dcvs=before)
        found = bench.clocks()
        with pytest.raises(InvalidArgument, match="needs an HVX vote") as caught:
            bench.set(10, hmx=self.HMX, rpc_polling_us=50)
        assert caught.value.name == "QNN_HTP_PERF_INFRASTRUCTURE_ERROR_INVALID_INPUT"
        assert (bench.clocks(), bench.power.polling_ns) == (found, UNASKED_NS)

    def test_anothers_hvx_vote_does_not_count(self) -> None:
        bench = Bench()
        bench.set(20, dcvs=TURBO)
        with pytest.raises(InvalidArgument, match="config 10 has none"):
            bench.set(10, hmx=self.HMX)

    def test_follows_the_core_by_default(self) -> None:
        bench = Bench()
        bench.set(10, dcvs=TURBO)
        assert bench.clocks().hmx == bench.clocks().core

    def test_an_explicit_vote_stays_until_the_default_is_asked_for(self) -> None:
        bench = Bench()
        bench.set(10, dcvs=TURBO, hmx=self.HMX)
        bench.set(10, dcvs=DcvsVote(core="nom"))
        assert bench.clocks().hmx == only(TURBO, self.HMX).hmx
        bench.set(10, hmx=HmxVote(pick_default=True))
        assert bench.clocks().hmx == bench.clocks().core

    def test_going_back_to_the_default_needs_an_hvx_vote_too(self) -> None:
        with pytest.raises(InvalidArgument, match="needs an HVX vote"):
            Bench().set(10, hmx=HmxVote(pick_default=True))

    def test_goes_with_the_hvx_vote(self) -> None:
        bench = Bench()
        bench.set(10, dcvs=TURBO, hmx=self.HMX)
        bench.set(10, dcvs=DcvsVote(core="disable"))
        bench.set(10, dcvs=TURBO)
        assert bench.clocks() == only(TURBO)

    def test_all_votes_go_with_the_config(self) -> None:
        bench = Bench()
        bench.set(10, dcvs=TURBO, hmx=self.HMX)
        bench.power.destroy(ME, 10, 1)
        assert bench.clocks(1) == NOMINAL


class TestProfiles:
    SUSTAIN = SUSTAIN_US * US

    def test_burst_holds_its_vote_until_the_timer_runs_out(self) -> None:
        bench = Bench()
        bench.set(10, profile="burst")
        assert bench.clocks() == clocks_for([PERF_PROFILES["burst"].rest])
        bench.power.stage(ME, 100, busy=True)
        bench.power.stage(ME, 200, busy=False)
        assert bench.clocks(200 + self.SUSTAIN - 1) == PERF_PROFILES["burst"].clocks()
        bench.power.stage(ME, 300, busy=True)
        bench.power.stage(ME, 400, busy=False)
        assert bench.clocks(400 + self.SUSTAIN) == clocks_for([PERF_PROFILES["burst"].rest])
        # It was raised once and lowered once, at the time when that was, not when somebody looked.
        assert [change.t for change in bench.changes] == [0, 100, 400 + self.SUSTAIN]

    def test_looking_late_finds_it_lowered_in_time(self) -> None:
        bench = Bench()
        bench.set(10, profile="burst", busy=True)
        bench.power.stage(ME, 100, busy=False)
        bench.power.stage(ME, 100 + 3 * self.SUSTAIN, busy=True)
        assert [change.t for change in bench.changes] == [0, 100 + self.SUSTAIN, 100 + 3 * self.SUSTAIN]

    @pytest.mark.parametrize("name", ["high_performance", "balanced", "power_saver"])
    def test_others_lower_theirs_at_once(self, name: str) -> None:
        bench = Bench()
        bench.set(10, profile=name)
        bench.power.stage(ME, 100, busy=True)
        assert bench.clocks(100) == PERF_PROFILES[name].clocks()
        bench.power.stage(ME, 200, busy=False)
        assert bench.clocks(200) == clocks_for([PERF_PROFILES[name].rest])

    def test_a_vote_takes_the_place_of_the_profile(self) -> None:
        bench = Bench()
        bench.set(10, profile="burst", busy=True)
        bench.set(10, dcvs=SVS)
        assert not bench.power.has_profile(ME)
        bench.power.stage(ME, 100, busy=True)
        assert bench.clocks(100) == only(SVS)

    def test_one_clients_work_does_not_raise_anothers(self) -> None:
        bench = Bench()
        bench.set(10, profile="burst")
        bench.set(20, profile="low_power_saver")
        bench.power.stage(YOU, 100, busy=True)
        assert bench.clocks(100).core < PERF_PROFILES["burst"].clocks().core

    def test_system_settings_withdraw(self) -> None:
        bench = Bench()
        bench.set(10, profile="burst", busy=True)
        bench.set(10, profile="system_settings", busy=True)
        assert bench.clocks() == NOMINAL


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"rpc_polling_us": 10001}, "rpc_polling_us is 10001; .* from 0 to 10000"),
        ({"rpc_control_latency_us": -1}, "rpc_control_latency_us is -1"),
        ({"adaptive_polling_us": 1 << 32}, "adaptive_polling_us"),
        ({"hmx_timeout_us": 1_000_001}, "from 0 to 1000000"),
        ({"profile": "brust"}, "did you mean burst"),
    ],
)
def test_a_bad_vote_changes_nothing(wanted: dict[str, Any], words: str) -> None:
    bench = Bench()
    before = bench.power.describe(0)
    with pytest.raises(InvalidArgument, match=words) as caught:
        bench.set(10, dcvs=TURBO, **wanted)
    assert caught.value.code == 13001
    assert bench.power.describe(0) == before


@pytest.mark.parametrize("number", [10, 30])
def test_ids_of_others_and_of_nobody_are_refused(number: int) -> None:
    power = Bench().power
    attempts = (
        lambda: power.set(YOU, SetPowerConfig(config=number, dcvs=TURBO), 0, busy=False),
        lambda: power.destroy(YOU, number, 0),
    )
    for attempt in attempts:
        with pytest.raises(InvalidHandle, match=f"power config {number} does not exist") as caught:
            attempt()
        assert caught.value.code == 13001


def test_polling_is_the_longest_that_is_asked_for() -> None:
    bench = Bench()
    bench.set(10, rpc_polling_us=100)
    bench.set(20, rpc_polling_us=9999)
    assert bench.power.polling_ns == 9999 * US
    bench.power.forget(YOU, 0)
    assert bench.power.polling_ns == 100 * US
    bench.set(10, rpc_polling_us=0)
    assert bench.power.polling_ns == 0


def test_c11_polling_up_to_ten_milliseconds() -> None:
    bench = Bench()
    bench.set(10, rpc_polling_us=10000)
    assert bench.power.polling_ns == 10000 * US


@pytest.mark.parametrize("polling", [None, 0])
def test_c11_adaptive_polling_needs_polling(polling: int | None) -> None:
    bench = Bench()
    if polling is not None:
        bench.set(10, rpc_polling_us=polling)
    before = bench.power.describe(0)
    with pytest.raises(InvalidArgument, match="adaptive polling needs RPC polling") as caught:
        bench.set(10, adaptive_polling_us=1000)
    assert caught.value.code == 13001
    assert bench.power.describe(0) == before
    bench.set(10, adaptive_polling_us=1000, rpc_polling_us=100)
    bench.set(10, adaptive_polling_us=2000)
    bench.set(10, rpc_polling_us=0, adaptive_polling_us=0)


def test_c11_a_profile_that_polls_polls_adaptively() -> None:
    bench = Bench()
    with pytest.raises(InvalidArgument, match="adaptive polling needs RPC polling"):
        bench.set(10, profile="balanced", rpc_polling_us=0, adaptive_polling_us=1000)
    bench.set(10, profile="burst", rpc_polling_us=9999, adaptive_polling_us=1000)


def test_without_a_vote_the_device_looks_for_a_moment() -> None:
    bench = Bench()
    bench.set(10, dcvs=TURBO)
    assert bench.power.polling_ns == UNASKED_NS


def test_nobody_can_have_configs_without_end() -> None:
    power = Bench().power
    for number in range(MAX_CONFIGS - 1):
        power.create(100 + number, ME, 0)
    with pytest.raises(QnnError, match="destroy one"):
        power.create(1000, ME, 0)
    power.create(1001, YOU, 0)


class TestPowerUp:
    """How long units take to be ready, by what stood before the execution came."""

    def test_by_what_was_voted_while_nothing_ran(self) -> None:
        bench = Bench()
        power = bench.power
        assert power.power_up_ns(0, 0, in_use=False) == COLD_NS
        assert power.power_up_ns(0, 0, in_use=True) == WARM_NS
        bench.set(10, profile="burst")
        power.stage(ME, 0, busy=True)
        power.idle_since[0] = 100
        power.stage(ME, 100, busy=False)
        still_on = 100 + DEFAULT_HMX_TIMEOUT_US * US
        assert power.power_up_ns(0, still_on, in_use=False) == WARM_NS
        # The sustain timer has run out by then, too: the relaxed state allows 2 ms.
        assert power.power_up_ns(0, still_on + 1, in_use=False) == WARM_NS + 2000 * US

    def test_an_hmx_timeout_of_ones_own(self) -> None:
        bench = Bench()
        bench.power.idle_since[0] = 0
        bench.set(10, dcvs=DcvsVote(sleep_latency_us=500), hmx_timeout_us=1000)
        assert bench.power.power_up_ns(0, 1000 * US, in_use=False) == WARM_NS
        assert bench.power.power_up_ns(0, 1000 * US + 1, in_use=False) == WARM_NS + 500 * US


def test_the_shortest_latency_is_asked_of_the_system(tmp_path: Path) -> None:
    asked = tmp_path / "latency"
    asked.touch()
    power = Power(75, 1, lambda record: None, SystemLatency(str(asked)))
    for number, us in ((1, 100), (2, 40)):
        power.create(number, number, 0)
        power.set(number, SetPowerConfig(config=number, rpc_control_latency_us=us), 0, busy=False)
    assert power.describe(0)["system_latency_us"] == 40
    assert int.from_bytes(asked.read_bytes(), sys.byteorder) == 40
    power.forget(2, 0)
    assert power.describe(0)["system_latency_us"] == 100
    assert int.from_bytes(asked.read_bytes(), sys.byteorder) == 100
    power.destroy(1, 1, 0)
    assert power.describe(0)["system_latency_us"] is None


def test_a_system_that_takes_no_latency_stops_nobody(tmp_path: Path) -> None:
    power = Power(75, 1, lambda record: None, SystemLatency(str(tmp_path / "none")))
    power.create(1, 1, 0)
    power.set(1, SetPowerConfig(config=1, rpc_control_latency_us=100), 0, busy=False)
    assert power.describe(0)["system_latency_us"] is None
