"""The device without its transport: its sessions, and the parts that serve them."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.machine import WORTH_GIVING_BACK, give_back_freed
from openhtp.core.units import MIB
from openhtp.device.answers import Answer, timed
from openhtp.device.clock import Clock, WallClock
from openhtp.device.config import DeviceConfig
from openhtp.device.contexts import DeviceApp, DeviceContext, DeviceGraph
from openhtp.device.executions import Executions
from openhtp.device.jobs import Job
from openhtp.device.loop import Loop
from openhtp.device.power import Power, SystemLatency
from openhtp.device.recording import Recording
from openhtp.device.requests import Asked, Host, answer
from openhtp.device.runner import BesideRunner, Runner, SideBySideRunner
from openhtp.device.sessions import Domains, FaultReach, Session
from openhtp.device.target import EmulatedChip, Target
from openhtp.device.tasks import Task
from openhtp.hw.catalog import find_soc
from openhtp.memory.ledger import Ledger
from openhtp.rpc import channel, messages as ms
from openhtp.sched.events import ClientExpelled, ClientRemoved, HoldChanged
from openhtp.sched.policy import policy_named
from openhtp.sched.scheduler import Scheduler

if TYPE_CHECKING:
    from openhtp.device.library_target import LibraryTarget

log = logging.getLogger(__name__)

# How many pieces of a departed client's memory one turn of the loop gives back.
MEMORIES_AT_ONCE = 64


class DeviceCore:
    """All methods run on the loop's thread. The requests of clients are in ``requests``."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        clock: Clock,
        arch: int,
        target: Target,
        make_runner: Callable[[dict[int, Job]], Runner],
        make_ledger: Callable[[], Ledger] = Ledger,
        library: LibraryTarget | None = None,
        latency: SystemLatency | None = None,
        device_id: int = 0,
    ) -> None:
        """``library`` is the target again if the target is the vendor's library, which can do more."""
        self.device_id = device_id
        self.clock = clock
        self._make_ledger = make_ledger
        self.sessions: dict[int, Session] = {}
        self.closing: deque[Session] = deque()
        # Bytes of contexts that are gone. The C library may still keep some of them.
        self._freed = 0
        self._owed: deque[Callable[[], None]] = deque()
        self.faults = FaultReach.DEVICE
        # A device's only client may end the device, if only by truncating its own memory.
        self.serves_one = True
        self.target = target
        self.library = library
        self._numbers = itertools.count(1)
        # Does slow work and reports the result: on the server's threads, or right here without a server.
        self.run_elsewhere: Callable[[Task[Any], Callable[[Answer], None]], None] = _run_here
        # Calls a function on the loop's thread, or right here without a server.
        self.post: Callable[[Callable[[], None]], None] = lambda call: call()
        self.executions = Executions(clock, self._numbers)
        self.loop = Loop(scheduler, clock, make_runner(self.executions.jobs), self.executions)
        self.executions.loop = self.loop
        self.recording = Recording(scheduler, self._name_of, self.executions.pace_of)
        self.executions.recording = self.recording
        self.power = Power(arch, scheduler.resources.cores, self.recording.clocks, latency)
        self.executions.power = self.power

    # Sessions

    def open_session(
        self, *, pid: int, label: str, shares_budget: bool = False, pd_session: str = "unsigned"
    ) -> Session:
        """A client has come. It gets process domains of its own, or shares those of its process and kind."""
        number = next(self._numbers)
        others = (
            other.process_domains
            for other in self.sessions.values()
            if other.shares_budget and other.pid == pid and other.process_domains.kind == pd_session
        )
        domains = next(others, None) if shares_budget else None
        domains = domains or Domains(number, self._make_ledger(), pd_session)
        session = Session(number, pid=pid, label=label, domains=domains, shares_budget=shares_budget)
        self.sessions[session.number] = session
        return session

    def close_session(self, session: Session) -> None:
        """A client has gone, in whatever way: free all that it had, now."""
        self.start_closing(session)
        while self.closing:
            self.close_some()

    def start_closing(self, session: Session) -> None:
        """A client has gone: from now on nothing is done for it. What it had is freed by ``close_some``."""
        if session.closed:
            return
        session.closed = True
        self.executions.line_up()  # nothing of it is kept in a row
        for task in session.tasks:
            task.cancel()
        for context in session.contexts.values():
            if context.switcher is not None:
                context.switcher.close()
        self.sessions.pop(session.number, None)
        self.power.forget(session.number, self.clock.now())
        session.staged = False
        self._freed += session.ledger.weights
        self.closing.append(session)

    def close_some(self) -> None:
        """Free a little of what clients left behind, so that other clients need not wait for all of it."""
        session = self.closing[0]
        try:
            if session.graphs:
                self.free_graph(session, session.graphs[next(iter(session.graphs))])
            else:
                for memory in list(itertools.islice(session.memories, MEMORIES_AT_ONCE)):
                    session.memories.pop(memory).close()
        except Exception:
            log.exception("closing session %d", session.number)
        if not session.graphs and not session.memories:
            self.executions.forget_all(session)
            for context in session.contexts.values():
                session.ledger.leave(context.tenant)
            for context in itertools.islice(session.contexts.values(), 1):
                self.give_back(context, 0)
            session.contexts.clear()
            self.closing.popleft()

    def give_back(self, context: DeviceContext, nbytes: int) -> None:
        """A context with ``nbytes`` has gone: return the freed memory to the system, beside the loop."""
        self._freed += nbytes
        if self._freed >= WORTH_GIVING_BACK:
            self._freed = 0
            self._owed.append(give_back_freed)
            task = Task(
                "giving memory back",
                context,
                work=lambda task: self.settle_owed(),
                finish=lambda result: ms.Reply(),
            )
            self.run_elsewhere(task, lambda answer: None)

    def settle_owed(self) -> None:
        """Return freed memory that is still owed to the system, beside the loop or when the device ends."""
        while self._owed:
            self._owed.pop()()

    # Requests

    def request(
        self, session: Session | None, request: ms.Request, descriptors: list[int], host: Host | None = None
    ) -> Answer | Task[Any]:
        """Answer a request, or return the task whose end answers it. Takes over all descriptors."""
        begin = self.clock.now()
        self.executions.line_up()
        try:
            result = answer(Asked(self, descriptors, session, host), request)
        finally:
            channel.close_all(descriptors)
            descriptors.clear()
        if isinstance(result, Task):
            result.request = request.number
            result.time(self.clock.now, begin)
            self._begin(result)
            return result
        took = self.clock.now() - begin
        return timed(result, took, took)

    def _begin(self, task: Task[Any]) -> None:
        session = task.owner.session
        session.tasks.add(task)
        task.on_end = lambda: self.stage(session)
        self.stage(session)

    def stage(self, session: Session, *, busy: bool = False) -> None:
        """Work for a client has begun or ended: the client's power votes may depend on it."""
        if session.staged:
            self.power.stage(session.number, self.clock.now(), busy=busy or session.busy)

    def run_task(self, task: Task[Any], then: Callable[[Answer], None]) -> None:
        """Do slow work that no request waits for."""
        self._begin(task)
        self.run_elsewhere(task, then)

    def new_number(self) -> int:
        """A number for a context, a graph or memory."""
        return next(self._numbers)

    def pd_of(self, context: DeviceContext) -> int:
        """The scheduler's number for the process domain of a context."""
        numbers = context.session.process_domains.numbers
        number = numbers.get(context.domain.number)
        if number is None:
            number = numbers[context.domain.number] = self.new_number()
        return number

    def introduce(self, graph: DeviceGraph | DeviceApp) -> None:
        """A graph is known to the scheduler: let executions find it."""
        session = graph.context.session
        session.graphs[graph.number] = graph.context.graphs[graph.number] = graph
        if session.held:
            self.loop.handle(HoldChanged(t=self.clock.now(), client=graph.number, held=True))

    def free_graph(self, session: Session, graph: DeviceGraph | DeviceApp) -> None:
        """A graph goes: executions of it end, and the scheduler forgets it."""
        del session.graphs[graph.number], graph.context.graphs[graph.number]
        try:
            if not session.broken:
                self.loop.handle(ClientRemoved(t=self.clock.now(), client=graph.number))
                self.loop.hurry(graph.number)
        except Exception:
            log.exception("removing graph %d from the scheduler", graph.number)
            session.broken = True
        try:
            if session.broken:
                # The scheduler's state for this client is unreliable: expel whatever is left of the client.
                self.loop.handle(ClientExpelled(t=self.clock.now(), client=graph.number))
        finally:
            graph.close()

    def record(self, *, enabled: bool) -> None:
        """Begin to record, or stop."""
        if not enabled:
            self.recording.stop()
            self.loop.observe = None
        elif not self.recording.enabled:
            now = self.clock.now()
            self.loop.observe = self.recording.start(now)
            for clocks in self.power.records(now):
                self.recording.clocks(clocks)

    def _name_of(self, client: int) -> str:
        graphs = (session.graphs.get(client) for session in self.sessions.values())
        return next((graph.name for graph in graphs if graph is not None), f"client {client}")


