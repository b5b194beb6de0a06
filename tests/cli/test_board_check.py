"""The field kit, on our own library in the place of a board's, and where a machine without one stops."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import openhtp as htp
from openhtp.cli import board_check as command
from openhtp.cli.doctor import CheckupLine, Health
from openhtp.cli.main import app
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorSpec
from openhtp.ops import find_op
from openhtp.ops._opdef import TYPE_WORDS
from openhtp.tools import board_check as kit
from openhtp.tools.operator_case import OperatorCase
from openhtp.vendor import library as vendor_library
from openhtp.vendor.library import find_library

OURS = Path(htp.__file__).parent / "capi/lib/libQnnHtp.so"
needs_library = pytest.mark.skipif(not OURS.is_file(), reason="the C library is not built")


def run(tmp_path: Path, *words: str) -> tuple[int, str, dict[str, Any]]:
    path = tmp_path / "report.json"
    done = CliRunner().invoke(app, ["board-check", "--report", str(path), *words], env={"COLUMNS": "200"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output, json.loads(path.read_text())


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installation is looked at by tests of the doctor."""
    monkeypatch.setattr(command, "examine_installation", lambda: iter(()))


@pytest.mark.usefixtures("healthy")
def test_without_a_library_the_first_step_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vendor_library, "find_library", lambda: None)
    code, output, report = run(tmp_path)
    assert code == 2
    (line,) = (line for line in output.splitlines() if "stopped" in line)
    assert "step 1 of 5" in line
    assert "pip install openhtp[vendor]" in line
    assert report["stopped"]["step"] == 1


@pytest.mark.usefixtures("healthy")
def test_a_file_that_is_no_library_stops_without_its_folder_in_the_report(tmp_path: Path) -> None:
    (tmp_path / "libQnnHtp.so").write_text("not a library")
    code, output, report = run(tmp_path, "--library", str(tmp_path))
    assert code == 2
    assert "no ELF header" in output
    assert "libQnnHtp.so" in report["stopped"]["why"]
    assert str(tmp_path) not in json.dumps(report["stopped"])


def test_a_broken_installation_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = CheckupLine(what="emulator", health=Health.BROKEN, detail="it went away", advice="please report it")
    monkeypatch.setattr(command, "examine_installation", lambda: iter((broken,)))
    code, output, report = run(tmp_path, "--library", str(OURS))
    assert code == 2
    assert "emulator: it went away (what to do: please report it)" in output
    assert "operators" not in report


@needs_library
def test_our_own_library_agrees_with_the_emulator(tmp_path: Path) -> None:
    code, output, report = run(tmp_path, "--quick", "--library", str(OURS.parent))
    assert code == 0, output
    for number in range(1, 6):
        assert f"step {number} of 5" in output
    assert report["chip"] == "SM8650"
    assert "openhtp" in report["library_version"]
    assert {row["widest_steps"] for row in report["operators"]} == {0}
    assert [row["network"] for row in report["networks"]] == ["tiny_mlp", "small_cnn"]
    for row in report["networks"]:
        assert row["measured_us"] > 0
        assert row["modelled_low_us"] < row["modelled_us"] < row["modelled_high_us"]
        assert row["emulator_db"] == row["library_db"]
    answers = {row["what"]: row for row in report["abilities"]}
    assert set(answers) >= {"asynchronous queue", "priorities", "abort signal", "votes"}
    assert answers["asynchronous queue"]["verdict"] == answers["votes"]["verdict"] == "pass"
    assert str(OURS.parent) not in json.dumps(report)
    assert "not of a chip" in output


@needs_library
@pytest.mark.usefixtures("healthy")
def test_a_difference_is_the_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = OperatorCase.run

    def wrong_on_the_library(case: OperatorCase, device: htp.Device) -> list[Any]:
        results = right(case, device)
        return results if device.backend.library is None else [255 - result for result in results]

    monkeypatch.setattr(OperatorCase, "run", wrong_on_the_library)
    monkeypatch.setattr(command, "QUICK_NETWORKS", kit.NETWORKS[:1])
    code, output, report = run(tmp_path, "--quick", "--library", str(OURS))
    assert code == 1
    assert {row["verdict"] for row in report["operators"]} == {"differs"}
    assert report["differing"] == len(kit.QUICK_OPERATORS)
    assert "4 differs" in output


