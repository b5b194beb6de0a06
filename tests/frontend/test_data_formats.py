"""Data format files, in the vendor's keys, and what they make of an imported graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

import openhtp as htp
from openhtp import onnx
from openhtp.core.enumerations import DataFormat
from openhtp.core.errors import BadModel
from openhtp.frontend.data_formats import read_data_formats

NATIVE = "QNN_TENSOR_DATA_FORMAT_HMX_WEIGHT_LAYOUT"


def config(graph: str = "g", tensor: str = "x", word: Any = NATIVE) -> dict[str, Any]:
    return {"graphs": [{"graph_name": graph, "tensors": [{"tensor_name": tensor, "dataFormat": word}]}]}


def model() -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return whole.SerializeToString()


def test_a_file_marks_the_tensors_of_an_imported_graph(tmp_path: Path) -> None:
    path = tmp_path / "formats.json"
    path.write_text(json.dumps(config()))
    graph = onnx.load(model(), data_format_config=path)
    assert graph.tensors["x"].data_format is DataFormat.HMX_WEIGHT_LAYOUT
    assert graph.tensors["y"].data_format is DataFormat.DENSE
    assert onnx.load(model(), data_format_config=config(graph="another")).tensors["x"].data_format == 0


def test_one_entry_may_name_several_graphs() -> None:
    entry = {"graph_name": ["a", "b"], "tensors": [{"tensor_name": "t", "dataFormat": 8}]}
    formats = read_data_formats({"graphs": [entry]})
    assert formats == {name: {"t": DataFormat.HMX_WEIGHT_LAYOUT} for name in "ab"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read"),
        ('{"graphs": [{"graph_name": "g"}]}', "tensors"),
        (json.dumps(config() | {"more": 1}), "more"),
        (json.dumps(config(tensor="z")), "names 'z', which graph 'g' neither reads nor returns; it has x, y"),
        (json.dumps(config(word="QNN_TENSOR_DATA_FORMAT_MX")), "expected one of dense, hmx_weight_layout"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "formats.json"
    path.write_text(content)
    with pytest.raises(htp.QnnError, match=words):
        onnx.load(model(), data_format_config=path)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="No such file"):
        onnx.load(model(), data_format_config=tmp_path / "none.json")
