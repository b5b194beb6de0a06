"""The clocks of a trace: from when to when each held, as a lane."""

from __future__ import annotations

from openhtp.core.enumerations import Outcome
from openhtp.records.phases import Phases, phases_of
from openhtp.records.trace import (
    ClocksChanged,
    JobEnded,
    Queued,
    Trace,
    Track,
    Units,
    trace_from_bytes,
    trace_to_bytes,
)
from openhtp.report.lanes import Counter, TimelineSpan, trace_to_marks


def a_trace() -> Trace:
    return Trace(
        units=Units(cores=2),
        tracks={1: Track(name="g")},
        records=[
            ClocksChanged(0, 0, 700, 700, 42),
            Queued(10, 5, 1),
            ClocksChanged(10, 0, 1800, 1710, 100, "MAX", "TUR", "MAX"),
            ClocksChanged(20, 1, 900, 900, 60),
            JobEnded(30, 5, Outcome.DONE),
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
    clocks = [mark for mark in marks if isinstance(mark, TimelineSpan) and mark.category == "clocks"]
    assert {mark.lane for mark in clocks} == {"Clocks", "core1.Clocks"}
    assert clocks[0].name == "core 700 MHz, HMX 700 MHz, bus 42%"
    assert clocks[1].name == "core MAX 1800 MHz, HMX TUR 1710 MHz, bus MAX 100%"
    assert clocks[1].args is not None
    assert clocks[1].args["hmx_corner"] == "TUR"
    assert all(mark.args is not None and mark.args["is"] == "modelled" for mark in clocks)


def test_they_are_counters_too() -> None:
    marks = trace_to_marks(a_trace())
    found = [(mark.group, mark.name, mark.at_ns, mark.values) for mark in marks if isinstance(mark, Counter)]
    hmx = [(group, at, values["value"]) for group, name, at, values in found if name == "HMX MHz (modelled)"]
    assert hmx == [("Clocks", 0, 700), ("Clocks", 10, 1710), ("Clocks", 25, 700), ("core1.Clocks", 20, 900)]
    assert {name for group, name, *_ in found if group == "core1.Clocks"} == {
        "core MHz (modelled)",
        "HMX MHz (modelled)",
        "bus % of its highest (modelled)",
    }
