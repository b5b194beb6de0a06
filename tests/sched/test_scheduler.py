"""Events in, actions out. No clock, no thread, no fixture."""

from __future__ import annotations

import pytest
from scheduler_tables import ONE, grant, run, scheduler
from tests.sched.replaying import replay

from openhtp.core.errors import InternalError, InvalidArgument, InvalidHandle, NameClash, OutOfMemory
from openhtp.core.units import MIB
from openhtp.sched.actions import ArmTimer, AskYield, Finish, Outcome, Release, Start
from openhtp.sched.events import (
    AbortRequested,
    ClientAdded,
    ClientExpelled,
    ClientRemoved,
    ContextPriorityChanged,
    HoldChanged,
    PriorityChanged,
    StepDone,
    StepYielded,
    Submitted,
    TimerFired,
)
from openhtp.sched.jobs import LEGAL, JobState
from openhtp.sched.resources import DeviceResources
from openhtp.sched.scheduler import Scheduler


def test_steps_run_one_after_the_other():
    run(
        scheduler(100),
        (Submitted(t=0, job=1, client=1, steps=2), [grant(1), Start(1, 0, 1)]),
        (StepDone(t=5, job=1, token=1), [Start(1, 1, 2)]),
        (StepDone(t=9, job=1, token=2), [Release(1, False), Finish(1, Outcome.DONE)]),
    )


def test_steps_that_nobody_waits_for_are_told_together():
    s = scheduler(0, 200)
    s.handle(Submitted(t=0, job=1, client=1, steps=4))
    assert [s.goes_on(1, 1, steps) for steps in (1, 3, 4)] == [True, True, False]
    assert not s.goes_on(1, 2, 1)  # another start
    assert not s.goes_on(7, 1, 1)  # nobody
    run(s, (StepDone(t=5, job=1, token=1, steps=2), [Start(1, 2, 2)]))
    s.handle(Submitted(t=6, job=2, client=2))
    assert not s.goes_on(1, 2, 1)  # it was asked to yield
    run(s, (StepDone(t=7, job=1, token=2), [Release(1, True), grant(2), Start(2, 0, 3)]))
    assert not s.goes_on(1, 2, 1)


def test_a_job_that_is_to_end_does_not_go_on():
    s = scheduler(0)
    s.handle(Submitted(t=0, job=1, client=1, steps=4))
    s.handle(AbortRequested(t=1, job=1))
    assert not s.goes_on(1, 1, 1)


def test_a_higher_one_overtakes_at_the_step_end():
    run(
        scheduler(0, 200),
        (Submitted(t=0, job=1, client=1, steps=2), [grant(1), Start(1, 0, 1)]),
        (Submitted(t=1, job=2, client=2), [AskYield(1, 1)]),
        (StepDone(t=5, job=1, token=1), [Release(1, True), grant(2), Start(2, 0, 2)]),
        (
            StepDone(t=6, job=2, token=2),
            [Release(2, False), Finish(2, Outcome.DONE), grant(1), Start(1, 1, 3)],
        ),
        (StepDone(t=6, job=2, token=2), []),  # an old token is ignored
        (StepDone(t=9, job=1, token=3), [Release(1, False), Finish(1, Outcome.DONE)]),
    )


def test_a_step_left_in_the_middle_is_started_again():
    run(
        scheduler(0, 200),
        (Submitted(t=0, job=1, client=1, steps=1), [grant(1), Start(1, 0, 1)]),
        (Submitted(t=1, job=2, client=2), [AskYield(1, 1)]),
        (StepYielded(t=5, job=1, token=1), [Release(1, True), grant(2), Start(2, 0, 2)]),
        (StepDone(t=6, job=1, token=1), []),
        (
            StepDone(t=7, job=2, token=2),
            [Release(2, False), Finish(2, Outcome.DONE), grant(1), Start(1, 0, 3)],
        ),
    )


def test_nobody_is_asked_twice():
    run(
        scheduler(0, 200, 300),
        (Submitted(t=0, job=1, client=1), [grant(1), Start(1, 0, 1)]),
        (Submitted(t=1, job=2, client=2), [AskYield(1, 1)]),
        (Submitted(t=2, job=3, client=3), []),
        (StepYielded(t=5, job=1, token=1), [Release(1, True), grant(3), Start(3, 0, 2)]),
    )


