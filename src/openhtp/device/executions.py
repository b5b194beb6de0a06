"""Executions on the device: taken from frames, run by the loop, reported when they end."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, InvalidHandle, QnnError, QueueFull
from openhtp.core.status import QNN_SUCCESS, Status
from openhtp.device.answers import unexpected
from openhtp.device.binding import bind_ports
from openhtp.device.clock import Clock
from openhtp.device.contexts import DeviceApp, DeviceGraph
from openhtp.device.jobs import Job, Reports
from openhtp.device.loop import Loop, SchedulerFailed
from openhtp.device.power import Power
from openhtp.device.recording import Recording
from openhtp.device.sessions import Session
from openhtp.engine.protocol import Run
from openhtp.records.profile import DeviceProfile, Pause
from openhtp.rpc import frames
from openhtp.rpc.channel import ProtocolError
from openhtp.sched.actions import AskYield, Grant, Outcome, Release
from openhtp.sched.events import AbortRequested, Submitted
from openhtp.sched.timed import Pace

log = logging.getLogger(__name__)

# Called for a session when the state of its executions is no longer known.
OnBroken = Callable[[Session, Exception], None]

_STATUS_OF: dict[Outcome, Status] = {
    Outcome.DONE: QNN_SUCCESS,
    Outcome.ABORTED: st.QNN_GRAPH_ERROR_ABORTED,
    Outcome.TIMED_OUT: st.QNN_GRAPH_ERROR_TIMED_OUT,
    Outcome.GONE: st.QNN_GRAPH_ERROR_INVALID_CONTEXT,
}

_DETAILED = 2
_MOST_STEPS = 4096  # in one profile


@dataclass(frozen=True, slots=True)
class BoundOrder:
    """An execution of a client in this process: a run on its own arrays instead of a frame that names memory."""

    client_job: int
    graph: DeviceGraph
    run: Run
    steps: int
    timeout_at: int = 0
    deadline_at: int = 0
    profile_level: int = 0
    waited: bool = False


class Executions:
    """The jobs under way, and the reactions to the loop's reports about them."""

    def __init__(self, clock: Clock, numbers: itertools.count[int]) -> None:
        self.clock = clock
        self.jobs: dict[int, Job] = {}
        self.loop: Loop  # set by the core, which puts the two together: each needs the other
        self.recording: Recording  # likewise
        self.power: Power  # likewise
        self.on_broken: OnBroken = _raise
        # Called before an execution is queued: those that were to need no queue come first.
        self.line_up: Callable[[], None] = _nothing
        # Called when none is under way any more.
        self.when_idle: Callable[[], None] = _nothing
        # Whether the end of an execution was reported to a client since the server last looked here.
        self.told = False
        self._numbers = numbers

    def execute(self, session: Session, outlet: Reports, frame: bytes) -> None:
        """Take an EXECUTE frame. An error in its content is reported as the execution's end."""
        self.line_up()
        if len(frame) < frames.EXECUTE_HEAD.size:
            raise ProtocolError(f"execute frame of {len(frame)} bytes")
        head = frames.EXECUTE_HEAD.unpack_from(frame)
        _, flags, count, number, batch, profile_level, client_job, timeout_at, deadline_at = head
        now = self.clock.now()
        if client_job in session.jobs:
            raise ProtocolError(f"job {client_job} is already under way")
        key = frame[frames.EXECUTE_HEAD.size :]
        cache_key = key if batch == 1 else key + batch.to_bytes(4, "little")
        graph = session.graphs.get(number)
        job: Job | None = None
        pace: Pace | None
        runs: list[Run]
        try:
            if graph is None:
                raise InvalidHandle("the graph was freed", st.QNN_GRAPH_ERROR_INVALID_CONTEXT)
            context = graph.context
            if context.pending >= context.queue_depth:
                # The client's library waits for a place; this is for clients that do not.
                raise QueueFull(f"{context.pending} executions are under way, as many as the queue is deep")
            if isinstance(graph, DeviceApp):
                pace, runs = graph.pace or _app_pace(key), []
            else:
                target, with_dims, pace = graph, bool(flags & frames.FLAG_DIMS), graph.pace

                def bind() -> list[Run]:
                    return bind_ports(target, session.memories, key, count, batch, with_dims=with_dims)

                runs = graph.take_runs(cache_key, bind) if graph.switch is None else []
            job = Job(next(self._numbers), client_job, session, outlet, graph, cache_key, runs, now, profile_level)
            job.pace, job.waited = pace, bool(flags & frames.FLAG_WAITED)
            steps = graph.steps * batch if pace is None else len(pace.step_ns)
            self._begin(job, steps, timeout_at, deadline_at)
            if graph.switch is not None:
                graph.switch.admit(job, bind)
        except SchedulerFailed:
            raise  # the client must go, and its jobs with it
        except Exception as error:
            self._refuse(job, session, outlet, client_job, error)

    def execute_handed(self, session: Session, outlet: Reports, frame: bytes) -> None:
        """Take an EXECUTE frame of a client in this process."""
        try:
            if session.closed:
                raise InvalidHandle("the device was freed", st.QNN_GRAPH_ERROR_INVALID_CONTEXT)
            self.execute(session, outlet, frame)
        except SchedulerFailed as error:
            log.exception("an execution of session %d", session.number)
            self.on_broken(session, error)
        except InvalidHandle as error:
            self._refuse(None, session, outlet, frames.read_head(frame).job, error)

    def execute_bound(self, session: Session, outlet: Reports, order: BoundOrder) -> None:
        """Take an execution that a client in this process has bound already, and perhaps begun."""
        self.line_up()
        job: Job | None = None
        try:
            graph = order.graph
            if session.closed or session.graphs.get(graph.number) is not graph:
                raise InvalidHandle("the graph was freed", st.QNN_GRAPH_ERROR_INVALID_CONTEXT)
            now, level = self.clock.now(), order.profile_level
            job = Job(next(self._numbers), order.client_job, session, outlet, graph, b"", [order.run], now, level)
            job.pace, job.waited = graph.pace, order.waited
            steps = order.steps if graph.pace is None else len(graph.pace.step_ns)
            self._begin(job, steps, order.timeout_at, order.deadline_at)
        except SchedulerFailed as error:
            log.exception("execution %d of session %d", order.client_job, session.number)
            self.on_broken(session, error)
        except Exception as error:
            self._refuse(job, session, outlet, order.client_job, error)

    def _begin(self, job: Job, steps: int, timeout_at: int, deadline_at: int) -> None:
        """Hand a complete job to the scheduler."""
        session, now = job.session, job.received_ns
        session.jobs[job.client_job] = self.jobs[job.number] = job
        job.graph.context.pending += 1
        session.executions += 1
        self.loop.handle(
            Submitted(
                t=now,
                job=job.number,
                client=job.graph.number,
                steps=steps,
                timeout_at=timeout_at or None,
                deadline_at=deadline_at or None,
            )
        )
        if session.staged or job.profile_level >= _DETAILED:
            self._power_up(job, now)

    def _refuse(
        self, job: Job | None, session: Session, outlet: Reports, client_job: int, error: Exception
    ) -> None:
        """Report, as the execution's end, that it could not be taken."""
        if job is not None:
            self._forget(job)
        refusal = error if isinstance(error, QnnError) else unexpected("taking an execution", error)
        if refusal is not error:
            log.error("execution %d of session %d", client_job, session.number, exc_info=error)
        now = self.clock.now()
        record = frames.Record.of_moment(client_job, refusal.code, now)
        outlet.report_failure(record, refusal.message)

    def cancel(self, session: Session, client_job: int) -> None:
        """End a job early; a job that is already over is ignored."""
        self.line_up()
        job = session.jobs.get(client_job)
        if job is not None:
            job.leave_queue()  # its client may think it gone, and have sent the next one
            self.loop.end_early(AbortRequested(t=self.clock.now(), job=job.number), job.number)

    def pace_of(self, number: int) -> Pace | None:
        """How long a job takes, if its duration is prescribed rather than the result of computing."""
        job = self.jobs.get(number)
        return None if job is None else job.pace

    def forget_all(self, session: Session) -> None:
        """A session has ended: ignore what the scheduler may still say about its jobs."""
        for job in list(session.jobs.values()):
            self._forget(job)

    def _forget(self, job: Job) -> None:
        self.jobs.pop(job.number, None)
        job.session.jobs.pop(job.client_job, None)
        job.leave_queue()

    # What the loop reports

    def finished(self, number: int, outcome: Outcome, t: int) -> None:
        """A job is over: tell its client."""
        job = self.jobs.pop(number, None)
        if job is None:
            return  # its session had to go at once
        session, failure = job.session, job.failure
        self.told = True
        self.power.idle_since[job.graph.core] = t
        del session.jobs[job.client_job]
        if session.staged and not session.jobs:
            self.power.stage(session.number, t, busy=session.busy)
        if job.counted:
            job.counted = False
            job.graph.context.pending -= 1
        try:
            status = _STATUS_OF[outcome]
            if failure is not None and outcome is not Outcome.GONE:
                status = failure.status
            record = frames.Record(
                job.client_job,
                status.code,
                job.yields,
                job.received_ns,
                t if job.started_ns is None else job.started_ns,
                t,
                job.release_ns,
                job.paused_ns,
                job.restore_ns,
            )
            if failure is None and outcome is not Outcome.GONE and job.key and not job.stopped:
                job.graph.give_back(job.key, job.runs)
            if session.closed:
                return
            if failure is not None:
                job.outlet.report_failure(record, failure.message)
            else:
                wants_more = job.profile_level >= _DETAILED or (job.graph.switch and job.profile_level)
                job.outlet.report(record, self._profile(job) if wants_more else b"")
        except Exception as error:
            log.exception("the end of job %d", number)
            self._report_anyway(job, error)
        finally:
            if job.graph.switch is not None:
                job.graph.switch.ended(job)
            if not self.jobs:
                self.when_idle()

    def _report_anyway(self, job: Job, error: Exception) -> None:
        """Reporting an end failed. Report that failure instead; if even that fails, the client has to go."""
        failure = unexpected("reporting the execution's end", error)
        try:
            record = frames.Record(job.client_job, failure.code)
            job.outlet.report_failure(record, failure.message)
        except Exception as second_error:
            log.exception("the end of job %d, again", job.number)
            self.on_broken(job.session, second_error)

    def granted(self, action: Grant, t: int) -> None:
        """A job got its resources, for the first time or again."""
        job = self.jobs.get(action.job)
        if job is None:
            return
        if job.pause_started_ns:
            job.paused_ns += t - job.pause_started_ns
            job.pause_started_ns = 0
            restored = t
            if job.pace is None:
                job.restore_began_ns = t
            else:
                job.restore_ns += job.pace.restore_ns
                restored += job.pace.restore_ns
            if job.pauses:
                job.pauses[-1] = msgspec.structs.replace(job.pauses[-1], granted_ns=t, restored_ns=restored)
        else:
            job.started_ns = t
            job.graph.started = True
            if not job.waited:
                job.graph.queued_started = True
            if job.powered is not None:  # it had to wait, and clocks may have changed meanwhile
                job.powered = job.powered[0], self.power.clocks(action.core, t)

    def released(self, action: Release, t: int) -> None:
        """A job gave its resources back; if it was paused, it waits for them from now on."""
        job = self.jobs.get(action.job)
        if job is not None and action.paused:
            job.yields += 1
            job.pause_started_ns = t
            if job.profile_level >= _DETAILED:
                job.pauses.append(Pause(len(job.step_times_ns), job.yield_asked_ns or t, t, t, t))
            if job.yield_asked_ns:
                job.release_ns += t - job.yield_asked_ns
                job.yield_asked_ns = 0

    def yield_asked(self, action: AskYield, t: int) -> None:
        """A job was asked to make room."""
        job = self.jobs.get(action.job)
        if job is not None:
            job.yield_asked_ns = t

    def failed(self, number: int, error: Exception) -> None:
        """The device's own code broke while working for a job: the job ends with that error."""
        job = self.jobs.get(number)
        if job is not None and job.failure is None:
            job.failure = unexpected("the execution", error)

    def broken(self, number: int, error: Exception) -> None:
        """The state of a job is no longer known: its client must go."""
        job = self.jobs.get(number)
        if job is not None:
            self.on_broken(job.session, error)

    def step_ended(self, number: int, step: int, start_ns: int, end_ns: int) -> None:
        """A step was computed; a step that failed ends its job."""
        job = self.jobs.get(number)
        if job is None:
            return
        if job.restore_began_ns:
            job.restore_ns += max(0, start_ns - job.restore_began_ns)
            job.restore_began_ns = 0
            if job.pauses:
                job.pauses[-1] = msgspec.structs.replace(job.pauses[-1], restored_ns=start_ns)
        if job.profile_level >= _DETAILED:
            job.step_times_ns.append(end_ns - start_ns)
        if self.recording.enabled:
            self.recording.step(number, step, start_ns, end_ns)
        fault = job.graph.fault
        if fault is not None and fault[0] == step:
            job.graph.fault = None
            job.failure = fault[1]
        if job.failure is not None:
            self.loop.handle(AbortRequested(t=self.clock.now(), job=number))

    def must_know_each_step(self, number: int) -> bool:
        """Whether somebody looks at the steps of a job, or one of them is to fail."""
        job = self.jobs.get(number)
        return (
            job is None
            or job.profile_level >= _DETAILED
            or self.recording.enabled
            or job.graph.fault is not None
            or job.failure is not None
        )

    def _power_up(self, job: Job, now: int) -> None:
        """Raise the power votes of a job's client; the job's profile tells how long that takes."""
        power, core, profiled = self.power, job.graph.core, job.profile_level >= _DETAILED
        power_up_ns = 0
        if profiled:
            in_use = any(other.graph.core == core for other in self.jobs.values() if other is not job)
            power_up_ns = power.power_up_ns(core, now, in_use=in_use)
        if job.session.staged:
            power.stage(job.session.number, now, busy=True)
        if profiled:
            job.powered = power_up_ns, power.clocks(core, now)

    def _profile(self, job: Job) -> bytes:
        head = frames.PROFILE_HEAD.pack(frames.PROFILE, 0, 0, job.client_job)
        switch = job.graph.switch
        switch_ns = 0 if switch is None else switch.switch_ns(job)
        profile = DeviceProfile(job.step_times_ns[:_MOST_STEPS], job.pauses[:_MOST_STEPS], switch_ns)
        if job.powered is not None:
            profile.power_up_ns, profile.clocks = job.powered[0], job.powered[1].ratios
        return head + msgspec.msgpack.encode(profile)


def _nothing() -> None:
    """Do nothing."""


def _raise(session: Session, error: Exception) -> None:
    raise error


def _app_pace(key: bytes) -> Pace:
    """How long an app holds its resources; it gives them up at once when asked."""
    if len(key) != frames.APP_RUN.size:
        raise InvalidArgument("an app's run needs its length", st.QNN_GRAPH_ERROR_INVALID_ARGUMENT)
    run_ns, eviction_ns = frames.APP_RUN.unpack(key)
    return Pace(step_ns=(run_ns,), eviction_ns=eviction_ns).on_a_wall_clock()
