"""A program's modelled timeline on its chip, as profiles, traces and plans show it.

All times are modelled, in cycles of the chip's core clock from the start of the first kernel. This module does not
compute them: ``openhtp.cost.schedule_of`` makes a schedule.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from openhtp.program.htp_program import Unit
from openhtp.program.placement import Move, Placed


class Activity(enum.Enum):
    """What an operation does. DMA operations are named after their reason; a checkpoint only waits for the DMA."""

    COMPUTE = "compute"
    LOAD = "load"
    STORE = "store"
    SPILL = "spill"
    FILL = "fill"
    WEIGHTS = "weights"
    CHECKPOINT = "checkpoint"

    @classmethod
    def of(cls, move: Move) -> Activity:
        """The activity of a transfer."""
        return cls(move.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledOperation:
    """One tile of a kernel on one unit, or a transfer, or the wait for one.

    ``kernel`` is an index in running order; ``tile`` counts from 0 and is None for work that is not tiled.
    """

    kernel: int
    tile: int | None
    unit: Unit
    activity: Activity
    start: int
    end: int
    ddr_read: int = 0
    ddr_written: int = 0
    vtcm_read: int = 0
    vtcm_written: int = 0

    @property
    def cycles(self) -> int:
        """How long it takes."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """One kernel on the timeline.

    ``busy`` has the cycles that each unit works for it, which may overlap. ``waited`` has the cycles in which it
    only waits for its weights. ``nodes`` are the model's nodes that it stands for.
    """

    index: int
    name: str
    op: str
    kind: str
    nodes: tuple[str, ...]
    start: int
    end: int
    tiles: int
    busy: Mapping[Unit, int]
    overhead: int
    waited: int
    ddr_read: int
    ddr_written: int

    @property
    def cycles(self) -> int:
        """From its start to its end."""
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A program's whole timeline. ``mhz`` is the clock of the cycles, after all votes."""

    soc: str
    mhz: float
    cycles: int
    hvx_threads: int
    kernels: tuple[KernelTime, ...]
    operations: tuple[ScheduledOperation, ...] = field(repr=False)
    placed: Placed

    @property
    def us(self) -> float:
        """The duration in microseconds, without the call around it."""
        return self.cycles / self.mhz

    def busy(self, unit: Unit) -> int:
        """Cycles in which a unit works."""
        return sum(each.cycles for each in self.operations if each.unit is unit and each.activity is not _WAIT)


_WAIT = Activity.CHECKPOINT
