"""A session: one process domain on the device, with contexts and a budget of memory of its own.

A connection is how a client reaches its session; what is granted, scheduled and freed is the session's. The
scheduler knows it as ``pd``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from openhtp.core.errors import InvalidHandle
from openhtp.device.budget import Budget, Use
from openhtp.device.contexts import DeviceApp, DeviceContext, DeviceGraph
from openhtp.device.jobs import Job
from openhtp.rpc.shm import SharedBuffer

if TYPE_CHECKING:
    from openhtp.device.tasks import Task

_T = TypeVar("_T")


class Session:
    """One client's process domain."""

    def __init__(self, number: int, *, pid: int, label: str) -> None:
        self.number = number
        self.pid = pid
        self.label = label
        self.budget = Budget(f"session {number}")
        self.contexts: dict[int, DeviceContext] = {}
        self.graphs: dict[int, DeviceGraph | DeviceApp] = {}
        self.memories: dict[int, SharedBuffer] = {}
        self.jobs: dict[int, Job] = {}
        self.tasks: set[Task[Any]] = set()
        self.closed = False
        # Something broke that leaves the scheduler's knowledge of it in doubt.
        self.broken = False
        self.held = False
        self.executions = 0

    def map(self, number: int, context: DeviceContext, buffer: SharedBuffer) -> None:
        """Keep memory for the graphs of a context. Raises OutOfMemory, and keeps nothing, when over budget."""
        context.memories[number] = self.budget.take(buffer.nbytes, Use.IO, "the memory")
        self.memories[number] = buffer

    def unmap(self, number: int) -> None:
        """Let go of memory, and of what was bound to it."""
        buffer = find(self.memories, number, "memory")
        for graph in self.graphs.values():
            graph.forget_memory(number)
        for context in self.contexts.values():
            if number in context.memories:
                context.memories.pop(number).give_back()
        del self.memories[number]
        buffer.close()

    def describe(self) -> dict[str, object]:
        """What others may know of it."""
        return {
            "session": self.number,
            "pid": self.pid,
            "label": self.label,
            "contexts": len(self.contexts),
            "graphs": [graph.name for graph in self.graphs.values()],
            "bytes": self.budget.used,
            "memory": self.budget.by_use(),
            "tasks": [task.describe() for task in self.tasks],
            "pending": len(self.jobs),
            "executions": self.executions,
        }


def find(table: dict[int, _T], number: int, what: str) -> _T:
    """What a client names by number: its own, since every session has tables of its own."""
    found = table.get(number)
    if found is None:
        raise InvalidHandle(f"{what} {number} does not exist in this session")
    return found
