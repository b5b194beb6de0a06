"""The cost of one call: a profile handle as seen by the call that fills it.

A call only leaves its measurements here; the tree of events is made when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openhtp.core import status as st
from openhtp.core.enumerations import ProfileLevel
from openhtp.core.errors import WrongState
from openhtp.hw.clocks import FULL, Clocks
from openhtp.records.profile import NOTHING_TOLD, DeviceProfile, Method, ProfileEvent
from openhtp.rpc.frames import Record
from openhtp.runtime.objects.lifecycle import Life

if TYPE_CHECKING:
    from openhtp.runtime.objects.modelled import Modelled


@dataclass(frozen=True, slots=True)
class ExecutedCall:
    """One execution, as its caller saw it. ``modelled`` has its figures on the chip, if they are known."""

    graph: str
    synchronous: bool
    record: Record
    called_ns: int
    sent_ns: int
    returned_ns: int
    deadline_at: int
    hvx_threads: int
    modelled: Modelled | None
    told: DeviceProfile

    @property
    def clocks(self) -> Clocks:
        """The chip's clocks as the device reported them; full speed if it reported nothing."""
        return FULL if self.told.clocks is None else Clocks.of(self.told.clocks)


@dataclass(frozen=True, slots=True)
class NotedCall:
    """A call other than an execution, and its events."""

    method: Method
    graph: str
    events: tuple[ProfileEvent, ...]


Fill = Callable[[NotedCall], None]


class Sheet:
    """Filled by one call at a time."""

    def __init__(self, life: Life, level: ProfileLevel) -> None:
        self.level = level
        self.found: ExecutedCall | NotedCall | None = None
        # The call that fills it.
        self.holder: object = None
        self.told = NOTHING_TOLD
        self._life = life

    def begin(self, holder: object) -> None:
        """Serve a call; the cost of an earlier one is gone."""
        self._life.require("use")
        if self.holder is not None:
            raise WrongState(
                "the profile handle is already in use by another call; create one per queued call",
                st.QNN_GRAPH_ERROR_PROFILE_IN_USE,
            )
        self.found = None
        self.told = NOTHING_TOLD
        self.holder = holder

    def abandon(self, holder: object) -> None:
        """Let go of the handle if it is this call's; twice does nothing."""
        if self.holder is holder:
            self.holder = None

    def fill(self, cost: ExecutedCall | NotedCall) -> None:
        """The call is over and cost this."""
        self.found = cost
