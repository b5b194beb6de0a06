"""Where transpositions go, how QDQ pairs become encodings, and how open dimensions are fixed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from import_cases import model_of, node, run_here, run_ort, sqnr
from onnx import ModelProto, TensorProto, helper

import openhtp as htp
from openhtp.core.dtype import DType
from openhtp.onnx import load

_RANDOM = np.random.default_rng(0)


def _normal(*shape: int) -> np.ndarray:
    return _RANDOM.normal(0, 0.5, shape).astype(np.float32)


def _ops(model: bytes) -> Counter[str]:
    return Counter(call.op for call in load(model).nodes)


def test_channel_last_models_need_no_transposition() -> None:
    """A model exported from a channel-last framework has its own pairs around convolutions; they vanish."""
    nodes = [
        node("Transpose", "x", "t", perm=[0, 3, 1, 2]),
        node("Conv", "t w", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("Transpose", "r", "y", perm=[0, 2, 3, 1]),
    ]
    model = model_of(nodes, {"x": [1, 5, 6, 3]}, ["y"], {"w": _normal(4, 3, 3, 3)})
    assert _ops(model)["Transpose"] == 1  # the copy into the output
    feeds = {"x": _normal(1, 5, 6, 3)}
    assert sqnr(run_ort(model, feeds)["y"], run_here(load(model), feeds)["y"]) > 50


def test_image_stays_channel_last_through_everything_that_does_not_care() -> None:
    nodes = [
        node("Conv", "x w", "a"),
        node("Add", "a b", "c"),
        node("Concat", "a c", "d", axis=1),
        node("Softmax", "d", "e", axis=1),
        node("ReduceMean", "e", "m", axes=[2, 3], keepdims=0),
        node("Slice", "e s0 s1 s2", "f"),
        node("Conv", "f w", "y"),
    ]
    constants = {"w": _normal(4, 4, 1, 1), "b": _normal(4, 1, 1)}
    constants |= {"s0": np.array([0]), "s1": np.array([4]), "s2": np.array([1])}
    model = model_of(nodes, {"x": [1, 4, 5, 6]}, ["y", "m"], constants)
    assert _ops(model)["Transpose"] == 2  # in and out
    feeds = {"x": _normal(1, 4, 5, 6)}
    theirs, ours = run_ort(model, feeds), run_here(load(model), feeds)
    for name, wanted in theirs.items():
        assert sqnr(wanted, ours[name]) > 45


def test_pooled_image_is_flattened_without_moving_it() -> None:
    nodes = [node("Conv", "x w", "a"), node("GlobalAveragePool", "a", "b"), node("Flatten", "b", "y")]
    ops = _ops(model_of(nodes, {"x": [2, 3, 4, 4]}, ["y"], {"w": _normal(8, 3, 1, 1)}))
    assert (ops["Transpose"], ops["Reshape"]) == (1, 1)


def test_outputs_that_are_inputs_or_constants_get_a_node() -> None:
    nodes = [node("Identity", "x", "y"), node("Identity", "c", "z"), node("Neg", "x", "n")]
    graph = load(model_of(nodes, {"x": [2, 3]}, ["y", "z", "n"], {"c": _normal(3)}))
    assert {spec.name for spec in graph.outputs} == {"y", "z", "n"}
    made = {name: call for call in graph.nodes for name in call.outputs}
    assert {made[name].op for name in "yz"} == {"Transpose"}
    assert graph.tensors[made["z"].inputs[0]].kind is htp.TensorKind.STATIC


def test_integers_of_64_bits_are_cast_at_the_edges() -> None:
    nodes = [node("Add", "i j", "k"), node("Gather", "x k", "y")]
    types = {"i": TensorProto.INT64, "k": TensorProto.INT64}
    model = model_of(nodes, {"x": [5, 2], "i": [3]}, ["y", "k"], {"j": np.array([1])}, types=types)
    graph = load(model)
    assert {spec.name: spec.dtype for spec in graph.inputs}["i"] is DType.INT_64
    feeds = {"x": _normal(5, 2), "i": np.array([0, 3, 1])}
    ours = run_here(graph, feeds)
    assert ours["k"].tolist() == [1, 4, 2]
    assert np.allclose(ours["y"], feeds["x"][[1, 4, 2]], atol=1e-3)


def _qdq_conv(weight: np.ndarray, scale: np.ndarray, zero: np.ndarray, *, activation: type = np.uint8) -> bytes:
    """Conv on integers in and out, with a float bias and a Relu before the output is quantized."""
    domain = "com.microsoft" if activation is np.uint16 else ""
    top = float(np.iinfo(activation).max)
    nodes = [
        node("DequantizeLinear", "x xs xz", "xd", domain=domain),
        node("DequantizeLinear", "w ws wz", "wd", axis=0),
        node("Conv", "xd wd b", "c"),
        node("Relu", "c", "r"),
        node("QuantizeLinear", "r ys yz", "y", domain=domain),
    ]
    constants = {
        "xs": np.float32(4 / top),
        "xz": np.array(int(top) // 2, activation),
        "w": weight,
        "ws": scale.astype(np.float32),
        "wz": zero,
        "b": _normal(weight.shape[0]),
        "ys": np.float32(8 / top),
        "yz": np.array(0, activation),
    }
    kind = TensorProto.UINT16 if activation is np.uint16 else TensorProto.UINT8
    return model_of(nodes, {"x": [1, 4, 5, 5]}, ["y"], constants, opset=21, types={"x": kind, "y": kind})


@pytest.mark.parametrize(
    ("dtype", "per_channel", "activation"),
    [
        (np.uint8, False, np.uint8),
        (np.int8, False, np.uint8),
        (np.int8, True, np.uint8),
        (np.int8, True, np.uint16),
        (np.int16, False, np.uint16),
    ],
)
def test_weights_of_every_type(dtype: type, per_channel: bool, activation: type) -> None:
    info = np.iinfo(dtype)
    weight = _RANDOM.integers(-100, 100, (6, 4, 3, 3)).astype(np.int64)
    zero = 128 if dtype is np.uint8 else 0
    scale = np.linspace(0.003, 0.006, 6) if per_channel else np.array(0.004)
    zeros = np.full(scale.shape, zero, dtype)
    assert info.min <= weight.min() + zero
    model = _qdq_conv((weight + zero).astype(dtype), scale, zeros, activation=activation)
    graph = load(model)
    ops = Counter(call.op for call in graph.nodes)
    assert not ops["Dequantize"]
    assert ops["Conv2d"] == ops["Relu"] == 1
    (conv,) = [graph.call(node) for node in graph.nodes if node.op == "Conv2d"]
    assert conv.inputs[1].dtype.signed is (dtype is not np.uint8)
    assert isinstance(conv.inputs[1].quant, htp.AxisScaleOffset if per_channel else htp.ScaleOffset)
    assert conv.inputs[2].dtype is DType.SFIXED_POINT_32
    feeds = {"x": _RANDOM.integers(0, np.iinfo(activation).max, (1, 4, 5, 5)).astype(activation)}
    ours, theirs = run_here(graph, feeds)["y"], run_ort(model, feeds)["y"]
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1


@pytest.mark.parametrize(("dtype", "zero"), [(np.int16, 0), (np.uint16, 30000)])
def test_sixteen_bit_weights_keep_to_the_codes_that_exist(dtype: type, zero: int) -> None:
    """The HTP has none above 0x7F7F, and only symmetric ones; the numbers stay what they are."""
    weight = _RANDOM.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (6, 4, 3, 3), endpoint=True)
    weight.reshape(-1)[:2] = np.iinfo(dtype).max
    scale = np.array(2e-5)
    model = _qdq_conv(weight.astype(dtype), scale, np.array(zero, dtype), activation=np.uint16)
    graph = load(model)
    (conv,) = [graph.call(node) for node in graph.nodes if node.op == "Conv2d"]
    stored = graph.statics[conv.inputs[1].name]
    assert stored.dtype == np.int16
    assert stored.max() <= 0x7F7F
    assert conv.inputs[1].quant.offset == 0
    exact = (weight - zero) * scale
    assert np.abs(conv.inputs[1].quant.dequantize(stored).transpose(3, 2, 0, 1) - exact).max() <= 1e-5 * 1.6
    feeds = {"x": _RANDOM.integers(0, 65535, (1, 4, 5, 5)).astype(np.uint16)}
    assert sqnr(run_ort(model, feeds)["y"].astype(float), run_here(graph, feeds)["y"].astype(float)) > 70


def test_four_bit_weights_are_stored_in_bytes() -> None:
    weight = _RANDOM.integers(-8, 8, (6, 4, 1, 1)).astype(np.int8)
    model = ModelProto.FromString(_qdq_conv(weight, np.array(0.1), np.array(0, np.int8)))
    for name, numbers in (("w", weight), ("wz", np.zeros((), np.int8))):
        (tensor,) = [item for item in model.graph.initializer if item.name == name]
        tensor.CopyFrom(helper.make_tensor(name, TensorProto.INT4, numbers.shape, numbers.reshape(-1).tolist()))
    data = model.SerializeToString()
    graph = load(data)
    (conv,) = [graph.call(node) for node in graph.nodes if node.op == "Conv2d"]
    assert conv.inputs[1].dtype is DType.SFIXED_POINT_8
    feeds = {"x": _RANDOM.integers(0, 255, (1, 4, 5, 5)).astype(np.uint8)}
    ours, theirs = run_here(graph, feeds)["y"], run_ort(data, feeds)["y"]
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1


@pytest.mark.parametrize(("left", "right"), [("uint8", "uint8"), ("uint8", "uint16"), ("uint16", "uint8")])
def test_matrix_products_of_mixed_widths(left: str, right: str) -> None:
    def pair(name: str, dtype: str, low: float, high: float) -> tuple[list[object], dict[str, np.ndarray]]:
        top = int(np.iinfo(dtype).max)
        scale = (high - low) / top
        constants = {f"{name}s": np.float32(scale), f"{name}z": np.array(round(-low / scale), dtype)}
        quantize = node("QuantizeLinear", f"{name} {name}s {name}z", f"{name}q", domain="com.microsoft")
        back = node("DequantizeLinear", f"{name}q {name}s {name}z", f"{name}d", domain="com.microsoft")
        return [quantize, back], constants

    first, one = pair("a", left, -2, 2)
    second, two = pair("b", right, -1, 1)
    last, three = pair("c", "uint16", -9, 9)
    nodes = [*first, *second, node("MatMul", "ad bd", "c"), *last, node("Identity", "cd", "y")]
    model = model_of(nodes, {"a": [3, 8], "b": [8, 5]}, ["y"], {**one, **two, **three})
    ops = _ops(model)
    assert (ops["MatMul"], ops["Quantize"], ops["Dequantize"]) == (1, 2, 1)
    assert ops["Convert"] == (left == "uint8")
    feeds = {"a": _normal(3, 8).clip(-2, 2), "b": _normal(8, 5).clip(-1, 1)}
    # Float inputs are halves on the device, so one may fall to the other side of a rounding.
    assert sqnr(run_ort(model, feeds)["y"], run_here(load(model), feeds)["y"]) > 32


def test_float_island_in_a_quantized_model_is_left_in_floats() -> None:
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("Sigmoid", "d", "a"),
        node("Mul", "d a", "b"),
        node("QuantizeLinear", "b s z", "e"),
        node("DequantizeLinear", "e s z", "y"),
    ]
    model = model_of(nodes, {"x": [4, 4]}, ["y"], {"s": np.float32(0.02), "z": np.array(128, np.uint8)})
    ops = _ops(model)
    assert ops == {"Quantize": 2, "Dequantize": 2, "Sigmoid": 1, "ElementWiseMultiply": 1}


def test_missing_zero_points_are_zeros_of_the_stored_type() -> None:
    """Weights in signed bytes and a 32-bit bias without zero points, and an output type that is only named."""
    nodes = [
        node("QuantizeLinear", "x s", "q", output_dtype=TensorProto.UINT16),
        node("DequantizeLinear", "q s", "d"),
        node("DequantizeLinear", "w ws", "wd"),
        node("DequantizeLinear", "b bs", "bd"),
        node("Gemm", "d wd bd", "g", transB=1),
        node("QuantizeLinear", "g gs", "h", output_dtype=TensorProto.INT16),
        node("DequantizeLinear", "h gs", "y"),
    ]
    constants = {"s": np.float32(1e-4), "ws": np.float32(0.01), "bs": np.float32(1e-6), "gs": np.float32(1e-3)}
    constants |= {"w": _RANDOM.integers(-100, 100, (5, 8)).astype(np.int8)}
    constants |= {"b": _RANDOM.integers(-90000, 90000, 5).astype(np.int32)}
    model = model_of(nodes, {"x": [3, 8]}, ["y"], constants, opset=21)
    graph = load(model)
    (matrix,) = [graph.call(node) for node in graph.nodes if node.op == "FullyConnected"]
    types = [spec.dtype.short for spec in (*matrix.inputs, *matrix.outputs)]
    assert types == ["ufixed16", "sfixed8", "sfixed32", "ufixed16"]
    feeds = {"x": np.abs(_normal(3, 8))}
    assert sqnr(run_ort(model, feeds)["y"], run_here(graph, feeds)["y"]) > 50


def test_requantization_is_one_convert() -> None:
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("QuantizeLinear", "d s2 z", "e"),
        node("DequantizeLinear", "e s2 z", "y"),
    ]
    constants = {"s": np.float32(0.02), "s2": np.float32(0.03), "z": np.array(128, np.uint8)}
    assert _ops(model_of(nodes, {"x": [4]}, ["y"], constants)) == {"Quantize": 1, "Convert": 1, "Dequantize": 1}


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf])
def test_impossible_scales_are_refused(scale: float) -> None:
    nodes = [node("QuantizeLinear", "x s z", "q", name="bad"), node("DequantizeLinear", "q s z", "y")]
    with pytest.raises(htp.BadModel, match="bad"):
        load(model_of(nodes, {"x": [4]}, ["y"], {"s": np.float32(scale), "z": np.array(0, np.uint8)}))


def test_open_dimensions_are_refused_with_advice_or_fixed() -> None:
    model = model_of([node("Relu", "x", "y")], {"x": ["batch", 4]}, ["y"])
    with pytest.raises(htp.UnsupportedFeature, match=r"dims=\{'batch': 1\}.*--dim batch=1"):
        load(model)
    assert load(model, dims={"batch": 3}).inputs[0].shape == (3, 4)
    assert load(model, dims={"x.0": 2}).inputs[0].shape == (2, 4)
    with pytest.raises(htp.InvalidArgument, match=r"'bach'.*the model has 'batch'"):
        load(model, dims={"batch": 1, "bach": 1})
    with pytest.raises(htp.InvalidArgument, match="above 0"):
        load(model, dims={"batch": 0})


def test_sizes_that_depend_on_data_are_refused() -> None:
    model = model_of([node("NonZero", "x", "y")], {"x": [4]}, ["y"], types={"y": TensorProto.INT64})
    with pytest.raises(htp.UnsupportedError, match="NonZero"):
        load(model)


def test_shape_arithmetic_is_computed_while_importing() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n", axis=0),
        node("Unsqueeze", "n axes", "n1"),
        node("Concat", "n1 rest", "target", axis=0),
        node("Reshape", "x target", "y"),
    ]
    constants = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    graph = load(model_of(nodes, {"x": [2, 3, 4]}, ["y"], constants))
    assert [call.op for call in graph.nodes] == ["Reshape"]
    assert graph.outputs[0].shape == (2, 12)


def test_scalars_stay_scalars_while_shapes_are_computed() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s one", "n", axis=0),
        node("Cast", "n", "end", to=TensorProto.FLOAT),
        node("Range", "begin end step", "r"),
        node("Add", "x r", "y"),
    ]
    constants = {"one": np.array(1), "begin": np.float32(0), "step": np.float32(1)}
    feeds = {"x": _normal(2, 4)}
    y = run_here(load(model_of(nodes, {"x": [2, 4]}, ["y"], constants)), feeds)["y"]
    assert np.allclose(y, feeds["x"] + np.arange(4), atol=4e-3)


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 18, 22, 24])
def test_one_network_in_many_opsets(opset: int) -> None:
    """Axes and bounds moved from attributes to inputs over the years."""
    constants = {"w": _normal(4, 3, 3, 3), "low": np.float32(0), "high": np.float32(1), "axes": np.array([2, 3])}
    clip = node("Clip", "c", "d", min=0.0, max=1.0) if opset < 11 else node("Clip", "c low high", "d")
    mean = node("ReduceMean", "d", "m", axes=[2, 3]) if opset < 18 else node("ReduceMean", "d axes", "m")
    squeeze = node("Squeeze", "m", "y", axes=[2, 3]) if opset < 13 else node("Squeeze", "m axes", "y")
    model = model_of(
        [node("Conv", "x w", "c"), clip, mean, squeeze], {"x": [1, 3, 6, 6]}, ["y"], constants, opset=opset
    )
    feeds = {"x": _normal(1, 3, 6, 6)}
    assert sqnr(run_ort(model, feeds)["y"], run_here(load(model), feeds)["y"]) > 45


def test_cast_between_quantized_floats_keeps_the_encoding() -> None:
    """A Cast from float to float, as inlined functions are full of: no stored number may change its meaning."""
    constants = {"s": np.float32(0.05), "z": np.array(100, np.uint8)}
    nodes = [
        node("QuantizeLinear", "x s z", "xq"),
        node("DequantizeLinear", "xq s z", "xd"),
        node("Cast", "xd", "c", to=TensorProto.FLOAT),
        node("QuantizeLinear", "c s z", "cq"),
        node("DequantizeLinear", "cq s z", "y"),
        node("Cast", "xd", "whole", to=TensorProto.INT32),
    ]
    model = model_of(nodes, {"x": [8]}, ["y", "whole"], constants, types={"whole": TensorProto.INT32})
    feeds = {"x": np.linspace(-4.4, 4.6, 8, dtype=np.float32)}
    exact, found = run_ort(model, feeds), run_here(load(model), feeds)
    np.testing.assert_allclose(found["y"], exact["y"], atol=5e-3)
    np.testing.assert_array_equal(found["whole"], exact["whole"])


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16"])
@pytest.mark.parametrize("per_row", [False, True])
def test_quantized_embeddings_are_picked_as_integers(kind: str, per_row: bool) -> None:
    """The table is a constant and the indices are integers, so nothing computed tells that this is fixed point."""
    top = np.iinfo(kind).max
    scale = np.full(10, 0.5 / top, np.float32) * np.linspace(1, 2, 10, dtype=np.float32)
    table = np.random.default_rng(2).integers(0, top + 1, (10, 6)).astype(kind)
    constants = {
        "t": table,
        "ts": scale if per_row else scale[0],
        "tz": np.full(10 if per_row else (), 3, kind),
        "s": np.float32(0.6 / 65535),
        "z": np.array(0, np.uint16),
    }
    microsoft = {"domain": "com.microsoft"}
    nodes = [
        node("DequantizeLinear", "t ts tz", "td", axis=0, **microsoft),
        node("Gather", "td i", "g"),
        node("QuantizeLinear", "g s z", "gq", **microsoft),
        node("DequantizeLinear", "gq s z", "y", **microsoft),
    ]
    model = model_of(nodes, {"i": [2, 3]}, ["y"], constants, types={"i": TensorProto.INT64})
    feeds = {"i": np.array([[1, 9, 0], [4, 4, 2]])}
    graph = load(model)
    (picked,) = [graph.call(node) for node in graph.nodes if node.op == "Gather"]
    assert picked.outputs[0].dtype.is_fixed_point
    assert sqnr(run_ort(model, feeds)["y"], run_here(graph, feeds)["y"]) > 55


@pytest.mark.parametrize(
    ("made", "op"),
    [
        (node("Tile", "xd c", "t"), "Tile"),
        (node("DepthToSpace", "xd", "t", blocksize=2), "DepthToSpace"),
        (node("SpaceToDepth", "xd", "t", blocksize=2), "SpaceToDepth"),
    ],
    ids=["Tile", "DepthToSpace", "SpaceToDepth"],
)
def test_moved_values_keep_their_encoding(made: object, op: str) -> None:
    """The vendor's library refuses another one for Tile, and ignores it for SpaceToDepth: a Convert follows."""
    constants = {
        "s": np.float32(4 / 255),
        "z": np.array(127, np.uint8),
        "s2": np.float32(5.3 / 255),
        "z2": np.array(130, np.uint8),
        "c": np.array([1, 2, 1, 1]),
    }
    nodes = [
        node("QuantizeLinear", "x s z", "xq"),
        node("DequantizeLinear", "xq s z", "xd"),
        made,
        node("QuantizeLinear", "t s2 z2", "tq"),
        node("DequantizeLinear", "tq s2 z2", "y"),
    ]
    model = model_of(nodes, {"x": [1, 4, 6, 8]}, ["y"], constants)
    graph = load(model)
    (call,) = [graph.call(node) for node in graph.nodes if node.op == op]
    assert call.inputs[0] is not None
    assert call.inputs[0].quant == call.outputs[0].quant
    feeds = {"x": np.random.default_rng(0).uniform(-2, 2, (1, 4, 6, 8)).astype(np.float32)}
    assert np.abs(run_ort(model, feeds)["y"] - run_here(graph, feeds)["y"]).max() < 1.1 * 5.3 / 255
