"""Graph switching on the device: graphs of a context are loaded when they run, and unloaded for others.

The scheduler always holds switched graphs. The graph that has its turn (``memory/switching.py``) is loaded if
necessary, bound, and released alone. So no two of them run at the same time, and an execution that waits for its
turn can time out or be cancelled like any queued one. Loading is a task, beside the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, QnnError, UnsupportedFeature, WrongState, error_context
from openhtp.core.machine import give_back_freed
from openhtp.core.status import Status
from openhtp.device.contexts import DeviceContext, DeviceGraph, Unloaded
from openhtp.device.jobs import Job
from openhtp.device.lent_buffers import LentBuffer, LentBuffers
from openhtp.device.loading import Advance, Ready, Room, close_all, make_one_ready, packed_at
from openhtp.device.target import Target
from openhtp.device.tasks import Task
from openhtp.engine.protocol import Run
from openhtp.memory.ledger import HeldMemory
from openhtp.memory.needs import Buffers, ContextNeeds, needs_of
from openhtp.memory.switching import Turn, Turns, loaded_first
from openhtp.program.binary import ContextBinary, open_binary
from openhtp.program.sources import BinarySource
from openhtp.rpc import messages as ms
from openhtp.sched.events import AbortRequested, HoldChanged, StepsFound

if TYPE_CHECKING:
    from openhtp.device.core import DeviceCore


log = logging.getLogger(__name__)

_Bind = Callable[[], list[Run]]


class Switcher:
    """The graphs of one context that is switched. All methods run on the loop's thread."""

    def __init__(
        self,
        core: DeviceCore,
        context: DeviceContext,
        binary: ContextBinary,
        memory: tuple[ContextNeeds, Buffers],
        retained: Sequence[str],
        options: ms.LoadOptions,
        close_file: Callable[[], None],
    ) -> None:
        """``memory`` is the needs of the graphs, and the buffers that they use in turn for some of them."""
        self.context = context
        self.switches = 0
        self._core = core
        self._binary = binary
        self._options = options
        self._close_file = close_file
        self._all_needs, self._own_buffers = memory
        self._lent = LentBuffers()
        self._turns = Turns({}, retained)
        self._settle_needs()
        self._graphs: dict[str, DeviceGraph] = {}
        self._held: dict[str, HeldMemory] = {}
        self._binds: dict[int, _Bind] = {}
        self._switch_ns: dict[int, int] = {}
        self._closed = False

    @property
    def loaded(self) -> tuple[str, ...]:
        """The graphs that are loaded now."""
        return tuple(self._turns.loaded)

    def add(self, graph: DeviceGraph) -> None:
        """Take on a graph that the scheduler knows: from now on its executions start only in their turns."""
        self._graphs[graph.name] = graph
        graph.switch = self
        self._hold(graph, held=True)

    def adopt(self, graph: DeviceGraph, ready: Ready, memory: HeldMemory) -> None:
        """Take on a loaded graph with its memory. Raises OutOfMemory if the graph holds more than was known."""
        more = ready.loaded.spill_fill_bytes - self._needs[graph.name].spill_fill_bytes
        if more > 0:
            try:
                self._buffers.check_spill(graph.name, ready.loaded.spill_fill_bytes)
                if self._buffers.spill_fill is None:
                    memory.add(self.context.session.ledger.place(self.context.tenant, 0, more))
            except QnnError:
                close_all([ready])
                raise
        if graph.loaded is not ready.loaded:
            graph.load(ready.loaded)
        self._turns.loaded[graph.name] = None
        self._held[graph.name] = memory

    def admit(self, job: Job, bind: _Bind) -> None:
        """An execution was accepted: it waits for its turn."""
        self._binds[job.number] = bind
        self._turns.asked(job.number, job.graph.name)
        self.advance()

    def ended(self, job: Job) -> None:
        """An execution is over. The next turn is decided once the scheduler has finished with this execution."""
        self._binds.pop(job.number, None)
        self._switch_ns.pop(job.number, None)
        self._turns.ended(job.number)
        self._core.loop.later(self.advance)

    def switch_ns(self, job: Job) -> int:
        """How long an execution waited for its graph to be loaded."""
        return self._switch_ns.get(job.number, 0)

    def advance(self) -> None:
        """Let in the execution that has its turn, if any."""
        if self._closed or self.context.session.held:
            return
        turn = self._turns.next(self.context.domain.left)
        if turn is None:
            return
        job = self._core.executions.jobs.get(turn.job)
        if job is None:
            self._turns.ended(turn.job)
            self.advance()
        elif turn.unload is None:
            self._start(job)
        else:
            self._switch(job, turn)

    def lend(self, use: str, buffer: LentBuffer) -> None:
        """Use a buffer of the client's from now on. The loaded graph goes, and comes back into the buffer."""
        self._require_idle(f"be given a {use}")
        own = self._own_buffers.weights if use == ms.WEIGHTS_BUFFER else self._own_buffers.spill_fill
        if own is not None or self._turns.retained:
            problem = "retains graphs" if self._turns.retained else f"has a {use} of the device's own"
            raise UnsupportedFeature(
                f"memory as the {use} of a context that {problem}; create it without that option",
                st.QNN_MEM_ERROR_UNSUPPORTED_MEMTYPE,
            )
        self._lent.lend(use, buffer, self._all_needs)
        self._settle_needs()

    def take_back(self, number: int) -> None:
        """Let go of memory if it is one of the client's buffers; the loaded graph goes with what it has there."""
        if self._lent.has(number):
            self._require_idle("give a buffer back")
            self._lent.take_back(number)
            self._settle_needs()

    def _require_idle(self, what: str) -> None:
        context = self.context
        if context.pending or any(task.owner is context for task in context.session.tasks):
            raise WrongState(f"context {context.number} cannot {what} while executions of it are under way")

    def _settle_needs(self) -> None:
        """Work out what graphs need beside the buffers that there are now. None of them stays loaded."""
        for name in list(self._turns.loaded):
            self._unload(name)
        self._buffers = self._lent.beside(self._own_buffers)
        self._needs = {graph.name: self._buffers.beside(graph) for graph in self._all_needs.graphs}
        self._turns.sizes = {name: graph.loaded_bytes for name, graph in self._needs.items()}

    def close(self) -> None:
        """The context goes: nothing more is loaded."""
        if not self._closed:
            self._closed = True
            self._lent = LentBuffers()
            self._binds.clear()
            self._close_file()

    def _start(self, job: Job) -> None:
        """The graph is loaded: bind it and let it in."""
        graph = job.graph
        assert isinstance(graph, DeviceGraph)
        try:
            job.runs = graph.take_runs(job.key, self._binds.pop(job.number))
        except QnnError as error:
            self._fail(job, error)
            return
        now = self._core.clock.now
        if job.pace is None:
            steps = graph.steps * len(job.runs)
            self._core.loop.handle(StepsFound(t=now(), job=job.number, steps=steps))
        self._hold(graph, held=False)
        self._hold(graph, held=True)

    def _switch(self, job: Job, turn: Turn) -> None:
        """Unload graphs to make room, and load the graph of this turn beside the loop."""
        began_ns = self._core.clock.now()
        for name in turn.unload or ():
            self._unload(name)
        self.switches += 1
        graph = self._graphs[turn.graph]
        needs = self._needs[turn.graph]
        try:
            sizes = needs.own_bytes, needs.spill_fill_bytes, needs.backup_bytes
            memory = self.context.session.ledger.place(self.context.tenant, *sizes)
        except QnnError as error:
            self._fail(job, error)
            return

        def work(task: Task[Ready]) -> Ready:
            give_back_freed()  # graphs are switched to save memory, so it must be freed at once
            task.check()
            stored = graph.replacement or self._binary.packed(turn.graph)
            packed = self._lent.with_weights(stored, map(self._binary.packed, self._graphs))
            ready = make_one_ready(self._core.target, packed, self._options)
            self._lent.give_spill_room(ready.loaded)
            return ready

        def finish(ready: Ready) -> ms.Reply:
            self.adopt(graph, ready, memory)
            waiting_job = self._core.executions.jobs.get(turn.job)
            if waiting_job is None:  # it timed out or was cancelled meanwhile
                self._core.loop.later(self.advance)
            else:
                self._switch_ns[turn.job] = self._core.clock.now() - began_ns
                self._start(waiting_job)
            return ms.Reply()

        self._core.run_task(
            Task(
                "switching graphs",
                self.context,
                work=work,
                finish=finish,
                discard=lambda ready: close_all([ready]),
                undo=memory.give_back,
            ),
            lambda answer: self._on_task_end(turn.job, answer),
        )

    def _on_task_end(self, number: int, answer: object) -> None:
        """A task is over: if it failed, so does its execution."""
        if not isinstance(answer, ms.Reply) or not answer.error or self._closed:
            return
        job = self._core.executions.jobs.get(number)
        if job is not None:
            self._fail(job, QnnError(answer.error, Status(answer.status_name, answer.status_code)))
        else:
            self._core.loop.later(self.advance)

    def _fail(self, job: Job, error: QnnError) -> None:
        job.failure = error
        self._core.loop.handle(AbortRequested(t=self._core.clock.now(), job=job.number))

    def _unload(self, name: str) -> None:
        del self._turns.loaded[name]
        self._graphs[name].load(Unloaded())
        self._held.pop(name).give_back()

    def _hold(self, graph: DeviceGraph, *, held: bool) -> None:
        self._core.loop.handle(HoldChanged(t=self._core.clock.now(), client=graph.number, held=held))


