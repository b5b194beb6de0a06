"""Power votes and perf profiles, by the objects that a user holds, on real devices."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.device.config import DeviceConfig
from openhtp.hw.perf_profiles import PERF_PROFILES
from openhtp.records.trace import ClocksChanged
from openhtp.rpc import looking
from openhtp.runtime.links.polling import Duct, Polling
from openhtp.testing import virtual_device
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S

MAX_MHZ = 1800  # of an SM8650


def core_mhz(device: htp.Device) -> int:
    power = device.info()["power"]
    assert power["clocks"] == "modelled"
    return int(power["cores"][0]["core_mhz"])


def test_votes_are_made_changed_and_withdrawn(backend: htp.Backend) -> None:
    device = backend.create_device()
    idle = core_mhz(device)
    power = device.create_power_config()
    power.set(dcvs=htp.DcvsVote(core="max", bus="max"), rpc_control_latency_us=100)
    assert core_mhz(device) == MAX_MHZ
    power.set(hmx={"corners": ("svs", "nom", "nom"), "level": "low"})
    assert device.info()["power"]["cores"][0]["hmx_mhz"] < idle
    power.destroy()
    assert core_mhz(device) == idle
    assert device.info()["power"]["configs"] == []


@pytest.mark.parametrize(
    ("votes", "words"),
    [
        ({}, "no vote was given; expected at least one of dcvs, hmx"),
        ({"dcvs": "turbo"}, "dcvs is 'turbo'; expected a DcvsVote, or a mapping"),
        ({"dcvs": {"core": "turbo", "buss": "max"}}, "dcvs has no field 'buss'"),
        ({"dcvs": {"core": "turbo", "hvx_threads": 2}}, "dcvs has no field 'hvx_threads'"),
        ({"dcvs": {"core": ("turbo", "nom", "max")}}, "in rising order"),
        ({"hmx": {"corners": "tur"}}, "needs an HVX vote"),
        ({"rpc_polling_us": 10_001}, "from 0 to 10000"),
        ({"rpc_polling_us": "9999"}, "rpc_polling_us is '9999'"),
        ({"hmx_timeout_us": -1}, "hmx_timeout_us is -1"),
    ],
)
def test_bad_votes_are_told_and_change_nothing(
    shared_device: htp.Device, votes: dict[str, Any], words: str
) -> None:
    with shared_device.create_power_config() as power:
        before = shared_device.info()["power"]
        with pytest.raises(htp.InvalidArgument, match=words) as caught:
            power.set(**votes)
        assert caught.value.name == "QNN_HTP_PERF_INFRASTRUCTURE_ERROR_INVALID_INPUT"
        assert shared_device.info()["power"] == before


def test_a_destroyed_config_is_no_config(shared_device: htp.Device) -> None:
    power = shared_device.create_power_config()
    power.destroy()
    for attempt in (lambda: power.set(rpc_polling_us=1), power.destroy):
        with pytest.raises(htp.InvalidHandle, match="was freed") as caught:
            attempt()
        assert caught.value.code == 13001
    for core in (7, "0"):
        with pytest.raises(htp.InvalidArgument, match="core") as refused:
            shared_device.create_power_config(core=core)  # type: ignore[arg-type]
        assert refused.value.code == 13001


def test_old_chips_have_no_hmx_votes(backend: htp.Backend) -> None:
    power = backend.create_device(soc="SM8550").create_power_config()
    with pytest.raises(htp.UnsupportedFeature, match="v75 or newer; this one is v73") as caught:
        power.set(dcvs=htp.DcvsVote(core="max"), hmx=htp.HmxVote(corners="max"))
    assert caught.value.code == 13004


_CLIENT = """
import sys, openhtp
device = openhtp.Backend().create_device(name=sys.argv[1])
device.create_power_config().set(dcvs=openhtp.DcvsVote(core="max"))
print("voted", flush=True)
sys.stdin.read()
"""


def test_votes_of_a_client_die_with_it(backend: htp.Backend) -> None:
    name = f"power-{os.getpid()}"
    device = backend.create_device(name=name)
    device.create_power_config().set(dcvs=htp.DcvsVote(core="svs"))
    low = core_mhz(device)
    with subprocess.Popen(
        [sys.executable, "-c", _CLIENT, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "voted\n"
        assert core_mhz(device) == MAX_MHZ
        client.kill()
    while len(device.info()["sessions"]) > 1:
        pass
    assert core_mhz(device) == low


def test_a_restart_takes_votes_and_keeps_the_profile(backend: htp.Backend) -> None:
    device = backend.create_device()
    power = device.create_power_config()
    power.set(dcvs=htp.DcvsVote(core="max"))
    device.set_perf_profile("power_saver", rpc_polling_us=50, adaptive_polling_us=2000)
    os.kill(device.pid, signal.SIGKILL)
    while device.restarts == 0:
        pass
    with pytest.raises(htp.DeviceLost):
        power.set(rpc_polling_us=1)
    power.destroy()
    (config,) = device.info()["power"]["configs"]
    assert (config["perf_profile"], config["adaptive_polling_us"]) == ("power_saver", 2000)
    assert device.perf_profile == "power_saver"


@pytest.mark.parametrize("name", PERF_PROFILES)
def test_a_profile_votes_stage_by_stage(name: str) -> None:
    profile = PERF_PROFILES[name]
    with htp.Backend() as backend:
        device = virtual_device(backend, compute=False, config=DeviceConfig(soc="SM8650"))
        device.set_perf_profile(name)
        assert device.perf_profile == name
        device.start_trace()
        with device.create_context() as context:
            graph = relu_graph(context)
            graph.execute({"x": ramp()})
        records = device.stop_trace().records
        clocks = [record for record in records if isinstance(record, ClocksChanged)]
        (config,) = device.info()["power"]["configs"]
    busy, rest = (round(each.core_mhz(75)) for each in (profile.clocks(), _rest(name)))
    seen = [record.core_mhz for record in clocks]
    assert seen[0] == rest
    assert max(seen) == max(busy, rest)
    assert config["rpc_polling_us"] == profile.rpc_polling_us
    if name == "high_performance":
        # INIT, INFERENCE and DE-INIT, and less in between.
        assert seen == [rest, busy] * 3 + [rest]
    if name == "burst":
        assert seen == [rest, busy]  # the timer has not run out


def _rest(name: str) -> Any:
    from openhtp.hw.clocks import clocks_for

    return clocks_for([PERF_PROFILES[name].rest])


def test_an_unknown_profile_changes_nothing(shared_device: htp.Device) -> None:
    before = shared_device.info()["power"]
    with pytest.raises(htp.InvalidArgument, match="did you mean balanced"):
        shared_device.set_perf_profile("balancd")
    with pytest.raises(htp.InvalidArgument, match="from 0 to 10000"):
        shared_device.set_perf_profile("burst", rpc_polling_us=99999)
    assert shared_device.info()["power"] == before
    assert shared_device.perf_profile is None


@pytest.mark.parametrize("adaptive_us", [0, 1, 10_000_000])
def test_polling_gives_the_same_results(backend: htp.Backend, adaptive_us: int) -> None:
    device = backend.create_device()
    with device.create_context() as context:
        graph = relu_graph(context)
        power = device.create_power_config()
        power.set(rpc_polling_us=2000, adaptive_polling_us=adaptive_us)
        for _ in range(20):
            np.testing.assert_array_equal(graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))


def test_queued_executions_are_not_polled_for(backend: htp.Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    polled: list[int] = []
    receive = Polling.receive
    monkeypatch.setattr(Polling, "receive", lambda self, *rest: (polled.append(1), receive(self, *rest))[1])
    device = backend.create_device(host="process")
    graph = relu_graph(device.create_context())
    device.create_power_config().set(rpc_polling_us=2000)
    for _ in range(3):
        graph.execute_async({"x": ramp()}).result(PATIENCE_S)
    assert polled == []
    graph.execute({"x": ramp()})
    assert polled


class _Socket:
    """A socket on which the packet comes at a given look, and that tells how it was looked at."""

    def __init__(self, sock: socket.socket, comes_at: int) -> None:
        self.sock, self.comes_at = sock, comes_at
        self.looks = 0
        self.slept = False

    def fileno(self) -> int:
        return self.sock.fileno()

    def recv_into(self, view: memoryview, size: int = 0, flags: int = 0) -> int:
        if not flags:
            self.slept = True
            return 1
        self.looks += 1
        if self.looks < self.comes_at:
            raise BlockingIOError
        return 1


class TestDuct:
    @pytest.fixture
    def pair(self) -> Any:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            yield ours, theirs

    def test_who_polls_looks_and_does_not_sleep(self, pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(looking, "CORES", 2)
        monkeypatch.setattr(looking, "_TAKEN_NS", 10**12)
        fake = _Socket(pair[0], comes_at=50)
        Duct(fake).watch(10**12)  # type: ignore[arg-type]
        assert (fake.looks, fake.slept) == (50, False)

    def test_who_has_looked_long_enough_sleeps(self, pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(looking, "CORES", 2)
        fake = _Socket(pair[0], comes_at=10**9)
        Duct(fake).watch(1000)  # type: ignore[arg-type]
        assert fake.slept

    def test_on_one_core_nobody_polls(self, pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(looking, "CORES", 1)
        fake = _Socket(pair[0], comes_at=1)
        Duct(fake).watch(10**12)  # type: ignore[arg-type]
        assert (fake.looks, fake.slept) == (0, True)

    def test_what_comes_early_ends_the_sleep(self, pair: Any) -> None:
        ours, theirs = pair
        theirs.send(b"x")
        assert bytes(Duct(ours).watch(10**9, sleep_ns=3600 * 10**9)) == b"x"

    def test_the_end_of_the_connection_is_told(self, pair: Any) -> None:
        pair[1].close()
        with pytest.raises(Exception, match="end of connection"):
            Duct(pair[0]).watch(10**9)


def looks_long(patience: looking.Looking) -> bool:
    """Begins to look; for as long as is asked for, or only as one does unasked."""
    assert patience.begin(10**10)
    return patience.patience_ns == 10**10


class TestLooking:
    """Times are told, so that nothing depends on how busy the machine is."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        now = [0]
        monkeypatch.setattr(looking, "CORES", 2)
        monkeypatch.setattr(looking.time, "monotonic_ns", lambda: now[0])
        return now

    def test_until_patience_ends(self, clock: list[int]) -> None:
        patience = looking.Looking()
        assert patience.begin(150_000)
        for clock[0] in range(0, 150_000, 1_000):
            assert patience.go_on()
        clock[0] = 150_000
        assert not patience.go_on()
        assert patience.begin(1)
        assert not patience.begin(0)

    def test_not_while_others_want_the_core(self, clock: list[int]) -> None:
        clock[0] = 10**9
        patience = looking.Looking()
        assert looks_long(patience)
        clock[0] += 1_000
        assert patience.go_on()
        clock[0] += 3_000_000  # somebody else had the core
        assert not patience.go_on()
        assert not looks_long(patience)
        clock[0] += 49_000_000
        assert not looks_long(patience)
        clock[0] += 2_000_000
        assert looks_long(patience)
        clock[0] += 3_000_000  # and again: rest longer
        assert not patience.go_on()
        clock[0] += 99_000_000
        assert not looks_long(patience)
        clock[0] += 2_000_000
        assert looks_long(patience)
        clock[0] += 200_000_000
        assert looks_long(patience)
        clock[0] += 3_000_000  # after a calm while: as the first time
        assert not patience.go_on()
        clock[0] += 51_000_000
        assert looks_long(patience)


