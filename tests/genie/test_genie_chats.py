"""An unmodified libGenie.so chats on our library, word for word as our generator writes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import openhtp as htp
from openhtp import llm
from openhtp.core.errors import InvalidArgument, QnnError, WrongState
from openhtp.genie import Chat, find_genie
from openhtp.genie.libraries import link_libraries
from tests.capi.c_programs import can_load_python, host_environment
from tests.genie.conftest import AUSTEN, CALIBRATION, PROMPT
from tests.llm.test_adapter import peft
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.vendor,
    pytest.mark.skipif(find_genie() is None, reason="libGenie.so is not installed"),
]

_BUSY = """
name: a busy camera
unit: ms
duration: 200
device: {soc: SM8650}
clients:
  - {name: camera, priority: high}
events:
  - {client: camera, every: 5, run: 2}
"""


@pytest.fixture(scope="module")
def expected(bundles: dict[str, Path]) -> str:
    """What our generator writes, from the token on that Genie puts first."""
    with htp.Backend() as backend:
        chat = llm.Generator(llm.Bundle.at(bundles["native"]), backend.create_device(soc="SM8650"))
        ids = [0, *chat.tokenizer.encode(PROMPT)]
        return chat.tokenizer.decode(chat.complete(ids, max_new=40))


@pytest.fixture
def busy(tmp_path: Path) -> Path:
    path = tmp_path / "busy.yaml"
    path.write_text(_BUSY)
    return path


@pytest.fixture(scope="module")
def chat(bundles: dict[str, Path]) -> Iterator[Chat]:
    with Chat(bundles["native"], profiled=True) as opened:
        yield opened


@pytest.mark.parametrize("name", ["native", "flat", "concat", "parts2", "embedded"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_genie_writes_what_our_generator_writes(
    bundles: dict[str, Path], expected: str, name: str, asynchronous: bool
) -> None:
    with Chat(bundles[name], asynchronous=asynchronous) as chat:
        pieces = list(chat.query(PROMPT, tokens=40))
        assert "".join(pieces) == chat.answer.text == expected
        assert len(pieces) > 20, "text comes in pieces"
        assert chat.answer.end == "complete"


@pytest.mark.parametrize("kind", ["linear", "yarn", "longrope"])
def test_genie_stretches_positions_as_our_generator_does(tmp_path: Path, kind: str) -> None:
    checkpoint = shutil.copytree(AUSTEN, tmp_path / "checkpoint")
    about = json.loads((checkpoint / "config.json").read_text())
    stretching = {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 256}
    rising = [1.0 + pair / 31 for pair in range(32)]
    divisors = {"short_factor": [1.0] * 32, "long_factor": rising} if kind == "longrope" else {}
    (checkpoint / "config.json").write_text(json.dumps({**about, "rope_scaling": stretching | divisors}))
    model = llm.load(checkpoint)
    folder = llm.export(model, ar=(32, 1), rounding="nearest", calibration=CALIBRATION).save(tmp_path / kind)
    with htp.Backend() as backend:
        ours = llm.Generator(llm.Bundle.at(folder), backend.create_device(soc="SM8650"))
        ids = [0, *ours.tokenizer.encode(PROMPT)]
        expected = ours.tokenizer.decode(ours.complete(ids, max_new=40))
    with Chat(folder) as chat:
        assert "".join(chat.query(PROMPT, tokens=40)) == expected


def test_parts_in_a_queue_are_right_beside_a_busy_neighbour(
    bundles: dict[str, Path], expected: str, busy: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    with Chat(bundles["parts2"], asynchronous=True, neighbour=busy, trace=trace) as chat:
        for _ in range(5):
            assert chat.ask(PROMPT, tokens=40).text == expected
            chat.reset()
    events = json.loads(trace.read_text())["traceEvents"]
    lanes = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"camera", "token_ar1_cl1024_1_of_2", "token_ar1_cl1024_2_of_2"} <= lanes


def test_several_queries_and_reset(chat: Chat) -> None:
    chat.reset()
    first = chat.ask(PROMPT, tokens=8).text
    following = chat.ask(" and her", tokens=8).text
    chat.reset()
    assert chat.ask(" and her", tokens=8).text != following, "it follows what was said before"
    chat.reset()
    assert chat.ask(PROMPT, tokens=8).text == first


def test_a_saved_dialog_goes_on(bundles: dict[str, Path], tmp_path: Path) -> None:
    """With a flat cache; a native one Genie restores otherwise, on the vendor's library, too."""
    with Chat(bundles["flat"]) as chat:
        chat.ask(PROMPT, tokens=8)
        chat.save(tmp_path / "saved")
        went_on = chat.ask(" and", tokens=8).text
        chat.reset()
        assert chat.ask(" and", tokens=8).text != went_on
        chat.reset()
        chat.restore(tmp_path / "saved")
        assert chat.ask(" and", tokens=8).text == went_on


