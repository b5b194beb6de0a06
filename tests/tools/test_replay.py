"""The saver and ``openhtp replay``: what was called is called again, and hostile recordings are refused."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as some

import openhtp as htp
from openhtp.core.errors import FormatError, QnnError
from openhtp.runtime.instruments.saving_calls import saved
from openhtp.runtime.objects.graph import Graph
from openhtp.testing import hold, inject, release
from openhtp.tools.replay import Tolerance, replay
from tests.capi.c_programs import can_load_python, host_environment
from tests.conftest import ramp, relu_graph
from tests.tools.conftest import run

X = {"x": ramp()}


def calls_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "saver_output.jsonl").read_text().splitlines()]


def again(folder: Path) -> Any:
    return replay(folder, None, Tolerance(), lambda *_: None)


def program(device: htp.Device) -> None:
    """A bit of everything."""
    context = device.create_context(queue_depth=4, priority="high")
    graph = context.create_graph("conv", vtcm_mb=4)
    random = np.random.default_rng(0)
    x = graph.add_tensor("x", (1, 4, 4, 2), "ufixed8", quant=htp.ScaleOffset(0.1, -7), kind="app_write")
    per_channel = htp.AxisScaleOffset(3, (0.1, 0.2, 0.3))
    weights = random.integers(-100, 100, (3, 3, 2, 3)).astype(np.int8)
    w = graph.add_tensor("w", (3, 3, 2, 3), "sfixed8", quant=per_channel, data=weights)
    y = graph.add_tensor("y", (1, 2, 2, 3), "ufixed8", quant=htp.ScaleOffset(3.0, -128), kind="app_read")
    params = {"stride": [2, 2], "pad_amount": np.array([[1, 0], [1, 0]], np.uint32)}
    graph.add_node("Conv2d", name="c", inputs=[x, w], outputs=["y"], params=params)
    graph.set_config(priority="low")
    graph.finalize()
    image = random.integers(0, 255, (1, 4, 4, 2)).astype(np.uint8)
    graph.execute({"x": image})
    pending = [graph.execute_async({x: image + number}) for number in range(6)]
    for execution in pending:
        execution.result()
    memory = context.register_memory(y)
    graph.execute({x.id: image}, {y: memory})
    memory.free()
    blob = context.get_binary()
    with device.create_context_from_binary(blob, queue_depth=7) as other:
        other.graph("conv").execute({"x": image})
    with pytest.raises(QnnError):
        context.create_graph("conv")
    context.free()


def test_calls_are_saved_and_made_again(tmp_path: Path) -> None:
    plain = Graph._enqueue
    with saved(tmp_path / "rec"), htp.Backend() as backend, backend.create_device(soc="SM8550") as device:
        program(device)
    assert Graph._enqueue is plain, "nothing is in the way afterwards"
    calls = calls_in(tmp_path / "rec")
    counted = Counter(call["call"] for call in calls)
    assert (counted["graphExecute"], counted["graphExecuteAsync"], counted["executionEnded"]) == (3, 6, 9)
    assert next(call for call in calls if call["call"] == "deviceCreate")["options"] == {"soc": "SM8550"}
    (node,) = [call for call in calls if call["call"] == "graphAddNode"]
    assert node["params"]["stride"]["values"] == [2, 2]
    assert [call["error"] for call in calls if "error" in call] == ["QNN_GRAPH_ERROR_INVALID_NAME"]
    size = (tmp_path / "rec/params.bin").stat().st_size
    assert size < 300_000, "what is equal is there once"
    outcome = again(tmp_path / "rec")
    assert outcome.holds, outcome.differing
    (row,) = outcome.compared.values()
    assert (row.executions, row.equal, row.in_steps) == (9, row.elements, True)


def test_signals_profiles_and_votes_are_made_again(tmp_path: Path) -> None:
    with saved(tmp_path / "rec"), htp.Backend() as backend, backend.create_device(soc="SM8550") as device:
        power = device.create_power_config()
        power.set(dcvs=htp.DcvsVote(core="turbo", bus=("svs", "nom", "turbo")), rpc_polling_us=500)
        power.set_perf_profile("burst", rpc_polling_us=100)
        with pytest.raises(QnnError):
            power.set(hmx={"corners": "none of these"})
        signal, late, profile = backend.create_signal(), backend.create_signal(5_000_000), backend.create_profile()
        graph = relu_graph(device.create_context())
        graph.execute(X, profile=profile, signal=signal)
        graph.execute_async(X, signal=late).result()
        hold(device)
        aborted = graph.execute_async(X, signal=signal)
        signal.trigger()
        release(device)
        with pytest.raises(QnnError):
            aborted.result()
        for thing in (signal, late, profile):
            thing.free()
        power.destroy()
    counted = Counter(call["call"] for call in calls_in(tmp_path / "rec"))
    assert [counted[word] for word in ("signalCreate", "signalTrigger", "profileCreate", "setPowerConfig")] == [
        2,
        1,
        1,
        3,
    ]
    outcome = again(tmp_path / "rec")
    assert outcome.holds, outcome.differing
    assert outcome.executions == 3


def test_a_signal_that_comes_too_late_in_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing holds executions up when they are made again: one may be over before its signal comes."""
    with saved(tmp_path / "rec"), htp.Backend() as backend, backend.create_device() as device:
        signal, graph = backend.create_signal(), relu_graph(device.create_context())
        hold(device)
        aborted = graph.execute_async(X, signal=signal)
        signal.trigger()
        release(device)
        with pytest.raises(QnnError):
            aborted.result()
    real = Graph.execute_async

    def over_at_once(graph: Graph, *args: Any, **options: Any) -> htp.Execution:
        execution = real(graph, *args, **options)
        execution.result()
        return execution

    monkeypatch.setattr(Graph, "execute_async", over_at_once)
    outcome = again(tmp_path / "rec")
    assert outcome.holds, outcome.differing


