"""C programs that load our library in a process that has no Python of its own: how they are compiled and run."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.capi.conftest import build_script

HERE = Path(__file__).parent
LIBPYTHON = build_script().python_library()
HOSTS = (
    "start",
    "free_in_callbacks",
    "submit_in_callbacks",
    "exit_with_work_queued",
    "exit_with_threads_at_work",
    "four_exits_at_once",
    "fork_with_threads_at_work",
    "cancelled_threads",
    "signals",
    "small_stacks",
    "closed_streams",
    "no_descriptors",
)
"""What ``hosts.c`` does."""


def can_load_python() -> bool:
    """Whether this Python has a shared library that a C program could load."""
    return LIBPYTHON is not None


def compile_program(source: str, folder: Path, compiler: Sequence[str], flags: Sequence[str] = ()) -> Path:
    """The program of a source in this folder."""
    program = folder / Path(source).stem
    # Functions are called without their parameters' types, which C23, the default of gcc 15, no longer has.
    standard = "-std=gnu++17" if source.endswith(".cpp") else "-std=gnu17"
    command = [*compiler, standard, "-O1", "-w", *flags, "-o", str(program), str(HERE / source)]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return program


def host_environment() -> dict[str, str]:
    """Where a C program finds Python and our packages."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    packages = [HERE.parents[1] / "src", sysconfig.get_paths()["purelib"], Path(np.__file__).parents[1]]
    return {**plain, "OPENHTP_LIBPYTHON": str(LIBPYTHON), "OPENHTP_SITE": ":".join(map(str, packages))}
