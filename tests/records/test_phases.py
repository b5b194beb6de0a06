"""Records in, phases out: tables."""

from __future__ import annotations

import pytest

from openhtp.core.enumerations import Outcome
from openhtp.core.errors import FormatError
from openhtp.records.phases import EndedJob, Interval, Moment, Phase, Phases, client_phases, moments, phases_of
from openhtp.records.trace import (
    Granted,
    JobEnded,
    Queued,
    Released,
    Stepped,
    Trace,
    Track,
    TransferDirection,
    Transferred,
    Units,
    YieldAsked,
    trace_from_bytes,
    trace_to_bytes,
)

W, R, P = Phase.WAITING, Phase.RUNNING, Phase.PAUSED


def grant(t, job, *, core=0, resumed=False):
    return Granted(t, job, core, (0,), (0, 1), 0, 4096, resumed)


# Job 1 of client 7 makes way for job 2 of client 8, then goes on.
PREEMPTED = [
    Queued(0, 1, 7),
    grant(0, 1),
    Queued(20, 2, 8, deadline_at=50),
    YieldAsked(20, 1),
    Transferred(24, 1, TransferDirection.SAVE, 4096, 28),
    Released(30, 1, True),
    grant(30, 2),
    Stepped(30, 2, 0, 60),
    Released(60, 2, False),
    JobEnded(60, 2, Outcome.DONE),
    grant(60, 1, resumed=True),
    Transferred(60, 1, TransferDirection.RESTORE, 4096, 64),
    Stepped(64, 1, 0, 90),
    Released(90, 1, False),
    JobEnded(90, 1, Outcome.DONE),
]

TABLES = {
    "runs at once": ([Queued(5, 1, 7), grant(5, 1), JobEnded(9, 1, Outcome.DONE)], [(1, R, 5, 9)]),
    "waits first": ([Queued(5, 1, 7), grant(8, 1), JobEnded(9, 1, Outcome.DONE)], [(1, W, 5, 8), (1, R, 8, 9)]),
    "ends while it waits": ([Queued(5, 1, 7), JobEnded(9, 1, Outcome.TIMED_OUT)], [(1, W, 5, 9)]),
    "a moment is no interval": ([Queued(5, 1, 7), JobEnded(5, 1, Outcome.ABORTED)], []),
    "makes way": (PREEMPTED, [(1, R, 0, 30), (2, W, 20, 30), (2, R, 30, 60), (1, P, 30, 60), (1, R, 60, 90)]),
    "its beginning was dropped": ([grant(5, 1), Released(8, 1, False), JobEnded(8, 1, Outcome.DONE)], []),
    "still under way": ([Queued(5, 1, 7), grant(8, 1), Queued(12, 2, 7)], [(1, W, 5, 8), (1, R, 8, 12)]),
}


def trace(records):
    tracks = {7: Track(name="a", priority=100), 8: Track(name="b", session=2, core=1, kind="app")}
    return Trace(units=Units(cores=2, hvx=2, vtcm_bytes=8192), tracks=tracks, records=records)


@pytest.mark.parametrize("name", TABLES)
def test_phases(name):
    records, expected = TABLES[name]
    found = phases_of(trace(records)).intervals
    assert [(i.job, i.phase, i.start_ns, i.end_ns) for i in found] == expected
    assert all((i.grant is not None) == (i.phase is R) for i in found)


def test_what_else_is_kept():
    phases = phases_of(trace(PREEMPTED))
    assert phases.ended == [
        EndedJob(8, 2, 20, 60, Outcome.DONE, 50),
        EndedJob(7, 1, 0, 90, Outcome.DONE),
    ]
    assert [job.missed for job in phases.ended] == [True, False]
    assert [(e.client, e.asked_ns) for e in phases.evictions] == [(7, 20)]
    assert [(client, step.t, step.end) for client, step in phases.steps] == [(8, 30, 60), (7, 64, 90)]
    assert [(core, moved.what, moved.nbytes) for _, core, moved in phases.transfers] == [
        (0, TransferDirection.SAVE, 4096),
        (0, TransferDirection.RESTORE, 4096),
    ]


def test_what_ends_the_moment_it_is_asked_for_counts():
    phases = phases_of(trace([Queued(5, 1, 7), JobEnded(5, 1, Outcome.ABORTED)]))
    assert phases.ended == [EndedJob(7, 1, 5, 5, Outcome.ABORTED)]


def test_deadlines():
    assert not EndedJob(1, 1, 0, 50, Outcome.DONE, 50).missed
    assert EndedJob(1, 1, 0, 51, Outcome.DONE, 50).missed
    assert EndedJob(1, 1, 0, 10, Outcome.ABORTED, 50).missed
    assert not EndedJob(1, 1, 0, 10, Outcome.ABORTED).missed


def test_moments():
    names = {7: "a", 8: "b"}
    assert moments(phases_of(trace(PREEMPTED)), names.__getitem__) == [
        Moment(0, "start", "a"),
        Moment(30, "pause", "a"),
        Moment(30, "start", "b"),
        Moment(60, "end", "b"),
        Moment(60, "resume", "a"),
        Moment(90, "end", "a"),
    ]


def test_a_window_keeps_and_cuts_only_what_overlaps_it():
    phases = Phases(25, 40)
    for record in PREEMPTED:
        phases.add(record)
    assert [(i.job, i.phase, i.start_ns, i.end_ns) for i in phases.intervals] == [
        (1, R, 25, 30),
        (2, W, 25, 30),
        (2, R, 30, 40),
        (1, P, 30, 40),
    ]
    assert phases.evictions == []
    assert len(phases.transfers) == 1


def test_what_is_under_way_is_cut_at_the_end():
    phases = Phases(3, 100)
    for record in (Queued(0, 1, 7), grant(0, 1), Queued(1, 2, 7)):
        phases.add(record)
    phases.close(10)
    assert [(i.job, i.phase, i.end_ns) for i in phases.intervals] == [(1, R, 10), (2, W, 10)]
    assert phases.ended == []


def test_a_client_runs_while_one_of_its_jobs_does():
    jobs = [
        Interval(7, 1, R, 0, 10),
        Interval(7, 2, W, 5, 10),
        Interval(7, 2, R, 10, 20),
        Interval(7, 3, W, 30, 40),
    ]
    assert [(i.phase, i.start_ns, i.end_ns) for i in client_phases(jobs)[7]] == [(R, 0, 20), (W, 30, 40)]


def test_a_trace_survives_the_wire():
    sent = trace(PREEMPTED)
    assert trace_from_bytes(trace_to_bytes(sent)) == sent


@pytest.mark.parametrize(
    "data", [b"", b"\x80", trace_to_bytes(trace(PREEMPTED))[:-1], b"\x92\x01\x93\x01\x02\x03"]
)
def test_bytes_that_are_no_trace_are_refused(data):
    with pytest.raises(FormatError, match="no trace"):
        trace_from_bytes(data)


def test_a_trace_must_say_who_its_clients_are():
    with pytest.raises(FormatError, match="client 9"):
        trace_from_bytes(trace_to_bytes(trace([Queued(0, 1, 7), Queued(0, 2, 9)])))


def test_a_trace_of_another_version_is_refused_by_its_version():
    import msgspec

    with pytest.raises(FormatError, match="version 99"):
        trace_from_bytes(msgspec.msgpack.encode((99, {"anything": 1})))
