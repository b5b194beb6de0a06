"""ONNX models of one operator each, as ONNX Runtime's QNN provider takes them: quantized (QDQ) and float."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray
_FLOAT, _BOOL, _INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64


@dataclass(frozen=True, kw_only=True)
class Case:
    """One operator: shapes of its inputs, constants behind them, attributes, and the range of its input."""

    op: str
    inputs: Sequence[tuple[int, ...]] = ((1, 4, 8, 8),)
    constants: Sequence[Array] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    low: float = -2.0
    high: float = 2.0
    outputs: int = 1
    opset: int = 17
    domain: str = ""
    quantized: bool = True
    floating: bool = True
    label: str = ""
    # Which constants are weights, to be quantized themselves.
    weights: Sequence[int] = ()

    @property
    def name(self) -> str:
        return self.label or self.op


def _ints(*values: int) -> Array:
    return np.array(values, np.int64)


_R = np.random.default_rng(7)
_W = (_R.normal(0, 0.3, (6, 4, 3, 3)).astype(np.float32), _R.normal(0, 0.3, 6).astype(np.float32))
_POSITIVE = {"low": 0.2, "high": 3.0}
_TWO = ((1, 4, 8, 8), (1, 4, 8, 8))


def _binary(op: str, **more: Any) -> Case:
    return Case(op=op, inputs=_TWO, **more)


CASES: tuple[Case, ...] = (
    *[Case(op=op) for op in ("Abs", "Neg", "Relu", "Sigmoid", "Tanh", "Exp", "Floor")],
    *[Case(op=op) for op in ("Round", "Sign", "Sin", "Cos")],
    *[Case(op=op, low=-0.9, high=0.9) for op in ("Asin", "Atan")],
    *[Case(op=op, **_POSITIVE) for op in ("Sqrt", "Log")],
    *[_binary(op) for op in ("Add", "Sub", "Mul", "Max", "Min")],
    _binary("Div", **_POSITIVE),
    Case(op="Pow", constants=(np.array(2.0, np.float32),), **_POSITIVE),
    Case(op="Elu", attributes={"alpha": 1.0}),
    Case(op="HardSwish"),
    Case(op="LeakyRelu", attributes={"alpha": 0.1}),
    Case(op="Clip", constants=(np.array(-1.0, np.float32), np.array(1.0, np.float32))),
    Case(op="Gelu", domain="com.microsoft"),
    Case(op="PRelu", constants=(_R.uniform(0.1, 0.3, (4, 1, 1)).astype(np.float32),), weights=(0,)),
    Case(op="Conv", constants=_W, attributes={"pads": [1, 1, 1, 1]}, weights=(0, 1)),
    Case(
        op="Conv",
        label="Conv depthwise",
        constants=(_R.normal(0, 0.3, (4, 1, 3, 3)).astype(np.float32),),
        attributes={"group": 4},
        weights=(0,),
    ),
    Case(
        op="ConvTranspose",
        constants=(_R.normal(0, 0.3, (4, 6, 2, 2)).astype(np.float32),),
        attributes={"strides": [2, 2]},
        weights=(0,),
    ),
    Case(op="MaxPool", attributes={"kernel_shape": [2, 2], "strides": [2, 2]}),
    Case(op="AveragePool", attributes={"kernel_shape": [2, 2], "strides": [2, 2]}),
    Case(op="GlobalAveragePool"),
    Case(
        op="BatchNormalization",
        constants=tuple(_R.uniform(0.5, 1.5, 4).astype(np.float32) for _ in range(4)),
        weights=(0, 1, 2, 3),
    ),
    Case(
        op="InstanceNormalization",
        constants=(np.ones(4, np.float32), np.zeros(4, np.float32)),
        weights=(0, 1),
    ),
    Case(
        op="LayerNormalization",
        inputs=((1, 6, 16),),
        constants=(np.ones(16, np.float32), np.zeros(16, np.float32)),
        attributes={"axis": -1},
        weights=(0, 1),
    ),
    Case(op="LRN", attributes={"size": 3}),
    Case(op="LpNormalization", attributes={"axis": -1, "p": 2}),
    Case(
        op="MatMul",
        inputs=((1, 6, 16),),
        constants=(_R.normal(0, 0.3, (16, 8)).astype(np.float32),),
        weights=(0,),
    ),
    Case(
        op="Gemm",
        inputs=((2, 16),),
        constants=(_R.normal(0, 0.3, (16, 8)).astype(np.float32), _R.normal(0, 0.3, 8).astype(np.float32)),
        weights=(0, 1),
    ),
    Case(op="Softmax", inputs=((1, 6, 16),), attributes={"axis": -1}),
    Case(op="LogSoftmax", inputs=((1, 6, 16),), attributes={"axis": -1}),
    *[Case(op=op, attributes={"axes": [2, 3], "keepdims": 1}) for op in ("ReduceMean", "ReduceMax", "ReduceMin")],
    Case(op="ReduceSum", constants=(_ints(2, 3),), attributes={"keepdims": 1}),
    Case(op="ReduceProd", attributes={"axes": [3], "keepdims": 1}, inputs=((1, 4, 4, 4),), low=0.5, high=1.5),
    Case(op="Transpose", attributes={"perm": [0, 2, 3, 1]}),
    Case(op="Flatten", attributes={"axis": 1}),
    Case(op="Squeeze", inputs=((1, 4, 1, 8),), constants=(_ints(2),)),
    Case(op="Unsqueeze", inputs=((1, 4, 8),), constants=(_ints(1),)),
    Case(op="Expand", inputs=((1, 1, 8),), constants=(_ints(1, 4, 8),)),
    Case(op="Tile", inputs=((1, 2, 4),), constants=(_ints(1, 2, 2),)),
    Case(op="Slice", constants=(_ints(1, 2), _ints(3, 8), _ints(1, 2))),
    Case(op="Split", attributes={"axis": 1}, outputs=2, opset=13),
    Case(op="Concat", inputs=_TWO, attributes={"axis": 1}),
    Case(op="Gather", constants=(_ints(0, 2, 1),), attributes={"axis": 1}),
    Case(op="Pad", constants=(_ints(0, 0, 1, 1, 0, 0, 1, 1),)),
    Case(op="DepthToSpace", attributes={"blocksize": 2, "mode": "DCR"}),
    Case(op="SpaceToDepth", attributes={"blocksize": 2}),
    Case(
        op="Resize",
        constants=(np.array([], np.float32), np.array([1, 1, 2, 2], np.float32)),
        attributes={"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    Case(op="TopK", inputs=((1, 4, 16),), constants=(_ints(3),), attributes={"axis": -1}, outputs=2),
    Case(op="ArgMax", attributes={"axis": 1, "keepdims": 0}),
    Case(op="ArgMin", attributes={"axis": 1, "keepdims": 0}),
    *[_binary(op) for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")],
    *[_binary(op, quantized=False) for op in ("And", "Or")],
    Case(op="Not", quantized=False),
    Case(op="Where", inputs=_TWO, quantized=True),
    Case(op="Cast", attributes={"to": TensorProto.INT32}, quantized=False),
    Case(
        op="GridSample",
        constants=(_R.uniform(-0.9, 0.9, (1, 5, 5, 2)).astype(np.float32),),
        attributes={"mode": "bilinear", "padding_mode": "zeros"},
        weights=(0,),
    ),
)

_INTEGER_RESULT = {"ArgMax": _INT64, "ArgMin": _INT64, "Cast": TensorProto.INT32}
_TRUTH = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Not")
_TRUTH_INPUT = ("And", "Or", "Not")


def float_model(case: Case) -> onnx.ModelProto:
    """The operator on real numbers."""
    names = [f"x{i}" for i in range(len(case.inputs))]
    kind = _BOOL if case.op in _TRUTH_INPUT else _FLOAT
    infos = [helper.make_tensor_value_info(n, kind, s) for n, s in zip(names, case.inputs, strict=True)]
    constants, called = [], list(names)
    if case.op == "Where":
        infos.insert(0, helper.make_tensor_value_info("c", _BOOL, case.inputs[0]))
        called.insert(0, "c")
    for place, value in enumerate(case.constants):
        constants.append(numpy_helper.from_array(value, f"k{place}"))
        called.append(f"k{place}")
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, called, outputs, domain=case.domain, **case.attributes)
    kinds = [_kind(case, place) for place in range(case.outputs)]
    ends = [helper.make_tensor_value_info(n, k, None) for n, k in zip(outputs, kinds, strict=True)]
    graph = helper.make_graph([node], "g", infos, ends, constants)
    return _model(graph, case)


def _kind(case: Case, place: int) -> int:
    if case.op in _TRUTH:
        return _BOOL
    if case.op == "TopK" and place == 1:
        return _INT64
    return _INTEGER_RESULT.get(case.op, _FLOAT)


def _model(graph: onnx.GraphProto, case: Case) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", case.opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    if not case.domain:
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)
    for output, shape in zip(model.graph.output, case.inputs, strict=False):
        for size in shape:
            output.type.tensor_type.shape.dim.add().dim_value = size
    return model


def feeds_of(case: Case, seed: int) -> dict[str, Array]:
    """Inputs within the case's range."""
    random = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    if case.op == "Where":
        found["c"] = random.integers(0, 2, case.inputs[0]).astype(bool)
    for place, shape in enumerate(case.inputs):
        if case.op in _TRUTH_INPUT:
            found[f"x{place}"] = random.integers(0, 2, shape).astype(bool)
        elif case.op == "Equal":
            found[f"x{place}"] = random.integers(-2, 3, shape).astype(np.float32)
        else:
            found[f"x{place}"] = random.uniform(case.low, case.high, shape).astype(np.float32)
    return found


