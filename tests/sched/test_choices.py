"""Who is chosen: whom to ask to yield, who may fill a gap, and what the policies say."""

from __future__ import annotations

import pytest
from scheduler_tables import scheduler

from openhtp.core.enumerations import Priority
from openhtp.core.errors import InvalidArgument
from openhtp.core.units import MIB
from openhtp.sched.actions import AskYield, Start
from openhtp.sched.events import (
    ClientAdded,
    ClientKind,
    StepDone,
    StepYielded,
    Submitted,
)
from openhtp.sched.policy import EarliestDeadline, Fair, policy_named
from openhtp.sched.resources import DeviceResources
from openhtp.sched.scheduler import Scheduler


def test_lower_jobs_fill_a_gap_but_do_not_take_what_is_claimed():
    device = DeviceResources(hmx=1, hvx=2, vtcm_bytes=4 * MIB)
    s = Scheduler(device)
    kinds = (ClientKind.GRAPH, ClientKind.GRAPH, ClientKind.APP)
    for client, (kind, priority) in enumerate(zip(kinds, (0, 200, 0), strict=True), 1):
        graph = kind is ClientKind.GRAPH
        s.handle(
            ClientAdded(
                t=0,
                client=client,
                priority=priority,
                kind=kind,
                hmx=int(graph),
                hvx=1 if client != 2 else 2,
                vtcm_bytes=MIB * (2 if graph else 1),
            )
        )
    s.handle(Submitted(t=0, job=1, client=1))
    assert s.handle(Submitted(t=1, job=2, client=2)) == [AskYield(1, 1)]
    # The app would fit beside job 1, but job 2 is about to take both HVX threads.
    assert s.handle(Submitted(t=2, job=3, client=3)) == []
    s.check()


def test_one_eviction_is_preferred_to_two_lower_ones():
    s = Scheduler(DeviceResources(hmx=1, hvx=4, vtcm_bytes=4 * MIB))
    for client, hvx, priority in ((1, 1, 0), (2, 1, 0), (3, 2, 50), (4, 2, 200)):
        app = ClientAdded(t=0, client=client, priority=priority, kind=ClientKind.APP, hmx=0, hvx=hvx)
        s.handle(app)
    for job in (1, 2, 3):
        s.handle(Submitted(t=0, job=job, client=job))
    assert s.handle(Submitted(t=1, job=4, client=4)) == [AskYield(3, 3)]
    s.check()


def test_the_least_urgent_of_several_is_asked():
    s = Scheduler(DeviceResources(hmx=1, hvx=2, vtcm_bytes=4 * MIB))
    for client, priority in ((1, 50), (2, 0), (3, 200)):
        s.handle(ClientAdded(t=0, client=client, priority=priority, kind=ClientKind.APP, hmx=0))
    s.handle(Submitted(t=0, job=1, client=1))
    s.handle(Submitted(t=0, job=2, client=2))
    assert s.handle(Submitted(t=1, job=3, client=3)) == [AskYield(2, 2)]


def test_equals_do_not_overtake_one_that_needs_more():
    device = DeviceResources(hmx=1, hvx=2, vtcm_bytes=4 * MIB)
    s = Scheduler(device)
    for client, hvx in ((1, 1), (2, 2), (3, 1)):
        s.handle(ClientAdded(t=0, client=client, priority=100, kind=ClientKind.APP, hmx=0, hvx=hvx))
    s.handle(Submitted(t=0, job=1, client=1))
    assert s.handle(Submitted(t=1, job=2, client=2)) == []
    assert s.handle(Submitted(t=2, job=3, client=3)) == []  # or job 2 could wait for ever
    assert s.handle(StepDone(t=3, job=1, token=1))[2].job == 2


def test_edf_goes_by_deadline_and_leaves_priority_for_the_rest():
    s = scheduler(500, 0, 100, policy=EarliestDeadline())
    s.handle(Submitted(t=0, job=1, client=1))
    assert s.handle(Submitted(t=1, job=2, client=2, deadline_at=100)) == [AskYield(1, 1)]
    assert s.handle(Submitted(t=1, job=3, client=3, deadline_at=50)) == []
    assert s.handle(StepYielded(t=2, job=1, token=1))[-1] == Start(3, 0, 2)
    assert s.handle(StepDone(t=3, job=3, token=2))[-1] == Start(2, 0, 3)


def test_fair_lets_a_higher_one_overtake_only_within_its_head_start():
    # low is four levels below high: a head start of four windows.
    s = scheduler(Priority.LOW, Priority.HIGH, policy=Fair(window_ns=10))
    s.handle(Submitted(t=0, job=1, client=1))
    assert s.handle(Submitted(t=39, job=2, client=2)) == [AskYield(1, 1)]
    s = scheduler(Priority.LOW, Priority.HIGH, policy=Fair(window_ns=10))
    s.handle(Submitted(t=0, job=1, client=1))
    assert s.handle(Submitted(t=40, job=2, client=2)) == []


def test_policies_by_name():
    assert policy_named("fair", window_ns=7) == Fair(window_ns=7)
    assert {policy_named(name).name for name in ("strict", "edf", "fair")} == {"strict", "edf", "fair"}
    with pytest.raises(InvalidArgument, match="expected strict, edf or fair"):
        policy_named("lottery")
    with pytest.raises(InvalidArgument, match="negative"):
        Fair(window_ns=-1)
