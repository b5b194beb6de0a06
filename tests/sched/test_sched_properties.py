"""What must hold for every scenario: made-up devices, clients and arrivals, on the virtual clock."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings, strategies as st
from tests.sched.replaying import replay

from openhtp.core.enumerations import Priority
from openhtp.core.units import MIB
from openhtp.records.phases import Phase, Phases
from openhtp.sched.actions import AskYield, Finish, Grant
from openhtp.sched.events import (
    AbortRequested,
    ClientAdded,
    ClientKind,
    ClientRemoved,
    StepDone,
    StepYielded,
    Submitted,
)
from openhtp.sched.policy import STRICT, EarliestDeadline, Fair
from openhtp.sched.recorder import ScheduleRecorder
from openhtp.sched.resources import DeviceResources
from openhtp.sched.scheduler import Scheduler
from openhtp.sched.timed import Pace
from openhtp.sched.virtual import VirtualLoop

EVICTION = 10

devices = st.builds(
    DeviceResources,
    cores=st.integers(1, 2),
    hmx=st.integers(1, 2),
    hvx=st.integers(1, 4),
    vtcm_bytes=st.sampled_from([2 * MIB, 4 * MIB, 8 * MIB]),
    sharing=st.booleans(),
    windowing=st.booleans(),
    parallel_graphs=st.booleans(),
)
policies = st.sampled_from([STRICT, EarliestDeadline(), Fair(window_ns=50)])


@st.composite
def clients(draw, device):
    count = draw(st.integers(1, 6))
    added = []
    for number in range(1, count + 1):
        graph = draw(st.booleans())
        added.append(
            ClientAdded(
                t=0,
                client=number,
                priority=draw(st.sampled_from(list(Priority))),
                kind=ClientKind.GRAPH if graph else ClientKind.APP,
                pd=draw(st.integers(1, 2)),
                core=draw(st.integers(0, device.cores - 1)),
                hmx=1 if graph else draw(st.integers(0, 1)),
                hvx=draw(st.integers(0, device.hvx)),
                vtcm_bytes=draw(st.integers(0, device.vtcm_bytes // MIB)) * MIB,
            )
        )
    return added


@st.composite
def scenarios(draw):
    device = draw(devices)
    added = draw(clients(device))
    count = draw(st.integers(1, 25))
    jobs = []
    t = 0
    for job in range(1, count + 1):
        t += draw(st.integers(0, 30))
        step_ns = tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
        timeout = draw(st.none() | st.integers(0, 100))
        deadline = draw(st.none() | st.integers(1, 100))
        submitted = Submitted(
            t=t,
            job=job,
            client=draw(st.integers(1, len(added))),
            steps=len(step_ns),
            timeout_at=None if timeout is None else t + timeout,
            deadline_at=None if deadline is None else t + deadline,
        )
        eviction = draw(st.sampled_from([EVICTION, None]))
        jobs.append((submitted, Pace(step_ns=step_ns, eviction_ns=eviction, save_ns=2, restore_ns=3)))
    ends = draw(st.lists(st.tuples(st.integers(0, t + 50), st.integers(1, count)), max_size=4))
    removed = draw(st.lists(st.tuples(st.integers(t, t + 80), st.integers(1, len(added))), max_size=2))
    return device, draw(policies), added, jobs, ends, {client: at for at, client in removed}


def simulate(device, policy, added, jobs, ends=(), removed=()):
    scheduler = Scheduler(device, policy)
    history = Phases()

    def observe(event, actions):
        scheduler.check()
        recorder(event, actions)

    loop = VirtualLoop(scheduler, observe=observe)
    recorder = ScheduleRecorder(history.add, loop.work_of)
    for event in added:
        loop.at(event)
    for submitted, work in jobs:
        loop.at(submitted, work)
    for t, job in ends:
        loop.at(AbortRequested(t=t, job=job))
    for client in removed:
        loop.at(ClientRemoved(t=removed[client], client=client))
    loop.run_until()
    return loop, history


@settings(max_examples=200, deadline=None)
@given(scenarios())
def test_every_job_ends_exactly_once_and_the_log_replays(scenario):
    device, policy, added, jobs, ends, removed = scenario
    loop, history = simulate(device, policy, added, jobs, ends, removed)
    finished = [action.job for _, actions in loop.log for action in actions if type(action) is Finish]
    assert sorted(finished) == [submitted.job for submitted, _ in jobs]
    assert not loop.scheduler.jobs
    assert all(not core.holders and not core.waiting for core in loop.scheduler.cores)
    assert replay(loop.log, device, policy) is None
    assert len(history.ended) == len(jobs)


@settings(max_examples=200, deadline=None)
@given(scenarios())
def test_no_unit_and_no_byte_is_held_twice(scenario):
    device, policy, added, jobs, ends, removed = scenario
    _, history = simulate(device, policy, added, jobs, ends, removed)
    held = [interval for interval in history.intervals if interval.phase is Phase.RUNNING]
    for index, a in enumerate(held):
        for b in held[index + 1 :]:
            if a.grant.core != b.grant.core or a.end_ns <= b.start_ns or b.end_ns <= a.start_ns:
                continue
            assert not set(a.grant.hmx) & set(b.grant.hmx)
            assert not set(a.grant.hvx) & set(b.grant.hvx)
            a_end = a.grant.vtcm_start + a.grant.vtcm_bytes
            b_end = b.grant.vtcm_start + b.grant.vtcm_bytes
            both = a.grant.vtcm_bytes and b.grant.vtcm_bytes
            assert not both or a_end <= b.grant.vtcm_start or b_end <= a.grant.vtcm_start


@settings(max_examples=200, deadline=None)
@given(devices.flatmap(lambda device: st.tuples(st.just(device), clients(device))), st.data())
def test_a_higher_one_waits_for_lower_ones_no_longer_than_one_eviction(device_and_clients, data):
    """While a job waits, the time in which only strictly lower jobs stand in its way is one eviction at most.

    Counted between two changes among those that are not lower: each such change is a new situation.
    """
    device, added = device_and_clients
    priority = {client.client: client.priority for client in added}
    core = {client.client: client.core for client in added}
    jobs = []
    t = 0
    for job in range(1, data.draw(st.integers(2, 20)) + 1):
        t += data.draw(st.integers(0, 30))
        submitted = Submitted(t=t, job=job, client=data.draw(st.integers(1, len(added))))
        jobs.append((submitted, Pace(step_ns=(data.draw(st.integers(1, 80)),), eviction_ns=EVICTION)))
    _, history = simulate(device, STRICT, added, jobs)
    running = [i for i in history.intervals if i.phase is Phase.RUNNING]
    for wait in history.intervals:
        if wait.phase is Phase.RUNNING:
            continue
        mine = wait.client
        rivals = [i for i in running if core[i.client] == core[mine]]
        others = [i for i in rivals if priority[i.client] >= priority[mine]]
        # Also jobs of equal or higher priority that wait before it, and its own client's earlier jobs.
        ahead = [
            i
            for i in history.intervals
            if i.phase is not Phase.RUNNING
            and core[i.client] == core[mine]
            and priority[i.client] >= priority[mine]
            and (i.job != wait.job)
        ]
        edges = sorted({wait.start_ns, wait.end_ns, *(e for i in others + ahead for e in (i.start_ns, i.end_ns))})
        edges = [e for e in edges if wait.start_ns <= e <= wait.end_ns]
        for start, end in itertools.pairwise(edges):
            alone = not any(i.start_ns < end and start < i.end_ns for i in others + ahead)
            if alone:
                assert end - start <= EVICTION


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 40))
def test_fair_bounds_the_wait_under_a_flood_of_higher_jobs(work, every, window):
    device = DeviceResources(hmx=1, hvx=1, vtcm_bytes=MIB)
    policy = Fair(window_ns=window)
    added = [
        ClientAdded(t=0, client=1, priority=Priority.LOW, vtcm_bytes=MIB),
        ClientAdded(t=0, client=2, priority=Priority.CRITICAL_PLUS, vtcm_bytes=MIB),
    ]
    low = (Submitted(t=0, job=1, client=1), Pace(step_ns=(work,), eviction_ns=EVICTION))
    flood = [
        (Submitted(t=index * every, job=index + 2, client=2), Pace(step_ns=(50,), eviction_ns=EVICTION))
        for index in range(120)
    ]
    _, history = simulate(device, policy, added, [low, *flood])
    ended = next(job for job in history.ended if job.job == 1)
    # How much later than the lowest level the highest may arrive and still overtake it.
    head_start = policy.window_ns * (len(Priority) - 1)
    arrived_before = head_start // every + 1
    assert ended.ended_ns <= head_start + arrived_before * (50 + 2 * EVICTION) + work + 2 * EVICTION


@pytest.mark.parametrize("seed_order", [(1, 2, 3), (3, 2, 1)])
def test_equal_scenarios_give_equal_logs(seed_order):
    device = DeviceResources(hmx=1, hvx=2, vtcm_bytes=4 * MIB)
    added = [ClientAdded(t=0, client=c, priority=100, vtcm_bytes=2 * MIB) for c in (1, 2, 3)]
    jobs = [
        (Submitted(t=0, job=job, client=client), Pace(step_ns=(10,), eviction_ns=EVICTION))
        for job, client in enumerate(seed_order, 1)
    ]
    first, _ = simulate(device, STRICT, added, jobs)
    second, _ = simulate(device, STRICT, added, jobs)
    assert first.log == second.log
    order = [action.job for _, actions in first.log for action in actions if type(action) is Grant]
    assert order == [1, 2, 3]
    assert not [a for _, actions in first.log for a in actions if type(a) is AskYield]
    assert {type(event) for event, _ in first.log} <= {ClientAdded, Submitted, StepDone, StepYielded}
