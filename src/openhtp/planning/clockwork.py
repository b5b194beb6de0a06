"""Votes of a scenario's clients on the virtual clock, by the device's own code: they rise and fall with the work.

At time 0 all clients have just been made ready (INIT): what a profile sustains still stands. A client's vote rises
when it asks for a run and falls when none of its runs is left, and whatever is under way then goes on at the new
clocks. A core that was idle for long has to wake up first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from openhtp.device.power import Power
from openhtp.hw.catalog import find_soc
from openhtp.hw.clocks import Clocks, StandingVote
from openhtp.hw.perf_profiles import PERF_PROFILES
from openhtp.hw.waking import WARM_NS
from openhtp.planning.scenario import Scenario
from openhtp.records.trace import ClocksChanged
from openhtp.rpc.messages import SetPowerConfig
from openhtp.sched.events import Event
from openhtp.sched.timed import Pace
from openhtp.sched.virtual import VirtualLoop

PaceAt = Callable[[Clocks], Pace]
"""How a run goes at given clocks."""


@dataclass(slots=True)
class _UnderWay:
    pace_at: PaceAt
    wake_ns: int


class Clockwork:
    """The power of one planned device. ``record`` gets every change of clocks."""

    def __init__(self, scenario: Scenario, loop: VirtualLoop, record: Callable[[ClocksChanged], None]) -> None:
        assert scenario.soc is not None
        self._loop = loop
        self._record = record
        self._cores = [client.core for client in scenario.clients]
        self._sustain_ns = [_sustain_ns(client.perf_profile) for client in scenario.clients]
        self._pending = [0] * len(scenario.clients)
        self._jobs: list[dict[int, _UnderWay]] = [{} for _ in range(scenario.device.cores)]
        self._power = Power(find_soc(scenario.soc).arch, scenario.device.cores, self._changed)
        self._power.idle_since = [0] * scenario.device.cores
        self._vote(scenario)
        for changed in self._power.records(0):
            record(changed)

    def _vote(self, scenario: Scenario) -> None:
        """All votes as they stand when the clients have been made ready."""
        clients, power = len(scenario.clients), self._power
        for core in range(scenario.device.cores if scenario.perf_profile else 0):
            power.create(clients + core, clients, core)
            standing = PERF_PROFILES[scenario.perf_profile or ""].busy
            power.set(clients, SetPowerConfig(config=clients + core, dcvs=standing.dcvs), 0, busy=True)
        for number, client in enumerate(scenario.clients):
            if client.perf_profile is None and client.votes is None:
                continue
            power.create(number, number, client.core)
            votes = client.votes or StandingVote()
            wanted = SetPowerConfig(config=number, profile=client.perf_profile, dcvs=votes.dcvs, hmx=votes.hmx)
            power.set(number, wanted, 0, busy=True)
            self._rest(number, 0)

    def asked(self, client: int, job: int, pace_at: PaceAt, now: int) -> Pace:
        """A client asks for a run: how it will go, as things stand."""
        core = self._cores[client]
        jobs = self._jobs[core]
        wake_ns = self._power.power_up_ns(core, now, in_use=bool(jobs)) - WARM_NS
        jobs[job] = entry = _UnderWay(pace_at, wake_ns)
        self._pending[client] += 1
        if self._pending[client] == 1:
            self._power.stage(client, now, busy=True)
        return _woken(entry, self._power.clocks(core, now))

    def ended(self, client: int, job: int, now: int) -> None:
        """A run is over."""
        core = self._cores[client]
        del self._jobs[core][job]
        self._power.idle_since[core] = now
        self._pending[client] -= 1
        if not self._pending[client]:
            self._rest(client, now)

    def _rest(self, client: int, now: int) -> None:
        self._power.stage(client, now, busy=False)
        if self._sustain_ns[client]:
            core = self._cores[client]
            self._loop.call_at(now + self._sustain_ns[client], lambda at: self._look(core, at))

    def _look(self, core: int, now: int) -> Event | None:
        """A vote that was sustained may fall now."""
        self._power.clocks(core, now)
        return None

    def _changed(self, changed: ClocksChanged) -> None:
        """What is under way on a core goes on at its new clocks."""
        self._record(changed)
        clocks = self._power.clocks(changed.core, changed.t)
        for job, entry in self._jobs[changed.core].items():
            self._loop.change_pace(job, _woken(entry, clocks))


def _woken(entry: _UnderWay, clocks: Clocks) -> Pace:
    """A run with the time that its core takes to wake up before it."""
    pace = entry.pace_at(clocks)
    if not entry.wake_ns:
        return pace
    first, *rest = pace.step_ns
    return msgspec.structs.replace(pace, step_ns=(first + entry.wake_ns, *rest))


def _sustain_ns(profile: str | None) -> int:
    return 0 if profile is None else PERF_PROFILES[profile].sustain_us * 1000
