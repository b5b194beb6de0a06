"""Forms that exporters write: masks, windows, states, nothing at all."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from import_cases import model_of, node, run_here, run_ort, sqnr
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

import openhtp as htp
from openhtp.onnx import load


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(0, 1, shape).astype(np.float32)


def test_arithmetic_on_shapes_and_positions_is_computed_while_importing() -> None:
    """A chain of what exporters write around attention leaves one Add."""
    nodes = [
        node("Shape", "x", "s"),
        node("Mod", "four three", "one"),
        node("Unsqueeze", "one zero", "at"),
        node("Slice", "s at end", "tail"),
        node("Gather", "tail nought", "long"),
        node("Range", "nought long unit", "places"),
        node("Tile", "places two", "twice"),
        node("CumSum", "twice nought", "sums"),
        node("Unsqueeze", "sums zero", "row"),
        node("GatherElements", "row picks", "picked", axis=1),
        node("Split", "picked", "left right", axis=1),
        node("Max", "left right", "most"),
        node("Cast", "most", "numbers", to=TensorProto.FLOAT),
        node("Trilu", "numbers", "triangle"),
        node("Add", "x triangle", "y"),
    ]
    constants = {
        "four": np.array(4),
        "three": np.array(3),
        "zero": np.array([0]),
        "nought": np.array(0),
        "unit": np.array(1),
        "two": np.array([2]),
        "end": np.array([99]),
        "picks": np.array([[0, 2, 4, 1, 5, 3]]),
    }
    model = model_of(nodes, {"x": [1, 3]}, ["y"], constants)
    graph = load(model)
    assert Counter(call.op for call in graph.nodes)["ElementWiseAdd"] == len(graph.nodes) == 1
    feeds = {"x": _random(1, 3)}
    np.testing.assert_allclose(run_here(graph, feeds)["y"], run_ort(model, feeds)["y"], rtol=2e-3)


@pytest.mark.parametrize(
    "made",
    [
        node("Expand", "b two", "c"),
        node("Tile", "b two", "c"),
        node("Concat", "b b", "c", axis=0),
        node("Gather", "b order", "c", axis=1),
        node("Pad", "b pads", "c"),
        node("Where", "b b other", "c"),
    ],
    ids=lambda made: str(made.op_type),
)
def test_booleans_are_moved_as_integers(made: object) -> None:
    """QNN's Tile, Concat and others take no booleans; masks are made with them."""
    nodes = [node("Greater", "x zero", "b"), made, node("Where", "c one zero", "y")]
    constants = {
        "zero": np.float32(0),
        "one": np.float32(1),
        "two": np.array([2, 1]),
        "pads": np.array([0, 1, 1, 0]),
        "order": np.array([3, 0, 2]),
        "other": np.array([[True], [False]]),
    }
    shape = [1, 4]
    model = model_of(nodes, {"x": shape}, ["y"], constants)
    feeds = {"x": _random(*shape)}
    # onnxruntime has no Where of booleans, ONNX's definition has.
    (exact,) = ReferenceEvaluator(onnx.load_from_string(model)).run(None, feeds)
    np.testing.assert_array_equal(run_here(load(model), feeds)["y"], exact)


@pytest.mark.parametrize("quantized", [False, True])
def test_what_changes_nothing_makes_no_node(quantized: bool) -> None:
    """Expand to the same size, Tile by 1, Where with one answer: the library dies of the second."""
    nodes = [
        node("Relu", "x", "r"),
        node("Expand", "r size", "e"),
        node("Tile", "e ones", "t"),
        node("Where", "never zero t", "w"),
        node("Neg", "w", "y"),
    ]
    constants = {
        "size": np.array([3, 1]),
        "ones": np.array([1, 1]),
        "never": np.zeros((3, 1), bool),
        "zero": np.float32(0),
    }
    if quantized:
        constants |= {"s": np.float32(0.02), "z": np.array(128, np.uint8)}
        nodes = [
            node("QuantizeLinear", "x s z", "xq"),
            node("DequantizeLinear", "xq s z", "r"),
            *nodes[1:4],
            node("QuantizeLinear", "w s z", "wq"),
            node("DequantizeLinear", "wq s z", "y"),
        ]
    model = model_of(nodes, {"x": [3, 5]}, ["y"], constants)
    graph = load(model)
    assert {call.op for call in graph.nodes} <= {"Relu", "ElementWiseNeg", "Quantize", "Dequantize"}
    feeds = {"x": _random(3, 5)}
    np.testing.assert_allclose(run_here(graph, feeds)["y"], run_ort(model, feeds)["y"], atol=2e-3)


