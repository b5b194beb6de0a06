"""The command lines of the documents' pages on profiling, as they are written there; models are ONNX files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.report.trace_rules import check_trace
from tests.tools.conftest import model_bytes, run

OPTRACE = ("--profiling_level", "detailed", "--profiling_option", "optrace")
VOTES = '{"devices": [{"cores": [{"perf_profile": "%s"}]}]}'


@pytest.fixture
def host(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The generator's working directory; what it leaves there are the binary and the schematic."""
    place = folder / "host"
    place.mkdir()
    shutil.copy(folder / "double.onnx", place)
    monkeypatch.chdir(place)
    made = run("context-binary-generator", *OPTRACE, "--model", "double.onnx", "--binary_file", "ctx")
    assert made.exit_code == 0, made.output
    return place


@pytest.mark.parametrize("profile", ["", "high_performance", "power_saver", "burst"])
def test_d1_an_op_trace_in_two_steps(
    host: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    """Prepared on the host, run on the target, viewed with the host's schematic, at any clocks."""
    monkeypatch.chdir(folder)
    votes: tuple[str, ...] = ()
    if profile:
        Path("votes.json").write_text(VOTES % profile)
        votes = ("--config_file", "votes.json")
    ran = run(
        *("net-run", "--retrieve_context", host / "output/ctx.bin", "--input_list", "list.txt"), *OPTRACE, *votes
    )
    assert ran.exit_code == 0, ran.output
    seen = run(
        *("profile-viewer", "--reader", "libQnnHtpOptraceProfilingReader.so", "--output", "chrometrace.json"),
        *("--input_log", "output/qnn-profiling-data_0.log", "--schematic", host / "double_schematic.bin"),
    )
    assert seen.exit_code == 0, seen.output
    trace = json.loads(Path("chrometrace.json").read_text())
    names = {event["args"]["QNN Op Name"] for event in check_trace(trace)["X"] if event["cat"] == "op"}
    assert "mul" in names
    assert Path("chrometrace_qnn_htp_analysis_summary.html").is_file()


def test_d1_clocks_of_a_trace_are_those_of_the_run(
    host: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    clocks = []
    for profile in ("power_saver", "burst"):
        Path("votes.json").write_text(VOTES % profile)
        words = ("--retrieve_context", host / "output/ctx.bin", "--input_list", "list.txt", "--config_file")
        assert run("net-run", *words, "votes.json", *OPTRACE, "--output_dir", profile).exit_code == 0
        log = f"{profile}/qnn-profiling-data_0.log"
        words = ("--input_log", log, "--schematic", host / "double_schematic.bin", "--output", f"{profile}.json")
        assert run("profile-viewer", "--reader", "optrace", *words).exit_code == 0
        clocks.append(json.loads(Path(f"{profile}.json").read_text())["otherData"]["ops"])
    assert clocks[0] != clocks[1]


def test_d1_the_host_s_schematic_is_left_as_it_is(host: Path, folder: Path) -> None:
    """A run in the same working directory keeps what the generator left there."""
    before = Path("double_schematic.bin").read_bytes()
    shutil.copy(folder / "x0.raw", host)
    Path("list.txt").write_text("x0.raw\n")
    Path("votes.json").write_text(VOTES % "power_saver")
    words = ("--retrieve_context", "output/ctx.bin", "--input_list", "list.txt", "--config_file", "votes.json")
    assert run("net-run", *words, *OPTRACE).exit_code == 0
    assert Path("double_schematic.bin").read_bytes() == before


def test_d1_a_schematic_of_another_model_is_refused(
    host: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    ran = run("net-run", "--retrieve_context", host / "output/ctx.bin", "--input_list", "list.txt", *OPTRACE)
    assert ran.exit_code == 0, ran.output
    Path("double.onnx").write_bytes(model_bytes(ids=True))
    made = run(
        "context-binary-generator",
        *OPTRACE,
        "--model",
        "double.onnx",
        "--binary_file",
        "other",
        "--output_dir",
        "o",
    )
    assert made.exit_code == 0, made.output
    words = ("--input_log", "output/qnn-profiling-data_0.log", "--schematic", "double_schematic.bin")
    seen = run("profile-viewer", "--reader", "optrace", *words)
    assert seen.exit_code != 0
    assert "of another preparation of 'double'" in seen.output
