"""From standing votes to clocks: how fast core, HMX and bus go, as parts of their highest.

Votes of several clients meet here: for each clock the highest vote wins. Which MHz a corner means is estimated
(``corners.toml``), so times that follow from it are modelled. So is how long HVX and HMX take to be ready.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openhtp.core.units import US
from openhtp.hw.power import ClockLevel, Corners, DcvsVote, HmxVote, PowerMode, VoltageCorner

# Without any vote a session has the nominal corner, with HVX on.
NO_VOTE = VoltageCorner.NOM
# At a corner an HMX clock has two frequencies; the lower one is estimated.
_LOW_LEVEL = 0.85
# Which of a vote's three corners holds while something runs and DCVS may choose.
_LOWEST, _TARGET, _HIGHEST = range(3)
_DCVS_CHOOSES = {
    PowerMode.ADJUST_UP_DOWN: _HIGHEST,
    PowerMode.ADJUST_ONLY_UP: _HIGHEST,
    PowerMode.POWER_SAVER: _TARGET,
    PowerMode.POWER_SAVER_AGGRESSIVE: _LOWEST,
    PowerMode.PERFORMANCE: _HIGHEST,
    PowerMode.DUTY_CYCLE: _TARGET,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """How fast the units go, 1.0 being their clock at the highest corner, which published times were taken at.

    Work of a unit takes ``1 / ratio`` times as long.
    """

    core: float = 1.0
    hmx: float = 1.0
    bus: float = 1.0

    @classmethod
    def of(cls, ratios: tuple[float, float, float]) -> Clocks:
        """Clocks with these ratios of core, HMX and bus."""
        return cls(core=ratios[0], hmx=ratios[1], bus=ratios[2])

    @property
    def ratios(self) -> tuple[float, float, float]:
        """The ratios of core, HMX and bus."""
        return self.core, self.hmx, self.bus

    def core_mhz(self, arch: int) -> float:
        """The core's clock on an architecture; estimated, as most of the table is."""
        return self.core * max_core_mhz(arch)

    def hmx_mhz(self, arch: int) -> float:
        """The HMX's clock on an architecture."""
        return self.hmx * max_core_mhz(arch)


FULL = Clocks()


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingVote:
    """The votes of one power config."""

    dcvs: DcvsVote | None = None
    hmx: HmxVote | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What votes come to: the clocks, and the names of the corners that won."""

    clocks: Clocks
    core: str
    hmx: str
    bus: str


def clocks_for(standing: Iterable[StandingVote]) -> Clocks:
    """The clocks under the votes that stand: for each clock the highest vote wins."""
    return resolve(standing).clocks


def resolve(standing: Iterable[StandingVote]) -> Resolved:
    """The clocks, with the corners that they follow from."""
    table = _table()
    cores, buses, hmxes = [], [], []
    for votes in standing:
        if votes.dcvs is None:
            continue
        core = _chosen(votes.dcvs, votes.dcvs.core)
        bus = _chosen(votes.dcvs, votes.dcvs.bus)
        if core is not None:
            cores.append((float(table["core"][core.name]), core.name))
            hmxes.append(_hmx(votes.hmx, core))
        if bus is not None:
            buses.append((float(table["bus"][bus.name]), bus.name))
    core_now = max(cores, default=(float(table["core"][NO_VOTE.name]), NO_VOTE.name))
    hmx_now = max(hmxes, default=core_now)
    bus_now = max(buses, default=(float(table["bus"][NO_VOTE.name]), NO_VOTE.name))
    return Resolved(
        clocks=Clocks(core=core_now[0], hmx=hmx_now[0], bus=bus_now[0]),
        core=core_now[1],
        hmx=hmx_now[1],
        bus=bus_now[1],
    )


def _chosen(vote: DcvsVote, corners: Corners | None) -> VoltageCorner | None:
    """The corner that a vote comes to; None if it has none for this clock."""
    if corners is None:
        return None
    return corners[_DCVS_CHOOSES[vote.power_mode] if vote.dcvs_enable else _TARGET]


def _hmx(vote: HmxVote | None, core: VoltageCorner) -> tuple[float, str]:
    """The HMX's clock and corner: those of its own vote, otherwise those of the core."""
    table = _table()
    if vote is None or vote.corners is None:
        return float(table["core"][core.name]), core.name
    level = 1.0 if vote.level is ClockLevel.HIGH else _LOW_LEVEL
    corner = vote.corners[_TARGET].name
    return float(table["hmx"][corner]) * level, corner


def max_core_mhz(arch: int) -> float:
    """The core's clock at the highest corner; for an architecture not in the table, that of the one before it."""
    known = {int(name): mhz for name, mhz in _table()["max_core_mhz"].items()}
    return float(known[max((each for each in known if each <= arch), default=min(known))])


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    text = Path(__file__).with_name("corners.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


# A core that was used a moment ago still has its units powered. Later the HMX is switched off
# (``hmx_timeout_us``), and then the core may sleep as deeply as the votes allow. The votes bound how long it may
# take to wake up.

WARM_NS = 26 * US
"""Powering and acquiring units of a core in use; published for one chip."""
COLD_NS = 4135 * US
"""The same for the first graph of all, on that chip."""


def power_up_ns(idle_ns: int | None, hmx_timeout_ns: int, standing: Iterable[StandingVote]) -> int:
    """How long it takes to power HVX and HMX up. Modelled: two times are published, votes do the rest.

    ``idle_ns`` is how long nothing has run on the core, None if nothing ever has. Of the votes that stood
    meanwhile, the lowest sleep latency wins; without any, the core sleeps as deeply as it can.
    """
    if idle_ns is not None and idle_ns <= hmx_timeout_ns:
        return WARM_NS
    votes = [each.dcvs for each in standing if each.dcvs is not None]
    if any(vote.sleep_disable for vote in votes):
        return WARM_NS
    latencies = [vote.sleep_latency_us * US for vote in votes if vote.sleep_latency_us is not None]
    return min(COLD_NS, WARM_NS + min(latencies, default=COLD_NS))