class SwitchedRoom(Room):
    """The memory of a binary with some graphs loaded: their shared data, and the data of each."""

    def __init__(self, context: DeviceContext, asked: ms.LoadGraphs) -> None:
        super().__init__(context)
        self._asked = asked
        self._places = asked.options.retained
        self._options = asked.options
        self._retained: tuple[str, ...] = ()
        self._each: dict[str, HeldMemory] = {}
        self._binary: ContextBinary | None = None
        self._needs = ContextNeeds(graphs=())
        self._buffers = Buffers()

    def make_first_ready(
        self, target: Target, source: BinarySource, places: Sequence[int], advance: Advance
    ) -> list[Ready]:
        """Make the graphs ready that are loaded at once; the other graphs are known, but not loaded."""
        binary = self._binary = open_binary(source)
        graphs = packed_at(binary, places)
        if any(number not in places for number in self._places):
            raise InvalidArgument(f"graphs {list(self._places)} are to be retained; given are {list(places)}")
        self._retained = tuple(binary.graph_names[number] for number in self._places)
        stored = [(graph, binary.data_of(graph.name)) for graph in graphs]
        self._needs = needs_of(stored, largest_backup=self.largest_backup)
        self._buffers = Buffers.chosen(self._needs, self._options.weights_buffer, self._options.spill_fill_buffer)
        first = loaded_first([graph.name for graph in graphs], self._retained)
        self._take_first(first)
        ready: list[Ready] = []
        try:
            for done, graph in enumerate(graphs):
                with error_context(graph=graph.name):
                    if graph.name in first:
                        advance(done, len(graphs), graph.name)
                        ready.append(make_one_ready(target, graph, self._options))
                    else:
                        ready.append(Ready(graph.info(), Unloaded(), None))
        except BaseException:
            close_all(ready)
            raise
        return ready

    def _take_first(self, first: Sequence[str]) -> None:
        beside = [self._buffers.beside(self._needs.graph(name)) for name in first]
        parts = [(graph.own_bytes, graph.spill_fill_bytes, graph.backup_bytes) for graph in beside]
        common = (self._needs.shared_bytes + (self._buffers.weights or 0), self._buffers.spill_fill or 0, 0)
        context = self._context
        context.tenant.label = f"context {context.number} (switching {', '.join(first[:3])})"
        io_bytes = self._needs.io_bytes if context.io_room else 0
        shared, *each = self._ledger.place_each(context.tenant, [common, *parts], room_for=io_bytes)
        self.held, self._each = shared, dict(zip(first, each, strict=True))

    def begin(
        self,
        core: DeviceCore,
        graphs: Sequence[DeviceGraph],
        ready: Sequence[Ready],
        close_file: Callable[[], None],
    ) -> None:
        """The scheduler knows the graphs: from now on they are switched."""
        assert self._binary is not None
        switcher = Switcher(
            core,
            self._context,
            self._binary,
            (self._needs, self._buffers),
            self._retained,
            self._options,
            close_file,
        )
        self._context.switcher = switcher
        for graph, loaded in zip(graphs, ready, strict=True):
            switcher.add(graph)
            memory = self._each.get(graph.name)
            if memory is not None:
                switcher.adopt(graph, loaded, memory)

    def give_back(self) -> None:
        """The graphs are not wanted, or could not be made ready."""
        for memory in self._each.values():
            memory.give_back()
        super().give_back()
