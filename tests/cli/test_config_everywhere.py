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
    "llm estimate llama-3.2-3b",
    "advise zoo:tiny_mlp",
    "memory plan a=1GB",
    "plan scenario.yaml",
    "sweep study.json",
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
    study = {"measure": "estimate", "axes": {"model": "zoo:tiny_mlp", "hvx_threads": [2, 4]}}
    (folder / "study.json").write_text(json.dumps(study))
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
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bad.json",
        "model.onnx",
        "scenario.yaml",
        "study.json",
    ]


def test_no_command_was_forgotten() -> None:
    """Those that have a chip, or a perf profile, have a config, but for a few that make no device or graph."""
    # Genie reads its own configuration, which names its extensions file.
    # Reports of the field kit are compared with each other, so nothing is tuned there.
    without = {"llm chunks", "context-binary-utility", "genie chat", "genie compare", "board-check"}
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


def test_the_chip_of_a_config_holds_where_the_command_names_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "htp.json").write_text(json.dumps({"devices": [{"soc_model": 43}]}))
    for words in ("advise zoo:tiny_mlp", "memory plan a=1GB", "llm estimate llama-3.2-3b"):
        result = invoke(f"{words} --config_file htp.json", tmp_path, monkeypatch)
        assert result.exit_code == 0, result.output
        assert "SM8550" in result.output, words
        assert "SM8650" in invoke(f"{words} --config_file htp.json --soc SM8650", tmp_path, monkeypatch).output


def test_votes_and_graph_options_of_a_config_change_modelled_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    votes = {"devices": [{"soc_model": 57, "cores": [{"perf_profile": "power_saver"}]}]}
    (tmp_path / "slow.json").write_text(json.dumps(votes))
    scenario = "device: {soc: SM8650}\nclients: [{name: a, model: zoo:tiny_mlp}]\nevents: [{client: a, at: 0}]\n"

    def latest(words: str) -> dict[str, object]:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "s.yaml").write_text(scenario)
        result = CliRunner().invoke(app, [*words.split(), "--json", "out.json"])
        assert result.exit_code == 0, result.output
        return json.loads((tmp_path / "out.json").read_text())  # type: ignore[no-any-return]

    assert latest("plan s.yaml") != latest("plan s.yaml --config_file slow.json")


def test_what_changes_no_modelled_time_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = {"perf_profile": "burst", "rpc_control_latency": 50, "ddr_perf_mode": True}
    (tmp_path / "htp.json").write_text(json.dumps({"devices": [{"soc_model": 57, "cores": [core]}]}))
    result = invoke("estimate zoo:tiny_mlp --config_file htp.json", tmp_path, monkeypatch)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "rpc_control_latency and ddr_perf_mode change no modelled time" in said


def test_a_study_has_the_chip_and_the_votes_of_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"devices": [{"soc_model": 43, "cores": [{"perf_profile": "power_saver"}]}]}
    (tmp_path / "chip.json").write_text(json.dumps(config))
    result = invoke("sweep study.json --config_file chip.json --json out.json", tmp_path, monkeypatch)
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "out.json").read_text())
    assert {(row["values"]["soc"], row["values"]["perf_profile"]) for row in document["points"]} == {
        ("SM8550", "power_saver")
    }
