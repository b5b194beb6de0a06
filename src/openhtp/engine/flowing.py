"""Programs whose sizes are only known when they run, in several stages between which they may yield.

The runtime makes the values between two stages itself, in the size that they turn out to have, and the next stage
reads them where they lie. So nothing is bound ahead, which costs some microseconds a stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from openhtp.core.errors import ExecutionError
from openhtp.engine.opened import PackagedSession
from openhtp.engine.sessions import SegmentSession

Array = npt.NDArray[Any]


class FlowingRun:
    """One execution: the client's arrays, and values that live until their last reader has run."""

    __slots__ = ("_ends", "_last_reader", "_stages", "_values")

    def __init__(self, stages: Sequence[SegmentSession], ends: Mapping[str, Array]) -> None:
        self._stages = stages
        self._ends = ends
        self._last_reader = {name: place for place, stage in enumerate(stages) for name in stage.inputs}
        self._values: dict[str, Any] = {}

    def step(self, index: int) -> None:
        """Compute one stage."""
        stage = self._stages[index]
        session = stage.session
        assert isinstance(session, PackagedSession)
        if index == 0:
            self._values.clear()  # of an execution that did not come to its end
        places = {name: self._ends[name] if name in self._ends else self._values[name] for name in stage.inputs}
        targets = {name: self._ends.get(name) for name in stage.outputs}
        try:
            self._values |= session.flow(places, targets)
        except Exception as error:
            raise ExecutionError(f"step {index} failed in the CPU runtime: {error}") from error
        for name in [name for name in self._values if self._last_reader.get(name, -1) <= index]:
            del self._values[name]
