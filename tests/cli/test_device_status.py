"""``openhtp device status``: what is on a named device."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import numpy as np
import pytest
from typer.testing import CliRunner

import openhtp as htp
from openhtp.cli.main import app
from tests.conftest import relu_graph


def status(*arguments: str) -> tuple[int, str]:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["device", "status", *arguments])
    return done.exit_code, done.output


@pytest.fixture
def device(backend: htp.Backend) -> Iterator[htp.Device]:
    name = f"status-{uuid.uuid4().hex[:8]}"
    made = CliRunner().invoke(app, ["device", "start", "--name", name, "--allow-faults"])
    assert made.exit_code == 0, made.output
    yield backend.create_device(name=name)
    CliRunner().invoke(app, ["device", "stop", "--name", name])


def test_a_device_is_shown_with_who_runs_and_who_waits(device: htp.Device) -> None:
    context = device.create_context(queue_depth=7)
    graph = relu_graph(context, "detector")
    htp.testing.hold(device)
    pending = [graph.execute_async({"x": np.zeros((1, 8), "f4")}) for _ in range(3)]
    done, text = status("--name", str(device.name))
    assert done == 0
    for said in (f"device {device.name}", "of 4 process domains", "PD 0", "detector", "3 waiting", "3/7"):
        assert said in text
    assert all(len(line) <= 80 for line in text.splitlines())
    htp.testing.release(device)
    for execution in pending:
        execution.result(30)
    done, text = status("--pid", str(device.pid), "--json", "-")
    assert done == 0
    (session,) = json.loads(text)["sessions"]
    (shown,) = session["domains"][0]["contexts"]
    assert [one["graph"] for one in shown["graphs"]] == ["detector"]
    assert shown["pending"] == 0


def test_a_device_can_be_watched_through_a_pipe(device: htp.Device) -> None:
    done, text = status("--name", str(device.name), "--watch", "--looks", "2", "--interval", "0.05")
    assert done == 0
    assert text.count(f"device {device.name}") == 2


def test_a_device_that_is_not_there() -> None:
    done, text = status("--name", "nobody-has-this-name")
    assert done == 2
    assert "no device 'nobody-has-this-name' is running" in " ".join(text.split())
