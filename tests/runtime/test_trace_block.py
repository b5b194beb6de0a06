"""``with openhtp.trace(path)``: everything that the devices of this process do in a block, in one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp import zoo
from tests.conftest import relu_graph

FEEDS = {"x": np.ones((1, 8), np.float32)}


def _steps(path: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(path.read_bytes())["traceEvents"] if event.get("cat") == "step"]


def test_trace_has_ops_job_priority_and_session(backend, tmp_path) -> None:
    graph = relu_graph(backend.create_device().create_context(priority="high"))
    path = tmp_path / "out.json"
    with htp.trace(path):
        run = graph.execute_async(FEEDS)
        run.result()
    graph.execute(FEEDS)
    (step,) = _steps(path)
    assert step["name"] == "Relu"
    assert step["args"]["ops"] == "relu"
    assert step["args"]["priority"] == "high"
    assert step["args"]["thread_priority"] == "0xbb", "A10: of the documented table"
    assert step["args"]["hvx_thread_priority"] == "0xbc", "right behind the HMX"
    assert {"job", "session"} <= set(step["args"])


def test_devices_that_come_and_go_inside_are_included_also_if_it_raises(tmp_path) -> None:
    path, model = tmp_path / "out.json", zoo.tiny_mlp()

    def body() -> None:
        with htp.InferenceSession(model, soc="SM8475") as session:
            session.run(None, zoo.random_feeds(model)[0])
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"), htp.trace(path):
        body()
    assert any("FullyConnected" in step["name"] for step in _steps(path))
    with htp.trace(path):
        pass
    assert _steps(path) == []


def test_nested_and_unwritable_traces_are_refused_in_words(tmp_path) -> None:
    with htp.trace(tmp_path / "a.json"), pytest.raises(htp.WrongState, match="already"), htp.trace("b.json"):
        pass
    with pytest.raises(htp.InvalidArgument, match="no folder"), htp.trace(tmp_path / "no" / "a.json"):
        pass
    with pytest.raises(htp.InvalidArgument, match="path of a file"), htp.trace(7):
        pass


def test_package_of_records_can_still_be_imported() -> None:
    from openhtp.records.trace import Trace

    assert Trace is not None
    assert callable(htp.trace)
