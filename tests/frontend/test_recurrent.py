"""Recurrent layers against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import openhtp as htp
import openhtp.onnx


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


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("reset_after", [0, 1])
def test_gru_is_written_out(direction: str, reset_after: int) -> None:
    outputs = ("y", "last")
    model = recurrent("GRU", 3, 5, 6, 4, outputs=outputs, direction=direction, linear_before_reset=reset_after)
    assert_runs_as_onnxruntime(model)


@pytest.mark.parametrize("outputs", [("y",), ("", "last")])
def test_only_the_outputs_that_a_gru_has(outputs: tuple[str, ...]) -> None:
    assert_runs_as_onnxruntime(recurrent("GRU", 3, 1, 6, 4, outputs=outputs))


def test_two_grus_that_give_their_last_state_only() -> None:
    """Values in between must not get the same names."""
    model = recurrent("GRU", 3, 3, 6, 4, outputs=("", "last"))
    again = helper.make_node("GRU", ["x", "w", "r", "b"], ["", "other"], hidden_size=4, linear_before_reset=1)
    model.graph.node.append(again)
    model.graph.output.append(helper.make_empty_tensor_value_info("other"))
    assert_runs_as_onnxruntime(model)


def test_gru_with_a_first_state_and_without_bias() -> None:
    model = recurrent("GRU", 3, 4, 6, 5)
    model.graph.node[0].input[:] = ["x", "w", "r", "", "", "first"]
    model.graph.initializer.append(numpy_helper.from_array(np.full((1, 1, 5), 0.5, np.float32), "first"))
    assert_runs_as_onnxruntime(model)


@pytest.mark.parametrize("activation", ["Tanh", "Relu"])
def test_rnn_is_written_out(activation: str) -> None:
    both = [activation] * 2
    assert_runs_as_onnxruntime(recurrent("RNN", 1, 5, 6, 4, direction="bidirectional", activations=both))


@pytest.mark.parametrize(
    ("attrs", "message"), [({"clip": 1.0}, "clip is 1.0"), ({"activations": ["Relu", "Tanh"]}, "its activations")]
)
def test_what_cannot_be_written_out_is_named(attrs: dict[str, object], message: str) -> None:
    with pytest.raises(htp.UnsupportedOp, match=message):
        openhtp.onnx.load(recurrent("GRU", 3, 5, 6, 4, **attrs))


def test_a_sequence_too_long_to_be_written_out() -> None:
    with pytest.raises(htp.UnsupportedOp, match="it has 5000 steps"):
        openhtp.onnx.load(recurrent("GRU", 3, 5000, 6, 4))


def test_a_long_gru() -> None:
    """Its sequence is split into more parts than fit a small constant."""
    assert_runs_as_onnxruntime(recurrent("GRU", 3, 100, 6, 4))


def sorted_lengths(op: str, gates: int) -> ModelProto:
    """Lengths that are sorted before they are given, as exporters of packed sequences write it."""
    model = recurrent(op, gates, 4, 6, 5)
    made = ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    made.graph.node.append(helper.make_node("TopK", ["lengths", "one"], ["sorted", "order"], axis=0))
    made.graph.node.append(helper.make_node("Cast", ["sorted"], ["narrow"], to=TensorProto.INT32))
    made.graph.node.extend(model.graph.node)
    made.graph.node[-1].input.append("narrow")
    made.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "one"))
    made.graph.input.append(helper.make_tensor_value_info("lengths", TensorProto.INT64, [1]))
    return made


@pytest.mark.parametrize(("op", "gates"), [("GRU", 3), ("LSTM", 4)])
def test_lengths_that_are_frozen_are_known(op: str, gates: int) -> None:
    model = sorted_lengths(op, gates)
    with pytest.raises(htp.UnsupportedOp, match=r"is computed \(sequence_lens\); freeze"):
        openhtp.onnx.load(model)
    openhtp.onnx.load(model, freeze={"lengths": 4})
    with pytest.raises(htp.UnsupportedOp, match="end early"):
        openhtp.onnx.load(model, freeze={"lengths": 3})


@pytest.mark.parametrize("reset_after", [0, 1])
def test_steps_share_their_weights(reset_after: int) -> None:
    def held(steps: int) -> int:
        model = recurrent("GRU", 3, steps, 6, 32, linear_before_reset=reset_after)
        return sum(array.nbytes for array in openhtp.onnx.load(model).statics.values() if array.ndim > 1)

    assert held(20) < 1.5 * held(2)
