"""``openhtp device status``: what is on every device of this user."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import openhtp as htp
from openhtp.cli import device as device_command
from openhtp.cli.main import app
from openhtp.rpc import windows
from tests.conftest import relu_graph
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture(autouse=True)
def place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices of other tests, and of this user, are elsewhere. Those that are here may take their time."""
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(windows.look, "__defaults__", (PATIENCE_S,))


def status(*arguments: str) -> tuple[int, str]:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["device", "status", *arguments])
    return done.exit_code, done.output


@pytest.fixture
def device(backend: htp.Backend) -> Iterator[htp.Device]:
    name = f"status-{uuid.uuid4().hex[:8]}"
    made = CliRunner().invoke(app, ["device", "start", "--name", name, "--allow-faults"])
    assert made.exit_code == 0, made.output
    client = backend.create_device(name=name)
    yield client
    client.free()  # before its device goes: else it would start another
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
        execution.result(PATIENCE_S)
    done, text = status("--pid", str(device.pid), "--json", "-")
    assert done == 0
    (shown_device,) = json.loads(text)["devices"]
    (session,) = shown_device["sessions"]
    assert session["pid"] == os.getpid()
    (shown,) = session["domains"][0]["contexts"]
    assert [one["graph"] for one in shown["graphs"]] == ["detector"]
    assert shown["pending"] == 0


def test_a_device_can_be_watched_through_a_pipe(device: htp.Device) -> None:
    done, text = status("--name", str(device.name), "--watch", "--looks", "2", "--interval", "0.05")
    assert done == 0
    assert text.count(f"device {device.name}") == 2


def test_a_device_without_a_name_is_shown_with_the_program_that_has_it(backend: htp.Backend) -> None:
    """Also from a process that is not its client, and without a trace of it on the device."""
    device = backend.create_device(soc="SM8550")
    context = device.create_context()
    relu_graph(context, "mine").execute({"x": np.zeros((1, 8), "f4")})
    command = [sys.executable, "-m", "openhtp", "device", "status", "--json", "-"]
    done = subprocess.run(command, capture_output=True, check=True, env={**os.environ, "COLUMNS": "80"})
    (shown,) = json.loads(done.stdout)["devices"]
    assert (shown["name"], shown["soc"], shown["pid"]) == (None, "SM8550", device.pid)
    (session,) = shown["sessions"]
    assert (session["pid"], session["executions"], session["graphs"]) == (os.getpid(), 1, ["mine"])
    assert session["program"] == device_command.program_of(os.getpid()) != ""
    assert len(device.info()["sessions"]) == 1
    done_, text = status()
    assert done_ == 0
    assert f"unnamed device (SM8550, process {device.pid}), 1 client" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert status("--pid", str(os.getpid()))[0] == 0


@pytest.mark.parametrize("words", [["-c", "input()"], ["-m", "code"], ["waits.py"]], ids=" ".join)
def test_a_program_in_a_few_words(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "waits.py").write_text("input()")
    name = Path(sys.executable).name
    with subprocess.Popen(
        [sys.executable, *words], cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as program:
        wait_until(lambda: device_command.program_of(program.pid))  # a process that has only begun has no words
        shown = device_command.program_of(program.pid)
        program.kill()
    assert shown == f"{name} -c" if "-c" in words else f"{name} {' '.join(words)}"
    assert device_command.program_of(program.pid) == ""


def test_a_device_that_dies_while_it_is_watched(backend: htp.Backend) -> None:
    device = backend.create_device()
    command = [sys.executable, "-m", "openhtp", "device", "status", "--watch", "--interval", "0.05"]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "80"})
    assert watching.stdout is not None
    try:
        seen = iter(watching.stdout.readline, "")
        first = device.pid
        assert any(f"process {first})" in line for line in seen)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: device.pid != first)
        assert any(f"process {device.pid})" in line for line in seen), "the fresh one is not shown"
        backend.free()
        assert any("no device is running" in line for line in seen)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(PATIENCE_S) in (0, 130)
    finally:
        watching.kill()
        watching.wait()
        watching.stdout.close()


def test_a_device_that_does_not_answer_holds_up_nobody(
    backend: htp.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows.look, "__defaults__", (0.2,))
    deaf, other = backend.create_device(), backend.create_device(soc="SM8750")
    os.kill(deaf.pid, signal.SIGSTOP)

    def other_is_shown() -> bool:
        done, text = status()
        assert done == 0
        assert f"device of process {deaf.pid} does not answer" in text
        return f"process {other.pid})" in text

    try:
        for _ in range(20):  # more often than calls are kept for it
            wait_until(other_is_shown)
    finally:
        os.kill(deaf.pid, signal.SIGCONT)


def test_no_device() -> None:
    done, text = status("--json", "-")
    assert (done, json.loads(text)) == (0, {"devices": []})
    assert "no device is running" in status()[1]


def test_a_device_that_is_not_there() -> None:
    done, text = status("--name", "nobody-has-this-name")
    assert done == 2
    assert "no device 'nobody-has-this-name' is running" in " ".join(text.split())


def test_a_named_device_that_does_not_answer_is_not_said_to_be_gone(
    device: htp.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows.look, "__defaults__", (0.2,))
    os.kill(device.pid, signal.SIGSTOP)
    try:
        done, text = status("--name", device.name or "")
        assert done == 2
        assert f"no device '{device.name}' answers" in " ".join(text.split())
        assert f"busy or stopped: {device.pid}; look again" in " ".join(text.split())
    finally:
        os.kill(device.pid, signal.SIGCONT)


def test_a_device_that_is_watched_stays_when_it_does_not_answer(
    device: htp.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[list[dict[str, object]]] = [windows.look(), [{"pid": device.pid}], [{"pid": 1}]]
    monkeypatch.setattr("openhtp.cli.device.look_around", lambda: there.pop(0))
    done, text = status("--name", device.name or "", "--watch", "--interval", "0.05", "--looks", "3")
    assert done == 0
    assert text.count(f"process {device.pid}") == 2
    assert "no device is running" in text


@pytest.mark.parametrize(
    ("done", "total", "now", "expected"),
    [(1, 4, "B", "loading is running: 1 of 4, now B"), (0, 0, "", "loading is running")],
)
def test_a_task_in_words(done: int, total: int, now: str, expected: str) -> None:
    task = {"what": "loading", "state": "running", "done": done, "total": total, "now": now}
    assert device_command._task(task) == expected
