"""The README's commands, run as they are printed there, after the demo."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def printed() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    inline = re.findall(r"`(openhtp [^`]+)`", text)
    fenced = [line for block in re.findall(r"```\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    return list(dict.fromkeys([*inline, *(line for line in fenced if line.startswith("openhtp "))]))


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """A checkout in which the demo has run."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "examples").symlink_to(ROOT / "examples")
    environment = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "OPENHTP_RUNTIME_DIR": str(folder / "run"),
    }

    def run(command: str) -> None:
        words = shlex.split(command)
        done = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        if "another order than planned" in done.stdout and "--stretch" not in words:
            run(f"{command} --stretch 20000")  # the machine was too busy for phases of 20 ms
            return
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    run("openhtp demo --turns 1")
    yield run
    subprocess.run(
        ["openhtp", "device", "stop", "--name", "car"], env=environment, capture_output=True, check=False
    )


def test_there_are_commands() -> None:
    names = {command.split()[1] for command in printed()}
    assert {"run", "plan", "estimate", "quantize", "device", "doctor", "run-scenario", "bench"} <= names


@pytest.mark.parametrize("command", printed())
def test_commands_work_as_printed(shell, command) -> None:
    # A benchmark takes minutes: that it is there must do.
    shell(f"{command} --help" if command.startswith("openhtp bench") else command)
