"""Our files in the programs that people open them with (slow)."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import subprocess
import tarfile
import threading

import pytest

from openhtp.compiler.driver import CompileOptions, portable_program, program_for
from openhtp.onnx import load
from openhtp.records.profile import Pause, RunTimes
from openhtp.report.netron import schematic_to_netron
from openhtp.report.optrace import TraceOptions, optrace_to_chrome
from openhtp.report.schematic import schematic_of
from openhtp.zoo import small_cnn

SPEEDSCOPE = "speedscope@1.25.0"
PAUSE = Pause(step=1, asked_ns=2000, released_ns=2100, granted_ns=4000, restored_ns=4100)
RUN = RunTimes(received_ns=1000, started_ns=1500, finished_ns=9000, pauses=(PAUSE,))


@pytest.fixture(scope="module")
def compiled():
    return schematic_of(program_for(portable_program(load(small_cnn()), CompileOptions()), "SM8650"))


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def speedscope(tmp_path_factory):
    """The viewer as npm has it, served from this computer."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm here")
    folder = tmp_path_factory.mktemp("speedscope")
    got = subprocess.run([npm, "pack", SPEEDSCOPE], cwd=folder, capture_output=True, text=True, check=False)
    if got.returncode:
        pytest.skip(f"npm cannot fetch {SPEEDSCOPE}")
    with tarfile.open(next(folder.glob("*.tgz"))) as packed:
        packed.extractall(folder, filter="data")
    root = folder / "package" / "dist" / "release"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=root))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield root, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
def test_speedscope_opens_an_op_trace(speedscope, open_page, compiled):
    root, address = speedscope
    flows = TraceOptions(enable_input_output_flow_events=True, enable_sequencer_flow_events=True)
    document = optrace_to_chrome(compiled, RUN, (), flows)
    (root / "trace.json").write_text(json.dumps(document))
    page = open_page(f"{address}/index.html#profileURL={address}/trace.json", allowed=address)
    page.get_by_text("Core 0 Overview").first.wait_for()
    title = page.inner_text("body")
    lanes = {(event["pid"], event["tid"]) for event in document["traceEvents"] if event["ph"] == "X"}
    assert f"/{len(lanes)})" in title  # each of our threads is a profile of its own


@pytest.mark.slow
def test_netron_opens_the_compiled_graph(browser, tmp_path, compiled):
    netron = pytest.importorskip("netron")
    path = tmp_path / "small_htp.json"
    path.write_text(json.dumps(schematic_to_netron(compiled)))
    host, port = netron.start(str(path), address=("127.0.0.1", 0), browse=False)
    try:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        # It would ask where we are, to decide on cookies.
        page.route(lambda url: not url.startswith(f"http://{host}"), lambda route: route.abort())
        page.goto(f"http://{host}:{port}/")
        page.get_by_text("Accept", exact=True).click()
        page.locator("g.node-item").first.wait_for()
        assert page.locator("g.node-item").count() == len(compiled.executed)
        for kind in ("Conv2d", "DramToTcm"):
            assert page.locator(".node-item-type", has_text=kind).count() > 0
        page.close()
    finally:
        netron.stop((host, port))
