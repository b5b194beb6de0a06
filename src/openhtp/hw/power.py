"""Power votes: what a client asks of the HTP's clocks and of the way to it, in the API's numbers."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from openhtp.core import status as st
from openhtp.core.checks import shown, type_in_words, whole_number
from openhtp.core.errors import InvalidArgument

MAX_RPC_POLLING_US = 10_000
"""Documented; the vendor's simulator accepts more and ignores it."""
MAX_HMX_TIMEOUT_US = 1_000_000
DEFAULT_HMX_TIMEOUT_US = 300_000
"""How long an HMX that nobody uses stays powered."""
MAX_LATENCY_US = 0xFFFFFFFF
SLEEP_LATENCY_US = (10, 65535)
FIRST_ARCH_WITH_HMX_VOTES = 75


class PowerMode(enum.IntEnum):
    """What DCVS may do between the voted corners."""

    ADJUST_UP_DOWN = 1
    ADJUST_ONLY_UP = 2
    POWER_SAVER = 4
    POWER_SAVER_AGGRESSIVE = 8
    PERFORMANCE = 16
    DUTY_CYCLE = 32


class VoltageCorner(enum.IntEnum):
    """Corners that a DCVS vote names."""

    DISABLE = 16
    MIN = 32
    SVS2 = 48
    SVS = 64
    SVS_PLUS = 80
    NOM = 96
    NOM_PLUS = 112
    TURBO = 128
    TURBO_PLUS = 144
    TURBO_L2 = 146
    TURBO_L3 = 147
    TURBO_L4 = 148
    TURBO_L5 = 149
    MAX = 160


class HmxCorner(enum.IntEnum):
    """Corners that an HMX vote names; they are finer than those of DCVS."""

    DISABLE = 0
    MIN = 256
    LOW_SVS_D2 = 308
    LOW_SVS_D1 = 312
    LOW_SVS = 320
    LOW_SVS_L0 = 332
    SVS = 384
    SVS_L0 = 400
    SVS_L1 = 448
    SVS_L2 = 480
    NOM = 512
    NOM_L1 = 576
    NOM_L2 = 592
    TUR = 640
    TUR_L1 = 672
    TUR_L2 = 688
    TUR_L3 = 704
    MAX = 65535


class ClockLevel(enum.IntEnum):
    """Which of the clock's frequencies at a corner an HMX vote means."""

    HIGH = 0
    LOW = 1


Corners = tuple[VoltageCorner, VoltageCorner, VoltageCorner]
HmxCorners = tuple[HmxCorner, HmxCorner, HmxCorner]
_E = TypeVar("_E", bound=enum.IntEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class DcvsVote:
    """One DCVS v3 vote; corners are lowest, target, highest. ``None`` leaves that part of the standing vote.

    Corners are given as members, names (``"turbo"``) or numbers; one alone stands for all three. ``DISABLE`` for
    all three asks for the lowest clock there is, and is no vote for HVX or HMX.

    Examples:
        >>> DcvsVote(core="turbo", dcvs_enable=False).core[1]
        <VoltageCorner.TURBO: 128>
    """

    power_mode: PowerMode = PowerMode.PERFORMANCE
    dcvs_enable: bool | None = None
    sleep_latency_us: int | None = None
    sleep_disable: bool | None = None
    bus: Corners | None = None
    core: Corners | None = None

    def __post_init__(self) -> None:
        _set_field(self, "power_mode", member_of(PowerMode, self.power_mode, "power_mode"))
        for name in ("dcvs_enable", "sleep_disable"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                refuse(f"{name} is {shown(value)}; expected True or False")
        for name in ("bus", "core"):
            corners = getattr(self, name)
            if corners is not None:
                _set_field(self, name, corners_of(VoltageCorner, corners, name))
        if self.sleep_latency_us is not None:
            check_us("sleep_latency_us", self.sleep_latency_us, *SLEEP_LATENCY_US)

    @property
    def votes_core(self) -> bool:
        """Whether it asks for a clock of the core, on which HVX and HMX run: an HVX vote."""
        return self.core is not None and self.core[1] > VoltageCorner.DISABLE

    def over(self, standing: DcvsVote | None) -> DcvsVote:
        """This vote, with what it leaves open taken from the one that stands."""
        if standing is None:
            return self
        if not isinstance(standing, DcvsVote):
            raise InvalidArgument(f"standing is {type_in_words(standing)}; expected a DcvsVote or None")
        left = {
            name: getattr(standing, name) if getattr(self, name) is None else getattr(self, name)
            for name in ("dcvs_enable", "sleep_latency_us", "sleep_disable", "bus", "core")
        }
        return DcvsVote(power_mode=self.power_mode, **left)


@dataclass(frozen=True, slots=True, kw_only=True)
class HmxVote:
    """One HMX v2 vote: corners of its own for the HMX, or ``pick_default`` to let it follow the core again."""

    corners: HmxCorners | None = None
    level: ClockLevel = ClockLevel.HIGH
    pick_default: bool = False

    def __post_init__(self) -> None:
        _set_field(self, "level", member_of(ClockLevel, self.level, "level"))
        if not isinstance(self.pick_default, bool):
            refuse(f"pick_default is {shown(self.pick_default)}; expected True or False")
        if self.corners is not None:
            _set_field(self, "corners", corners_of(HmxCorner, self.corners, "HMX"))
        if self.pick_default is (self.corners is not None):
            refuse(
                "an HMX vote has corners, or pick_default to follow the core: expected one of the two,"
                f" {'both' if self.pick_default else 'neither'} given"
            )


def corners_of(kind: type[_E], corners: Any, name: str) -> tuple[_E, _E, _E]:
    """Three corners, from one or three of them. Raises for what is no corner, and for a wrong order."""
    alone = isinstance(corners, (str, int)) or not isinstance(corners, Sequence)
    items = (corners,) * 3 if alone else tuple(corners)
    if len(items) != 3:
        refuse(f"{name} corners are {shown(corners)}; expected lowest, target, highest, or one for all three")
    low, target, high = (member_of(kind, item, f"{name} corner") for item in items)
    if not low <= target <= high:
        names = [corner.name for corner in (low, target, high)]
        refuse(f"{name} corners are {names}; expected lowest, target, highest, in rising order")
    return low, target, high


def member_of(kind: type[_E], value: Any, name: str) -> _E:
    """A member of an enumeration, from itself, its name in any case, or its number."""
    if isinstance(value, kind):
        return value
    number = whole_number(value)
    known = {each.name: each for each in kind}
    member = known.get(value.upper()) if isinstance(value, str) else None
    if member is None and number is not None:
        member = next((each for each in kind if each == number), None)
    if member is None:
        refuse(f"{name} is {shown(value)}; expected one of {', '.join(word.lower() for word in known)}")
    return member


def check_us(name: str, value: object, low: int, high: int) -> int:
    """A time in microseconds within bounds."""
    number = whole_number(value)
    if number is None or not low <= number <= high:
        refuse(f"{name} is {shown(value)}; expected a whole number of microseconds from {low} to {high}")
    return number


def refuse(message: str) -> NoReturn:
    """Raise as the performance infrastructure does for a bad vote."""
    raise InvalidArgument(message, st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_INVALID_INPUT)


def _set_field(vote: object, name: str, value: object) -> None:
    object.__setattr__(vote, name, value)
