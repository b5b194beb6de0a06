"""A scheduler's events and actions as trace records."""

from __future__ import annotations

from openhtp.core.enumerations import Outcome
from openhtp.core.units import MIB
from openhtp.records.trace import (
    Granted,
    JobEnded,
    Queued,
    Released,
    TransferDirection,
    Transferred,
    YieldAsked,
)
from openhtp.sched.events import ClientAdded, Submitted
from openhtp.sched.recorder import ScheduleRecorder
from openhtp.sched.resources import DeviceResources
from openhtp.sched.scheduler import Scheduler
from openhtp.sched.timed import Pace
from openhtp.sched.virtual import VirtualLoop

TWO_CORES = DeviceResources(cores=2, hmx=1, hvx=1, vtcm_bytes=MIB)
WORK = Pace(step_ns=(100,), yield_every_ns=30, save_ns=5, wake_ns=3, restore_ns=7)


def loop_on(device, *clients):
    loop = VirtualLoop(Scheduler(device))
    for number, (priority, core) in enumerate(clients, 1):
        loop.at(ClientAdded(t=0, client=number, priority=priority, core=core, vtcm_bytes=MIB))
    return loop


def granted(t, job, *, core=1, resumed=False):
    return Granted(t, job, core, (0,), (0,), 0, MIB, resumed)


def preemption(loop):
    loop.at(Submitted(t=0, job=1, client=1), WORK)
    loop.at(Submitted(t=20, job=2, client=2, deadline_at=90), Pace(step_ns=(50,), eviction_ns=0))


def test_a_preemption():
    records = []
    loop = loop_on(TWO_CORES, (0, 1), (200, 1))
    loop.observe = ScheduleRecorder(records.append, loop.work_of)
    preemption(loop)
    loop.run_until()
    assert records == [
        Queued(0, 1, 1),
        granted(0, 1),
        Queued(20, 2, 2, 90),
        YieldAsked(20, 1),
        Transferred(30, 1, TransferDirection.SAVE, MIB, 35),
        Released(38, 1, True),
        granted(38, 2),
        Released(88, 2, False),
        # What is told of one moment stands in the scheduler's order.
        JobEnded(88, 2, Outcome.DONE),
        granted(88, 1, resumed=True),
        Transferred(88, 1, TransferDirection.RESTORE, MIB, 95),
        Released(165, 1, False),
        JobEnded(165, 1, Outcome.DONE),
    ]


def test_a_recording_that_begins_later_says_how_things_stand():
    records = []
    loop = loop_on(TWO_CORES, (0, 1), (200, 1), (200, 0))
    preemption(loop)
    loop.at(Submitted(t=30, job=3, client=2), WORK)
    loop.run_until(50)
    recorder = loop.observe = ScheduleRecorder(records.append, loop.work_of)
    recorder.begin(list(loop.scheduler.jobs.values()), 50)
    assert records == [
        Queued(0, 1, 1),
        Released(50, 1, True),
        Queued(20, 2, 2, 90),
        granted(50, 2),
        Queued(30, 3, 2),
    ]
    records.clear()
    loop.run_until()
    assert [record.job for record in records if isinstance(record, Granted) and record.resumed] == [1]
    assert sorted(record.job for record in records if isinstance(record, JobEnded)) == [1, 2, 3]
