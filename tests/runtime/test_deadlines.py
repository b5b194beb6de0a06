"""Executions with a deadline: who goes first by it, whether it was held, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import openhtp as htp
from openhtp.core.enumerations import Outcome
from openhtp.device.config import DeviceConfig
from openhtp.records.phases import phases_of
from openhtp.records.trace import Queued
from openhtp.report.chrome import marks_to_chrome
from openhtp.report.lanes import trace_to_marks
from openhtp.runtime.objects.profile import DEADLINE_MISSED
from openhtp.testing import hold, release, virtual_device
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S

MILLISECOND = 1_000
STEP_NS = 1_000_000


def process_device(backend: htp.Backend, policy: str) -> htp.Device:
    return backend.create_device(policy=policy)


def virtual(backend: htp.Backend, policy: str) -> htp.Device:
    return virtual_device(backend, step_ns=STEP_NS, config=DeviceConfig(policy=policy))


@pytest.mark.parametrize("make", [process_device, virtual])
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("strict", ["first", "unhurried", "urgent one", "late", "soon"]),
        ("edf", ["first", "soon", "late", "urgent one", "unhurried"]),
    ],
)
def test_the_nearest_deadline_goes_first_under_edf(
    backend: htp.Backend, make: Callable[[htp.Backend, str], htp.Device], policy: str, expected: list[str]
) -> None:
    device = make(backend, policy)
    context = device.create_context()
    asked = {
        "first": ("normal", 1),
        "unhurried": ("normal", None),
        "urgent one": ("normal_high" if policy == "edf" else "normal", None),
        "late": ("normal", 900_000 * MILLISECOND),
        "soon": ("normal", 600_000 * MILLISECOND),
    }
    graphs = {name: relu_graph(context, name, priority=priority) for name, (priority, _) in asked.items()}
    hold(device)
    under_way = {
        name: graphs[name].execute_async({"x": ramp()}, deadline_us=deadline)
        for name, (_, deadline) in asked.items()
    }
    release(device)
    for execution in under_way.values():
        execution.result(PATIENCE_S)
    assert sorted(under_way, key=lambda name: under_way[name].record.finished_ns) == expected  # type: ignore[union-attr]


def test_a_deadline_is_in_the_trace_the_report_and_the_profile(backend: htp.Backend) -> None:
    device = virtual(backend, "strict")
    graph = relu_graph(device.create_context())
    device.start_trace()
    profiles = [backend.create_profile() for _ in range(3)]
    graph.execute({"x": ramp()}, profile=profiles[0])
    graph.execute({"x": ramp()}, profile=profiles[1], deadline_us=MILLISECOND)
    graph.execute({"x": ramp()}, profile=profiles[2], deadline_us=MILLISECOND - 1)
    missed = [profile.event(DEADLINE_MISSED) for profile in profiles]
    assert [None if event is None else event.value for event in missed] == [None, 0, 1]
    trace = device.stop_trace()
    queued = [record for record in trace.records if isinstance(record, Queued)]
    given = [None if record.deadline_at is None else record.deadline_at - record.t for record in queued]
    assert given == [None, STEP_NS, STEP_NS - 1000]
    ended = phases_of(trace).ended
    assert [(job.outcome, job.missed) for job in ended] == [
        (Outcome.DONE, False),
        (Outcome.DONE, False),
        (Outcome.DONE, True),
    ]
    document = json.loads(marks_to_chrome(trace_to_marks(trace)))
    named = [event["name"] for event in document["traceEvents"] if event["ph"] == "i"]
    assert named == ["deadline", "missed its deadline"]


@pytest.mark.parametrize("deadline", [0, -1, True, 1.5, "33", 1 << 63])
def test_a_deadline_that_cannot_be_is_refused_and_nothing_is_queued(
    shared_device: htp.Device, deadline: object
) -> None:
    graph = relu_graph(shared_device.create_context())
    for execute in (graph.execute, graph.execute_async):
        with pytest.raises(htp.InvalidArgument, match="deadline_us"):
            execute({"x": ramp()}, deadline_us=deadline)  # type: ignore[arg-type]
    assert graph.context.pending == 0
    graph.execute({"x": ramp()})


def test_an_app_may_have_a_deadline_too(backend: htp.Backend) -> None:
    device = virtual(backend, "edf")
    app = device.create_context().create_app("camera")
    device.start_trace()
    app.run_async(500, deadline_us=400).result(PATIENCE_S)
    with pytest.raises(htp.InvalidArgument, match="deadline_us"):
        app.run_async(500, deadline_us=0)
    assert [job.deadline_ns is not None for job in phases_of(device.stop_trace()).ended] == [True]


def test_in_process_devices_take_deadlines(backend: htp.Backend) -> None:
    device = backend.create_device(transport="inprocess", policy="edf")
    graph = relu_graph(device.create_context())
    profile = backend.create_profile()
    graph.execute({"x": ramp()}, profile=profile, deadline_us=3_600_000_000)
    event = profile.event(DEADLINE_MISSED)
    assert event is not None
    assert (event.value, event.unit) == (0, "count")
