"""A context on the device: its graphs and apps, and the memory that is freed with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.errors import QnnError, WrongState
from openhtp.core.tensor import TensorSpec
from openhtp.engine.own_ops import ChainedProgram
from openhtp.engine.protocol import Arrays, LoadedProgram, Rehearsal, RehearsedProgram, Run, UpdateableProgram
from openhtp.memory.ledger import Domain, HeldMemory, MemoryGrant, SpillGroup, Tenant
from openhtp.program.packed import GraphInfo, PackedGraph
from openhtp.program.qnn_program import QnnProgram
from openhtp.rpc import frames
from openhtp.sched.timed import Pace

if TYPE_CHECKING:
    from openhtp.device.sessions import Session
    from openhtp.device.switching import Switcher

# Data of updateable tensors, by name.
Data = dict[str, npt.NDArray[Any]]
# Finished bindings kept per graph; a client that uses new memory for every call must not grow the device.
MAX_BINDINGS_KEPT = 512


class Unloaded:
    """A graph that is known but not loaded: it is only prepared, or waits for its turn."""

    steps = 1
    spill_fill_bytes = 0
    vtcm_peak_bytes = 0

    def bind(self, arrays: Arrays) -> Run:
        """Refuse: no program is loaded that could run."""
        raise WrongState("the graph is not loaded on the device")

    def close(self) -> None:
        """It holds nothing."""


class DeviceGraph:
    """A program that is ready to run, with its bindings."""

    def __init__(
        self,
        number: int,
        context: DeviceContext,
        info: GraphInfo,
        loaded: LoadedProgram,
        program: QnnProgram | None,
        held: HeldMemory,
    ) -> None:
        """``program`` is the source of the graph; None if the source was a prepared form.

        ``held`` is the memory of the graph's binary, which may hold other graphs, too.
        """
        self.number = number
        self.context = context
        self.program = program
        self.held = held
        self.loaded = loaded
        self.steps = loaded.steps
        # Whether operators of a user's package are in it: how long their functions take, nobody knows.
        self.calls_user_code = isinstance(loaded, ChainedProgram)
        self.core = 0
        # The switcher that loads the graph for its turns, if any, and the program that replaced the first one.
        self.switch: Switcher | None = None
        self.replacement: PackedGraph | None = None
        self.ports: list[TensorSpec] = [*info.inputs, *info.outputs]
        self.name = info.name
        # How long a step takes, as far as we know.
        self.step_ns = self._last_step_ns = 1_000_000_000
        # The same of one that was never executed, by a rehearsal: enough to compute it where it was called.
        self.rehearsal = _rehearsal(loaded)
        self.expected_ns = self.step_ns if self.rehearsal is None else self.rehearsal.took_ns
        # How long its last execution in the loop's row of orders took; 0 before the first.
        self.last_run_ns = 0
        # Whether an execution has begun, and whether one that was queued has.
        self.started = self.queued_started = False
        self.pace: Pace | None = None
        # For tests: the next execution fails with this error after this step.
        self.fault: tuple[int, QnnError] | None = None
        self._idle: dict[bytes, list[list[Run]]] = {}

    def note_step(self, took_ns: int) -> None:
        """Note how long a step took. One much longer than the step before it may have waited for a core."""
        before_ns, self._last_step_ns = self._last_step_ns, took_ns
        self.step_ns = self.expected_ns = before_ns if before_ns < took_ns and self.steps == 1 else took_ns

    @property
    def kept_bindings(self) -> object:
        """Whoever keeps runs by themselves may use them for as long as this is the same object."""
        return self._idle

    def take_runs(self, key: bytes, make: Callable[[], list[Run]]) -> list[Run]:
        """Runs bound to the memory that ``key`` names: kept ones if any are idle, otherwise new ones."""
        idle = self._idle.get(key)
        if idle:
            return idle.pop()
        return make()

    def give_back(self, key: bytes, runs: list[Run]) -> None:
        """Keep runs for the next execution on the same memory."""
        idle = self._idle.get(key)
        if idle is None:
            if len(self._idle) >= MAX_BINDINGS_KEPT:
                self._idle.pop(next(iter(self._idle)))
            self._idle[key] = [runs]
        else:
            idle.append(runs)

    def load(self, loaded: LoadedProgram) -> None:
        """Run this program from now on; bindings to the former program go with that program."""
        self._idle = {}
        self.loaded.close()
        self.loaded = loaded
        self.steps = loaded.steps
        self.calls_user_code = isinstance(loaded, ChainedProgram)
        self.rehearsal = _rehearsal(loaded)

    def forget_memory(self, memory: int) -> None:
        """Drop bindings that use this memory, which is about to go."""
        before, self._idle = self._idle, {}
        for key, runs in before.items():
            count = len(key) // frames.BINDING.size
            ids = [frames.BINDING.unpack_from(key, i * frames.BINDING.size)[1] for i in range(count)]
            if memory not in ids:
                self._idle[key] = runs

    def describe(self) -> dict[str, object]:
        """What other clients may know of this graph."""
        return {"graph": self.name, "number": self.number, "loaded": not isinstance(self.loaded, Unloaded)}

    def close(self) -> None:
        """Free the engine's memory, and the program, which may lie in the client's memory."""
        self._idle = {}
        self.program = self.replacement = self.rehearsal = None
        self.loaded.close()


def _rehearsal(loaded: LoadedProgram) -> Rehearsal | None:
    return loaded.rehearsal if isinstance(loaded, RehearsedProgram) else None


class UpdateableGraph(DeviceGraph):
    """A graph whose tensors' data can be exchanged; an execution uses the data of the time it was sent."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        info: GraphInfo = args[2]
        self.updateables = info.updateables
        self.static_bytes = info.static_bytes
        # The latest data and the memory it occupies. Loading the graph again uses the same data.
        self.update_grant: MemoryGrant | None = None
        self.updates: Data = {}
        self._lent: dict[int, int] = {}
        self._generation = 0

    def update(self, arrays: Data, grant: MemoryGrant) -> None:
        """Use other data from now on. Where graphs share the memory for data, the other graphs lose theirs.

        Graphs that are switched use that memory in turn: each gets its own data again when it is loaded.
        """
        self._take(arrays, grant)
        if isinstance(self.loaded, UpdateableProgram):  # otherwise it is not loaded, and gets the data when it is
            self.loaded.update(arrays)
        self._generation += 1
        self._idle = {}

    def replace(self, packed: PackedGraph, loaded: LoadedProgram, arrays: Data, grant: MemoryGrant) -> None:
        """Run another program with this data from now on; a graph that is switched does so from its next turn."""
        self._take(arrays, grant)
        self.replacement = packed
        if isinstance(self.loaded, Unloaded):
            loaded.close()
        else:
            self.load(loaded)

    def _take(self, arrays: Data, grant: MemoryGrant) -> None:
        if self.context.shares_updates and self.context.switcher is None:
            for other in self.context.graphs.values():
                if isinstance(other, UpdateableGraph) and other is not self:
                    other.forget_updates()
        self.updates, before, self.update_grant = arrays, self.update_grant, grant
        if before is not None:
            before.give_back()

    def load(self, loaded: LoadedProgram) -> None:
        """Run this program from now on, with the latest data."""
        super().load(loaded)
        self._generation += 1
        if self.updates and isinstance(loaded, UpdateableProgram):
            loaded.update(self.updates)

    def forget_updates(self) -> None:
        """Give back the latest data."""
        self.updates = {}
        self._generation += 1
        self._idle = {}
        if self.update_grant is not None:
            self.update_grant.give_back()

    def take_runs(self, key: bytes, make: Callable[[], list[Run]]) -> list[Run]:
        """Runs on the present data."""
        if self.context.shares_updates and not self.updates:
            raise WrongState(
                f"graph {self.name!r} shares the memory of its updateable tensors (LoRA weight sharing), and that"
                " memory is not this graph's now; call apply_binary_section for it first",
                st.QNN_GRAPH_ERROR_INVALID_CONTEXT,
            )
        runs = super().take_runs(key, make)
        self._lent[id(runs)] = self._generation
        return runs

    def give_back(self, key: bytes, runs: list[Run]) -> None:
        """Keep runs, unless the data was exchanged meanwhile."""
        if self._lent.pop(id(runs), -1) == self._generation:
            super().give_back(key, runs)

    def close(self) -> None:
        """Free the data, too."""
        self.forget_updates()
        super().close()


