"""``x * (1 + erf(x / sqrt 2))``: GELU whose half an optimizer moved into the weights of the next layer."""

from __future__ import annotations

import math

import numpy as np
import pytest
from import_cases import run_here, run_ort
from onnx import TensorProto, helper, numpy_helper

from openhtp.core.errors import UnsupportedOp
from openhtp.onnx import load


def model(one=1.0, *, swapped=False):
    constants = {"root": math.sqrt(2.0), "one": one}
    product = ["grown", "x"] if swapped else ["x", "grown"]
    nodes = [
        helper.make_node("Div", ["x", "root"], ["scaled"], name="div"),
        helper.make_node("Erf", ["scaled"], ["erf"], name="erf"),
        helper.make_node("Add", ["erf", "one"], ["grown"], name="add"),
        helper.make_node("Mul", product, ["y"], name="mul"),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 40]) for name in "xy")
    initial = [numpy_helper.from_array(np.float32(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], initial)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return made.SerializeToString()


@pytest.mark.parametrize("swapped", [False, True])
def test_it_is_a_gelu_times_two(swapped):
    source = model(swapped=swapped)
    graph = load(source)
    assert [call.op for call in graph.nodes] == ["Gelu", "ElementWiseMultiply"]
    feeds = {"x": np.linspace(-4, 4, 80, dtype=np.float32).reshape(2, 40)}
    # Half precision above 4 is 1/256 apart, and the HTP's GELU differs by up to 0.0005 before it is doubled.
    np.testing.assert_allclose(run_here(graph, feeds)["y"], run_ort(source, feeds)["y"], atol=0.006)


def test_with_another_number_it_is_not():
    with pytest.raises(UnsupportedOp, match="Erf"):
        load(model(one=2.0))
