"""Every word of the command line that names a file to read, with what is no such file: one line, and status 2.

A new option that names a file has to be entered here: a test compares the lists with the commands themselves.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from openhtp import zoo
from openhtp.cli.main import app
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.records.profile import Message, Method, ProfileLogContent, RunTimes
from openhtp.report.profile_log import log_bytes

BAD = "BAD"
# Command lines in which BAD stands for the file. MODEL is a good model, FOLDER an empty folder.
DOORS: dict[tuple[str, str], str] = {
    ("advise", "model"): "advise BAD",
    ("estimate", "model"): "estimate BAD --soc SM8650",
    ("run", "model"): "run BAD --repeat 1",
    ("run", "--input"): "run MODEL --repeat 1 --input BAD",
    ("profile", "model"): "profile BAD --output FOLDER",
    ("profile", "--input"): "profile MODEL --output FOLDER --input BAD",
    ("profile", "--data_format_config"): "profile MODEL --output FOLDER --data_format_config BAD",
    ("quantize", "model"): "quantize BAD --random 1",
    ("quantize", "--calibration"): "quantize MODEL --output FOLDER/q.onnx --calibration BAD",
    ("plan", "scenario"): "plan BAD",
    ("run-scenario", "scenario"): "run-scenario BAD",
    ("profile-diff", "before"): "profile-diff BAD BAD",
    ("profile-diff", "after"): "profile-diff BAD BAD",
    ("profile-viewer", "--input_log"): "profile-viewer --input_log BAD",
    ("profile-viewer", "--config"): "profile-viewer --input_log LOG --reader optrace --config BAD",
    ("profile-viewer", "--schematic"): "profile-viewer --input_log LOG --reader optrace --schematic BAD",
    ("replay", "recording"): "replay BAD",
    ("memory plan", "contexts"): "memory plan BAD",
    ("sweep run", "study"): "sweep run BAD",
    ("sweep show", "store"): "sweep show BAD",
    ("context-binary-utility", "--context_binary"): "context-binary-utility --context_binary BAD",
    ("throughput-net-run", "--config"): "throughput-net-run --config BAD",
    ("llm run", "model"): "llm run BAD hello",
    ("llm export", "model"): "llm export BAD --output FOLDER/b",
    ("llm export", "--calibration"): "llm export BAD --output FOLDER/b --calibration BAD",
    ("llm export", "--adapter"): "llm export BAD --output FOLDER/b --adapter BAD",
    ("llm estimate", "model"): "llm estimate BAD",
    ("llm chunks", "model"): "llm chunks BAD",
    ("llm perplexity", "model"): "llm perplexity BAD BAD",
    ("llm perplexity", "text"): "llm perplexity BAD BAD",
    ("genie chat", "bundle"): "genie chat BAD hello",
    ("genie chat", "--neighbour"): "genie chat BAD hello --neighbour BAD",
    ("genie compare", "bundle"): "genie compare BAD",
    ("net-run", "--model"): "net-run --model BAD --input_list BAD --output_dir FOLDER",
    ("net-run", "--input_list"): "net-run --model MODEL --input_list BAD --output_dir FOLDER",
    ("net-run", "--retrieve_context"): "net-run --retrieve_context BAD --input_list BAD --output_dir FOLDER",
    ("net-run", "--data_format_config"): (
        "net-run --model MODEL --input_list __ --output_dir FOLDER --data_format_config BAD"
    ),
    ("context-binary-generator", "--model"): (
        "context-binary-generator --model BAD --binary_file b --output_dir FOLDER"
    ),
    ("context-binary-generator", "--data_format_config"): (
        "context-binary-generator --model MODEL --binary_file b --output_dir FOLDER --data_format_config BAD"
    ),
}
# Words that name a library to load, by path.
DOORS |= {
    ("board-check", "--library"): "board-check --library BAD",
    ("genie chat", "--library"): "genie chat FOLDER hello --library BAD",
    ("genie compare", "--library"): "genie compare FOLDER --library BAD",
    ("genie links", "--library"): "genie links FOLDER --library BAD",
    ("platform-validator", "--directory"): "platform-validator --backend dsp --testBackend --directory BAD",
    ("net-run", "--backend"): "net-run --model MODEL --input_list LIST --output_dir FOLDER --backend BAD",
    ("context-binary-generator", "--backend"): (
        "context-binary-generator --model MODEL --binary_file b --output_dir FOLDER --backend BAD"
    ),
}
CONFIGS = {
    "advise": "advise MODEL",
    "estimate": "estimate MODEL --soc SM8650",
    "run": "run MODEL --repeat 1",
    "profile": "profile MODEL --output FOLDER",
    "quantize": "quantize MODEL --random 1 --output FOLDER/q.onnx",
    "plan": "plan SCENARIO",
    "run-scenario": "run-scenario SCENARIO",
    "memory plan": "memory plan a=1MB",
    "sweep run": "sweep run SCENARIO",
    "demo": "demo --out FOLDER",
    "device start": "device start --name nobody",
    "llm run": "llm run FOLDER hello",
    "llm estimate": "llm estimate FOLDER",
    "llm perplexity": "llm perplexity FOLDER MODEL",
    "net-run": "net-run --model MODEL --input_list __ --output_dir FOLDER",
    "context-binary-generator": "context-binary-generator --model MODEL --binary_file b --output_dir FOLDER",
    **{f"bench {name}": f"bench {name}" for name in ("async", "preempt", "parallel", "polling", "profiling")},
    **{f"bench {name}": f"bench {name}" for name in ("networks", "load")},
}
DOORS |= {(name, "--config_file"): f"{words} --config_file BAD" for name, words in CONFIGS.items()}
# Words that name what is written, a library to load, or what is refused whatever it is.
NOT_READ = frozenset(
    (
        *("--json", "--json_file", "--html", "--output", "--output_dir", "--out", "--trace", "--timeline"),
        *("--picture", "--write", "--store", "--parquet", "--saver", "--targetPath"),
        *("--dlc", "--dlc_path", "--adapter_weight_config", "prompt", "--source", "folder"),
        *("--models", "size", "--report"),
    )
)
# Loaded after a language model, by the same code as other libraries.
NOT_TRIED = frozenset((("llm perplexity", "--library"),))
# Tools of the vendor's have statuses of their own, by the stage that failed.
VENDOR_TOOLS = frozenset(("net-run", "context-binary-generator", "throughput-net-run", "replay"))


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "list_commands"):
        yield " ".join(words), command
        return
    for name in command.list_commands(None):
        yield from _commands(command.get_command(None, name), (*words, name))


def _kind(parameter: Any) -> str:
    if not hasattr(parameter, "bare_type"):  # as in typer's older versions
        return str(parameter.type)
    return str(parameter.bare_type() if callable(parameter.bare_type) else parameter.bare_type)


def test_every_door_is_known() -> None:
    missing = []
    for name, command in _commands(typer.main.get_command(app)):
        for parameter in command.params:
            word = parameter.opts[0]
            is_path = "Path" in _kind(parameter)
            if (is_path or parameter.param_type_name == "argument") and word not in NOT_READ:
                missing += [(name, word)] if (name, word) not in DOORS.keys() | NOT_TRIED else []
    assert missing == []


def _bad_file(kind: str, folder: Path) -> Path:
    path = folder / "bad.onnx"
    if kind == "missing":
        return path
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "zero":
        return Path("/dev/zero")
    elif kind == "cut":
        path.write_bytes(zoo.tiny_mlp(8)[:-40])
    elif kind == "other":
        path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(range(256)) * 40)
    else:
        shutil.copy(Path(onnxruntime.__file__).parent / "datasets" / "logreg_iris.onnx", path)
    return path


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe", "zero", "cut", "other", "no tensors"])
@pytest.mark.parametrize(("name", "word"), DOORS)
def test_one_line_and_status_2(
    name: str, word: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.onnx").write_bytes(zoo.tiny_mlp(8))
    (tmp_path / "empty").mkdir()
    (tmp_path / "list.txt").write_text("x.raw\n")
    np.zeros((1, 8), np.float32).tofile(tmp_path / "x.raw")
    scenario = "device: {soc: SM8650}\nclients: [{name: a, run: 1}]\nevents: [{client: a, at: [0]}]\n"
    (tmp_path / "scenario.yaml").write_text(scenario)
    traced = Message(
        method=Method.EXECUTE, graph="g", run=RunTimes(received_ns=0, started_ns=1, finished_ns=2), schematic="0"
    )
    log = ProfileLogContent(app="", version="", created_us=0, soc="SM8650", level="detailed", messages=(traced,))
    (tmp_path / "good.log").write_bytes(log_bytes(log))
    bad = _bad_file(kind, tmp_path)
    words = {
        BAD: str(bad),
        "MODEL": "good.onnx",
        "SCENARIO": "scenario.yaml",
        "LOG": "good.log",
        "LIST": "list.txt",
    }
    line = [words.get(each, each.replace("FOLDER", "empty")) for each in DOORS[name, word].split()]
    result = CliRunner().invoke(app, line)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    if name in VENDOR_TOOLS:
        assert result.exit_code != 0, result.output
    else:
        assert result.exit_code == 2, result.output
    (error,) = (line for line in result.output.splitlines() if "rror: " in line)
    # Without the vendor's library there is nobody to read a bundle.
    named = bad.name in error or str(bad)[:100] in error  # a message cuts off a long path
    assert named or (name.startswith("genie") and "libGenie.so is not installed" in error)
    assert len(error.replace(str(bad), "")) < 2000  # and not the file itself
    assert "Traceback" not in result.output
    assert "Usage:" not in result.output  # the command line was right
