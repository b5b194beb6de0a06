"""The tools on Qualcomm's library: ``--backend`` takes it as it takes ours."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from tests.tools.conftest import read, run, write

from openhtp import zoo
from openhtp.vendor.library import find_library
from openhtp.zoo.feeds import random_feeds

pytestmark = [
    pytest.mark.vendor,
    pytest.mark.skipif(importlib.util.find_spec("onnxruntime_qnn") is None, reason="needs onnxruntime-qnn"),
]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    model = zoo.small_cnn()
    (tmp_path / "cnn.onnx").write_bytes(model)
    for number, feeds in enumerate(random_feeds(model, 2)):
        write(tmp_path / f"x{number}.raw", feeds["input"])
    (tmp_path / "list.txt").write_text("x0.raw\nx1.raw\n")
    return tmp_path


def outputs(folder: str) -> np.ndarray:
    return np.array([read(Path(f"{folder}/Result_{number}/output.raw")) for number in range(2)])


def test_models_binaries_and_recordings(work: Path) -> None:
    library = find_library()
    common = ("--input_list", "list.txt", "--output_dir")
    assert run("net-run", "--model", "cnn.onnx", *common, "ours", "--saver", "rec").exit_code == 0
    done = run("net-run", "--model", "cnn.onnx", *common, "theirs", "--backend", library)
    assert done.exit_code == 0, done.output
    assert np.allclose(outputs("theirs"), outputs("ours"), atol=0.01)
    words = ("--model", "cnn.onnx", "--binary_file", "theirs", "--backend", library)
    done = run("context-binary-generator", *words)
    assert done.exit_code == 0, done.output
    words = ("--retrieve_context", "output/theirs.bin", "--backend", library)
    done = run("net-run", *words, *common, "saved")
    assert done.exit_code == 0, done.output
    assert np.array_equal(outputs("saved"), outputs("theirs"))
    assert run("net-run", "--retrieve_context", "output/theirs.bin", *common, "x").exit_code == 14, "not ours"
    done = run("replay", "rec", "--backend", library)
    assert done.exit_code == 0, done.output
    done = run("platform-validator", "--directory", Path(str(library)).parent, "--testBackend")
    assert done.exit_code == 0, done.output