class DeviceApp:
    """A client that is no graph: it computes nothing here, but holds VTCM and HVX while it runs."""

    steps = 1
    step_ns = expected_ns = 1_000_000_000
    switch = None
    calls_user_code = False

    def __init__(self, number: int, context: DeviceContext, name: str) -> None:
        self.number = number
        self.context = context
        self.name = name
        self.core = 0
        self.started = self.queued_started = False
        self.pace: Pace | None = None
        self.fault: tuple[int, QnnError] | None = None

    def note_step(self, took_ns: int) -> None:
        """Do nothing: the client chooses how long an app holds resources."""

    def give_back(self, key: bytes, runs: list[Run]) -> None:
        """Do nothing: nothing was bound."""

    def forget_memory(self, memory: int) -> None:
        """Do nothing: an app uses no memory."""

    def describe(self) -> dict[str, object]:
        """What other clients may know of this app."""
        return {"app": self.name, "number": self.number}

    def close(self) -> None:
        """Do nothing: an app holds nothing."""


class DeviceGroup:
    """Contexts that share a spill-fill buffer. ``priority`` is their common one if they run at the same time.

    In that case they also share a VTCM backup buffer of ``backup`` bytes.
    """

    def __init__(self, number: int, nbytes: int, priority: int | None, backup: int) -> None:
        self.priority = priority
        self.spill = SpillGroup(
            nbytes,
            f"the buffers of group {number}",
            grows=nbytes == 0,
            backup=None if priority is None else backup,
        )


