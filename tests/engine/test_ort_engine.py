"""The CPU engine: layouts, segments, binding, rounding, dynamic sizes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from engine_networks import mobilenet_v2

from openhtp.compiler.driver import CompileOptions, compile_graph
from openhtp.core.dtype import DType
from openhtp.core.errors import InternalError, OutOfMemory, QnnError
from openhtp.core.opcall import OpCall
from openhtp.core.precision import FloatPrecision
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine import segments
from openhtp.engine.lowering import lower_program
from openhtp.engine.onnxruntime import onnxruntime as ort
from openhtp.engine.ort import OrtEngine, OrtProgram
from openhtp.engine.protocol import Engine, LoadedProgram, RehearsedProgram, Run
from openhtp.engine.sessions import optimised
from openhtp.ir.builder import GraphBuilder
from openhtp.ops import find_op
from openhtp.options import GRAPH
from openhtp.program.htp_program import HtpProgram

F32, F16, U8 = DType.FLOAT_32, DType.FLOAT_16, DType.UFIXED_POINT_8
IN, OUT = TensorKind.APP_WRITE, TensorKind.APP_READ


def run(loaded: OrtProgram, arrays: dict[str, np.ndarray]) -> None:
    bound = loaded.bind(arrays)
    for index in range(loaded.steps):
        bound.step(index)


def program_of(specs: list[TensorSpec], calls: list[OpCall], **options: Any) -> HtpProgram:
    builder = GraphBuilder("g")
    for spec in specs:
        builder.add_tensor(spec)
    for call in calls:
        builder.add_node(call)
    return compile_graph(builder.finish(), "SM8650", CompileOptions(GRAPH.read(options)))


def test_the_engine_is_what_the_device_expects() -> None:
    engine: Engine = OrtEngine()
    x, y = TensorSpec("x", (4,), F32, kind=IN), TensorSpec("y", (4,), F32, kind=OUT)
    loaded: LoadedProgram = engine.load(program_of([x, y], [OpCall("Relu", "r", (x,), (y,))]))
    given, got = np.array([-1, 0, 1, 2], np.float32), np.zeros(4, np.float32)
    bound: Run = loaded.bind({"x": given, "y": got})
    bound.step(0)
    assert got.tolist() == [0, 0, 1, 2]
    given[:] = 5
    bound.step(0)
    assert got.tolist() == [5, 5, 5, 5], "a run reads its arrays in place, every time"
    loaded.close()
    with pytest.raises(QnnError, match="closed"):
        loaded.bind({"x": given, "y": got})


def test_a_runtime_without_memory_is_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("Exception during initialization: std::bad_alloc")  # as the runtime says it

    monkeypatch.setattr("openhtp.engine.ort.make_stages", fail)
    x, y = TensorSpec("x", (4,), F32, kind=IN), TensorSpec("y", (4,), F32, kind=OUT)
    with pytest.raises(OutOfMemory, match="no memory left") as caught:
        OrtEngine().load(program_of([x, y], [OpCall("Relu", "r", (x,), (y,))]))
    assert caught.value.code == 1002


def test_a_small_program_is_rehearsed_and_a_large_one_is_not(mobilenet: tuple[HtpProgram, bytes]) -> None:
    """So that the first execution finds everything in place, and the device knows that it is short."""

    def relu(elements: int) -> HtpProgram:
        x, y = TensorSpec("x", (elements,), F32, kind=IN), TensorSpec("y", (elements,), F32, kind=OUT)
        return program_of([x, y], [OpCall("Relu", "r", (x,), (y,))])

    engine = OrtEngine()
    small = engine.load(relu(64))
    assert isinstance(small, RehearsedProgram)
    assert small.rehearsal is not None
    assert small.rehearsal.took_ns
    assert set(small.rehearsal.arrays) == {"x", "y"}
    assert engine.load(relu(1 << 16)).rehearsal is not None
    assert engine.load(relu(1 << 17)).rehearsal is None
    assert engine.load(mobilenet[0]).rehearsal is None


@pytest.fixture(scope="module")
def mobilenet() -> tuple[HtpProgram, bytes]:
    builder, model = mobilenet_v2(96)
    return compile_graph(builder.finish(), "SM8650"), model


def test_a_quantized_network_becomes_the_same_integer_kernels_as_its_qdq_model(
    mobilenet: tuple[HtpProgram, bytes],
) -> None:
    ours = Counter(node.op_type for node in optimised(lower_program(mobilenet[0]), 1)[0].graph.node)
    assert ours["QLinearConv"] == 52
    assert ours["QLinearAdd"] == 10
    assert ours["QGemm"] == 1
    assert sum(ours.values()) <= 52 + 10 + 1 + 4
    assert ours["Transpose"] <= 1, "at most the one on 1 x 1 pixels: images stay as the kernels want them"


def test_a_quantized_network_gives_the_same_numbers_as_its_qdq_model(mobilenet: tuple[HtpProgram, bytes]) -> None:
    program, model = mobilenet
    x = np.random.default_rng(3).integers(0, 256, (1, 96, 96, 3)).astype(np.uint8)
    y = np.zeros((1, 1000), np.uint8)
    run(OrtEngine().load(program), {"x": x, "y": y})
    options = ort.SessionOptions()
    options.log_severity_level = 3
    expected = ort.InferenceSession(model, options).run(None, {"x.q": x.transpose(0, 3, 1, 2)})[0]
    assert y.std() > 1
    assert np.abs(y.astype(int) - expected.astype(int)).max() <= 1


def test_segments_compute_what_the_whole_does(
    mobilenet: tuple[HtpProgram, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, _ = mobilenet
    x = np.random.default_rng(4).integers(0, 256, (1, 96, 96, 3)).astype(np.uint8)
    results = []
    for count in (1, 4, 12):
        monkeypatch.setattr(segments, "longest_seconds", lambda seconds, count=count: 1.1 * seconds / count)
        loaded = OrtEngine().load(program)
        assert loaded.steps >= min(count, 4)
        y = np.zeros((1, 1000), np.uint8)
        run(loaded, {"x": x, "y": y})
        results.append(y)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_two_runs_under_way_do_not_disturb_each_other(
    mobilenet: tuple[HtpProgram, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "longest_seconds", lambda seconds: seconds / 5)
    loaded = OrtEngine().load(mobilenet[0])
    rng = np.random.default_rng(5)
    xs = [rng.integers(0, 256, (1, 96, 96, 3)).astype(np.uint8) for _ in range(2)]
    alone = [np.zeros((1, 1000), np.uint8) for _ in xs]
    for x, y in zip(xs, alone, strict=True):
        run(loaded, {"x": x, "y": y})
    mixed = [np.zeros((1, 1000), np.uint8) for _ in xs]
    runs = [loaded.bind({"x": x, "y": y}) for x, y in zip(xs, mixed, strict=True)]
    for step in range(loaded.steps):
        for each in runs:
            each.step(step)
    np.testing.assert_array_equal(alone, mixed)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros(4, np.float32)}, "no array is bound to 'y'"),
        ({"x": np.zeros(4, np.float64), "y": np.zeros(4, np.float32)}, "float64"),
        ({"x": np.zeros(5, np.float32), "y": np.zeros(4, np.float32)}, "expected contiguous float32[4]"),
        ({"x": np.zeros(8, np.float32)[::2], "y": np.zeros(4, np.float32)}, "contiguous"),
    ],
)
def test_a_wrong_array_is_refused(arrays: dict[str, np.ndarray], words: str) -> None:
    x, y = TensorSpec("x", (4,), F32, kind=IN), TensorSpec("y", (4,), F32, kind=OUT)
    loaded = OrtEngine().load(program_of([x, y], [OpCall("Relu", "r", (x,), (y,))]))
    with pytest.raises(QnnError) as caught:
        loaded.bind(arrays)
    assert words in str(caught.value)
    assert caught.value.code == 6004


@pytest.mark.parametrize("dtype", [F32, F16])
def test_float_results_are_rounded_to_half_after_each_op(dtype: DType) -> None:
    x, y = TensorSpec("x", (1000,), dtype, kind=IN), TensorSpec("y", (1000,), dtype, kind=OUT)
    t = TensorSpec("t", (1000,), dtype)
    calls = [OpCall("ElementWiseMultiply", "m", (x, x), (t,)), OpCall("ElementWiseAdd", "a", (t, x), (y,))]
    data = np.random.default_rng(0).uniform(-9, 9, 1000).astype(np.float16).astype(dtype.numpy)
    got = np.zeros(1000, dtype.numpy)
    run(OrtEngine().load(program_of([x, t, y], calls)), {"x": data, "y": got})
    half = data.astype(np.float16)
    np.testing.assert_array_equal(got.astype(np.float16), half * half + half)


def test_float32_precision_rounds_nothing() -> None:
    x, y = TensorSpec("x", (100,), F32, kind=IN), TensorSpec("y", (100,), F32, kind=OUT)
    given, got = np.random.default_rng(0).uniform(-9, 9, 100).astype(np.float32), np.zeros(100, np.float32)
    program = program_of(
        [x, y], [OpCall("ElementWiseMultiply", "m", (x, x), (y,))], precision=FloatPrecision.FLOAT32
    )
    run(OrtEngine().load(program), {"x": given, "y": got})
    np.testing.assert_array_equal(got, given * given)


def test_a_smaller_size_in_a_dynamic_dimension_runs() -> None:
    free = (False, True, False)
    x = TensorSpec("x", (1, 64, 8), F32, kind=IN, dynamic=free)
    t = TensorSpec("t", (1, 64, 8), F32, dynamic=free)
    y = TensorSpec("y", (64, 8), F32, kind=OUT, dynamic=(True, False))
    calls = [OpCall("Softmax", "s", (x,), (t,)), OpCall("Reshape", "r", (t,), (y,))]
    program = program_of([x, t, y], calls)
    loaded = OrtEngine().load(program)
    for size in (64, 3, 17):
        shape = program.source.infer_dims({"x": (1, size, 8)})["y"]
        given, got = np.random.default_rng(size).uniform(-1, 1, (1, size, 8)).astype(np.float32), np.zeros(shape)
        got = got.astype(np.float32)
        run(loaded, {"x": given, "y": got})
        np.testing.assert_allclose(got.sum(axis=1), np.ones(size), rtol=2e-3)
    with pytest.raises(QnnError):
        loaded.bind({"x": np.zeros((1, 65, 8), np.float32), "y": np.zeros((65, 8), np.float32)})


def test_extreme_products_do_not_saturate() -> None:
    """255 * 127 added up: kernels that add pairs of products in 16 bits would clip."""
    x = TensorSpec("x", (1, 64), U8, ScaleOffset(1.0, 0), IN)
    w = TensorSpec("w", (8, 64), DType.SFIXED_POINT_8, ScaleOffset(1.0, 0), TensorKind.STATIC)
    y = TensorSpec("y", (1, 8), U8, ScaleOffset(16384.0, 0), OUT)
    builder = GraphBuilder("g")
    builder.add_tensor(x)
    builder.add_tensor(w, np.full((8, 64), 127, np.int8))
    builder.add_tensor(y)
    builder.add_node(OpCall("FullyConnected", "fc", (x, w), (y,)))
    got = np.zeros((1, 8), np.uint8)
    run(
        OrtEngine().load(compile_graph(builder.finish(), "SM8650")),
        {"x": np.full((1, 64), 255, np.uint8), "y": got},
    )
    assert got.tolist() == [[round(255 * 127 * 64 / 16384)] * 8]


def test_an_output_that_is_only_renamed_is_still_written() -> None:
    q = ScaleOffset(0.1, 0)
    x, y = TensorSpec("x", (2, 6), U8, q, IN), TensorSpec("y", (12,), U8, q, OUT)
    given, got = np.arange(12, dtype=np.uint8).reshape(2, 6), np.zeros(12, np.uint8)
    run(OrtEngine().load(program_of([x, y], [OpCall("Reshape", "r", (x,), (y,))])), {"x": given, "y": got})
    assert got.tolist() == list(range(12))


def test_an_unused_input_needs_no_array() -> None:
    x, z = TensorSpec("x", (4,), F32, kind=IN), TensorSpec("z", (4,), F32, kind=IN)
    y = TensorSpec("y", (4,), F32, kind=OUT)
    loaded = OrtEngine().load(program_of([x, z, y], [OpCall("Relu", "r", (x,), (y,))]))
    got = np.ones(4, np.float32)
    run(loaded, {"x": np.full(4, -1, np.float32), "y": got})
    assert got.tolist() == [0, 0, 0, 0]


def test_integer_division_by_zero_does_not_end_the_process() -> None:
    i32 = DType.INT_32
    a, b = TensorSpec("a", (3,), i32, kind=IN), TensorSpec("b", (3,), i32, kind=IN)
    y = TensorSpec("y", (3,), i32, kind=OUT)
    loaded = OrtEngine().load(program_of([a, b, y], [OpCall("ElementWiseDivide", "d", (a, b), (y,))]))
    got = np.zeros(3, np.int32)
    run(loaded, {"a": np.array([7, -(2**31), -7], np.int32), "b": np.array([0, -1, 2], np.int32), "y": got})
    assert got[2] == -3, "rounds towards zero"


def test_a_bias_without_encoding_has_the_scale_of_the_products() -> None:
    x = TensorSpec("x", (1, 4), U8, ScaleOffset(0.5, 0), IN)
    w = TensorSpec("w", (2, 4), DType.SFIXED_POINT_8, AxisScaleOffset(0, (0.25, 0.125)), TensorKind.STATIC)
    b = TensorSpec("b", (2,), DType.SFIXED_POINT_32, None, TensorKind.STATIC)
    y = TensorSpec("y", (1, 2), U8, ScaleOffset(0.5, -8), OUT)
    builder = GraphBuilder("g")
    builder.add_tensor(x)
    builder.add_tensor(w, np.zeros((2, 4), np.int8))
    builder.add_tensor(b, np.array([80, -48], np.int32))
    builder.add_tensor(y)
    builder.add_node(OpCall("FullyConnected", "fc", (x, w, b), (y,)))
    got = np.zeros((1, 2), np.uint8)
    run(OrtEngine().load(compile_graph(builder.finish(), "SM8650")), {"x": np.ones((1, 4), np.uint8), "y": got})
    # 80 * 0.5 * 0.25 = 10 -> 20 steps above zero point 8; -48 * 0.5 * 0.125 = -3 -> 6 below.
    assert got.tolist() == [[28, 2]]


def test_per_channel_weights_agree_with_exact_arithmetic() -> None:
    rng = np.random.default_rng(2)
    x = TensorSpec("x", (1, 6, 6, 5), U8, ScaleOffset(0.05, -100), IN)
    scales = tuple(float(np.float32(s)) for s in rng.uniform(0.001, 0.02, 7))
    w = TensorSpec("w", (3, 3, 5, 7), DType.SFIXED_POINT_8, AxisScaleOffset(3, scales), TensorKind.STATIC)
    y = TensorSpec("y", (1, 6, 6, 7), U8, ScaleOffset(0.1, -128), OUT)
    builder = GraphBuilder("g")
    weights = rng.integers(-127, 128, w.shape).astype(np.int8)
    builder.add_tensor(x)
    builder.add_tensor(w, weights)
    builder.add_tensor(y)
    params = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}
    builder.add_node(OpCall("Conv2d", "c", (x, w), (y,), params))
    program = compile_graph(builder.finish(), "SM8650")
    given, got = rng.integers(0, 256, x.shape).astype(np.uint8), np.zeros(y.shape, np.uint8)
    run(OrtEngine().load(program), {"x": given, "y": got})
    assert x.quant is not None
    assert w.quant is not None
    assert y.quant is not None
    node = program.source.resolved(next(program.nodes))
    (exact,) = find_op("Conv2d").reference(node, [x.quant.dequantize(given), w.quant.dequantize(weights)])
    assert np.abs(got.astype(int) - y.quant.quantize(exact, 0, 255)).max() <= 1


def test_a_refusal_by_the_runtime_names_the_graph(
    mobilenet: tuple[HtpProgram, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openhtp.engine.sessions.model_bytes", lambda model: b"no model at all")
    with pytest.raises(InternalError, match=rf"the CPU runtime refuses .*{mobilenet[0].name}"):
        OrtEngine().load(mobilenet[0])
