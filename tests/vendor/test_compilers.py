"""The table of both compilers: errors, refusals, and results that are kept. The vendor's library is not needed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from openhtp import zoo
from openhtp.capi.identity import backend_path

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "tools"))
    location = importlib.util.spec_from_file_location("vendor_compiler", ROOT / "tools" / "vendor_compiler.py")
    assert location is not None
    assert location.loader is not None
    module = importlib.util.module_from_spec(location)
    sys.modules[location.name] = module  # dataclasses look their module up
    location.loader.exec_module(module)
    yield module
    del sys.modules[location.name]
    sys.path.remove(str(ROOT / "tools"))


def row_of(tool: ModuleType, theirs: dict, ours: dict, vtcm_mb: int = 1):
    case = tool.Case(network="n", vtcm_mb=vtcm_mb)
    return tool.Row(case, tool.CompiledBinary(**theirs), tool.CompiledBinary(**ours))


def test_errors_are_relative_to_the_vendor_but_to_a_megabyte_at_least(tool: ModuleType) -> None:
    large = row_of(tool, {"nbytes": 100, "spill_fill": 4_000_000}, {"nbytes": 90, "spill_fill": 5_000_000})
    small = row_of(tool, {"nbytes": 100, "spill_fill": 0}, {"nbytes": 130, "spill_fill": 500_000})
    assert (large.spill_error, small.spill_error) == (0.25, 0.5)
    assert large.size_error == pytest.approx(-0.1)
    said = tool.summary([large, small], "Two")
    assert "2 cases; spill-fill of all (2): median error 38%, 50% within 25%" in said
    assert "size of the file: median error 20%, 50% within 15%" in said


def test_what_somebody_refuses_is_a_row_with_the_reason(tool: ModuleType) -> None:
    row = row_of(tool, {"refused": "error: no op | found"}, {"nbytes": 5, "spill_fill": tool.MIB})
    assert not row.compared
    cells = tool.cells_of(row)
    assert cells[-1] == "refused (vendor): error: no op / found; the other: spill-fill 1.00 MB"
    assert tool.summary([row], "One") == "One: nothing to compare."


def test_binaries_of_both_sides_are_described_and_kept(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.onnx", tmp_path / "bad.onnx"
    good.write_bytes(zoo.tiny_mlp())
    bad.write_bytes(b"no model")
    results, report = tmp_path / "results", tmp_path / "rows.json"
    words = [str(good), str(bad), "--vtcm", "1", "--backend", backend_path(), "--results", str(results)]
    assert tool.main([*words, "--json", str(report)]) == 0
    first = msgspec.json.decode(report.read_bytes())
    by_name = {row["case"]["network"]: row for row in first}
    assert by_name["good.onnx"]["vendor"]["nbytes"] == by_name["good.onnx"]["ours"]["nbytes"] > 0
    assert "bad.onnx" in by_name
    assert "refused (both)" in capsys.readouterr().out
    for kept in results.iterdir():
        kept.write_bytes(msgspec.json.encode(tool.CompiledBinary(nbytes=7)))
    assert tool.main([*words, "--json", str(report)]) == 0
    again = msgspec.json.decode(report.read_bytes())
    assert {row["ours"]["nbytes"] for row in again} == {7}
