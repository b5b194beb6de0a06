"""Every command that makes a device or a graph takes a backend extensions config, and looks at it first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from openhtp import zoo
from openhtp.cli.main import app

COMMANDS = [
    "run zoo:tiny_mlp",
    "profile zoo:tiny_mlp -o out",
    "estimate zoo:tiny_mlp",
    "quantize model.onnx --random 1",
    "demo",
    "run-scenario scenario.yaml",
    "device start --name never",
    "llm run nowhere",
    "llm perplexity nowhere nowhere.txt",
    "bench async",
    "bench preempt",
    "bench parallel",
    "bench polling",
    "bench profiling",
    "bench networks",
    "bench load",
]


def invoke(words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.chdir(folder)
    (folder / "model.onnx").write_bytes(zoo.tiny_mlp())
    (folder / "scenario.yaml").write_text(
        "device: {vtcm_mb: 1}\nclients: [{name: a, run: 1}]\nevents: [{client: a, at: 0}]\n"
    )
    return CliRunner().invoke(app, words.split())


@pytest.mark.parametrize("words", COMMANDS)
def test_a_wrong_config_is_told_with_its_place_and_nothing_is_done(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.json").write_text(json.dumps({"devices": [{"cores": [{"perf_profil": "burst"}]}]}))
    result = invoke(f"{words} --config_file bad.json", tmp_path, monkeypatch)
    assert result.exit_code != 0
    assert "bad.json: /devices/0/cores/0/perf_profil is not known; did you mean perf_profile?" in " ".join(
        result.output.split()
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.json", "model.onnx", "scenario.yaml"]


def test_no_command_was_forgotten() -> None:
    """Those that have a chip, or a perf profile, have a config, but for a few that make no device or graph."""
    without = {"advise", "llm chunks", "llm estimate", "memory plan", "context-binary-utility"}
    root = typer.main.get_command(app)
    context = typer.Context(root)
    for name in root.list_commands(context):  # type: ignore[attr-defined]
        command = root.get_command(context, name)  # type: ignore[attr-defined]
        commands = getattr(command, "commands", None) or {"": command}
        for inner, one in commands.items():
            words = f"{name} {inner}".strip()
            options = {option for param in one.params for option in param.opts}
            if options & {"--soc", "--perf-profile"} and words not in without:
                assert "--config_file" in options, words


def test_votes_and_options_of_a_config_reach_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {
        "devices": [{"soc_model": 43, "profiling_level": "linting", "cores": [{"perf_profile": "balanced"}]}]
    }
    (tmp_path / "htp.json").write_text(json.dumps(config))
    result = invoke(
        "profile zoo:tiny_mlp -o out --runs 1 --config_file htp.json --json out.json", tmp_path, monkeypatch
    )
    assert result.exit_code == 0, result.output
    told = json.loads((tmp_path / "out.json").read_text())
    assert (told["soc"], told["perf_profile"], told["level"]) == ("SM8550", "balanced", "linting")
    assert "Wait (Scheduler) time:" in result.output
