"""Power votes: what a client asks of the HTP's clocks, in the API's numbers."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument

MAX_RPC_POLLING_US = 9999
"""Documented; the vendor's simulator accepts more and ignores it."""


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


PERFORMANCE_MODES = (
    "burst",
    "balanced",
    "default",
    "high_performance",
    "high_power_saver",
    "low_balanced",
    "low_power_saver",
    "power_saver",
    "sustained_high_performance",
)
"""Sets of votes that have a name."""

Corners = tuple[VoltageCorner, VoltageCorner, VoltageCorner]


@dataclass(frozen=True, slots=True, kw_only=True)
class DcvsVote:
    """One DCVS v3 vote; corners are lowest, target, highest. ``None`` leaves that part of the standing vote."""

    power_mode: PowerMode = PowerMode.PERFORMANCE
    dcvs_enable: bool | None = None
    sleep_latency_us: int | None = None
    sleep_disable: bool | None = None
    bus: Corners | None = None
    core: Corners | None = None

    def __post_init__(self) -> None:
        for name, corners in (("bus", self.bus), ("core", self.core)):
            if corners is not None and list(corners) != sorted(corners):
                raise InvalidArgument(
                    f"{name} corners are {[corner.name for corner in corners]}; expected lowest, target, highest",
                    st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_INVALID_INPUT,
                )
