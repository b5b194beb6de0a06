"""Recurrent layers against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper, numpy_helper

import openhtp as htp


def recurrent(
    op: str,
    gates: int,
    steps: int,
    features: int,
    units: int,
    *,
    outputs: tuple[str, ...] = ("y",),
    **attrs: object,
) -> ModelProto:
    """One recurrent node with constant weights."""
    random = np.random.default_rng(0)
    directions = 2 if attrs.get("direction") == "bidirectional" else 1
    shapes = {
        "w": (directions, gates * units, features),
        "r": (directions, gates * units, units),
        "b": (directions, 2 * gates * units),
    }
    weights = [
        numpy_helper.from_array((random.normal(size=shape) * 0.2).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *shapes], outputs, hidden_size=units, **attrs)],
        "recurrent",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [steps, 1, features])],
        [helper.make_empty_tensor_value_info(name) for name in outputs if name],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def assert_runs_as_onnxruntime(model: ModelProto, atol: float = 0.01) -> None:
    data = model.SerializeToString()
    shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": np.random.default_rng(1).normal(size=shape).astype(np.float32)}
    wanted = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, feeds)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with htp.InferenceSession(data, options, transport="inprocess") as session:
        found = session.run(None, feeds)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, atol=atol)


def test_a_long_lstm_whose_last_states_nobody_reads() -> None:
    """Long enough to be cut, with nodes at the end of a direction that lead to no output."""
    assert_runs_as_onnxruntime(recurrent("LSTM", 4, 20, 512, 500, direction="bidirectional"))
