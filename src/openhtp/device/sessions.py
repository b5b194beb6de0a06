"""A session: one client's contexts on the device, and the process domains that hold them.

A client reaches its session over a connection. Memory, graphs and executions belong to the session. The scheduler
knows a process domain as ``pd``: the first has the session's number, others have numbers of their own.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import resource
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from openhtp.core import status as st
from openhtp.core.errors import InvalidHandle, OutOfMemory
from openhtp.device.contexts import DeviceApp, DeviceContext, DeviceGraph, DeviceGroup
from openhtp.device.jobs import Job
from openhtp.memory.ledger import Domain, Ledger, MemoryUse
from openhtp.program.packed import PackedGraph
from openhtp.rpc.shm import SharedBuffer

if TYPE_CHECKING:
    from openhtp.device.tasks import Task


_T = TypeVar("_T")


class FaultReach(enum.Enum):
    """The reach of injected faults: all of a private device; the sender's session, or nobody, on a shared one."""

    DEVICE = "device"
    SESSION = "session"
    NOBODY = "nobody"


class Domains:
    """The process domains of a client process: their memory, and the scheduler's number for each."""

    def __init__(self, first: int, ledger: Ledger, kind: str = "unsigned") -> None:
        """``first`` is the scheduler's number for the first domain. ``kind``: unsigned or signed."""
        self.ledger = ledger
        self.kind = kind
        self.numbers: dict[int, int] = {0: first}


class Session:
    """One client's part of the device."""

    def __init__(
        self, number: int, *, pid: int, label: str, domains: Domains | None = None, shares_budget: bool = False
    ) -> None:
        """``shares_budget`` says that other sessions of the same process may have the same domains."""
        self.number = number
        self.pid = pid
        self.label = label
        self.process_domains = domains or Domains(number, Ledger())
        self.ledger = self.process_domains.ledger
        self.shares_budget = shares_budget
        self.pieces = Pieces(f"session {number}")
        self.contexts: dict[int, DeviceContext] = {}
        self.graphs: dict[int, DeviceGraph | DeviceApp] = {}
        self.memories: dict[int, SharedBuffer] = {}
        self.jobs: dict[int, Job] = {}
        self._lent: dict[int, PackedGraph] = {}
        self._lent_numbers = itertools.count(1)
        # Groups of contexts made by one call, by the call's number and, if concurrent, their priority.
        self.groups: dict[tuple[int, int | None], DeviceGroup] = {}
        self.tasks: set[Task[Any]] = set()
        self.closed = False
        # After a failure, the scheduler's state for this session may be wrong.
        self.broken = False
        self.held = False
        self.executions = 0
        # Whether its power votes depend on whether the device works for it.
        self.staged = False

    @contextlib.contextmanager
    def lending(self, packed: PackedGraph) -> Iterator[int]:
        """Called by a client in this process: the number under which a request finds the graph meanwhile."""
        number = next(self._lent_numbers)
        self._lent[number] = packed
        try:
            yield number
        finally:
            self._lent.pop(number, None)

    def lent(self, number: int) -> PackedGraph:
        """The graph of that number. Raises InvalidHandle if none is lent any more."""
        packed = self._lent.get(number)
        if packed is None:
            raise InvalidHandle(f"graph {number} is lent by no client in the device's process")
        return packed

    @property
    def session(self) -> Session:
        """This session, as the owner of tasks that belong to no single context."""
        return self

    @property
    def busy(self) -> bool:
        """Whether the device works for this session now."""
        return bool(self.jobs or self.tasks)

    def map(self, number: int, context: DeviceContext, buffer: SharedBuffer) -> None:
        """Keep memory for the graphs of a context. Raises OutOfMemory, and keeps nothing, if there is no room."""
        self.pieces.take()
        try:
            context.memories[number] = self.ledger.take(context.tenant, buffer.nbytes, MemoryUse.IO, "the memory")
        except BaseException:
            self.pieces.give_back()
            raise
        self.memories[number] = buffer

    def unmap(self, number: int) -> None:
        """Let go of memory, and of the bindings to it."""
        buffer = find(self.memories, number, "memory")
        for graph in self.graphs.values():
            graph.forget_memory(number)
        for context in self.contexts.values():
            if number in context.memories:
                context.memories.pop(number).give_back()
        del self.memories[number]
        self.pieces.give_back()
        buffer.close()

    def describe(self) -> dict[str, object]:
        """What other clients may know of this session."""
        return {
            "session": self.number,
            "pid": self.pid,
            "label": self.label,
            "contexts": len(self.contexts),
            "graphs": [graph.name for graph in self.graphs.values()],
            "bytes": self.ledger.used,
            "memory": self.ledger.by_use(),
            "domains": [self._describe_domain(domain) for domain in self.ledger.domains],
            "most_domains": self.ledger.most,
            "pd_session": self.process_domains.kind,
            "tasks": [task.describe() for task in self.tasks],
            "pending": len(self.jobs),
            "executions": self.executions,
        }

    def _describe_domain(self, domain: Domain) -> dict[str, object]:
        return {
            "domain": domain.number,
            "limit": domain.limit,
            "bytes": domain.used,
            "memory": domain.by_use(),
            "contexts": [context.describe() for context in self.contexts.values() if context.domain is domain],
        }


def find(table: dict[int, _T], number: int, what: str) -> _T:
    """The object that a client names by number. Every session has its own tables, so it is the client's own."""
    entry = table.get(number)
    if entry is None:
        raise InvalidHandle(f"{what} {number} does not exist in this session")
    return entry


# The limit of open files where the system sets none.
MAX_DESCRIPTORS = 1 << 20


class Pieces:
    """Counts one client's pieces of memory. Their sizes count in its process domains (``memory/ledger.py``)."""

    def __init__(self, owner: str) -> None:
        self.held = 0
        self._owner = owner

    def take(self) -> None:
        """Count one more piece. Raises OutOfMemory, and counts nothing, if there are too many."""
        most = most_pieces()
        if self.held >= most:
            raise OutOfMemory(
                f"{self._owner} holds {self.held} pieces of shared memory, and may hold {most}."
                " Free contexts or memory, use larger pieces, or raise the limit of open files (ulimit -n)",
                st.QNN_CONTEXT_ERROR_MEM_ALLOC,
            )
        self.held += 1

    def give_back(self) -> None:
        """Count one piece less."""
        self.held -= 1


def most_pieces() -> int:
    """How many pieces of memory a session may have: each takes two descriptors, and a client gets half of all."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (MAX_DESCRIPTORS if descriptors == resource.RLIM_INFINITY else descriptors) // 4