def test_an_answer_ends_at_a_stop_sequence(chat: Chat) -> None:
    chat.reset()
    whole = chat.ask(PROMPT, tokens=20).text
    chat.reset()
    chat.stop_at([","])
    assert chat.ask(PROMPT, tokens=20).text.rstrip(",") == whole.partition(",")[0]
    chat.stop_at([])


def test_tokens_in_tokens_out(chat: Chat, bundles: dict[str, Path]) -> None:
    chat.reset()
    with htp.Backend() as backend:
        ours = llm.Generator(llm.Bundle.at(bundles["native"]), backend.create_device(soc="SM8650"))
        assert chat.ask_tokens([0, 41, 84, 305], tokens=8).tokens[:8] == ours.complete([0, 41, 84, 305], max_new=8)


def test_a_listener_who_leaves_stops_the_answer(chat: Chat) -> None:
    chat.reset()
    answer = chat.query(PROMPT, tokens=400)
    next(answer)
    with pytest.raises(WrongState, match="being answered already"):
        chat.query(PROMPT)
    answer.close()
    chat.reset()
    assert chat.ask(PROMPT, tokens=3).text


def test_genie_measures_its_calls(chat: Chat) -> None:
    chat.ask(" and", tokens=2)
    events = [event["type"] for part in chat.profile()["components"] for event in part["events"]]
    assert "GenieDialog_create" in events
    assert "GenieDialog_query" in events


@pytest.mark.parametrize(("name", "size"), [("native", 992), ("flat", 1023), ("concat", 1023)])
def test_a_full_context_ends_the_query(bundles: dict[str, Path], name: str, size: int) -> None:
    """Genie ends it itself, as the configuration leaves room for the last pass."""
    with Chat(bundles[name]) as chat:
        answer = chat.ask(PROMPT, tokens=2000)
    assert answer.end == "context_full"
    assert size - 32 < answer.pieces < size


def test_an_adapter_is_exchanged_while_the_graphs_stay_loaded(tmp_path: Path) -> None:
    model = llm.load(AUSTEN)
    random = np.random.default_rng(1)
    matrices = {}
    for layer in range(4):
        key = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_"
        matrices[f"{key}A.weight"] = (3 * random.normal(size=(4, 256)) / 16).astype(np.float32)
        matrices[f"{key}B.weight"] = (random.normal(size=(256, 4)) / 2).astype(np.float32)
    adapter = llm.load_adapter(peft(tmp_path / "one", matrices, target_modules=["q_proj"]), model.config)
    options = {"ar": (32, 1), "parts": 2, "rounding": "nearest", "calibration": CALIBRATION}
    bundle = llm.export(model, adapters=[adapter], **options)  # type: ignore[arg-type]
    texts = {}
    with htp.Backend() as backend:
        for name in (None, "one"):
            with llm.Generator(bundle, backend.create_device(soc="SM8650"), adapter=name) as ours:
                ids = [0, *ours.tokenizer.encode(PROMPT)]
                texts[name] = ours.tokenizer.decode(ours.complete(ids, max_new=12))
    with Chat(bundle.save(tmp_path / "bundle")) as chat:
        assert chat.ask(PROMPT, tokens=12).text == texts[None] != texts["one"]
        chat.reset()
        chat.use_adapter("one")
        assert chat.ask(PROMPT, tokens=12).text == texts["one"]


# What goes wrong


