"""The commands as a user types them, each in a process of its own: output, JSON, exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from openhtp.cli.main import CommandOverview, app
from openhtp.vendor.library import find_library
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).parent / "openhtp"


@pytest.fixture
def run(tmp_path: Path):
    environment = {**os.environ, "OPENHTP_RUNTIME_DIR": str(tmp_path / "run"), "COLUMNS": "140"}

    def call(*words: object, code: int = 0) -> str:
        done = subprocess.run(
            [COMMAND, *map(str, words)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return call


def said(*words: str, code: int = 0) -> str:
    """What a command that computes nothing says. In this process: others show the way through a shell."""
    done = CliRunner(env={"COLUMNS": "140"}).invoke(app, words)
    assert done.exit_code == code, done.output
    return done.output


def test_help_names_every_command(run) -> None:
    text = run("--help")
    for command in ("bench", "demo", "device", "doctor", "estimate", "plan", "quantize", "run", "run-scenario"):
        assert command in text
    assert "openhtp 0." in run("--version")


def test_help_says_of_every_command_what_that_says_of_itself() -> None:
    folder = typer.main.get_command(app)
    context = folder.make_context("openhtp", ["--version"], resilient_parsing=True)
    overview = CommandOverview(name="openhtp")
    for name in overview.list_commands(context):
        purpose = overview.get_command(context, name).help
        assert purpose
        assert purpose == folder.get_command(context, name).help


def test_help_imports_no_command() -> None:
    source = (
        "import sys; from openhtp.cli.main import app; app(['--help'], standalone_mode=False); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert {"openhtp.cli.plan", "openhtp.runtime", "numpy", "onnxruntime"} & set(loaded) == set()
    assert "openhtp.cli.main" in loaded


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "async"],
        ["bench", "llm"],
        ["bench", "load"],
        ["bench", "networks"],
        ["bench", "ort"],
        ["bench", "parallel"],
        ["bench", "plan"],
        ["bench", "preempt"],
        ["demo"],
        ["device", "start"],
        ["plan"],
        ["doctor"],
        ["estimate"],
        ["quantize"],
        ["run"],
        ["run-scenario"],
        ["sweep", "run"],
        ["sweep", "show"],
    ],
    ids=str,
)
def test_every_command_has_help_and_json(words: list[str]) -> None:
    assert "--json" in said(*words, "--help")


def test_unknown_command_and_missing_arguments(run) -> None:
    assert "No such command" in run("fly", code=2)
    assert "Missing" in run("plan", code=2)


def test_named_device_from_start_to_stop(run, tmp_path: Path) -> None:
    assert "no named device" in run("device", "list")
    assert "is running as process" in run("device", "start", "--name", "car", "--soc", "SM8550")
    out = tmp_path / "list.json"
    run("device", "list", "--json", out)
    assert [device["name"] for device in json.loads(out.read_text())["devices"]] == ["car"]
    assert "already running" in run("device", "start", "--name", "car", code=2)
    assert "was stopped" in run("device", "stop", "--name", "car")
    assert "no device 'car'" in run("device", "stop", "--name", "car", code=2)
    assert list((tmp_path / "run").iterdir()) == []


def test_bad_soc_is_one_clear_line(run) -> None:
    text = run("device", "start", "--name", "x", "--soc", "SM9999", code=2)
    assert "SoC 'SM9999' is unknown" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("bench", ["preempt", "parallel", "load", "networks", "abort", "profiling"])
def test_a_bench_of_an_unknown_network_names_those_there_are(bench: str) -> None:
    text = said("bench", bench, "--network", "alexnet", code=2)
    assert "unknown 'alexnet'" in text
    assert "mobilenet_v2" in text


def test_bench_writes_the_promised_shape(run, tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    run("bench", "async", "--network", "trivial", "--rounds", 1, "--json", out)
    result = json.loads(out.read_text())
    assert {"rows", "submit_us_p50", "roundtrip_us_p50", "efficiency_vs_ort"} <= set(result)
    row = result["rows"][0]
    assert set(row) == {"network", "client_work", "memory", "depth", "sync_ips", "async_ips", "ratio"}
    assert {row["memory"] for row in result["rows"]} == {"raw", "registered"}
    assert all(row["ratio"] == pytest.approx(row["async_ips"] / row["sync_ips"]) for row in result["rows"])


def test_bench_of_loading(run, tmp_path: Path) -> None:
    out = tmp_path / "load.json"
    text = run("bench", "load", "--network", "small_cnn", "--rounds", 1, "--no-large", "--json", out)
    assert "could not use" not in text
    result = json.loads(out.read_text())
    assert result["prepared"]
    ways = {row["way"]: row for row in result["rows"]}
    assert len(ways) == len(result["rows"]) == 7
    plain = ways["ONNX Runtime, same file"]
    for row in ways.values():
        assert 0 < row["ready_s"] < row["first_result_s"]
        assert row["times_onnxruntime"] == pytest.approx(plain["ready_s"] / row["ready_s"])
    assert ways["OpenHTP, its binary as bytes"]["file_bytes"] > 1000
    told = ("quiet", "wrote", "WARNING")  # sentences, which terminals wrap
    assert all(len(line) <= 80 for line in text.splitlines() if not any(word in line for word in told))
    [row] = result["lists"]
    assert row["one_by_one_cpus"] > 0
    assert row["list_cpus"] > 0


def test_bench_of_loading_where_nothing_can_be_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENHTP_KEY_FILE", "/dev/null/key")
    words = ["bench", "load", "--network", "small_cnn", "--rounds", "1", "--no-large"]
    done = subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert "could not use" in done.stdout


def test_bench_of_the_planner(run, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    assert "events per second" in run("bench", "plan", "--rounds", 1, "--json", out)
    result = json.loads(out.read_text())
    # One minute: 1818 + 1818 + 909 frames, and the language model in what they leave.
    assert 4545 < result["runs"] < result["events"]
    assert result["events_per_second"] > result["runs_per_second"] > 0


def test_bench_of_preemption(run, tmp_path: Path) -> None:
    out = tmp_path / "preempt.json"
    run("bench", "preempt", "--network", "small_cnn", "--samples", 10, "--rounds", 1, "--json", out)
    result = json.loads(out.read_text())
    assert result["samples_all"] == 10
    assert 0 < result["wait_ms_p50"] <= result["wait_ms_p99"] <= result["wait_ms_max"]


def test_bench_of_graphs_side_by_side(run, tmp_path: Path) -> None:
    out = tmp_path / "parallel.json"
    shown = run("bench", "parallel", "--network", "small_cnn", "--rounds", 1, "--json", out)
    result = json.loads(out.read_text())
    assert result["in_turns_ms"] / result["side_by_side_ms"] == pytest.approx(result["speedup"])
    assert "ratio" in shown
    assert "unknown 'vgg'" in run("bench", "parallel", "--network", "vgg", code=2)


def test_bench_of_an_unknown_network() -> None:
    assert "unknown 'vgg'; expected one of trivial" in said("bench", "async", "--network", "vgg", code=2)


def test_bench_of_networks_compares_speed_and_results(run, tmp_path: Path) -> None:
    out = tmp_path / "networks.json"
    run("bench", "networks", "--network", "small_cnn", "--rounds", 1, "--json", out)
    result = json.loads(out.read_text())
    assert [(row["network"], row["activation"]) for row in result["rows"]] == [
        ("small_cnn", "u8"),
        ("small_cnn", "u16"),
    ]
    assert result["quiet_pieces"] + result["noisy_pieces"] == 4
    for row in result["rows"]:
        assert row["times_onnxruntime"] == pytest.approx(row["onnxruntime"]["ms"] / row["openhtp"]["ms"])
        assert row["openhtp"]["sqnr_db"] == pytest.approx(row["onnxruntime"]["sqnr_db"], abs=1.0)
        assert row["openhtp"]["sqnr_db"] > 20
        assert row["vendor"] is None


@pytest.mark.skipif(find_library() is not None, reason="the vendor's library is installed")
def test_bench_of_networks_says_how_to_get_the_simulator(run, tmp_path: Path) -> None:
    words = ("--network", "tiny_mlp", "--activation", "u8", "--rounds", 1, "--vendor")
    text = run("bench", "networks", *words, "--json", tmp_path / "networks.json")
    assert "not installed" in text
    assert "openhtp[vendor]" in text
    assert json.loads((tmp_path / "networks.json").read_text())["vendor_installed"] is False


@pytest.mark.vendor
@pytest.mark.skipif(find_library() is None, reason="the vendor's library is not installed")
def test_bench_of_networks_on_the_simulator(run, tmp_path: Path) -> None:
    out = tmp_path / "networks.json"
    run("bench", "networks", "--network", "small_cnn", "--rounds", 1, "--vendor", "--json", out)
    for row in json.loads(out.read_text())["rows"]:
        assert row["times_vendor"] == pytest.approx(row["vendor"]["ms"] / row["openhtp"]["ms"])
        assert row["openhtp"]["sqnr_db"] >= row["vendor"]["sqnr_db"] - 0.5


@pytest.mark.parametrize("words", [("--network", "vgg"), ("--activation", "u4")], ids=str)
def test_bench_of_networks_that_are_unknown(words: tuple[str, ...]) -> None:
    assert f"unknown '{words[1]}'" in said("bench", "networks", *words, code=2)


def test_run_scenario_reports_both_orders(run, tmp_path: Path) -> None:
    out, page = tmp_path / "live.json", tmp_path / "live.html"
    scenario = ("examples/base-1.1-same-priority.yaml", "--stretch", 20_000)  # a busy machine keeps the order, too
    text = run("run-scenario", *scenario, "--json", out, "--timeline", page)
    assert "the same order" in text
    result = json.loads(out.read_text())
    assert result["same_order"] is True
    assert [m["what"] for m in result["planned"]] == [m["what"] for m in result["measured"]]
    (data,) = re.findall(r"^const DATA = (.*);$", page.read_text(), re.MULTILINE)
    assert min(start for lane in json.loads(data)["lanes"] for start in lane["s"]) == 0


def test_run_scenario_of_a_bad_file(run, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("clients: []\n")
    text = run("run-scenario", bad, code=2)
    assert "error:" in text
    assert "Traceback" not in text


def test_demo_shows_what_priorities_do_for_the_camera(run, tmp_path: Path, caplog) -> None:
    text = run("demo", "--turns", 8, "--out", tmp_path, "--json", tmp_path / "demo.json")
    assert "with a higher priority" in text
    # The first command of the README must not begin with a warning about its own networks.
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []
    trace = json.loads((tmp_path / "demo-trace.json").read_text())
    lanes = {e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M" and e["name"] == "thread_name"}
    assert {"camera", "scene", "language", "HMX0", "HVX0", "VTCM"} <= lanes
    result = json.loads((tmp_path / "demo.json").read_text())
    assert [network["priority"] for network in result["networks"]] == ["high", "normal", "low"]
    stages = {stage["name"]: stage for stage in result["stages"]}
    assert list(stages) == ["alone", "beside others", "with priority"]
    assert stages["alone"]["others_per_second"] == {}
    assert set(stages["beside others"]["others_per_second"]) == {"scene", "language"}
    for stage in stages.values():
        assert 0 < stage["camera_ms_p50"] <= stage["camera_ms_p90"]
    for path in (tmp_path / "demo-trace.json", tmp_path / "mobilenet_v2.onnx", tmp_path / "demo.json"):
        assert f"wrote {path}" in text


@pytest.mark.slow
def test_a_large_page_says_how_to_write_a_part(tmp_path: Path) -> None:
    clients = "device: {soc: SM8650}\nclients: [{name: a, run: 1ms}]\nevents: [{client: a, every: 3ms}]"
    scenario = tmp_path / "hour.yaml"
    scenario.write_text(f"duration: 1800s\n{clients}\n")
    command = ("plan", str(scenario), "--timeline", str(tmp_path / "hour.html"))
    assert "--window 0s:10s writes a part" in said(*command)
    assert "--window" not in said(*command, "--window", "0s:10s")
