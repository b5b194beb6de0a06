"""``perf_profile`` and ``votes`` in a scenario: the clocks that clients ask for, can get, and have."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from openhtp.core.errors import QnnError
from openhtp.core.validating import WrittenFields, WrittenValue
from openhtp.device.power import Power
from openhtp.hw.catalog import find_soc
from openhtp.hw.clocks import FULL, WARM_NS, Clocks, StandingVote, clocks_for
from openhtp.hw.perf_profiles import PERF_PROFILES
from openhtp.hw.power import FIRST_ARCH_WITH_HMX_VOTES, DcvsVote, HmxCorner, HmxVote, VoltageCorner
from openhtp.hw.soc import SocSpec
from openhtp.planning import keys
from openhtp.planning.keys import ranged
from openhtp.planning.scenario import Scenario
from openhtp.records.trace import ClocksChanged
from openhtp.rpc.messages import SetPowerConfig
from openhtp.sched.events import Event
from openhtp.sched.timed import Pace
from openhtp.sched.virtual import VirtualLoop

CORNERS = tuple(corner.name.lower() for corner in VoltageCorner)
HMX_CORNERS = tuple(corner.name.lower() for corner in HmxCorner)


def read_profile(fields: WrittenFields) -> str | None:
    """The perf profile of a device or a client."""
    return fields["perf_profile"].choice(*PERF_PROFILES) if "perf_profile" in fields else None


def read_votes(fields: WrittenFields, soc: SocSpec | None) -> StandingVote | None:
    """Votes of a client that stand for the whole plan."""
    value = fields.get("votes")
    if value is None:
        return None
    if "perf_profile" in fields:
        value.fail("give 'perf_profile' or 'votes', not both: a client's own vote ends a profile")
    inner = value.fields(keys.VOTES)
    corners = {clock: inner[clock].choice(*CORNERS) for clock in ("core", "bus") if clock in inner}
    try:
        dcvs = DcvsVote(dcvs_enable=False, **corners) if corners else None  # type: ignore[arg-type]
        return StandingVote(dcvs=dcvs, hmx=_hmx(value, inner, dcvs, soc))
    except QnnError as error:
        value.fail(error.message)


def _hmx(value: WrittenValue, inner: WrittenFields, dcvs: DcvsVote | None, soc: SocSpec | None) -> HmxVote | None:
    if "hmx" not in inner:
        if dcvs is None:
            value.fail(f"expected some of {', '.join(keys.VOTES)}")
        return None
    if dcvs is None or not dcvs.votes_core:
        inner["hmx"].fail("an HMX vote needs a core vote beside it: give 'core', too")
    if soc is not None and soc.arch < FIRST_ARCH_WITH_HMX_VOTES:
        inner["hmx"].fail(f"HMX votes need v{FIRST_ARCH_WITH_HMX_VOTES} or newer; {soc.name} is {soc.arch_name}")
    return HmxVote(corners=inner["hmx"].choice(*HMX_CORNERS))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """The votes on the clocks of one core: profiles and votes of clients, and a profile that always stands."""

    profiles: tuple[str, ...] = ()
    standing: tuple[StandingVote, ...] = ()
    always: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nobody votes, so that times are those of burst mode, as published."""
        return not self.profiles and not self.standing and self.always is None

    @property
    def busiest(self) -> Clocks:
        """The clocks while something is done for every client."""
        return self.possible[0]

    @property
    def possible(self) -> tuple[Clocks, ...]:
        """All clocks that these votes can lead to as they rise and fall; the fastest first."""
        if self.is_empty:
            return (FULL,)
        fixed = [*self.standing, *([] if self.always is None else [PERF_PROFILES[self.always].busy])]
        states = [(PERF_PROFILES[name].busy, PERF_PROFILES[name].rest) for name in sorted(set(self.profiles))]
        reachable = {clocks_for([*fixed, *chosen]) for chosen in itertools.product(*states)}
        return tuple(sorted(reachable, key=lambda clocks: clocks.ratios, reverse=True))

    @property
    def words(self) -> str:
        """The origin of the fastest clocks, for notes; nothing in burst mode."""
        if self.busiest == FULL:
            return ""
        named = [name for name in (self.always, *self.profiles) if name is not None]
        return next((f" in {name}" for name in named if PERF_PROFILES[name].clocks() == self.busiest), " by votes")


def ballots(
    device: WrittenValue, clients: Sequence[WrittenValue], soc: SocSpec | None, cores: int
) -> tuple[Ballot, ...]:
    """The votes for each core."""
    always = read_profile(device.fields(keys.DEVICE))
    profiles: list[list[str]] = [[] for _ in range(cores)]
    standing: list[list[StandingVote]] = [[] for _ in range(cores)]
    for client in clients:
        fields = client.fields(keys.CLIENT)
        core = ranged(fields, "core", 0)
        profile, votes = read_profile(fields), read_votes(fields, soc)
        if core >= cores:
            continue  # an error that is raised when the client is read
        if profile is not None:
            profiles[core].append(profile)
        if votes is not None:
            standing[core].append(votes)
    return tuple(
        Ballot(profiles=tuple(own), standing=tuple(votes), always=always)
        for own, votes in zip(profiles, standing, strict=True)
    )


# The votes on the virtual clock, by the device's own code: they rise and fall with the work.
#
# At time 0 all clients have just been made ready (INIT): what a profile sustains still stands. A client's vote
# rises when it asks for a run and falls when none of its runs is left, and whatever is under way then goes on at
# the new clocks. A core that was idle for long has to wake up first.


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
        """A client asks for a run; return how it will go at the present clocks."""
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
        """Work out the clocks of a core anew: a sustained vote may have ended."""
        self._power.clocks(core, now)
        return None

    def _changed(self, changed: ClocksChanged) -> None:
        """Continue the runs under way on a core at its new clocks."""
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