def test_equal_priority_is_first_come_first_served():
    s = scheduler(100, 100, 100)
    s.handle(Submitted(t=0, job=1, client=1))
    for job, client in ((2, 3), (3, 2), (4, 1)):
        assert s.handle(Submitted(t=1, job=job, client=client)) == []
    order = []
    token = 1
    for t, job in enumerate((1, 2, 3, 4), 2):
        actions = s.handle(StepDone(t=t, job=job, token=token))
        order.append(actions[1].job)
        token += 1
    assert order == [1, 2, 3, 4]


def test_timeout_of_a_waiting_and_of_a_running_job():
    run(
        scheduler(100, 100),
        (
            Submitted(t=0, job=1, client=1, steps=2, timeout_at=10),
            [ArmTimer(1, 10), grant(1), Start(1, 0, 1)],
        ),
        (Submitted(t=0, job=2, client=2, timeout_at=5), [ArmTimer(2, 5)]),
        (TimerFired(t=5, timer=2), [Finish(2, Outcome.TIMED_OUT)]),
        (TimerFired(t=10, timer=1), []),
        (StepDone(t=12, job=1, token=1), [Release(1, False), Finish(1, Outcome.TIMED_OUT)]),
        (TimerFired(t=13, timer=1), []),
    )


def test_abort_in_every_state():
    run(
        scheduler(0, 0, 200),
        (Submitted(t=0, job=1, client=1, steps=3), [grant(1), Start(1, 0, 1)]),
        (Submitted(t=0, job=2, client=1), []),  # queued behind its own client's first
        (AbortRequested(t=1, job=2), [Finish(2, Outcome.ABORTED)]),
        (Submitted(t=1, job=3, client=2), []),  # waiting
        (AbortRequested(t=1, job=3), [Finish(3, Outcome.ABORTED)]),
        (Submitted(t=2, job=4, client=3), [AskYield(1, 1)]),
        (StepDone(t=3, job=1, token=1), [Release(1, True), grant(4), Start(4, 0, 2)]),
        (AbortRequested(t=4, job=1), [Finish(1, Outcome.ABORTED)]),  # paused: it holds nothing
        (AbortRequested(t=4, job=4), []),  # running
        (AbortRequested(t=4, job=99), []),  # long over, or never was
        (StepDone(t=6, job=4, token=2), [Release(4, False), Finish(4, Outcome.ABORTED)]),
    )


def test_the_first_reason_to_end_stands():
    run(
        scheduler(100),
        (Submitted(t=0, job=1, client=1, timeout_at=5), [ArmTimer(1, 5), grant(1), Start(1, 0, 1)]),
        (AbortRequested(t=4, job=1), []),
        (TimerFired(t=5, timer=1), []),
        (StepDone(t=6, job=1, token=1), [Release(1, False), Finish(1, Outcome.ABORTED)]),
    )


def test_a_removed_client_ends_all_its_jobs():
    s = scheduler(100, 100)
    run(
        s,
        (Submitted(t=0, job=1, client=1, steps=2), [grant(1), Start(1, 0, 1)]),
        (Submitted(t=0, job=2, client=1), []),
        (Submitted(t=0, job=3, client=1), []),
        (Submitted(t=0, job=4, client=2), []),
        (ClientRemoved(t=1, client=1), [Finish(3, Outcome.GONE), Finish(2, Outcome.GONE)]),
        (
            StepDone(t=2, job=1, token=1),
            [Release(1, False), Finish(1, Outcome.GONE), grant(4), Start(4, 0, 2)],
        ),
    )
    assert list(s.clients) == [2]
    with pytest.raises(InvalidHandle):
        s.handle(Submitted(t=3, job=5, client=1))


def test_a_priority_orders_what_waits_anew():
    run(
        scheduler(100, 100, 100),
        (Submitted(t=0, job=1, client=1), [grant(1), Start(1, 0, 1)]),
        (Submitted(t=1, job=2, client=2), []),
        (Submitted(t=2, job=3, client=3), []),
        (PriorityChanged(t=3, client=3, priority=50), []),
        (PriorityChanged(t=3, client=2, priority=0), []),  # now behind client 3
        (
            StepDone(t=4, job=1, token=1),
            [Release(1, False), Finish(1, Outcome.DONE), grant(3), Start(3, 0, 2)],
        ),
    )