def test_comparisons_have_shapes_before_opset_16() -> None:
    nodes = [node("LessOrEqual", "x c", "b"), node("Where", "b x c", "y")]
    model = model_of(nodes, {"x": [2, 3]}, ["y"], {"c": np.float32([0.1, 0.2, 0.3])}, opset=13)
    feeds = {"x": _random(2, 3)}
    np.testing.assert_allclose(run_here(load(model), feeds)["y"], run_ort(model, feeds)["y"], rtol=1e-3)


def _windows(*, quantized: bool) -> bytes:
    """An image of 8 by 12 cut into windows of 4 by 4, as a network on windows begins."""
    nodes = [node("Reshape", "x cut", "six"), node("Transpose", "six", "turned", perm=[0, 1, 3, 2, 4, 5])]
    constants = {"cut": np.array([2, 2, 4, 3, 4, 5]), "flat": np.array([12, 16, 5])}
    if quantized:
        constants |= {"s": np.float32(0.03), "z": np.array(128, np.uint8)}
        nodes = [
            node("QuantizeLinear", "x s z", "xq"),
            node("DequantizeLinear", "xq s z", "xd"),
            node("Reshape", "xd cut", "six"),
            node("QuantizeLinear", "six s z", "sixq"),
            node("DequantizeLinear", "sixq s z", "sixd"),
            node("Transpose", "sixd", "turned", perm=[0, 1, 3, 2, 4, 5]),
        ]
    nodes.append(node("Reshape", "turned flat", "y"))
    return model_of(nodes, {"x": [2, 8, 12, 5]}, ["y"], constants)


@pytest.mark.parametrize("quantized", [False, True])
def test_windows_of_six_axes_take_five(quantized: bool) -> None:
    model = _windows(quantized=quantized)
    feeds = {"x": _random(2, 8, 12, 5)}
    graph = load(model)
    assert max(graph.tensors[name].rank for node in graph.nodes for name in node.outputs) <= 5
    # A value halfway between two steps may go either way.
    assert sqnr(run_ort(model, feeds)["y"], run_here(graph, feeds)["y"]) > 40


def test_six_axes_that_cannot_be_merged_are_refused() -> None:
    nodes = [
        node("Reshape", "x cut", "six", name="r1"),
        node("Transpose", "six", "t", perm=[5, 4, 3, 2, 1, 0]),
        node("Reshape", "t flat", "y"),
    ]
    model = model_of(nodes, {"x": [64]}, ["y"], {"cut": np.array([2] * 6), "flat": np.array([64])})
    with pytest.raises(htp.UnsupportedOp, match=r"'r1'.*rank 6; expected at most 5"):
        load(model)


def test_parts_without_elements_vanish() -> None:
    nodes = [
        node("Split", "x sizes", "a none b", axis=1),
        node("Slice", "x start stop axis", "empty"),
        node("Concat", "empty b a none", "y", axis=1),
        node("Split", "y whole", "z gone", axis=1),
    ]
    constants = {
        "sizes": np.array([3, 0, 2]),
        "whole": np.array([5, 0]),
        "start": np.array([0]),
        "stop": np.array([0]),
        "axis": np.array([1]),
    }
    model = model_of(nodes, {"x": [2, 5]}, ["z"], constants)
    feeds = {"x": _random(2, 5)}
    np.testing.assert_allclose(run_here(load(model), feeds)["z"], run_ort(model, feeds)["z"], rtol=1e-3)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("states", ["none", "constant", "computed"])
