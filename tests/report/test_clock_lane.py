"""The clocks of a trace: from when to when each held, as a lane."""

from __future__ import annotations

from openhtp.core.outcome import Outcome
from openhtp.report.lanes import trace_to_marks
from openhtp.report.marks import Span
from openhtp.trace.phases import Phases, phases_of
from openhtp.trace.records import ClocksChanged, Ended, Queued, Trace, Track, Units
from openhtp.trace.wire import trace_from_bytes, trace_to_bytes


def a_trace() -> Trace:
    return Trace(
        units=Units(cores=2),
        tracks={1: Track(name="g")},
        records=[
            ClocksChanged(0, 0, 700, 700, 42),
            Queued(10, 5, 1),
            ClocksChanged(10, 0, 1800, 1800, 100),
            ClocksChanged(20, 1, 900, 900, 60),
            Ended(30, 5, Outcome.DONE),
            # Known late: it was lowered before the job ended.
            ClocksChanged(25, 0, 700, 700, 42),
        ],
    )


def test_each_clock_holds_until_the_next() -> None:
    found = [
        (change.core, change.core_mhz, start, end) for change, start, end in phases_of(a_trace()).clock_times()
    ]
    assert found == [(0, 700, 0, 10), (0, 1800, 10, 25), (0, 700, 25, 30), (1, 900, 20, 30)]


def test_a_window_cuts_them() -> None:
    phases = Phases(first_ns=5, last_ns=22)
    for record in a_trace().records:
        phases.add(record)
    phases.close(30)
    spans = [(change.core_mhz, start, end) for change, start, end in phases.clock_times()]
    assert spans == [(700, 5, 10), (1800, 10, 22), (900, 20, 22)]


def test_they_are_a_lane_of_each_core_and_say_that_they_are_modelled() -> None:
    marks = trace_to_marks(trace_from_bytes(trace_to_bytes(a_trace())))
    clocks = [mark for mark in marks if isinstance(mark, Span) and mark.category == "clocks"]
    assert {mark.lane for mark in clocks} == {"Clocks", "core1.Clocks"}
    assert clocks[1].name == "core 1800 MHz, HMX 1800 MHz, bus 100%"
    assert all(mark.args is not None and mark.args["is"] == "modelled" for mark in clocks)