def test_raising_a_waiting_client_pre_empts():
    run(
        scheduler(100, 100),
        (Submitted(t=0, job=1, client=1), [grant(1), Start(1, 0, 1)]),
        (Submitted(t=1, job=2, client=2), []),
        (PriorityChanged(t=3, client=2, priority=200), [AskYield(1, 1)]),
    )


def test_lowering_what_runs_lets_others_by_and_raising_it_again_brings_it_back():
    run(
        scheduler(100, 100),
        (Submitted(t=0, job=1, client=1, steps=3), [grant(1), Start(1, 0, 1)]),
        (Submitted(t=1, job=2, client=2, steps=2), []),
        (PriorityChanged(t=2, client=1, priority=0), [AskYield(1, 1)]),
        (StepDone(t=3, job=1, token=1), [Release(1, True), grant(2), Start(2, 0, 2)]),
        (PriorityChanged(t=4, client=1, priority=200), [AskYield(2, 2)]),  # of one that is paused
        (StepDone(t=5, job=2, token=2), [Release(2, True), grant(1), Start(1, 1, 3)]),
    )


def test_a_context_changes_all_its_clients():
    s = scheduler(100, 100, 100)
    s.handle(Submitted(t=0, job=1, client=1))
    assert s.handle(ContextPriorityChanged(t=1, clients=(2, 1), priority=0)) == []
    assert [s.clients[number].demand.priority for number in (1, 2, 3)] == [0, 0, 100]
    s.check()


def test_cores_are_independent():
    device = DeviceResources(cores=2, hmx=1, hvx=1, vtcm_bytes=MIB)
    s = Scheduler(device)
    for client in (0, 1):
        s.handle(ClientAdded(t=0, client=client, priority=100, core=client, vtcm_bytes=MIB))
    run(
        s,
        (Submitted(t=0, job=1, client=0), [grant(1), Start(1, 0, 1)]),
        (Submitted(t=0, job=2, client=1), [grant(2, core=1), Start(2, 0, 2)]),
    )


REFUSED = [
    (ClientAdded(t=0, client=9, priority=0, vtcm_bytes=2 * MIB), OutOfMemory, "2 MiB of VTCM"),
    (ClientAdded(t=0, client=9, priority=0, hmx=2), InvalidArgument, "2 HMX units"),
    (ClientAdded(t=0, client=9, priority=0, hvx=-1), InvalidArgument, "-1 HVX threads"),
    (ClientAdded(t=0, client=9, priority=0, core=1), InvalidArgument, "core 1 of 1"),
    (ClientAdded(t=0, client=9, priority=501), InvalidArgument, "501"),
    (ClientAdded(t=0, client=1, priority=0), NameClash, "client 1"),
    (ClientRemoved(t=0, client=9), InvalidHandle, "client 9"),
    (PriorityChanged(t=0, client=9, priority=0), InvalidHandle, "client 9"),
    (Submitted(t=0, job=2, client=9), InvalidHandle, "client 9"),
    (Submitted(t=0, job=1, client=1), InvalidArgument, "job 1"),
    (Submitted(t=0, job=2, client=1, steps=0), InvalidArgument, "0 steps"),
]


@pytest.mark.parametrize(("event", "error", "words"), REFUSED, ids=lambda value: type(value).__name__)
def test_a_refused_event_changes_nothing(event, error, words):
    s = scheduler(100)
    s.handle(Submitted(t=0, job=1, client=1))
    before = (sorted(s.clients), sorted(s.jobs), s.jobs[1].state)
    with pytest.raises(error, match=words):
        s.handle(event)
    s.check()
    assert (sorted(s.clients), sorted(s.jobs), s.jobs[1].state) == before
    assert s.handle(StepDone(t=1, job=1, token=1))[-1] == Finish(1, Outcome.DONE)


def test_time_does_not_run_backwards():
    s = scheduler(100)
    s.handle(Submitted(t=10, job=1, client=1))
    with pytest.raises(InternalError, match="backwards"):
        s.handle(StepDone(t=9, job=1, token=1))


def test_an_engine_that_yields_unasked_is_a_bug():
    s = scheduler(100)
    s.handle(Submitted(t=0, job=1, client=1))
    with pytest.raises(InternalError, match="without having been asked"):
        s.handle(StepYielded(t=1, job=1, token=1))


