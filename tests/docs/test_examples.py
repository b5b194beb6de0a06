"""Every Python file in ``examples/`` runs and says what it is there to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import PATIENCE_S

EXAMPLES = Path(__file__).parents[2] / "examples"
# Arguments, and words of the output; a file that is not named here has tests of its own.
RUNS = {
    "queue_frames.py": (["20"], "same: True"),
    "share_by_priority.py": ([], "the camera overtook"),
    "plan_in_ci.py": ([str(EXAMPLES / "base-1.3-higher.yaml")], "slowest"),
    "own_operator.py": ([], "example.ops::SoftClip"),
    "linting_showcase.py": (["SM8450", "320x180x3"], "overlap of all ops with PReLU"),
    "quantize_and_ship.py": ([], "small_cnn.bin: "),
}


@pytest.mark.parametrize(
    "name", [*RUNS, pytest.param("ort_two_sessions.py", marks=[pytest.mark.vendor, pytest.mark.slow])]
)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    arguments, words = RUNS.get(name, ([], "background low, urgent high"))
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout


def test_a_missed_deadline_fails_the_job(tmp_path: Path) -> None:
    scenario = tmp_path / "late.yaml"
    scenario.write_text(
        "device: {soc: SM8650}\nclients: [{name: a, deadline: 5}]\nevents: [{client: a, at: 0, run: 9}]\n"
    )
    command = [sys.executable, str(EXAMPLES / "plan_in_ci.py"), str(scenario)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 1, done.stderr
    assert "1 missed of 5" in done.stdout


def test_every_example_says_how_to_run_it() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert f"python examples/{path.name}" in path.read_text(encoding="utf-8"), path.name