def test_the_command_tells_what_differs(tmp_path: Path, shared_device: htp.Device) -> None:
    with saved(tmp_path / "rec"):
        relu_graph(shared_device.create_context()).execute(X)
    done = run("replay", tmp_path / "rec", "--json", tmp_path / "j.json")
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "j.json").read_text())["outputs"][0]["equal"] == 8
    lines = (tmp_path / "rec/saver_output.jsonl").read_text().replace('"op":"Relu"', '"op":"ElementWiseNeg"')
    (tmp_path / "rec/saver_output.jsonl").write_text(lines)
    done = run("replay", tmp_path / "rec/saver_output.jsonl")
    assert done.exit_code == 1
    assert "too far" in done.output


def test_faults_that_were_met_are_told_to_differ(tmp_path: Path, shared_device: htp.Device) -> None:
    graph = relu_graph(shared_device.create_context())
    with saved(tmp_path / "rec"), inject("fail@graphExecute:2"):
        graph = relu_graph(shared_device.create_context())
        graph.execute(X)
        with pytest.raises(QnnError):
            graph.execute(X)
    outcome = again(tmp_path / "rec")
    assert not outcome.holds
    assert "it was QNN_GRAPH_ERROR_GENERAL" in outcome.differing[0]


def test_clients_of_the_c_table_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Path(htp.__file__).parent / "capi/lib/libQnnHtp.so"
    if not library.is_file():
        pytest.skip("the C library is not built")
    with htp.Backend() as backend, backend.create_device(transport="inprocess") as device:
        blob = relu_graph(device.create_context()).context.get_binary()
    monkeypatch.setenv("OPENHTP_SAVER", str(tmp_path / "rec"))
    client = f"""
from openhtp.vendor.backend import LibraryBackend
from openhtp.vendor.context import LibraryContext
from openhtp.vendor.library import load
import numpy as np, sys
with LibraryBackend(load({str(library)!r}), soc=57) as backend:
    context = LibraryContext.from_binary(backend.create_device(soc=57), sys.stdin.buffer.read())
    context.graphs["g"].execute({{"x": np.ones((1, 8), np.float32)}})
"""
    subprocess.run([sys.executable, "-c", client], input=blob, check=True)
    monkeypatch.delenv("OPENHTP_SAVER")
    calls = calls_in(tmp_path / "rec")
    entries = [call["name"] for call in calls if call["call"] == "entry"]
    assert {"backendCreate", "deviceCreate", "contextCreateFromBinary", "graphExecute", "contextFree"} <= set(
        entries
    )
    assert again(tmp_path / "rec").holds