class DeviceContext:
    """A context: graphs and memory that are freed together."""

    def __init__(self, number: int, session: Session, priority: int, queue_depth: int) -> None:
        self.number = number
        self.session = session
        self.priority = priority
        self.queue_depth = queue_depth
        self.graphs: dict[int, DeviceGraph | DeviceApp] = {}
        self.tenant = Tenant(f"context {number}", anywhere=False)
        self.group: DeviceGroup | None = None
        # Whether to choose a domain with room for inputs and outputs, to keep that room, and to prepare only.
        self.io_room = False
        self.keep_io_room = False
        self.prepare_only = False
        # Bytes of its process domain held by its memory (by number) and by the binaries of its graphs.
        self.memories: dict[int, MemoryGrant] = {}
        self.weights: list[HeldMemory] = []
        # Whether only one of its graphs at a time has data of updateable tensors (LoRA weight sharing).
        self.shares_updates = False
        self.switcher: Switcher | None = None
        self.pending = 0  # executions accepted and neither over nor cancelled

    @property
    def domain(self) -> Domain:
        """The process domain of this context; the first domain while the context is empty."""
        return self.tenant.domain or self.session.ledger.domains[0]

    def settle_weights(self) -> None:
        """Give back the memory of binaries whose graphs are all gone."""
        used = [graph.held for graph in self.graphs.values() if isinstance(graph, DeviceGraph)]
        for memory in list(self.weights):
            if not any(memory is other for other in used):
                self.weights.remove(memory)
                memory.give_back()

    def describe(self) -> dict[str, object]:
        """What other clients may know of this context."""
        return {
            "context": self.number,
            "graphs": [graph.describe() for graph in self.graphs.values()],
            "buffers": len(self.memories),
            "buffer_bytes": sum(grant.nbytes for grant in self.memories.values()),
            "pending": self.pending,
            "queue_depth": self.queue_depth,
        }
