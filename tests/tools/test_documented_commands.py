"""The command lines of the documents' pages on profiling, as they are written there."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from openhtp.capi.identity import backend_path
from openhtp.core.errors import QnnError
from tests.report.trace_rules import check_trace
from tests.tools.conftest import model_bytes, run

OPTRACE = ("--profiling_level", "detailed", "--profiling_option", "optrace")
OPTRACE_READER = "libQnnHtpOptraceProfilingReader.so"
FEATURES = (
    "enable_input_output_flow_events",
    "enable_sequencer_flow_events",
    "htp_json",
    "runtrace",
    "memory_info",
    "traceback",
    "qhas_schema",
    "qhas_json",
)
EXTENSIONS = """{
    "backend_extensions": {
        "shared_library_path" : "./libQnnHtpNetRunExtensions.so",
        "config_file_path" : "./htp_config.json"
    }
}"""
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
        *("--input_log", "output/qnn-profiling-data.log", "--schematic", host / "double_schematic.bin"),
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
        log = f"{profile}/qnn-profiling-data.log"
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
    words = ("--input_log", "output/qnn-profiling-data.log", "--schematic", "double_schematic.bin")
    seen = run("profile-viewer", "--reader", "optrace", *words)
    assert seen.exit_code != 0
    assert "of another preparation of 'double'" in seen.output


@pytest.mark.parametrize(
    ("option", "written", "asked"),
    [
        (OPTRACE, "qnn-profiling-data.log", "qnn-profiling-data_0.log"),
        (("--profiling_level", "detailed"), "qnn-profiling-data_0.log", "qnn-profiling-data.log"),
    ],
)
def test_logs_are_named_as_on_their_pages_and_found_by_the_other_name(
    folder: Path, option: tuple[str, ...], written: str, asked: str
) -> None:
    ran = run("net-run", "--model", "double.onnx", "--input_list", "list.txt", *option)
    assert ran.exit_code == 0, ran.output
    assert [path.name for path in Path("output").glob("*.log")] == [written]
    seen = run("profile-viewer", "--input_log", f"output/{asked}")
    assert seen.exit_code == 0, seen.output
    assert f"this is {written} beside it" in seen.output


def our_library() -> str:
    try:
        return backend_path()
    except QnnError:
        pytest.skip("there was no C compiler when openhtp was built")


@pytest.mark.parametrize("backend", ["by path", "by name"])
def test_d6_optrace_as_the_page_writes_it(folder: Path, backend: str) -> None:
    library = our_library() if backend == "by path" else "libQnnHtp.so"
    Path("HtpConfigFile.json").write_text(EXTENSIONS)
    Path("htp_config.json").write_text('{"graphs": [{"graph_names": ["double"], "vtcm_mb": 4}]}')
    made = run(
        *("context-binary-generator", "--profiling_level", "detailed", "--profiling_option", "optrace"),
        *("--backend", library, "--model", "double.onnx", "--config_file", "HtpConfigFile.json"),
        *("--output_dir", "prepared", "--binary_file", "context"),
    )
    assert made.exit_code == 0, made.output
    Path("inputs").mkdir()
    Path("inputs/input_list.txt").write_text("x0.raw\nx1.raw\n")
    ran = run(
        *("net-run", "--profiling_level", "detailed", "--profiling_option", "optrace"),
        *("--output_data_type", "float_and_native", "--retrieve_context", "prepared/context.bin"),
        *("--backend", library, "--input_list", "./inputs/input_list.txt", "--output_dir", "."),
        *("--log_level", "info"),
    )
    assert ran.exit_code == 0, ran.output
    assert Path("Result_1/y.raw").is_file()
    assert Path("qnn-profiling-data.log").is_file()
    assert not Path("qnn-profiling-data_0.log").exists()
    Path("config.json").write_text(json.dumps({"features": dict.fromkeys(FEATURES, True)}))
    seen = run(
        *("profile-viewer", "--config", "./config.json", "--reader", f"/sdk/lib/{OPTRACE_READER}"),
        *("--input_log", "./qnn-profiling-data.log", "--schematic", "./double_schematic.bin"),
        *("--output", "./chrometrace.json"),
    )
    assert seen.exit_code == 0, seen.output
    written = {path.name for path in Path().iterdir()}
    assert written >= {
        "chrometrace.json",
        "chrometrace_htp.json",
        "chrometrace_qnn_htp_analysis_summary.html",
        "chrometrace_qnn_htp_analysis_summary.json",
        "qhas_schema.json",
    }
    events = check_trace(json.loads(Path("chrometrace.json").read_text()))
    assert events["s"]


def test_d6_linting_as_the_page_writes_it(folder: Path) -> None:
    Path("backend_extension_config.json").write_text(EXTENSIONS)
    Path("htp_config.json").write_text('{"devices": [ {"profiling_level" : "linting"} ] }')
    assert run("context-binary-generator", "--model", "double.onnx", "--binary_file", "sample").exit_code == 0
    ran = run(
        *("net-run", "--retrieve_context", "output/sample.bin", "--backend", "libQnnHtp.so"),
        *("--input_list", "list.txt", "--config_file", "backend_extension_config.json"),
        *("--output_dir", "output_htp", "--profiling_level", "backend"),
    )
    assert ran.exit_code == 0, ran.output
    log = "./output_htp/qnn-profiling-data_0.log"
    every = run("profile-viewer", "--reader", "/sdk/lib/libQnnHtpProfilingReader.so", "--input_log", log)
    assert every.exit_code == 0, every.output
    assert every.output.count("Wait (Scheduler) time:") > 0
    assert every.output.count("Accelerator (critical path execute) time (cycles)") == 3, "every run"
    for name in ("chromeTrace.json", "small.json.gz"):
        average = run(
            *("profile-viewer", "--reader", "/sdk/lib/libQnnChrometraceProfilingReader.so"),
            *("--input_log", log, "--output", f"./{name}"),
        )
        assert average.exit_code == 0, average.output
        assert "(Average)" in average.output
    plain, packed = Path("chromeTrace.json").read_bytes(), Path("small.json.gz").read_bytes()
    assert gzip.decompress(packed) == plain
    check_trace(json.loads(plain))


def test_d6_a_model_that_is_no_library_is_refused_in_words(folder: Path) -> None:
    Path("double.so").write_bytes(b"\x7fELF")
    made = run("context-binary-generator", "--model", "double.so", "--binary_file", "context")
    assert made.exit_code != 0
    assert "is not a shared library" in made.output
    assert not Path("output/context.bin").exists()


@pytest.mark.parametrize("content", [None, b"PK\3\4 a DLC file"])
def test_d5_a_dlc_is_refused_in_words(host: Path, folder: Path, content: bytes | None) -> None:
    """Names of the model are in the schematic; nothing is taken that would have no effect."""
    if content is not None:
        Path("double.dlc").write_bytes(content)
    log = "output/qnn-profiling-data_0.log"
    seen = run("profile-viewer", "--input_log", log, "--dlc", "./double.dlc", "--output", "out.csv")
    assert seen.exit_code != 0
    assert ("no file" if content is None else "names of the model are in the schematic") in seen.output
    assert not Path("out.csv").exists()