def test_every_operator_of_the_table_runs_on_the_emulator() -> None:
    assert len(kit.OPERATORS) == len(set(kit.OPERATORS)) >= 30
    assert set(kit.QUICK_OPERATORS) <= set(kit.OPERATORS)
    with htp.Backend() as backend:
        device = backend.create_device(host="thread")
        for name, word in kit.OPERATORS:
            case = OperatorCase.of(find_op(name), TYPE_WORDS[word])
            results = case.run(device)
            assert all(len(np.unique(result)) > 1 for result in results), name  # something was computed


def refusing(*_: object) -> list[Any]:
    raise htp.UnsupportedOp("no such operator on /home/somebody/chip")


NUMBERS = np.arange(1000).astype(np.uint8)


def answering(numbers: Any) -> Callable[[], list[Any]]:
    return lambda: [numbers]


@pytest.mark.parametrize(
    ("word", "emulator", "library", "verdict", "widest"),
    [
        ("u8", answering(NUMBERS), answering(NUMBERS), "pass", 0),
        ("u8", answering(NUMBERS * 1.0), answering(NUMBERS + 1.0), "pass", 1),
        ("u8", answering(NUMBERS * 1.0), answering(NUMBERS + 2.0), "differs", 2),
        ("u16", answering(NUMBERS * 100.0), answering(NUMBERS * 100.0 + 20), "pass", 20),
        ("u16", answering(NUMBERS * 100.0), answering(NUMBERS * 100.0 + 2000), "differs", 2000),
        ("f16", answering(NUMBERS / 8), answering(NUMBERS / 8 + 1e-3), "pass", None),
        ("f16", answering(NUMBERS / 8), answering(NUMBERS / 8 + 10), "differs", None),
        ("u8", answering(NUMBERS), refusing, "refused", None),
        ("u8", refusing, answering(NUMBERS), "not on this chip", None),
    ],
)
def test_verdicts_on_operators(word: str, emulator: Any, library: Any, verdict: str, widest: int | None) -> None:
    spec = TensorSpec("y", (1000,), TYPE_WORDS[word], None if word == "f16" else htp.ScaleOffset(1.0, 0))
    case: Any = SimpleNamespace(
        call=OpCall("Relu", "node", (), (spec,)), types=f"{word} > {word}", run=lambda device: device()
    )
    row = kit.compare_operator(case, emulator, library)
    assert (row.verdict, row.widest_steps) == (verdict, widest)
    assert "somebody" not in row.note
    assert row.verdict.is_fine == (verdict in ("pass", "not on this chip"))


def measured(name: str, us: float | None) -> kit.ComparedNetwork:
    return kit.ComparedNetwork(
        network=name,
        form="u8",
        verdict=kit.BoardVerdict.SAME,
        measured_us=us,
        modelled_us=200.0,
        modelled_low_us=100.0,
        modelled_high_us=400.0,
    )


@pytest.mark.parametrize(("us", "is_within"), [(100.0, True), (400.0, True), (99.0, False), (None, None)])
def test_a_time_is_within_the_range_or_not(us: float | None, is_within: bool | None) -> None:
    assert measured("resnet18", us).is_within is is_within


def test_the_queue_is_tried_with_the_slowest_network_that_does_not_take_long() -> None:
    rows = [measured("tiny_mlp", 50.0), measured("resnet18", 9e3), measured("resnet50", 2e6)]
    assert kit.for_queueing(rows).name == "resnet18"
    assert kit.for_queueing([measured("resnet50", None)]).name == "tiny_mlp"


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("'/opt/me/sdk/libQnnHtp.so' is no library", "'libQnnHtp.so' is no library"),
        (
            "check /dev/fastrpc-cdsp and /usr/lib/libcdsprpc.so",
            "check /dev/fastrpc-cdsp and /usr/lib/libcdsprpc.so",
        ),
        ("3 of 5, and/or so", "3 of 5, and/or so"),
    ],
)
def test_a_report_has_no_folders_of_a_person(text: str, cleaned: str) -> None:
    assert kit.without_paths(text) == cleaned


@pytest.mark.vendor
def test_the_simulator_passes_in_full(tmp_path: Path) -> None:
    if find_library() is None:
        pytest.skip("the onnxruntime-qnn package is not installed")
    code, output, report = run(tmp_path)
    assert code == 0, output
    assert len(report["operators"]) >= 30
    assert len(report["networks"]) == 6
    assert report["library_is"] == "a simulator"
