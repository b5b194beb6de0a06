"""Run a scenario on the virtual clock and count the clients' figures. Everything here is modelled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from openhtp.planning.native import BeyondTheCore, in_core
from openhtp.planning.scenario import Scenario
from openhtp.planning.sources import PlannedRequest, Traffic
from openhtp.planning.switching import SwitchingBoard
from openhtp.planning.voting import Clockwork
from openhtp.records.phases import Phases
from openhtp.records.trace import ClocksChanged
from openhtp.sched.actions import Finish, Outcome
from openhtp.sched.recorder import ScheduleRecorder
from openhtp.sched.scheduler import Scheduler
from openhtp.sched.virtual import JobRun, Log, VirtualLoop

_DONE = Outcome.DONE  # looked up once: a member of an enum costs more to find than to compare


@dataclass(slots=True)
class ClientFigures:
    """What one client saw; latencies are of finished runs, in order of their ends."""

    latencies_ns: list[int] = field(default_factory=list)
    waits_total_ns: int = 0
    waits_max_ns: int = 0
    yields: int = 0
    missed: int = 0
    not_done: int = 0
    busy_ns: int = 0
    # How often its graph was loaded before a run, and how long that took: only where graphs are switched.
    loads: int = 0
    load_ns: int = 0
    worst_ns: int = -1
    worst_job: int | None = None
    worst_ended_ns: int = 0
    # Of language models: from the request to the first token, and tokens with the time that they took.
    first_tokens_ns: list[int] = field(default_factory=list)
    tokens: int = 0
    writing_ns: int = 0


@dataclass(slots=True)
class PlanRun:
    """The outcome of one simulation."""

    scenario: Scenario
    clients: list[ClientFigures]
    end_ns: int = 0
    events: int = 0
    phases: Phases | None = None
    log: Log = field(default_factory=list)

    @property
    def missed(self) -> int:
        """Missed deadlines of all clients."""
        return sum(client.missed for client in self.clients)

    def utilisation(self) -> dict[str, float]:
        """Busy share of HMX, HVX and VTCM over the whole run, 0 to 1."""
        device = self.scenario.device
        time = max(1, self.end_ns) * device.cores
        pairs = list(zip(self.scenario.clients, self.clients, strict=True))

        def share(held_ns: int, units: int) -> float:
            return held_ns / (time * units) if units else 0.0

        return {
            "hmx": share(sum(figures.busy_ns * client.hmx for client, figures in pairs), device.hmx),
            "hvx": share(sum(figures.busy_ns * client.hvx for client, figures in pairs), device.hvx),
            "vtcm": share(sum(f.busy_ns * client.vtcm_bytes for client, f in pairs), device.vtcm_bytes),
        }


class _Tally:
    """Counts the runs that ended, and notifies the traffic."""

    def __init__(self, run: PlanRun) -> None:
        self.run = run
        self.traffic: Traffic | None = None
        self.boards: dict[int, SwitchingBoard] = {}
        self.clockwork: Clockwork | None = None
        self._figures = run.clients
        self._deadlines = [client.deadline_ns for client in run.scenario.clients]

    def finished(self, finish: Finish, job: JobRun, t: int) -> None:
        asked: PlannedRequest = job.tag
        client = asked.client
        figures = self._figures[client]
        latency = t - asked.t
        busy_ns = job.held_ns
        self.run.end_ns = t
        figures.busy_ns += busy_ns
        figures.yields += job.yields
        done = finish.outcome is _DONE
        if done:
            if latency > figures.worst_ns:
                figures.worst_ns = latency
                figures.worst_job = finish.job
                figures.worst_ended_ns = t
            figures.latencies_ns.append(latency)
            wait = latency - busy_ns
            figures.waits_total_ns += wait
            if wait > figures.waits_max_ns:
                figures.waits_max_ns = wait
        else:
            figures.not_done += 1
        deadline = self._deadlines[client]
        if deadline is not None and (latency > deadline or not done):
            figures.missed += 1
        if asked.source.talk is not None:
            self._count_tokens(asked, figures, t)
        if self.boards and client in self.boards:
            self.boards[client].ended(finish.job, t)
        if self.clockwork is not None:
            self.clockwork.ended(client, finish.job, t)
        assert self.traffic is not None
        self.traffic.finished(asked, t)

    def _count_tokens(self, asked: PlannedRequest, figures: ClientFigures, t: int) -> None:
        if asked.reads_last:
            asked.first_token = t
            figures.first_tokens_ns.append(t - asked.began)
        if asked.writes_last and asked.first_token:
            figures.tokens += asked.tokens - 1
            figures.writing_ns += t - asked.first_token


def _unheard(changed: ClocksChanged) -> None:
    """Changes of clocks are not recorded."""


Progress = Callable[[float], None]
"""Called from time to time with the part of the scenario, 0 to 1, that is done."""
_REPORTS = 100


def simulate(
    scenario: Scenario,
    *,
    phases: Phases | None = None,
    keep_log: bool = False,
    progress: Progress | None = None,
) -> PlanRun:
    """Run the scenario to its end: sources stop at its duration, and requests made before are finished.

    ``phases`` gets a record of everything that happens. Without it and the log, the C core plays what it can.
    """
    run = None
    if phases is None and not keep_log:
        run = _simulate_in_core(scenario, progress)
    return run or _simulate_in_python(scenario, phases, keep_log, progress)


def _simulate_in_core(scenario: Scenario, progress: Progress | None) -> PlanRun | None:
    with in_core(scenario) as plan:
        if plan is None:
            return None
        try:
            _run_in_parts(plan.run_until, scenario, progress)
        except BeyondTheCore:
            return None
        figures = [ClientFigures(**plan.figures(number)) for number in range(len(scenario.clients))]
        events, end_ns = plan.totals()
    return PlanRun(scenario=scenario, clients=figures, end_ns=end_ns, events=events)


def _run_in_parts(
    run_until: Callable[[int | None], object], scenario: Scenario, progress: Progress | None
) -> None:
    if progress is not None and scenario.duration_ns is not None:
        for part in range(1, _REPORTS + 1):
            run_until(scenario.duration_ns * part // _REPORTS)
            progress(part / _REPORTS)
    run_until(None)


def _simulate_in_python(
    scenario: Scenario, phases: Phases | None, keep_log: bool, progress: Progress | None
) -> PlanRun:
    run = PlanRun(scenario=scenario, clients=[ClientFigures() for _ in scenario.clients], phases=phases)
    tally = _Tally(run)
    scheduler = Scheduler(scenario.device, scenario.policy)
    loop = VirtualLoop(scheduler, keep_log=keep_log, finished=tally.finished)
    if phases is not None:
        loop.observe = ScheduleRecorder(phases.add, loop.work_of)
    for added in scenario.introductions():
        loop.at(added)
    boards = [SwitchingBoard(scenario, switched, loop) for switched in scenario.switching]
    tally.boards = {number: board for board in boards for number in board.loads}
    if scenario.has_votes:
        tally.clockwork = Clockwork(scenario, loop, _unheard if phases is None else phases.add)
    tally.traffic = Traffic(scenario, loop, tally.boards, tally.clockwork)
    _run_in_parts(loop.run_until, scenario, progress)
    run.events = loop.handled
    run.log = loop.log
    if phases is not None:
        phases.close(run.end_ns)
    for switched, board in tally.boards.items():
        run.clients[switched].loads = board.loads[switched]
        run.clients[switched].load_ns = board.load_times_ns[switched]
    return run
