"""The first asynchronous call in a context, while other threads execute in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.capi.c_programs import can_load_python, compile_program, host_environment
from tests.capi.conftest import build_script
from tests.waiting import PATIENCE_S


def test_a1_synchronous_and_asynchronous_calls_begin_together(lib_dir: Path, tmp_path: Path) -> None:
    compiler = build_script().compiler()
    if compiler is None or not can_load_python():
        pytest.skip("there is no C compiler, or no shared library of Python")
    program = compile_program("first_calls.c", tmp_path, compiler)
    done = subprocess.run(
        [str(program), str(lib_dir / "libQnnHtp.so"), "20"],
        env=host_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout
