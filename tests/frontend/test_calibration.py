"""Calibration data in all its forms."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import openhtp as htp
from openhtp.frontend.calibration import Normalization, read_samples


def _model(**inputs: tuple[int, list[int]]) -> bytes:
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in inputs]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(f"{name}_out", kind, shape) for name, (kind, shape) in inputs.items()],
    )
    data: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    return data


TWO = _model(x=(TensorProto.FLOAT, [1, 2]), ids=(TensorProto.INT32, [3]))
PICTURE = _model(x=(TensorProto.FLOAT, [1, 3, 4, 6]))


def _write(path: Path, *arrays: np.ndarray) -> str:
    path.write_bytes(b"".join(array.tobytes() for array in arrays))
    return path.name


def test_input_lists_name_files_or_give_them_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "x.raw", np.array([1.5, 2.5], np.float32))
    _write(tmp_path / "floats.raw", np.array([7, 8, 9], np.float32))
    _write(tmp_path / "native.raw", np.array([7, 8, 9], np.int32))
    lines = ["% outputs", "ids:=floats.raw x:=x.raw", "", "x.raw native.raw"]
    (tmp_path / "input_list.txt").write_text("\n".join(lines))
    samples = read_samples(tmp_path / "input_list.txt", TWO)
    assert len(samples) == 2
    for sample in samples:
        assert sample["x"].tolist() == [[1.5, 2.5]]
        assert sample["ids"].tolist() == [7, 8, 9]
        assert sample["ids"].dtype == np.int32


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("x.raw", "expected name:=file for each of x, ids, or 2 files"),
        ("x:=x.raw x.raw", "expected name:=file"),
        ("x:=x.raw y:=x.raw", "names x, y; the model's inputs are x, ids"),
        ("x.raw missing.raw", "'missing.raw' is not a file"),
        ("x.raw x.raw", "has 8 bytes; input 'ids' takes 12"),
        ("", "names no files"),
    ],
)
def test_lines_that_do_not_fit_are_named(tmp_path: Path, line: str, message: str) -> None:
    _write(tmp_path / "x.raw", np.zeros(2, np.float32))
    (tmp_path / "list.txt").write_text(line)
    with pytest.raises(htp.InvalidArgument, match=message):
        read_samples(tmp_path / "list.txt", TWO)


def test_one_file_with_a_row_per_sample(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", x=np.arange(10, dtype=np.float32).reshape(5, 2), ids=np.zeros((5, 3), np.int32))
    samples = read_samples(tmp_path / "all.npz", TWO)
    assert [sample["x"].tolist() for sample in samples[:2]] == [[[0.0, 1.0]], [[2.0, 3.0]]]
    np.savez(tmp_path / "all.npz", x=np.zeros((5, 2), np.float32), ids=np.zeros((4, 3), np.int32))
    with pytest.raises(htp.InvalidArgument, match="expected \\[1, 2\\], or one sample more per row"):
        read_samples(tmp_path / "all.npz", TWO)


def test_nothing_to_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(htp.InvalidArgument, match="has no samples; expected a folder"):
        read_samples(tmp_path, TWO)
    with pytest.raises(htp.InvalidArgument, match="has no samples"):
        read_samples(tmp_path / "missing.npz", TWO)


def test_pictures_are_resized_and_normalized(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (12, 8), (255, 0, 51)).save(tmp_path / "a.png")
    (sample,) = read_samples(tmp_path, PICTURE, Normalization((0.5,), (0.5,)))
    assert sample["x"].shape == (1, 3, 4, 6)
    np.testing.assert_allclose(sample["x"][0, :, 0, 0], [1.0, -1.0, -0.6], atol=1e-6)
    last = _model(x=(TensorProto.UINT8, [1, 4, 6, 3]))
    assert read_samples(tmp_path / "a.png", last)[0]["x"][0, 0, 0].tolist() == [255, 0, 51]
    with pytest.raises(htp.InvalidArgument, match="2 numbers for 3 channels"):
        read_samples(tmp_path, PICTURE, Normalization((0.5, 0.5)))
    (tmp_path / "a.png").write_bytes(b"no picture")
    with pytest.raises(htp.InvalidArgument, match="cannot be read"):
        read_samples(tmp_path, PICTURE)


def test_pictures_are_for_one_input_with_colours(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(htp.InvalidArgument, match="the model has the inputs x, ids: freeze all but one"):
        read_samples(tmp_path, TWO)
    with pytest.raises(htp.InvalidArgument, match="no colours on axis 1 or 3"):
        read_samples(tmp_path, _model(x=(TensorProto.FLOAT, [1, 7, 4, 6])))


def test_pictures_without_pillow_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "PIL":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(htp.InvalidArgument, match=r"pip install openhtp\[pictures\]"):
        read_samples(tmp_path, PICTURE)
