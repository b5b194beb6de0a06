"""Interrupting networks of a folder: a row for each, with what its cuts are, whatever the machine is doing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from openhtp import zoo
from openhtp.cli.main import app


def preempt_all(*words: object) -> str:
    result = CliRunner().invoke(app, ["bench", "preempt", "--all", *map(str, words)])
    assert result.exit_code == (0 if "--json" in words else 2), result.output
    return result.output


@pytest.mark.slow
def test_networks_are_interrupted_in_every_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENHTP_BENCH_PATIENCE_S", "0")
    plain = zoo.MODELS["tiny_mlp"]()
    (tmp_path / "mlp.onnx").write_bytes(plain)
    (tmp_path / "small.onnx").write_bytes(zoo.quantized(plain, samples=1))
    target = tmp_path / "out.json"
    output = preempt_all("--models", tmp_path, "--samples", 10, "--json", target)
    assert "of 2 let go within 7%" in output
    rows = json.loads(target.read_text())["rows"]
    assert [(row["network"], row["precision"]) for row in rows] == [("mlp", "float"), ("small", "8 bits")]
    for row in rows:
        assert 1 / row["steps"] <= row["longest_step_share"] <= 1
        assert min(row["latency_ms"], row["urgent_share_p99"], row["abort_share_p99"], row["samples"]) > 0


def test_a_folder_without_networks_is_told_of(tmp_path: Path) -> None:
    assert "has no .onnx files" in " ".join(preempt_all("--models", tmp_path).split())
