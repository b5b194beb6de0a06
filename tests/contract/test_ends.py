"""Programs that end, or fork, while their NPU has work, wherever that is: in Python and through our C library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.capi.conftest import ROOT
from tests.contract.test_queue import PLACES
from tests.waiting import PATIENCE_S

QUEUED = 4
PROGRAM = f"""
import os, sys
import openhtp as htp
from openhtp.testing import hold, release
from tests.conftest import ramp, relu_graph
from tests.contract import c_table
from pathlib import Path

end, library, options = sys.argv[1], sys.argv[2], dict(word.split("=") for word in sys.argv[3:])
backend = c_table.Backend(Path(library)) if library else htp.Backend()
device = backend.create_device(**options)
graph = relu_graph(device.create_context())
computing = device.computing if library else device
hold(computing)
told = []
sent = [graph.execute_async({{"x": ramp()}}, notify=lambda *_: told.append(1)) for _ in range({QUEUED})]
if end == "fork":
    child = os.fork()
    if not child:
        os._exit(len(told))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    release(computing)
    for execution in sent:
        assert (execution.result({PATIENCE_S})["y"] >= 0).all()
    backend.free()
    assert len(told) == {QUEUED}
print("ends", flush=True)
sys.exit(7)
"""


@pytest.mark.parametrize("end", ["exit", "fork"])
@pytest.mark.parametrize("place", PLACES)
def test_a_program_with_executions_in_the_queue(
    place: str,
    end: str,
    lib_dir: Path,
    request: pytest.FixtureRequest,
) -> None:
    options, environment = dict(PLACES[place]), {**os.environ, "ORT_DISABLE_TELEMETRY": "1"}
    if place.endswith("named"):
        name = request.getfixturevalue("named")
        options = {"OPENHTP_DEVICE" if place == "c named" else "name": name}
    if place.startswith("c "):
        environment |= options
        options = {}
    words = [end, str(lib_dir) if place.startswith("c ") else "", *(f"{key}={options[key]}" for key in options)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 7, done.stdout + done.stderr
    assert done.stdout == "ends\n"
    assert "Traceback" not in done.stderr, done.stderr