Run = Callable[[onnx.ModelProto, dict[str, Array]], list[Array]]


def quantized_model(case: Case, run: Run) -> onnx.ModelProto:
    """The operator between dequantized inputs and quantized outputs, 8 bits, ranges from ``run``."""
    source = float_model(case)
    feeds = feeds_of(case, 1)
    results = run(source, feeds)
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def pair(name: str, low: float, high: float, kind: type[np.generic] = np.uint8) -> list[str]:
        low, high = min(low, 0.0), max(high, 0.0)
        scale = np.float32(max(high - low, 1e-4) / 255)
        constants.append(numpy_helper.from_array(scale, f"{name}_s"))
        constants.append(numpy_helper.from_array(kind(round(-low / scale)), f"{name}_z"))
        return [f"{name}_s", f"{name}_z"]

    called: list[str] = []
    for info in source.graph.input:
        if info.type.tensor_type.elem_type != _FLOAT:
            called.append(info.name)
            continue
        scales = pair(info.name, case.low, case.high)
        nodes.append(helper.make_node("QuantizeLinear", [info.name, *scales], [f"{info.name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{info.name}_q", *scales], [f"{info.name}_d"]))
        called.append(f"{info.name}_d")
    for place, value in enumerate(case.constants):
        called.append(_constant(case, place, value, nodes, constants, pair))
    outs = [info.name for info in source.graph.output]
    real = [f"{name}_r" if array.dtype == np.float32 else name for name, array in zip(outs, results, strict=True)]
    nodes.append(helper.make_node(case.op, called, real, domain=case.domain, **case.attributes))
    for name, array in zip(outs, results, strict=True):
        if array.dtype == np.float32:
            keeps = case.op in _SAME_ENCODING
            scales = ["x0_s", "x0_z"] if keeps else pair(name, float(array.min()), float(array.max()))
            nodes.append(helper.make_node("QuantizeLinear", [f"{name}_r", *scales], [f"{name}_q"]))
            nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *scales], [name]))
    graph = helper.make_graph(nodes, "g", source.graph.input, source.graph.output, constants)
    opsets = [helper.make_opsetid("", case.opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


# Operators that move values: their output has the encoding of their input.
_SAME_ENCODING = {"Transpose", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Tile", "Slice", "Split", "Concat"} | {
    "Gather",
    "DepthToSpace",
    "SpaceToDepth",
    "MaxPool",
    "Resize",
    "TopK",
    "ReduceMax",
    "ReduceMin",
}


def _constant(
    case: Case,
    place: int,
    value: Array,
    nodes: list[onnx.NodeProto],
    constants: list[onnx.TensorProto],
    pair: Callable[..., list[str]],
) -> str:
    name = f"k{place}"
    if place not in case.weights and case.op != "Pow":
        constants.append(numpy_helper.from_array(value, name))
        return name
    if case.op in ("Conv", "Gemm") and place == 1:  # a bias, in the scale of input times weight
        given = {one.name: numpy_helper.to_array(one) for one in constants}
        scale = np.float32(given["x0_s"] * given["k0_s"])
        constants.append(numpy_helper.from_array(scale, f"{name}_s"))
        constants.append(numpy_helper.from_array(np.int32(0), f"{name}_z"))
        stored = np.rint(value / scale).astype(np.int32)
        scales = [f"{name}_s", f"{name}_z"]
    else:
        scales = pair(name, float(value.min()), float(value.max()))
        given = {one.name: numpy_helper.to_array(one) for one in constants}
        stored = np.clip(np.rint(value / given[scales[0]]) + given[scales[1]], 0, 255).astype(np.uint8)
    constants.append(numpy_helper.from_array(stored, f"{name}_q"))
    nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *scales], [name]))
    return name
