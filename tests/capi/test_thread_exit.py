"""Threads of a host that called the library end, whoever waits for them and whatever that one holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from openhtp.abi.tables import CORE
from tests.capi.conftest import build_script
from tests.waiting import PATIENCE_S

PROGRAM = """
import ctypes, sys
library = ctypes.CDLL({library!r})
listing, count, place = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_uint32(), ctypes.c_void_p()
assert library.QnnInterface_getProviders(ctypes.byref(listing), ctypes.byref(count)) == 0
functions = ctypes.cast(listing[0], ctypes.POINTER(ctypes.c_void_p))
get_build_id = functions[5 + {build_id}]  # behind the head of the provider
joiner, holding = ctypes.CDLL({joiner!r}), ctypes.PyDLL({joiner!r})  # the second keeps Python's lock
for _ in range(50):
    joiner.begin(ctypes.c_void_p(get_build_id), ctypes.byref(place))
    holding.join()
print(ctypes.string_at(place.value).decode())
"""


def test_a_thread_can_be_joined_by_who_holds_pythons_lock(lib_dir: Path, tmp_path: Path) -> None:
    compiler = build_script().compiler()
    if compiler is None:
        pytest.skip("there is no C compiler")
    joiner = tmp_path / "joiner.so"
    source = Path(__file__).with_name("joiner.c")
    subprocess.run([*compiler, "-shared", "-fPIC", "-O1", "-o", str(joiner), str(source), "-lpthread"], check=True)
    library = str(lib_dir / "libQnnHtp.so")
    program = PROGRAM.format(library=library, joiner=str(joiner), build_id=CORE["backendGetBuildId"].place)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("v")
