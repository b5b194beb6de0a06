from __future__ import annotations

import json

from openhtp.report.chrome import marks_to_chrome
from openhtp.report.lanes import Counter, Flow, Instant, TimelineSpan

MARKS = [
    TimelineSpan(group="Clients", lane="A", name="running", start_ns=1_000, duration_ns=2_500, category="running"),
    TimelineSpan(group="HMX", lane="HMX0", name="A", start_ns=1_000, duration_ns=2_500, args={"job": 1}),
    Instant(group="Clients", lane="A", name="asked to yield", at_ns=2_000),
    Counter(name="VTCM", at_ns=1_000, values={"A": 3}),
    Flow(
        name="makes way for",
        number=1,
        from_group="Clients",
        from_lane="A",
        from_ns=3_500,
        to_group="HMX",
        to_lane="HMX0",
        to_ns=3_500,
    ),
]


def events(phase):
    document = json.loads(marks_to_chrome(MARKS, modelled=True))
    return [event for event in document["traceEvents"] if event["ph"] == phase]


def test_spans_are_in_microseconds_and_lanes_are_named():
    first, second = events("X")
    assert (first["ts"], first["dur"], first["cat"]) == (1.0, 2.5, "running")
    assert second["args"] == {"job": 1}
    assert first["pid"] != second["pid"]
    names = {event["args"]["name"] for event in events("M") if event["name"] == "thread_name"}
    assert {"A", "HMX0", "VTCM"} <= names


def test_instants_counters_and_flows():
    assert events("i")[0]["ts"] == 2.0
    assert events("C")[0]["args"] == {"A": 3}
    (start,), (end,) = events("s"), events("f")
    assert start["id"] == end["id"]
    assert start["tid"] == events("X")[0]["tid"]
    assert end["tid"] == events("X")[1]["tid"]


def test_it_says_whether_times_are_modelled():
    assert json.loads(marks_to_chrome([], modelled=True))["otherData"]["times"] == "modelled"
    assert json.loads(marks_to_chrome([]))["otherData"]["times"] == "measured"