def test_two_processes_do_not_write_into_one_file(tmp_path: Path, shared_device: htp.Device) -> None:
    program = "import openhtp; openhtp.Backend().create_device(transport='inprocess')"
    with saved(tmp_path / "rec"):
        environment = {**os.environ, "OPENHTP_SAVER": str(tmp_path / "rec")}
        subprocess.run([sys.executable, "-c", program], env=environment, check=True)
        relu_graph(shared_device.create_context())
    (other,) = (tmp_path / "rec").glob("process_*")
    assert [call["call"] for call in calls_in(other)][:3] == ["begin", "backendCreate", "deviceCreate"]
    assert "graphFinalize" in {call["call"] for call in calls_in(tmp_path / "rec")}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rec")
    with saved(folder), htp.Backend() as backend, backend.create_device(transport="inprocess") as device:
        relu_graph(device.create_context()).execute(X)
    return folder


BEGIN = '{"call":"begin","format":"openhtp-saver","version":1,"openhtp":"0","data":"params.bin"}\n'
BACKEND = BEGIN + '{"call":"backendCreate","backend":1}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("{}", ":1: is no saved call"),
        (BEGIN.replace('"version":1', '"version":9'), "has version 9"),
        (BEGIN.replace("params.bin", "../../etc/passwd"), "expected params.bin, beside it"),
        (BACKEND + "nonsense\n", ":3: is no saved call"),
        (BACKEND + '{"call":"system","command":"ls"}\n', ":3: is no saved call"),
        (BACKEND + '{"call":"graphFinalize","graph":1}\n', ":3: means 1 as a graph, which was not made before"),
        (BACKEND + '{"call":"backendCreate","backend":1}\n', ":3: makes 1, which is there already"),
        (
            BACKEND + '{"call":"deviceCreate","backend":1,"device":2,"options":{"soc":{"text":"x"}}}\n',
            "given again",
        ),
        (BACKEND + '{"call":"backendCreate","backend":' + "[" * 5000, ":3: is no saved call"),
    ],
)
def test_what_is_no_recording_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "saver_output.jsonl").write_text(text)
    with pytest.raises(FormatError) as refused:
        again(tmp_path)
    assert said in refused.value.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"offset":0', '"offset":999999999'),
        ('"nbytes":32', '"nbytes":31'),
        ('"nbytes":32', '"nbytes":281474976710656'),
        ('"shape":[1,8]', '"shape":[1,8,1099511627776]'),
        ('"dtype":"<f4"', '"dtype":"|O8"'),
    ],
)
def test_data_lies_in_its_file(recording: Path, tmp_path: Path, old: str, new: str) -> None:
    text = (recording / "saver_output.jsonl").read_text()
    assert old in text
    (tmp_path / "saver_output.jsonl").write_text(text.replace(old, new))
    (tmp_path / "params.bin").write_bytes((recording / "params.bin").read_bytes())
    with pytest.raises(FormatError):
        again(tmp_path)


@settings(max_examples=40)
@given(data=some.data())
def test_damage_anywhere_is_an_error_of_ours_or_a_difference(recording: Path, data: Any) -> None:
    folder = recording / "damaged"
    folder.mkdir(exist_ok=True)
    text = bytearray((recording / "saver_output.jsonl").read_bytes())
    for _ in range(data.draw(some.integers(1, 3))):
        place = data.draw(some.integers(0, len(text) - 1))
        text[place] = data.draw(some.integers(0, 255))
    (folder / "saver_output.jsonl").write_bytes(text)
    (folder / "params.bin").write_bytes((recording / "params.bin").read_bytes())
    with contextlib.suppress(QnnError):
        again(folder)


