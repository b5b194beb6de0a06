"""Every operator of the provider's table, in floats and quantized, against onnxruntime on the same model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from import_cases import model_of, node, run_here, run_ort
from onnx import ModelProto, TensorProto, numpy_helper

import openhtp as htp
from openhtp.frontend.onnx_import import import_typed
from openhtp.frontend.onnx_reader import read_model
from openhtp.frontend.rules import keeping_values, plain_rules, rules
from openhtp.onnx import load
from openhtp.vendor.library import find_library

_IMAGE = (1, 4, 6, 5)


@dataclass(frozen=True)
class Case:
    """One use of an operator on float inputs; ``types`` are the quantized forms that apply to it."""

    op: str
    shapes: tuple[tuple[int, ...], ...] = (_IMAGE,)
    attrs: dict[str, Any] = field(default_factory=dict)
    constants: tuple[Any, ...] = ()
    low: float = -2.0
    high: float = 2.0
    types: tuple[str, ...] = ("u8", "s8", "u16", "s16")
    outputs: int = 1
    opset: int = 17
    domain: str = ""


def _ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def _weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).normal(0, 0.5, shape).astype(np.float32)


_REGIONS = np.array([[0, 0, 6, 5], [1.5, 2.25, 9.5, 7], [3, 1, 4.5, 6.75]], np.float32)
_UNARY = "Abs Atan Cos Elu Exp Floor HardSwish LeakyRelu Neg Relu Round Sigmoid Sign Sin Tanh"
_BINARY = ("Add", "Div", "Max", "Min", "Mul", "Sub")
_STEPS = {"Floor", "Round", "Sign"}

CASES = [
    *(Case(op, types=() if op in _STEPS else ("u8", "s8", "u16", "s16")) for op in _UNARY.split()),
    *(Case(op, (_IMAGE, _IMAGE), low=0.5) for op in _BINARY),
    Case("Add", (_IMAGE,), constants=(_weights(4, 1, 1),)),
    Case("Asin", low=-0.9, high=0.9),
    Case("Log", low=0.3, high=4.0),
    Case("Sqrt", low=0.0, high=4.0),
    Case("Pow", low=0.3, constants=(np.array(2.0, np.float32),), types=()),
    Case("Gelu", domain="com.microsoft"),
    Case("Gelu", opset=20),
    Case("Clip", constants=(np.float32(-0.5), np.float32(0.7))),
    Case("PRelu", constants=(np.abs(_weights(4, 1, 1)),)),
    Case("ArgMax", attrs={"axis": 1, "keepdims": 0}),
    Case("ArgMin", attrs={"axis": 3}),
    *(Case(op, (_IMAGE, _IMAGE)) for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")),
    Case("AveragePool", attrs={"kernel_shape": [2, 2], "strides": [2, 2]}),
    Case("AveragePool", attrs={"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    Case("MaxPool", attrs={"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 1, 1, 1]}),
    Case("MaxPool", ((1, 4, 9),), {"kernel_shape": [3]}),
    Case("MaxPool", ((1, 2, 4, 6, 4),), {"kernel_shape": [2, 2, 2], "auto_pad": "SAME_UPPER"}),
    Case("GlobalAveragePool"),
    Case("BatchNormalization", constants=(_weights(4), _weights(4), _weights(4), np.abs(_weights(4)) + 0.5)),
    Case("InstanceNormalization", constants=(_weights(4), _weights(4))),
    Case("LayerNormalization", ((1, 6, 16),), {"axis": -1}, (_weights(16), _weights(16))),
    Case("LRN", attrs={"size": 3, "alpha": 0.1}, types=()),
    Case("LpNormalization", attrs={"axis": 1}),
    Case("Softmax", attrs={"axis": 1}),
    Case("Softmax", ((2, 3, 4),), {"axis": 1}, opset=11),
    Case("LogSoftmax", ((2, 10),)),
    Case("Conv", constants=(_weights(8, 4, 3, 3), _weights(8)), attrs={"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    Case("Conv", constants=(_weights(4, 1, 3, 3),), attrs={"group": 4, "auto_pad": "SAME_LOWER"}),
    Case("Conv", constants=(_weights(4, 2, 2, 2), _weights(4)), attrs={"group": 2, "dilations": [2, 2]}),
    Case("Conv", ((1, 4, 12),), {"pads": [1, 1]}, (_weights(6, 4, 3), _weights(6))),
    Case("Conv", ((1, 3, 4, 5, 4),), {}, (_weights(4, 3, 2, 2, 2), _weights(4))),
    Case("Conv", constants=(_weights(8, 4, 1, 1),), attrs={"pads": [2, 2, 2, 2]}),
    Case(
        "ConvTranspose", constants=(_weights(4, 6, 3, 3), _weights(6)), attrs={"strides": [2, 2], "pads": [1] * 4}
    ),
    Case("ConvTranspose", ((1, 4, 7),), {"strides": [2]}, (_weights(4, 3, 4),)),
    Case("ConvTranspose", ((1, 2, 3, 4, 3),), {}, (_weights(2, 3, 2, 2, 2),)),
    Case("Gemm", ((3, 8),), {"transB": 1}, (_weights(5, 8), _weights(5))),
    Case("Gemm", ((3, 8),), {"alpha": 0.5, "beta": 2.0}, (_weights(8, 5), _weights(5)), types=()),
    Case("Gemm", ((8, 3), (8, 5), (3, 5)), {"transA": 1}, types=()),
    Case("MatMul", ((2, 3, 8), (2, 8, 4))),
    Case("MatMul", ((3, 8),), constants=(_weights(8, 5),)),
    Case("MatMul", ((8,), (8, 4)), types=()),
    Case("Concat", (_IMAGE, (1, 3, 6, 5)), {"axis": 1}),
    Case("DepthToSpace", ((1, 8, 3, 4),), {"blocksize": 2}),
    Case("DepthToSpace", ((1, 8, 3, 4),), {"blocksize": 2, "mode": "CRD"}),
    Case("SpaceToDepth", ((1, 3, 4, 6),), {"blocksize": 2}),
    Case("Expand", ((3, 1),), constants=(_ints(2, 1, 4),)),
    Case("Flatten", attrs={"axis": 2}),
    Case("Gather", constants=(_ints(2, 0, -1),), attrs={"axis": 1}),
    Case("Gather", constants=(np.array(1),), attrs={"axis": 2}),
    Case("GridSample", (_IMAGE, (1, 3, 4, 2)), low=-1.0, high=1.0),
    Case("Pad", constants=(_ints(0, 0, 1, 2, 0, 0, 0, 1), np.float32(0.5)), types=("u16",)),
    Case("Pad", attrs={"mode": "reflect"}, constants=(_ints(0, 0, 1, 2, 0, 0, 0, 1),)),
    Case("ReduceMax", attrs={"axes": [2, 3]}),
    Case("ReduceMean", attrs={"axes": [1], "keepdims": 0}),
    Case("ReduceMin", attrs={"axes": [-1], "keepdims": 0}),
    Case("ReduceProd", attrs={"axes": [1]}, low=0.5, high=1.5, types=()),
    Case("ReduceSum", constants=(_ints(2, 3),)),
    Case("Reshape", constants=(_ints(4, -1),)),
    Case("Resize", constants=(np.float32([]), np.float32([1, 1, 2, 2])), attrs={"mode": "nearest"}),
    Case("Resize", constants=(np.float32([]), np.float32([1, 1, 2, 2])), attrs={"mode": "linear"}),
    Case("Slice", constants=(_ints(5, 0), _ints(-100, 3), _ints(2, 3), _ints(-2, 1))),
    Case("Split", attrs={"axis": 1}, constants=(_ints(1, 3),), outputs=2),
    Case("Squeeze", constants=(_ints(0),)),
    Case("Unsqueeze", constants=(_ints(1),)),
    Case("Tile", constants=(_ints(1, 2, 1, 3),)),
    Case("TopK", ((2, 9),), constants=(_ints(3),), outputs=2),
    Case("RoiAlign", ((1, 3, 8, 9),), {"output_height": 2, "output_width": 3}, (_REGIONS, _ints(0, 0, 0))),
    Case(
        "RoiAlign",
        ((2, 3, 8, 9),),
        {"output_height": 2, "output_width": 2, "spatial_scale": 0.5, "sampling_ratio": 2},
        (_REGIONS, _ints(1, 0, 1)),
        opset=15,
    ),
    Case("Transpose", attrs={"perm": [0, 2, 3, 1]}),
    # Beyond the provider's table.
    Case("Attention", ((1, 2, 5, 8),) * 3, {"is_causal": 1}, types=(), opset=23),
    Case("Einsum", ((2, 5, 3, 4), (2, 6, 3, 4)), {"equation": "bihd,bjhd->bhij"}, types=()),
    Case("HardSigmoid", attrs={"alpha": 1 / 6}, high=0.6),
    Case("LSTM", ((5, 1, 4),), {"hidden_size": 3}, (_weights(1, 12, 4), _weights(1, 12, 3)), types=()),
    Case("ReduceL2", attrs={"axes": [1]}, types=()),
    Case("RMSNormalization", ((1, 6, 16),), {"axis": -1}, (_weights(16),), types=(), opset=23),
    Case("RotaryEmbedding", ((1, 2, 5, 8),), {}, (_weights(1, 5, 4), _weights(1, 5, 4)), types=(), opset=23),
    Case("Trilu", types=()),
]


def _model(case: Case) -> bytes:
    names = [f"x{index}" for index in range(len(case.shapes))]
    constants: dict[str, np.ndarray] = {f"c{index}": np.asarray(item) for index, item in enumerate(case.constants)}
    order = [*names, *constants]
    if case.op == "Resize":
        order = [*names, "c0", "c1"]
    outputs = [f"y{index}" for index in range(case.outputs)]
    own_node = node(case.op, " ".join(order), " ".join(outputs), domain=case.domain, **case.attrs)
    types = {"y1": TensorProto.INT64} if case.op == "TopK" else {}
    if case.op.startswith("Arg"):
        types["y0"] = TensorProto.INT64
    if case.op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
        types["y0"] = TensorProto.BOOL
    inputs = dict(zip(names, case.shapes, strict=True))
    return model_of([own_node], inputs, outputs, constants, opset=case.opset, types=types)


def _feeds(case: Case) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    return {
        f"x{index}": random.uniform(case.low, case.high, shape).astype(np.float32)
        for index, shape in enumerate(case.shapes)
    }


def _id(case: Case) -> str:
    return f"{case.op}-{'x'.join(map(str, case.shapes[0]))}-{'-'.join(map(str, case.attrs))}"


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_float_operator(case: Case) -> None:
    model, feeds = _model(case), _feeds(case)
    ours, theirs = run_here(load(model), feeds), run_ort(model, feeds)
    for name, wanted in theirs.items():
        got = ours[name].reshape(wanted.shape)
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(got, wanted, rtol=4e-3, atol=4e-3)
        else:
            assert np.array_equal(got, wanted)


_NUMPY = {"u8": np.uint8, "s8": np.int8, "u16": np.uint16, "s16": np.int16}
_ONNX = {"u8": TensorProto.UINT8, "s8": TensorProto.INT8, "u16": TensorProto.UINT16, "s16": TensorProto.INT16}


def _scale(array: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    info = np.iinfo(_NUMPY[kind])
    low, high = min(float(array.min()), 0.0), max(float(array.max()), 0.0)
    scale = (high - low) / (int(info.max) - int(info.min)) or 1.0
    zero = round(info.min - low / scale)
    return np.array(scale, np.float32), np.array(np.clip(zero, info.min, info.max), _NUMPY[kind])


def _quantized(case: Case, kind: str, feeds: dict[str, np.ndarray]) -> bytes:
    """The same operator on integers: quantized inputs, weights and outputs, all with ranges of their own."""
    source = ModelProto.FromString(_model(case))
    floats = run_ort(_model(case), feeds)
    constants = {t.name: numpy_helper.to_array(t) for t in source.graph.initializer}
    (op,) = source.graph.node
    wide = kind.endswith("16")
    weight_kind = "s8" if wide and case.op in ("Conv", "ConvTranspose", "Gemm") else kind
    domain = "com.microsoft" if wide else ""
    before, after, types = [], [], {}
    for index, name in enumerate(op.input):
        weight = (
            index == 1 and name in constants and constants[name].dtype == np.float32 and constants[name].ndim > 1
        )
        if name in feeds or weight:
            array = feeds[name] if name in feeds else constants[name]
            scale, zero = _scale(array, weight_kind if weight else kind)
            constants |= {f"{name}_s": scale, f"{name}_z": zero}
            if weight:
                constants[name] = _stored(array, scale, zero)
            before.append(node("DequantizeLinear", f"{name} {name}_s {name}_z", f"{name}_d", domain=domain))
            types[name] = _ONNX[kind]
            op.input[index] = f"{name}_d"
    for index, name in enumerate(list(op.output)):
        types[name] = TensorProto.BOOL if floats[name].dtype == bool else TensorProto.INT64
        if floats[name].dtype == np.float32:
            constants[f"{name}_s"], constants[f"{name}_z"] = _scale(floats[name], kind)
            after.append(node("QuantizeLinear", f"{name}_f {name}_s {name}_z", name, domain=domain))
            types[name] = _ONNX[kind]
            op.output[index] = f"{name}_f"
    shapes = {name: array.shape for name, array in feeds.items()}
    outputs = list(floats)
    return model_of([*before, op, *after], shapes, outputs, constants, opset=case.opset, types=types)


def _stored(array: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    info = np.iinfo(zero.dtype)
    return np.clip(np.rint(array / scale) + zero, info.min, info.max).astype(zero.dtype)


@pytest.mark.parametrize(
    ("case", "kind"),
    [pytest.param(case, kind, id=f"{_id(case)}-{kind}") for case in CASES for kind in case.types],
)
def test_quantized_operator_is_within_a_step(case: Case, kind: str) -> None:
    feeds = _feeds(case)
    model = _quantized(case, kind, feeds)
    stored = {name: _stored(array, *_scale(array, kind)) for name, array in feeds.items()}
    ours, theirs = run_here(load(model), stored), run_ort(model, stored)
    for name, wanted in theirs.items():
        got = ours[name].reshape(wanted.shape)
        assert got.dtype == wanted.dtype
        if wanted.dtype == bool or wanted.dtype == np.int64:
            assert np.array_equal(got, wanted)
        else:
            assert np.abs(got.astype(int) - wanted.astype(int)).max() <= 1


def _emitted(case: Case, kind: str) -> list[str]:
    return [call.op for call in load(_quantized(case, kind, _feeds(case))).nodes]


@pytest.mark.parametrize("kind", ["u8", "s8", "u16", "s16"])
def test_quantized_operators_compute_in_integers(kind: str) -> None:
    """No node turns integers into floats or back."""
    emitted = {_id(case): _emitted(case, kind) for case in CASES if kind in case.types}
    floats = {name: ops for name, ops in emitted.items() if {"Dequantize", "Quantize"} & set(ops)}
    assert not floats


def _check(function: Callable[[], Any], message: str) -> None:
    with pytest.raises(htp.UnsupportedOp, match=message):
        function()


def test_unsupported_forms_name_the_node_and_the_nearest() -> None:
    gather = model_of([node("Erf", "x", "y", name="e1")], {"x": [2]}, ["y"])
    _check(lambda: load(gather), r"node 'e1' \(Erf\).*GELU")
    pool = model_of([node("LpPool", "x", "y", name="r1", kernel_shape=[2, 2])], {"x": [1, 1, 2, 2]}, ["y"])
    _check(lambda: load(pool), r"node 'r1' \(LpPool\).*nearest supported are MaxPool")
    norm = model_of([node("LpNormalization", "x", "y", p=1)], {"x": [2, 2]}, ["y"])
    _check(lambda: load(norm), "only p = 2")
    clip = model_of([node("Clip", "x lo", "y")], {"x": [2], "lo": []}, ["y"])
    _check(lambda: load(clip), "make it a constant")


# Ops of QNN's list that the library does not have in that type.
_NOT_IN_LIBRARY = {
    # LSTM: it computes single steps with a projection only.
    "float": ("Asin-", "LSTM-", "MaxPool-1x2x4x6x4", "ReduceProd-"),
    "u8": ("MaxPool-1x2x4x6x4", "RoiAlign-1x3x8x9"),
    "u16": ("MaxPool-1x2x4x6x4", "RoiAlign-1x3x8x9"),
}


@pytest.mark.vendor
@pytest.mark.parametrize("kind", ["float", "u8", "u16"])
def test_vendor_library_takes_every_imported_operator(kind: str) -> None:
    """Its validator accepts what the importer makes, and it computes the same to within its precision."""
    if find_library() is None:
        pytest.skip("the onnxruntime-qnn package is not installed")
    refused = {}
    with htp.Backend("vendor") as backend, backend.create_device(soc="SM8550") as device:
        for case in CASES:
            name = _id(case)
            if (kind != "float" and kind not in case.types) or name.startswith(_NOT_IN_LIBRARY[kind]):
                continue
            feeds = _feeds(case)
            model = _model(case) if kind == "float" else _quantized(case, kind, feeds)
            graph = import_typed(read_model(model)).graph
            if kind != "float":
                feeds = {key: _stored(array, *_scale(array, kind)) for key, array in feeds.items()}
            try:
                with device.create_context() as context:
                    loaded = context.compose_graph(graph)
                    loaded.finalize()
                    theirs = loaded.execute(feeds)
            except htp.QnnError as error:
                refused[name] = str(error)
                continue
            if kind != "u16":
                # A softmax with a free output scale is the library's one op that is off by more than a step.
                limit = 0.01 if kind == "float" else 4 if case.op == "Softmax" else 1
                for key, ours in run_here(graph, feeds).items():
                    assert np.abs(theirs[key].astype(float) - ours.astype(float)).max() <= limit, name
    assert not refused


def test_operators_that_keep_values_are_imported_ones() -> None:
    keeping = keeping_values()
    assert keeping <= {*rules(), *plain_rules()}
    # Told by the op itself, and by the rule's own module; several encodings meet in a Concat.
    assert {"Relu", "MaxPool"} <= keeping
    assert "Concat" not in keeping