class TestAdaptivePolling:
    def test_only_long_executions_are_slept_for(self) -> None:
        polling = Polling()
        polling.set(9999, 1000)
        assert polling.sleep_ns(1) == 0  # not known yet
        for _ in range(20):
            polling.learn(1, 5_000_000)
            polling.learn(2, 900_000)
        assert polling.sleep_ns(1) == pytest.approx(4_500_000)
        assert polling.sleep_ns(2) == 0

    def test_it_learns(self) -> None:
        polling = Polling()
        polling.set(9999, 1000)
        for took in (5_000_000,) * 10 + (2_000_000,) * 30:
            polling.learn(1, took)
        assert polling.sleep_ns(1) == pytest.approx(1_800_000, rel=0.01)

    def test_what_it_remembers_is_bounded(self) -> None:
        polling = Polling()
        for graph in range(10_000):
            polling.learn(graph, 1)
        assert len(polling.lengths) <= 1024


def test_polling_is_what_the_longest_vote_says(backend: htp.Backend) -> None:
    device = backend.create_device()
    first, second = device.create_power_config(), device.create_power_config()
    polling = device.link.polling  # type: ignore[attr-defined]
    first.set(rpc_polling_us=100)
    second.set(rpc_polling_us=300, adaptive_polling_us=1000)
    assert (polling.polling_ns, polling.adaptive_ns) == (300_000, 1_000_000)
    second.destroy()
    assert (polling.polling_ns, polling.adaptive_ns) == (100_000, 0)
    first.set(rpc_polling_us=0)
    assert polling.polling_ns == 0
    first.destroy()
    assert polling.polling_ns == looking.UNASKED_NS


def test_a_freed_device_has_no_votes(backend: htp.Backend) -> None:
    device = backend.create_device()
    power = device.create_power_config()
    with device.create_power_config():  # nothing is left to withdraw at its end
        device.free()
    for call in (lambda: power.set(rpc_polling_us=1), lambda: power.set_perf_profile("burst"), power.destroy):
        with pytest.raises(htp.InvalidHandle, match="power config: it was freed"):
            call()
    assert not power.alive


def test_votes_of_a_device_that_is_lost_are_destroyed_without_ado(backend: htp.Backend) -> None:
    device = backend.create_device()
    config = device.create_power_config()
    os.kill(device.pid, signal.SIGKILL)
    config.destroy()