def compiled_source(folder: Path) -> Path:
    """The C program of a recording, compiled with nothing but what is in the recording."""
    flags = ["-std=gnu17", "-O0", "-Wall", "-Wno-unused-function", "-Werror"]
    command = ["gcc", *flags, "-o", "replay", "saver_output.c", "-ldl", "-lm"]
    subprocess.run(command, check=True, cwd=folder)
    return folder / "replay"


@pytest.mark.skipif(not can_load_python(), reason="this Python has no shared library")
def test_calls_are_saved_as_a_c_program(tmp_path: Path) -> None:
    """It needs no headers of the vendor's, runs on our library, and sees an output that is another."""
    folder = tmp_path / "rec"
    with saved(folder), htp.Backend() as backend, backend.create_device(soc="SM8550") as device:
        program(device)
    command = [str(compiled_source(folder)), htp.backend_path()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=host_environment(), check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("12 numbers, at most 0 off") == 9
    assert done.stdout.endswith("0 differences\n")
    last = [call for call in calls_in(folder) if call["call"] == "executionEnded"][-1]["outputs"]["y"]
    with (folder / "params.bin").open("r+b") as data:
        data.seek(last["offset"])
        byte = data.read(1)[0]
        data.seek(last["offset"])
        data.write(bytes([byte ^ 0x40]))
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=host_environment(), check=False)
    assert done.returncode == 1
    assert "too far" in done.stdout


def test_the_c_program_of_an_older_recording(tmp_path: Path) -> None:
    folder = tmp_path / "rec"
    with saved(folder), htp.Backend() as backend, backend.create_device(soc="SM8550") as device:
        relu_graph(device.create_context()).execute(X)
    written = (folder / "saver_output.c").read_text()
    (folder / "saver_output.c").unlink()
    done = run("replay", str(folder), "--source", str(folder / "saver_output.c"))
    assert done.exit_code == 0, done.output
    assert (folder / "saver_output.c").read_text() == written
    assert "SM8550" not in written  # chips have numbers
    compiled_source(folder)


def test_names_of_a_recording_are_only_text_in_its_c_program(tmp_path: Path) -> None:
    folder = tmp_path / "rec"
    hostile = 'x"); system("true"); /* \\ */ //\n??/'
    with saved(folder), htp.Backend() as backend, backend.create_device(host="thread") as device:
        graph = device.create_context().create_graph(hostile)
        graph.add_tensor(hostile, (1, 8), "float32", kind="app_write")
        graph.add_tensor("y", (1, 8), "float32", kind="app_read")
        graph.add_node("Relu", name=hostile, inputs=[hostile], outputs=["y"])
        graph.finalize()
    text = (folder / "saver_output.c").read_text()
    assert 'system("' not in text
    compiled_source(folder)


def test_operators_of_a_package_are_replayed_where_it_is_given(tmp_path: Path) -> None:
    folder, reference = tmp_path / "rec", "tests.op_packages.own_ops:PACKAGE"
    with saved(folder), htp.Backend() as backend, backend.create_device(host="thread") as device:
        backend.register_op_package(reference)
        graph = device.create_context().create_graph("g")
        graph.add_tensor("x", (1, 8), "float32", kind="app_write")
        graph.add_tensor("y", (1, 8), "float32", kind="app_read")
        graph.add_node("Swish", inputs=["x"], outputs=["y"], package="tests.ops")
        graph.finalize()
        graph.execute(X)
    done = run("replay", str(folder), "--op_packages", reference)
    assert done.exit_code == 0, done.output
    done = run("replay", str(folder))
    assert done.exit_code == 1
    assert "is not registered" in " ".join(done.output.split())
