"""From standing votes to clocks: how fast core, HMX and bus go, as parts of their highest.

Votes of several clients meet here: for each clock the highest vote wins. Which MHz a corner means is estimated
(``corners.toml``), so times that follow from it are modelled.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

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

    def core_mhz(self, arch: int) -> float:
        """The core's clock on an architecture; estimated, as most of the table is."""
        return self.core * max_core_mhz(arch)

    def hmx_mhz(self, arch: int) -> float:
        """The HMX's clock on an architecture."""
        return self.hmx * max_core_mhz(arch)


FULL = Clocks()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The votes of one power config."""

    dcvs: DcvsVote | None = None
    hmx: HmxVote | None = None


def clocks_for(standing: Iterable[Standing]) -> Clocks:
    """What the chip does about the votes that stand: of each clock, the highest that was asked for."""
    table = _table()
    cores, buses, hmxes = [], [], []
    for votes in standing:
        if votes.dcvs is None:
            continue
        core = _chosen(votes.dcvs, votes.dcvs.core)
        bus = _chosen(votes.dcvs, votes.dcvs.bus)
        if core is not None:
            cores.append(table["core"][core.name])
            hmxes.append(_hmx(votes.hmx, core))
        if bus is not None:
            buses.append(table["bus"][bus.name])
    core_now = max(cores, default=table["core"][NO_VOTE.name])
    return Clocks(
        core=core_now,
        hmx=max(hmxes, default=core_now),
        bus=max(buses, default=table["bus"][NO_VOTE.name]),
    )


def _chosen(vote: DcvsVote, corners: Corners | None) -> VoltageCorner | None:
    """The corner that a vote comes to; None if it has none for this clock."""
    if corners is None:
        return None
    return corners[_DCVS_CHOOSES[vote.power_mode] if vote.dcvs_enable else _TARGET]


def _hmx(vote: HmxVote | None, core: VoltageCorner) -> float:
    """The HMX's clock: its own vote's, or else that of the core."""
    table = _table()
    if vote is None or vote.corners is None:
        return float(table["core"][core.name])
    level = 1.0 if vote.level is ClockLevel.HIGH else _LOW_LEVEL
    return float(table["hmx"][vote.corners[_TARGET].name]) * level


def max_core_mhz(arch: int) -> float:
    """The core's clock at the highest corner; for an architecture not in the table, that of the one before it."""
    known = {int(name): mhz for name, mhz in _table()["max_core_mhz"].items()}
    return float(known[max((each for each in known if each <= arch), default=min(known))])


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    text = resources.files("openhtp.hw").joinpath("corners.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
