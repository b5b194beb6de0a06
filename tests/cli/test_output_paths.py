"""Paths to write to that cannot be written: one line of error, no waiting, and what was there stays as it was."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import openhtp as htp
from openhtp import zoo
from openhtp.cli.main import app
from openhtp.core import files
from tests.conftest import relu_graph
from tests.sweeping.studies import SCENARIO

OUTPUTS = {
    "plan trace": ["plan", "scenario.yaml", "--trace"],
    "plan svg": ["plan", "scenario.yaml", "--svg"],
    "plan timeline": ["plan", "scenario.yaml", "--timeline"],
    "plan json": ["plan", "scenario.yaml", "--json"],
    "estimate html": ["estimate", "zoo:tiny_mlp", "--soc", "SM8650", "--html"],
    "run output": ["run", "model.onnx", "--repeat", "1", "--output"],
    "run trace": ["run", "model.onnx", "--repeat", "1", "--trace"],
    "memory html": ["memory", "plan", "a=1GB", "--html"],
    "quantize": ["quantize", "model.onnx", "--random", "1", "-o"],
    "binary json": ["context-binary-utility", "--context_binary", "context.bin", "--json_file"],
    "sweep html": ["sweep", "run", "study.yaml", "--store", "points", "--workers", "1", "--html"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, shared_device: htp.Device) -> Path:
    place = tmp_path_factory.mktemp("outputs")
    (place / "model.onnx").write_bytes(zoo.tiny_mlp())
    (place / "scenario.yaml").write_text(SCENARIO)
    (place / "study.yaml").write_text("measure: estimate\naxes: {model: 'zoo:tiny_mlp', soc: [SM8550, SM8650]}\n")
    with shared_device.create_context() as context:
        relu_graph(context)
        (place / "context.bin").write_bytes(context.get_binary())
    (place / "is-a-folder").mkdir()
    os.mkfifo(place / "pipe")
    (place / "loop").symlink_to("loop")
    return place


@pytest.mark.parametrize("path", ["is-a-folder", "pipe", "loop", "/dev/full", "missing/file", "model.onnx/file"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_what_cannot_be_written_is_told_in_a_line(
    folder: Path, name: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(files, "PATIENCE_S", 0.0)
    before = (folder / "model.onnx").read_bytes()
    done = CliRunner().invoke(app, [*OUTPUTS[name], path])
    assert done.exit_code == 2, (done.exit_code, done.output, done.exception)
    (line,) = done.stderr.strip().splitlines()  # what moves while one waits leaves an empty line in a pipe
    assert line.startswith("error: cannot "), line
    assert (folder / "model.onnx").read_bytes() == before
    assert not [*folder.glob("*.part"), *folder.glob(".*.part")]


def test_an_output_may_have_any_name(folder: Path) -> None:
    model = onnx.load_from_string(zoo.tiny_mlp())
    model.graph.node[-1].output[0] = model.graph.output[0].name = "file"
    onnx.save(model, folder / "odd.onnx")
    done = CliRunner().invoke(app, ["run", str(folder / "odd.onnx"), "--output", str(folder / "odd.npz")])
    assert done.exit_code == 0, (done.output, done.exception)
    with np.load(folder / "odd.npz") as archive:
        assert archive["file"].shape == (1, 10)
