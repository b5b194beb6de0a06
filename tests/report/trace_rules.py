"""The rules of the trace-event format, as far as viewers hold us to them."""

from __future__ import annotations

from collections import defaultdict


def check_trace(document):
    """Names, nesting, flows, counters and units of a Chrome trace; returns its events by phase."""
    by_phase = defaultdict(list)
    for event in document["traceEvents"]:
        assert {"ph", "name", "pid", "tid", "ts"} <= event.keys(), event
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["ts"], int)
        assert event["ts"] >= 0, event
        by_phase[event["ph"]].append(event)
    assert set(by_phase) <= set("XMCsf")
    _check_names(by_phase)
    _check_nesting(by_phase["X"])
    _check_counters(by_phase["C"])
    _check_flows(by_phase)
    return by_phase


def _check_names(by_phase):
    named = {"process_name": set(), "thread_name": set()}
    for event in by_phase["M"]:
        if event["name"] in named:
            key = event["pid"] if event["name"] == "process_name" else (event["pid"], event["tid"])
            assert key not in named[event["name"]], f"{event} names it again"
            named[event["name"]].add(key)
            assert event["args"]["name"]
    for event in by_phase["X"]:
        assert event["pid"] in named["process_name"], event
        assert (event["pid"], event["tid"]) in named["thread_name"], event


def _check_nesting(spans):
    """On one thread a span lies within another, or beside it."""
    threads = defaultdict(list)
    for event in spans:
        assert event["dur"] >= 0
        threads[event["pid"], event["tid"]].append((event["ts"], -event["dur"], event["name"]))
    for thread, found in threads.items():
        open_until = []
        for start, minus, name in sorted(found):
            end = start - minus
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1], (thread, name, start, end)
            open_until.append(end)


def _check_counters(counters):
    last = {}
    for event in counters:
        (value,) = event["args"].values()
        assert value >= 0, event
        key = (event["pid"], event["name"])
        assert last.get(key, (-1,))[0] < event["ts"], "two values at one time, or backwards"
        last[key] = (event["ts"], value)
    assert all(value == 0 for _, value in last.values()), "something is still held at the end"


def _check_flows(by_phase):
    starts = {(event["cat"], event["id"]): event for event in by_phase["s"]}
    ends = {(event["cat"], event["id"]): event for event in by_phase["f"]}
    assert starts.keys() == ends.keys()
    assert len(starts) == len(by_phase["s"])
    spans = defaultdict(list)
    for event in by_phase["X"]:
        spans[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for key, event in starts.items():
        end = ends[key]
        assert event["ts"] <= end["ts"]
        assert end["bp"] == "e"
        for point in (event, end):
            assert any(a <= point["ts"] <= b for a, b in spans[point["pid"], point["tid"]]), point
