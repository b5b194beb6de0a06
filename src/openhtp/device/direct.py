"""Executions of a device in the client's own process that has nothing else to do: no queue, no copies, no frames.

Where nobody could come before or between, a queue decides nothing. As soon as anything else is under way, or is to
be recorded, held or paced, an execution goes the usual way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openhtp.core.errors import ExecutionError, QnnError
from openhtp.device.clock import WallClock
from openhtp.device.contexts import DeviceGraph
from openhtp.device.failures import in_words
from openhtp.engine.protocol import Arrays

if TYPE_CHECKING:
    from openhtp.device.core import DeviceCore
    from openhtp.device.sessions import Session


class Direct:
    """A loaded graph, bound to a client's arrays. Whoever uses it has the device for itself meanwhile."""

    __slots__ = ("_core", "_graph", "_loaded", "_run", "_session", "_steps")

    def __init__(self, core: DeviceCore, session: Session, graph: DeviceGraph, arrays: Arrays) -> None:
        self._core = core
        self._session = session
        self._graph = graph
        self._loaded = graph.loaded
        self._run = graph.loaded.bind(arrays)
        self._steps = range(graph.loaded.steps)

    def run(self) -> bool:
        """Compute; False if it has to go the usual way. Raises what went wrong in a step."""
        core, session, graph = self._core, self._session, self._graph
        if (
            core.executions.jobs
            or core.recording.enabled
            or core.loop.held
            or session.staged
            or session.held
            or session.closed
            or graph.fault is not None
            or graph.pace is not None
            or graph.loaded is not self._loaded
            or session.graphs.get(graph.number) is not graph
        ):
            return False
        session.executions += 1
        step = 0
        try:
            for step in self._steps:
                self._run.step(step)
        except QnnError:
            raise
        except Exception as error:
            raise ExecutionError(f"step {step} failed: {in_words(error)}") from error
        return True


def direct(core: DeviceCore, session: Session, number: int, arrays: Arrays) -> Direct | None:
    """Bind a graph to arrays; None for one whose executions must be told of, or whose data may be exchanged."""
    graph = session.graphs.get(number)
    if type(graph) is not DeviceGraph or graph.switch is not None or not isinstance(core.clock, WallClock):
        return None
    return Direct(core, session, graph, arrays)
