"""Hostile arguments to every function: the process survives, and what is good still works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("hostile_calls.py")


def attack(lib_dir: Path, count: int, seed: int) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(PROGRAM), str(lib_dir), str(count), str(seed)],
        capture_output=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr.decode(errors='replace')[-3000:]}"
    assert int(done.stdout.split()[-1]) >= count


@pytest.mark.hostile
def test_two_thousand_hostile_calls(lib_dir: Path) -> None:
    attack(lib_dir, 2000, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_twenty_thousand_hostile_calls(lib_dir: Path, seed: int) -> None:
    attack(lib_dir, 20_000, seed)
