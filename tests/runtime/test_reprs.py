"""Objects say in a line what they are and how they stand."""

from __future__ import annotations

import numpy as np
import pytest

import openhtp as htp
from openhtp import zoo
from openhtp.testing import hold, release


@pytest.fixture
def graph(backend) -> htp.Graph:
    graph = backend.create_device().create_context().create_graph("doubler")
    graph.add_tensor("x", (1, 4), "float16", kind="app_write")
    graph.add_tensor("y", (1, 4), "float16", kind="app_read")
    graph.add_node("ElementWiseAdd", inputs=["x", "x"], outputs=["y"])
    graph.finalize()
    return graph


def _feeds() -> dict[str, np.ndarray]:
    return {"x": np.ones((1, 4), np.float16)}


def test_execution_tells_how_it_stands(graph) -> None:
    hold(graph.context.device)
    runs = [graph.execute_async(_feeds()) for _ in range(2)]
    assert repr(runs[0]) == f"<Execution {runs[0].job} of 'doubler', pending>"
    runs[1].cancel()
    release(graph.context.device)
    runs[0].result()
    assert repr(runs[0]) == f"<Execution {runs[0].job}, done: y>"
    assert runs[1].exception() is not None
    assert repr(runs[1]).startswith(f"<Execution {runs[1].job}, failed: ")
    assert "ABORTED" in repr(runs[1])


def test_backend_counts_its_devices(backend) -> None:
    assert repr(backend) == "<Backend of 0 devices, live>"
    backend.create_device(transport="inprocess")
    assert repr(backend) == "<Backend of 1 devices, live>"
    backend.free()
    assert repr(backend) == "<Backend of 0 devices, freed>"


def test_signal_tells_its_kind_and_whether_it_is_used(backend, graph) -> None:
    abort, timeout = backend.create_signal(), backend.create_signal(timeout_us=10_000_000)
    assert repr(abort) == "<Signal: abort, idle>"
    assert repr(timeout) == "<Signal: timeout of 10000000 us, idle>"
    hold(graph.context.device)
    run = graph.execute_async(_feeds(), signal=abort)
    assert repr(abort) == "<Signal: abort, in use>"
    release(graph.context.device)
    run.result()
    abort.free()
    assert repr(abort) == "<Signal: abort, freed>"


def test_profile_shows_the_time_of_its_call(backend, graph) -> None:
    profile = backend.create_profile("basic")
    assert repr(profile) == "<Profile basic, empty>"
    graph.execute(_feeds(), profile=profile)
    total = profile.event(400)
    assert repr(profile) == (
        f"<Profile basic, {len(profile.events())} events, QNN (execute) time: {total.value} us>"
    )


def test_plan_result_shows_its_size(tmp_path) -> None:
    result = htp.plan("examples/two-models-one-npu.yaml")
    assert repr(result).startswith(f"<PlanResult of {result.scenario.name!r}: 2 clients, ")
    assert repr(result).endswith(" missed deadlines>")


def test_session_and_its_runs_tell_where_they_are() -> None:
    model = zoo.tiny_mlp()
    with htp.InferenceSession(model) as session:
        assert repr(session) == "<InferenceSession 'tiny_mlp' on SM8650, ready>"
        run = session.run_async(None, zoo.random_feeds(model)[0])
        run.result()
        assert repr(run) == f"<PendingRun: {run.execution!r}>"
    assert repr(session) == "<InferenceSession 'tiny_mlp' on SM8650, closed>"
