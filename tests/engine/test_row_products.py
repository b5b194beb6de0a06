"""Products of one row by operators of our own: the bits of the runtime's nodes, at any size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from openhtp.compiler.driver import compile_graph
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine.cutting import prepare
from openhtp.engine.lowering import lower_program
from openhtp.engine.onnx_graph import parse_model
from openhtp.engine.ort import OrtEngine
from openhtp.engine.row_products import DOMAIN, can_fuse
from openhtp.hw.catalog import find_soc
from openhtp.ir.builder import GraphBuilder
from openhtp.program.htp_program import HtpProgram

pytestmark = pytest.mark.skipif(not can_fuse(), reason="this processor has none of the operators")

SOC = find_soc("SM8650")
U8, U16 = DType.UFIXED_POINT_8, DType.UFIXED_POINT_16
SIZES = [(320, 48), (7, 5), (64, 1024), (1024, 64), (257, 130), (5000, 3), (4, 64), (1, 1)]
Array = npt.NDArray[np.integer]


def layer(rows: int, depth: int, width: int, *, bias: bool = False) -> HtpProgram:
    """A fully connected layer of constant weights, the extremes among them."""
    rng = np.random.default_rng(depth)
    builder = GraphBuilder("g")
    x = TensorSpec("x", (rows, depth), U16, ScaleOffset(0.001, -30001), TensorKind.APP_WRITE)
    scales = tuple(0.001 + 0.0001 * n for n in range(width))
    w = TensorSpec("w", (width, depth), DType.SFIXED_POINT_8, AxisScaleOffset(0, scales), TensorKind.STATIC)
    y = TensorSpec("y", (rows, width), U16, ScaleOffset(0.01, -32768), TensorKind.APP_READ)
    weights = rng.integers(-128, 128, (width, depth)).astype(np.int8)
    weights[:, 0] = -128
    builder.add_tensor(x)
    builder.add_tensor(w, weights)
    given = [x, w]
    if bias:
        quant = AxisScaleOffset(0, tuple(0.001 * scale for scale in scales))
        b = TensorSpec("b", (width,), DType.SFIXED_POINT_32, quant, TensorKind.STATIC)
        builder.add_tensor(b, rng.integers(-9999, 9999, width).astype(np.int32))
        given.append(b)
    builder.add_tensor(y)
    builder.add_node(OpCall("FullyConnected", "fc", tuple(given), (y,), {}, "qti.aisw"))
    return compile_graph(builder.finish(), SOC)


def product(rows: int, depth: int, width: int, *, zero: int = 128) -> HtpProgram:
    """A product with numbers that the client gives, as attention has them."""
    builder = GraphBuilder("g")
    x = TensorSpec("x", (1, 1, rows, depth), U16, ScaleOffset(0.0003, 0), TensorKind.APP_WRITE)
    v = TensorSpec("v", (1, 1, depth, width), U8, ScaleOffset(0.02, -zero), TensorKind.APP_WRITE)
    y = TensorSpec("y", (1, 1, rows, width), U16, ScaleOffset(0.05, -32768), TensorKind.APP_READ)
    for spec in (x, v, y):
        builder.add_tensor(spec)
    builder.add_node(OpCall("MatMul", "m", (x, v), (y,), {}, "qti.aisw"))
    return compile_graph(builder.finish(), SOC)


def operators(program: HtpProgram) -> list[str]:
    """The operators of ours that a program is computed by."""
    prepared = prepare(program, lower_program(program), 1)
    parts = () if prepared is None else prepared.parts
    nodes = (node for part in parts for node in parse_model(part.model).graph.node)
    return [node.op_type for node in nodes if node.domain == DOMAIN]


def computed(program: HtpProgram, **given: Array) -> Array:
    (spec,) = program.outputs
    loaded = OrtEngine().load(program)
    data = np.zeros(spec.shape, spec.dtype.numpy)
    run = loaded.bind({**given, spec.name: data})
    for step in range(loaded.steps):
        run.step(step)
    return data


def numbers(*shape: int) -> Array:
    data = np.random.default_rng(shape[-1]).integers(0, 1 << 16, shape).astype(np.uint16)
    data[..., -1] = 65535
    return data


@pytest.mark.parametrize(("depth", "width"), SIZES)
def test_constant_weights(depth: int, width: int) -> None:
    one, two = layer(1, depth, width), layer(2, depth, width)
    x = numbers(1, depth)
    assert operators(one) == ["SignedProductU16"]
    assert not operators(two)
    np.testing.assert_array_equal(computed(one, x=x)[0], computed(two, x=np.repeat(x, 2, axis=0))[1])


@pytest.mark.parametrize(("depth", "width"), SIZES)
def test_given_numbers(depth: int, width: int) -> None:
    one, two = product(1, depth, width), product(2, depth, width)
    x = numbers(1, 1, 1, depth)
    v = np.random.default_rng(2).integers(0, 256, (1, 1, depth, width)).astype(np.uint8)
    assert operators(one) == ["UnsignedProductU16"]
    again = computed(two, x=np.repeat(x, 2, axis=2), v=v)
    np.testing.assert_array_equal(computed(one, x=x, v=v)[0, 0, 0], again[0, 0, 1])


def test_a_bias_is_added_to_real_values() -> None:
    one, two = layer(1, 320, 48, bias=True), layer(2, 320, 48, bias=True)
    x = numbers(1, 320)
    assert operators(one) == ["SignedProduct"]
    np.testing.assert_array_equal(computed(one, x=x)[0], computed(two, x=np.repeat(x, 2, axis=0))[0])


def test_other_zero_points_are_left_to_the_runtime() -> None:
    assert not operators(product(1, 64, 64, zero=100))


def test_large_matrices_are_left_to_the_runtime() -> None:
    assert not operators(layer(1, 1 << 11, (1 << 9) + 1))