def test_lstm_is_one_op_per_direction(direction: str, states: str) -> None:
    ways, steps, batch, features, units = (2 if direction == "bidirectional" else 1), 5, 2, 4, 3
    constants = {
        "w": _random(ways, 4 * units, features) / 2,
        "r": _random(ways, 4 * units, units) / 2,
        "b": _random(ways, 8 * units) / 2,
    }
    feeds, inputs = {"x": _random(steps, batch, features)}, "x w r b"
    if states != "none":
        inputs += " - h c"
        held = {"h": _random(ways, batch, units), "c": -_random(ways, batch, units)}
        (constants if states == "constant" else feeds).update(held)
    own_node = node("LSTM", inputs, "y yh yc", hidden_size=units, direction=direction)
    model = model_of(
        [own_node], {name: array.shape for name, array in feeds.items()}, ["y", "yh", "yc"], constants
    )
    graph = load(model)
    assert Counter(call.op for call in graph.nodes)["Lstm"] == ways
    exact, found = run_ort(model, feeds), run_here(graph, feeds)
    for name, wanted in exact.items():
        assert found[name].shape == wanted.shape
        assert sqnr(wanted, found[name]) > 55


@pytest.mark.parametrize(
    ("attrs", "problem"),
    [({"clip": 1.0}, "clip is 1.0"), ({"activations": ["Relu", "Tanh", "Tanh"]}, "Relu.*use Sigmoid, Tanh, Tanh")],
)
def test_lstm_of_another_kind_is_refused(attrs: dict[str, object], problem: str) -> None:
    constants = {"w": _random(1, 12, 2), "r": _random(1, 12, 3)}
    own_node = node("LSTM", "x w r", "y", name="l1", hidden_size=3, **attrs)
    with pytest.raises(htp.UnsupportedOp, match=rf"node 'l1' \(LSTM\): .*{problem}"):
        load(model_of([own_node], {"x": [4, 1, 2]}, ["y"], constants))


@pytest.mark.parametrize(("opset", "numbers"), [(18, 2), (21, 6)])
def test_group_normalization_per_group_and_per_channel(opset: int, numbers: int) -> None:
    constants = {"s": _random(numbers) + 1, "b": _random(numbers)}
    own_node = node("GroupNormalization", "x s b", "y", num_groups=2)
    model = model_of([own_node], {"x": [1, 6, 4, 4]}, ["y"], constants, opset=opset)
    feeds = {"x": _random(1, 6, 4, 4)}
    assert sqnr(run_ort(model, feeds)["y"], run_here(load(model), feeds)["y"]) > 50


@pytest.mark.parametrize(("op", "made"), [("HardSigmoid", "ElementWiseNeuron"), ("Sigmoid", "Sigmoid")])
def test_sigmoids_of_16_bits_are_stored_as_the_htp_does(op: str, made: str) -> None:
    """The vendor's library gives steps of 1/65536 whatever the output says; the Q behind is a Convert."""
    constants = {"s": np.float32(4 / 65535), "z": np.array(32768, np.uint16), "s2": np.float32(0.7 / 65535)}
    constants["z2"] = np.array(0, np.uint16)
    microsoft = {"domain": "com.microsoft"}
    nodes = [
        node("QuantizeLinear", "x s z", "xq", **microsoft),
        node("DequantizeLinear", "xq s z", "xd", **microsoft),
        node(op, "xd", "t"),
        node("QuantizeLinear", "t s2 z2", "tq", **microsoft),
        node("DequantizeLinear", "tq s2 z2", "y", **microsoft),
    ]
    model = model_of(nodes, {"x": [2, 8]}, ["y"], constants)
    graph = load(model)
    (call,) = [graph.call(node) for node in graph.nodes if node.op == made]
    assert call.outputs[0].quant == htp.ScaleOffset(1 / 65536)
    feeds = {"x": np.clip(_random(2, 8), -1.9, 0.8)}
    assert sqnr(run_ort(model, feeds)["y"], run_here(graph, feeds)["y"]) > 65