def test_a_key_that_genie_refuses_is_named(bundles: dict[str, Path], tmp_path: Path) -> None:
    content = json.loads((bundles["native"] / "genie_config.json").read_text())
    content["dialog"]["engine"]["backend"]["QnnHtp"]["pole"] = True
    changed = bundles["native"] / "odd_config.json"
    changed.write_text(json.dumps(content))
    with pytest.raises(InvalidArgument, match="'pole'"):
        Chat(changed)


def test_a_fault_ends_the_query_with_its_name(bundles: dict[str, Path]) -> None:
    with (
        Chat(bundles["native"], faults="ssr@graphExecute:5") as chat,
        pytest.raises(QnnError, match="injected by 'ssr@graphExecute:5'"),
    ):
        chat.ask(PROMPT, tokens=20)


def test_a_killed_device_ends_the_query(bundles: dict[str, Path]) -> None:
    with Chat(bundles["native"], host="process") as chat:
        answer = chat.query(PROMPT, tokens=900)
        next(answer)
        name = f"npu-of-{chat.pid}-".encode()
        devices = [path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if name in _words_of(path)]
        assert devices
        for device in devices:
            os.kill(int(device.name), signal.SIGKILL)
        with pytest.raises(QnnError, match="the device process went away"):
            list(answer)


def _words_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


def test_one_dialog_goes_on_when_the_process_of_another_is_killed(bundles: dict[str, Path], expected: str) -> None:
    with Chat(bundles["native"]) as one, Chat(bundles["native"]) as other:
        answer = one.query(PROMPT, tokens=400)
        next(answer)
        os.kill(one.pid, signal.SIGKILL)
        with pytest.raises(QnnError, match="has ended, by SIGKILL"):
            list(answer)
        assert other.ask(PROMPT, tokens=40).text == expected


def test_an_interrupt_leaves_nothing_behind(bundles: dict[str, Path], tmp_path: Path) -> None:
    code = "from openhtp.cli.main import main; main()"
    command = [sys.executable, "-c", code, "genie", "chat", str(bundles["native"]), PROMPT, "-n", "900"]
    environment = dict(os.environ, TMPDIR=str(tmp_path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.read(len(PROMPT) + 2), "it is answering"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    wait_until(lambda: not list(tmp_path.iterdir()))


def test_a_priority_reaches_the_contexts_and_a_policy_votes(
    bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Votes are made by the vendor's library of extensions, on ours."""
    extensions = {"devices": [{"soc_model": 57, "dsp_arch": "v75", "cores": [{"perf_profile": "burst"}]}]}
    (bundles["flat"] / "ext.json").write_text(json.dumps(extensions))
    content = json.loads((bundles["flat"] / "genie_config.json").read_text())
    content["dialog"]["engine"]["backend"]["extensions"] = "ext.json"
    (bundles["flat"] / "voting_config.json").write_text(json.dumps(content))
    monkeypatch.setenv("OPENHTP_SAVER", str(tmp_path / "calls"))
    with Chat(bundles["flat"] / "voting_config.json") as chat:
        chat.set_priority("high")
        chat.set_policy("power_saver")
        chat.ask(PROMPT, tokens=2)
    lines = (tmp_path / "calls" / "saver_output.jsonl").read_text().splitlines()
    calls = [json.loads(line) for line in lines]
    assert {"priority": 200} in [call["options"] for call in calls if call["call"] == "setConfig"]
    votes = [call["votes"].get("dcvs") for call in calls if call["call"] == "setPowerConfig"]
    assert any(vote and vote["core"] == ["svs", "svs", "svs"] for vote in votes), "power_saver"


def test_an_app_in_c_chats_on_our_library(bundles: dict[str, Path], expected: str, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not can_load_python():
        pytest.skip("there is no C compiler, or no shared library of this Python")
    genie = find_genie()
    assert genie is not None
    folder = link_libraries(genie, tmp_path / "lib")
    source = Path(__file__).parents[2] / "examples" / "c" / "genie_chat.c"
    subprocess.run([compiler, "-Wall", "-Werror", str(source), "-o", str(tmp_path / "app"), "-ldl"], check=True)
    done = subprocess.run(
        [str(tmp_path / "app"), str(folder / "libGenie.so"), "genie_config.json", PROMPT, "40"],
        cwd=bundles["parts2"],
        env=host_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