def test_a_log_replays_and_a_changed_one_does_not():
    s = scheduler()
    events = [
        ClientAdded(t=0, client=1, priority=0, vtcm_bytes=MIB),
        Submitted(t=0, job=1, client=1, timeout_at=9),
        AbortRequested(t=1, job=1),
        StepDone(t=2, job=1, token=1),
    ]
    log = [(event, s.handle(event)) for event in events]
    assert replay(log, ONE) is None
    log[1][1].pop()
    assert replay(log, ONE) == 1


def test_the_table_of_states_is_complete():
    assert len(LEGAL) == len(JobState)
    assert all(JobState.ENDED in LEGAL[state] for state in JobState if state is not JobState.ENDED)
    assert not LEGAL[JobState.ENDED]
    job = scheduler(100).handle(Submitted(t=0, job=1, client=1))
    assert job  # a job runs, so QUEUED -> WAITING -> RUNNING was walked


@pytest.mark.parametrize("before", JobState)
@pytest.mark.parametrize("after", JobState)
def test_only_the_tables_changes_of_state_are_made(before, after):
    s = scheduler(100)
    s.handle(Submitted(t=0, job=1, client=1))
    job = s.jobs[1]
    job.state = before
    if after in LEGAL[before]:
        job.move(after)
        assert job.state is after
    else:
        with pytest.raises(InternalError, match=f"from {before.name} to {after.name}"):
            job.move(after)
        assert job.state is before


def test_removing_a_client_looks_at_each_of_its_jobs_once():
    s = scheduler(100, 100)
    count = 20_000
    for job in range(1, count + 1):
        s.handle(Submitted(t=0, job=job, client=1))
    looked = 0

    class Queue(type(s.clients[1].queue)):
        def remove(self, job):
            nonlocal looked
            looked += self.index(job)
            super().remove(job)

    s.clients[1].queue = Queue(s.clients[1].queue)
    actions = s.handle(ClientRemoved(t=1, client=1))
    assert len(actions) == count - 1  # the running one ends with its step
    assert looked == 0
    assert s.handle(StepDone(t=2, job=1, token=1)) == [Release(1, False), Finish(1, Outcome.GONE)]
    s.check()


def test_jobs_of_a_held_client_wait_without_being_in_the_way():
    run(
        scheduler(100, 200),
        (HoldChanged(t=0, client=2, held=True), []),
        (Submitted(t=1, job=1, client=2, timeout_at=5), [ArmTimer(1, 5)]),
        (Submitted(t=1, job=2, client=2), []),
        (Submitted(t=1, job=3, client=2), []),
        (PriorityChanged(t=2, client=2, priority=150), []),
        (Submitted(t=2, job=4, client=1), [grant(4), Start(4, 0, 1)]),
        (TimerFired(t=5, timer=1), [Finish(1, Outcome.TIMED_OUT)]),
        (AbortRequested(t=5, job=2), [Finish(2, Outcome.ABORTED)]),
        (StepDone(t=6, job=4, token=1), [Release(4, False), Finish(4, Outcome.DONE)]),
        (HoldChanged(t=7, client=2, held=False), [grant(3), Start(3, 0, 2)]),
        (HoldChanged(t=8, client=2, held=True), []),
        (Submitted(t=8, job=5, client=2), []),
        (StepDone(t=9, job=3, token=2), [Release(3, False), Finish(3, Outcome.DONE)]),
        (ClientRemoved(t=9, client=2), [Finish(5, Outcome.GONE)]),
    )


@pytest.mark.parametrize("broken", ["nothing", "queue", "jobs", "holders"])
def test_a_client_is_expelled_whatever_is_left_of_it(broken):
    s = scheduler(100, 100)
    s.handle(Submitted(t=0, job=1, client=1))
    s.handle(Submitted(t=0, job=2, client=1))
    s.handle(Submitted(t=0, job=3, client=2))
    if broken == "queue":
        s.clients[1].queue.clear()
    elif broken == "jobs":
        del s.jobs[1]
    elif broken == "holders":
        s.cores[0].holders.clear()
    actions = s.handle(ClientExpelled(t=1, client=1))
    assert actions[-2:] == [grant(3), Start(3, 0, 2)]
    assert Finish(2, Outcome.GONE) in actions
    s.check()
    assert s.handle(StepDone(t=2, job=1, token=1)) == []
    assert list(s.jobs) == [3]