def _run_here(task: Task[Any], then: Callable[[Answer], None]) -> None:
    task.run()
    then(task.conclude())


def build_core(config: DeviceConfig) -> DeviceCore:
    """An HTP on the wall clock: emulated, computing on ONNX Runtime's CPU kernels, or the vendor's library."""
    if config.library is not None:
        from openhtp.device.library_target import LibraryTarget  # with all its bindings

        return build_library_core(config, LibraryTarget(config.library, find_soc(config.soc)))
    from openhtp.engine.ort import OrtEngine  # a third of a second that only a device that computes must pay

    engine = OrtEngine(threads=config.threads, yield_points=config.yield_points)
    clock, resources = WallClock(), config.resources()
    at_once = resources.graphs_at_once

    def make_runner(jobs: dict[int, Job]) -> Runner:
        return SideBySideRunner(jobs, clock.now, at_once)

    return DeviceCore(
        scheduler=Scheduler(resources, policy_named(config.policy)),
        clock=clock,
        arch=find_soc(config.soc).arch,
        target=EmulatedChip(engine, find_soc(config.soc)),
        make_runner=make_runner,
        make_ledger=lambda: ledger_of(config),
        latency=SystemLatency(),
        device_id=config.device_id,
    )


def ledger_of(config: DeviceConfig) -> Ledger:
    """The memory that a client of the device can have."""
    soc = find_soc(config.soc)
    return Ledger(
        limit=SESSION_LIMIT_BYTES if config.domain_mb is None else config.domain_mb * MIB,
        most=soc.process_domains if config.process_domains is None else config.process_domains,
        vtcm_bytes=config.resources().vtcm_bytes,
    )


def build_library_core(config: DeviceConfig, target: LibraryTarget) -> DeviceCore:
    """A device that computes with the vendor's library, on the thread that calls it."""
    clock = WallClock()
    return DeviceCore(
        scheduler=Scheduler(config.resources(), policy_named(config.policy)),
        clock=clock,
        arch=find_soc(config.soc).arch,
        target=target,
        make_runner=lambda jobs: BesideRunner(jobs, clock.now, target.thread),
        make_ledger=lambda: ledger_of(config),
        library=target,
    )
