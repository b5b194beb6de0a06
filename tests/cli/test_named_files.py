"""Every door that takes a file refuses what is none, at once: pipes that nobody writes to, devices without end."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import openhtp as htp
from openhtp import zoo
from openhtp.cli.main import app
from openhtp.frontend.calibration import read_samples
from openhtp.onnx import load


@pytest.fixture(params=["pipe", "zero", "folder"])
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "zero":
        return Path("/dev/zero")
    path = tmp_path / "model.onnx"
    os.mkfifo(path) if request.param == "pipe" else path.mkdir()
    return path


@pytest.mark.parametrize("command", ["plan", "run-scenario", "estimate", "quantize"])
def test_commands(no_file: Path, tmp_path: Path, command: str) -> None:
    more = {"estimate": ["--soc", "SM8650"], "quantize": ["--calibration", str(tmp_path)]}.get(command, [])
    result = CliRunner().invoke(app, [command, str(no_file), *more])
    assert result.exit_code == 2, result.output
    assert "regular file" in result.output or "is a directory" in result.output


@pytest.mark.parametrize("columns", ["20", "80", "200"])
def test_an_error_stays_on_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    """However wide the terminal is and however long the path: somebody will copy it."""
    monkeypatch.setenv("COLUMNS", columns)
    missing = tmp_path / ("a" * 100) / "model.onnx"
    for words in (
        ["quantize", str(missing), "--random", "2"],
        ["plan", str(missing)],
        ["quantize", "--" + "o" * 90],
    ):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 2, result.output
        (line,) = (line for line in result.output.splitlines() if "rror: " in line)
        assert words[1] in line


def test_calls(no_file: Path) -> None:
    for call in (load, htp.InferenceSession, lambda path: htp.estimate(path, "SM8650")):
        with pytest.raises(htp.BadModel, match="expected a regular file with an ONNX model"):
            call(no_file)


def test_a_session_that_leaves_the_model_to_the_cpu(no_file: Path, tmp_path: Path) -> None:
    with pytest.raises(htp.BadModel, match="expected a regular file with an ONNX model"):
        htp.InferenceSession(no_file, providers=["CPUExecutionProvider"])
    noise = tmp_path / "noise.onnx"
    noise.write_bytes(b"noise")
    with pytest.raises(htp.BadModel, match="ONNX Runtime cannot take the model"):
        htp.InferenceSession(noise, providers=["CPUExecutionProvider"])


def test_samples_for_calibration(tmp_path: Path, no_file: Path) -> None:
    model = zoo.tiny_mlp(8)
    folder = tmp_path / "samples"
    folder.mkdir()
    (folder / "a.npz").symlink_to(no_file)
    with pytest.raises(htp.InvalidArgument, match="expected a regular file"):
        read_samples(folder, model)


def _npy(shape: str, data: bytes = b"") -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (_npy("(1000000000000,)"), "has shape"),
        (_npy("(1, 8)", bytes(31)), "has 31 of its 32 bytes"),
        (_npy("(1, -8)", bytes(32)), "has shape"),
        (_npy("x"), "cannot be read"),
        (b"\x93NUMPY\x09\x00", "expected 1.0 or 2.0"),
        (b"", "cannot be read"),
    ],
)
@pytest.mark.parametrize("form", ["npy", "npz"])
def test_samples_that_claim_what_they_have_not(tmp_path: Path, content: bytes, problem: str, form: str) -> None:
    model = zoo.tiny_mlp(8)
    if form == "npz":
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("input.npy", content)
        content = archive.getvalue()
    (tmp_path / f"a.{form}").write_bytes(content)
    with pytest.raises(htp.InvalidArgument, match=problem):
        read_samples(tmp_path, model)


def test_good_samples_are_read(tmp_path: Path) -> None:
    model = zoo.tiny_mlp(8)
    x = np.arange(8, dtype=np.float32)
    np.save(tmp_path / "a.npy", x)
    np.savez_compressed(tmp_path / "b.npz", input=np.asfortranarray(x[None]))
    np.save(tmp_path / "c.npy", x.astype(">f8"))
    assert [sample["input"].tolist() for sample in read_samples(tmp_path, model)] == [[x.tolist()]] * 3
