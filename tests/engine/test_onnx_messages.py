"""The messages that the engine makes are those that the package ``onnx`` would make."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from openhtp.engine import onnx_messages as ours

ATTRIBUTES: dict[str, dict[str, Any]] = {
    "none": {},
    "whole": {"axis": -1, "keepdims": True, "to": np.int64(7)},
    "number": {"alpha": 0.5, "beta": np.float32(2)},
    "text": {"auto_pad": "SAME_UPPER", "mode": b"linear"},
    "several": {"pads": [0, 1, 2, 3], "sizes": np.array([4, 5]), "scales": (1.0, 2), "names": ["a", "b"]},
    "left out": {"axis": None, "group": 2},
}


@pytest.mark.parametrize("attributes", ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_nodes_are_those_of_the_package(attributes: dict[str, Any]) -> None:
    made = ours.make_node("Conv", ["x", "w"], ["y"], name="c", domain="com.microsoft", **attributes)
    expected = helper.make_node("Conv", ["x", "w"], ["y"], name="c", domain="com.microsoft", **attributes)
    assert made == expected
    for mine, theirs in zip(made.attribute, expected.attribute, strict=True):
        assert ours.attribute_value(mine) == helper.get_attribute_value(theirs)


@pytest.mark.parametrize("shape", [(), (1, 3), ("rows", 4)], ids=str)
def test_models_are_those_of_the_package(shape: tuple[int | str, ...]) -> None:
    ends = [ours.make_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "xy"]
    expected_ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "xy"]
    constant = onnx.TensorProto(name="c", data_type=1, dims=[1], raw_data=bytes(4))
    graph = ours.make_graph([ours.make_node("Add", "xc", "y")], "g", ends[:1], ends[1:], [constant])
    expected = helper.make_graph(
        [helper.make_node("Add", "xc", "y", domain=None)], "g", expected_ends[:1], expected_ends[1:], [constant]
    )
    model = ours.make_model(graph, [ours.make_opset("", 21)], 10)
    assert model == helper.make_model(expected, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_the_engine_does_without_the_package_and_agrees_with_it() -> None:
    script = """
import sys
import openhtp.engine.ort
from openhtp.engine.onnx_messages import ModelProto
assert not {"onnx", "asyncio", "ssl"} & sys.modules.keys(), sys.modules.keys()
import onnx
assert onnx.ModelProto is ModelProto
assert onnx.onnx_ml_pb2.ModelProto is ModelProto
onnx.checker.check_model(onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [])))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
