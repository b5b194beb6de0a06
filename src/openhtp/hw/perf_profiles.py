"""Perf profiles: sets of votes that have a name, and how they are lowered between the stages of a graph's life.

A profile's vote stands while something is done for its client: a graph is made ready (INIT), run (INFERENCE) or
freed (DE-INIT). Afterwards a lower one takes its place, at once or when a timer has run out.
"""

from __future__ import annotations

import difflib
import enum
from dataclasses import dataclass, replace

from openhtp.core import status as st
from openhtp.core.checks import shown
from openhtp.core.errors import InvalidArgument
from openhtp.hw.clocks import Clocks, StandingVote, clocks_for
from openhtp.hw.power import DcvsVote, PowerMode, VoltageCorner

# How long the profiles that sustain their votes do so after the last inference. It is for the client to choose,
# longer than what usually lies between two inferences; open clients of the API chose this one.
SUSTAIN_US = 300_000
DEFAULT_RPC_CONTROL_LATENCY_US = 100
PROFILE_RPC_POLLING_US = 9999
"""How long callers poll under a profile that has polling."""


class Idle(enum.Enum):
    """The votes between two stages."""

    RELAXED = "relaxed"
    RELEASED = "released"
    KEPT = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfProfile:
    """One row of the table. ``dcvs`` None leaves all votes to the system."""

    name: str
    about: str
    dcvs: DcvsVote | None
    polling: bool
    idle: Idle
    sustain_us: int = 0

    @property
    def rpc_polling_us(self) -> int:
        """How long callers poll, unless it is chosen apart."""
        return PROFILE_RPC_POLLING_US if self.polling else 0

    @property
    def rpc_control_latency_us(self) -> int:
        """The latency that the profile requests for calls to the device, unless it is chosen apart."""
        return 0 if self.dcvs is None else DEFAULT_RPC_CONTROL_LATENCY_US

    @property
    def busy(self) -> StandingVote:
        """Votes while something is done."""
        return StandingVote(dcvs=self.dcvs)

    @property
    def rest(self) -> StandingVote:
        """Votes between stages."""
        return StandingVote(dcvs=_IDLE_VOTES.get(self.idle, self.dcvs))

    def clocks(self) -> Clocks:
        """Clocks while something runs, if nobody else votes."""
        return clocks_for([self.busy])


def _lowered(low: VoltageCorner, target: VoltageCorner, sleep_latency_us: int) -> DcvsVote:
    """A vote in which DCVS may go below the target."""
    corners = (low, target, target)
    return DcvsVote(
        power_mode=PowerMode.POWER_SAVER,
        dcvs_enable=True,
        sleep_latency_us=sleep_latency_us,
        bus=corners,
        core=corners,
    )


RELAXED = _lowered(VoltageCorner.SVS2, VoltageCorner.SVS, 2000)
RELEASED = _lowered(VoltageCorner.MIN, VoltageCorner.MIN, 65535)
_IDLE_VOTES = {Idle.RELAXED: RELAXED, Idle.RELEASED: RELEASED}

# How soon a core that sleeps is to be back, where it must be sooner than within a millisecond.
_SLEEP_LATENCY_US = {VoltageCorner.MAX: 40, VoltageCorner.TURBO: 100}


def _profile(
    name: str, clocks: str, corner: VoltageCorner, idle: Idle = Idle.RELAXED, *, sustained: bool = False
) -> PerfProfile:
    """A profile that votes for one corner; ``clocks`` says what that is. From turbo on, callers poll."""
    corners = (corner, corner, corner)
    latency_us = _SLEEP_LATENCY_US.get(corner, 1000)
    rest = "held between inferences by a timer" if sustained else f"{idle.value} between inferences"
    return PerfProfile(
        name=name,
        about=f"{clocks}, {rest}.",
        dcvs=DcvsVote(dcvs_enable=False, sleep_latency_us=latency_us, bus=corners, core=corners),
        polling=corner >= VoltageCorner.TURBO,
        idle=idle,
        sustain_us=SUSTAIN_US if sustained else 0,
    )


PERF_PROFILES = {
    profile.name: profile
    for profile in (
        _profile("burst", "The highest clocks", VoltageCorner.MAX, sustained=True),
        _profile("sustained_high_performance", "Turbo clocks", VoltageCorner.TURBO, sustained=True),
        _profile("high_performance", "Turbo clocks", VoltageCorner.TURBO),
        _profile("balanced", "Above nominal clocks", VoltageCorner.NOM_PLUS),
        _profile("low_balanced", "Nominal clocks", VoltageCorner.NOM),
        _profile("high_power_saver", "Low clocks", VoltageCorner.SVS_PLUS, Idle.RELEASED),
        _profile("power_saver", "Lower clocks", VoltageCorner.SVS, Idle.RELEASED),
        _profile("low_power_saver", "Lower clocks still", VoltageCorner.SVS2, Idle.RELEASED),
        replace(
            _profile("extreme_power_saver", "", VoltageCorner.DISABLE, Idle.RELEASED),
            about="No clock is asked for: the lowest there is.",
        ),
        PerfProfile(
            name="system_settings",
            about="No votes: whatever the system has set.",
            dcvs=None,
            polling=False,
            idle=Idle.KEPT,
        ),
    )
}
"""From the highest performance to the lowest power, and the one that asks for nothing."""

DEFAULT_PERF_PROFILE = "high_performance"
"""What a backend extensions config has unless it says something else."""
MODELLED_PERF_PROFILE = "burst"
"""What published times were taken in, and so what modelled times are for unless told otherwise."""


def find_perf_profile(name: object) -> PerfProfile:
    """A profile by name. Raises for others, with those that are spelled alike."""
    profile = PERF_PROFILES.get(name) if isinstance(name, str) else None
    if profile is None:
        near = difflib.get_close_matches(shown(name)[:100], PERF_PROFILES, 2)
        hint = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(PERF_PROFILES)}"
        raise InvalidArgument(
            f"perf profile {shown(name)} is unknown; {hint}", st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_INVALID_INPUT
        )
    return profile
