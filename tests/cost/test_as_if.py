"""What a float model would take if it were quantized, against the file that it is quantized to."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from transformer_exports import EXPORTS

import openhtp as htp
from openhtp import zoo

_SLOW = ("mobilenet_v2", "resnet18", "resnet50")
_NETWORKS = {**{name: build for name, build in zoo.MODELS.items() if name not in _SLOW}, **EXPORTS}


def _apart(model: bytes, activation: str, precision: str) -> float:
    """How far the as-if estimate is from that of the quantized file, as a share of the latter."""
    as_if = htp.estimate(model, "SM8650", precision=precision).total_us
    file = htp.estimate(zoo.quantized(model, activation=activation, samples=1), "SM8650").total_us
    return abs(as_if / file - 1)


@pytest.mark.parametrize("network", _NETWORKS)
def test_the_quantized_file_takes_as_long(network: str) -> None:
    assert _apart(_NETWORKS[network](), "u8", "w8a8") < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("network", [*zoo.MODELS, *EXPORTS])
def test_the_quantized_file_takes_as_long_with_wide_activations(network: str) -> None:
    model = {**zoo.MODELS, **EXPORTS}[network]()
    assert _apart(model, "u16", "w8a16") < 0.1
    assert _apart(model, "u8", "w8a8") < 0.1


def _product_us(shape: tuple[int, ...]) -> float:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones((192, 576), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return htp.estimate(model.SerializeToString(), "SM8650", precision="w8a8").total_us


@pytest.mark.parametrize("shape", [(197, 1, 192), (1, 197, 192), (1, 197, 1, 192), (1, 1, 197, 192)])
def test_rows_of_a_constant_matrix_count_together(shape: tuple[int, ...]) -> None:
    """However the rows are arranged, they are rows of one product."""
    assert _product_us(shape) == pytest.approx(_product_us((197, 192)), rel=0.01)


@pytest.mark.parametrize("op", ["GRU", "LSTM", "RNN"])
def test_what_quantizing_leaves_in_floats_is_priced_in_floats(op: str) -> None:
    gates, units, steps = {"GRU": 3, "LSTM": 4, "RNN": 1}[op], 64, 4
    noise = np.random.default_rng(3)
    weights = {"w": (1, gates * units, 64), "r": (1, gates * units, units)}
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w", "r"], ["y"], name="recurrent", hidden_size=units)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (steps, 1, 64))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (steps, 1, 1, units))],
        [
            numpy_helper.from_array(noise.normal(0, 0.1, shape).astype(np.float32), name)
            for name, shape in weights.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert _apart(model.SerializeToString(), "u8", "w8a8") < 0.001
