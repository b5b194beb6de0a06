"""What a device keeps while it records, and what it does not."""

from __future__ import annotations

import pytest

import openhtp as htp
from openhtp.device import recording
from openhtp.device.config import DeviceConfig
from openhtp.records.phases import Phase, phases_of
from openhtp.records.trace import Granted, JobEnded, Queued, Stepped
from openhtp.testing import hold, release, virtual_device
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S


@pytest.fixture
def device(backend: htp.Backend) -> htp.Device:
    return virtual_device(backend, step_ns=1_000_000)


def test_nothing_is_recorded_unless_asked_for(device: htp.Device) -> None:
    graph = relu_graph(device.create_context())
    graph.execute({"x": ramp()})
    trace = device.stop_trace()
    assert (trace.records, trace.tracks, trace.dropped) == ([], {}, 0)


def test_one_execution(device: htp.Device) -> None:
    graph = relu_graph(device.create_context(), "only", priority="high")
    device.start_trace()
    graph.execute({"x": ramp()})
    trace = device.stop_trace()
    (track,) = trace.tracks.values()
    assert (track.name, track.kind, track.core, track.priority) == ("only", "graph", 0, htp.Priority.HIGH)
    assert track.session > 0
    (step,) = (record for record in trace.records if isinstance(record, Stepped))
    assert step.end - step.t == 1_000_000
    (running,) = phases_of(trace).intervals
    assert (running.phase, running.end_ns - running.start_ns) == (Phase.RUNNING, 1_000_000)
    assert trace.units.vtcm_bytes == 8 << 20


def test_a_recording_that_begins_while_executions_are_under_way_has_their_beginnings(device: htp.Device) -> None:
    context = device.create_context()
    graph, other = relu_graph(context, "a"), relu_graph(context, "b")
    hold(device)
    under_way = [graph.execute_async({"x": ramp()}), other.execute_async({"x": ramp()})]
    device.start_trace()
    device.start_trace()  # it is on already: nothing is told twice
    release(device)
    for execution in under_way:
        execution.result(PATIENCE_S)
    trace = device.stop_trace()
    kinds = [type(record) for record in trace.records]
    assert (kinds.count(Queued), kinds.count(Granted), kinds.count(JobEnded)) == (2, 2, 2)
    assert {track.name for track in trace.tracks.values()} == {"a", "b"}
    assert len(phases_of(trace).ended) == 2


def test_a_forgotten_recording_is_bounded_and_says_what_it_dropped(
    device: htp.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_RECORDS", 7)
    graph = relu_graph(device.create_context())
    device.start_trace()
    for _ in range(3):
        graph.execute({"x": ramp()})
    trace = device.stop_trace()
    assert (len(trace.records), trace.dropped) == (7, 8)  # five for each execution
    assert len(phases_of(trace).ended) == 1


def test_a_graph_that_has_gone_still_has_its_name_in_the_trace(device: htp.Device) -> None:
    context = device.create_context()
    graph = relu_graph(context, "short-lived")
    device.start_trace()
    graph.execute({"x": ramp()})
    context.free()
    assert [track.name for track in device.stop_trace().tracks.values()] == ["short-lived"]


def test_sessions_and_cores_are_told_apart(backend: htp.Backend) -> None:
    device = virtual_device(backend, config=DeviceConfig(soc="SA8775P"))
    context = device.create_context()
    graphs = [relu_graph(context, "a"), relu_graph(context, "b", core=1)]
    device.start_trace()
    for execution in [graph.execute_async({"x": ramp()}) for graph in graphs]:
        execution.result(PATIENCE_S)
    trace = device.stop_trace()
    assert sorted((track.name, track.core) for track in trace.tracks.values()) == [("a", 0), ("b", 1)]
    assert [record.core for record in trace.records if isinstance(record, Granted)] == [0, 1]
    assert trace.units.cores == 2
