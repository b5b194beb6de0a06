"""Products of 16-bit with 8-bit numbers: exact, the same for any number of rows, and weights there once."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from openhtp.compiler.driver import compile_graph
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine import integer_kernels, segments, wide
from openhtp.engine.integer_kernels import IntegerKernels
from openhtp.engine.ort import OrtEngine, OrtProgram
from openhtp.hw.catalog import find_soc
from openhtp.ir.builder import GraphBuilder
from openhtp.program.htp_program import HtpProgram

SOC = find_soc("SM8650")
U8, U16 = DType.UFIXED_POINT_8, DType.UFIXED_POINT_16
DEPTH, WIDTH = 320, 48
Array = npt.NDArray[np.integer]


def levels() -> npt.NDArray[np.int8]:
    return np.random.default_rng(1).integers(-128, 128, (WIDTH, DEPTH)).astype(np.int8)


def layer(rows: int) -> HtpProgram:
    """A fully connected layer of constant weights."""
    builder = GraphBuilder("g")
    x = TensorSpec("x", (rows, DEPTH), U16, ScaleOffset(0.001, -30000), TensorKind.APP_WRITE)
    quant = AxisScaleOffset(0, tuple(0.001 + 0.0001 * n for n in range(WIDTH)))
    w = TensorSpec("w", (WIDTH, DEPTH), DType.SFIXED_POINT_8, quant, TensorKind.STATIC)
    y = TensorSpec("y", (rows, WIDTH), U16, ScaleOffset(0.01, -32768), TensorKind.APP_READ)
    builder.add_tensor(x)
    builder.add_tensor(w, levels())
    builder.add_tensor(y)
    builder.add_node(OpCall("FullyConnected", "fc", (x, w), (y,), {}, "qti.aisw"))
    return compile_graph(builder.finish(), SOC)


def attention(rows: int) -> HtpProgram:
    """Softmax of scores, and its product with values that are computed."""
    builder = GraphBuilder("g")
    x = TensorSpec("x", (1, 1, rows, DEPTH), U16, ScaleOffset(0.0003, -32768), TensorKind.APP_WRITE)
    v = TensorSpec("v", (1, 1, DEPTH, WIDTH), U8, ScaleOffset(0.02, -128), TensorKind.APP_WRITE)
    p = TensorSpec("p", x.shape, U16, ScaleOffset(1 / 65535, 0), TensorKind.NATIVE)
    y = TensorSpec("y", (1, 1, rows, WIDTH), U16, ScaleOffset(0.0001, -32768), TensorKind.APP_READ)
    for spec in (x, v, p, y):
        builder.add_tensor(spec)
    builder.add_node(OpCall("Softmax", "s", (x,), (p,), {"axis": 3}, "qti.aisw"))
    builder.add_node(OpCall("MatMul", "m", (p, v), (y,), {}, "qti.aisw"))
    return compile_graph(builder.finish(), SOC)


def computed(program: HtpProgram, loaded: OrtProgram, **given: Array) -> Array:
    (spec,) = program.outputs
    made = np.zeros(spec.shape, spec.dtype.numpy)
    run = loaded.bind({**{name: np.ascontiguousarray(data) for name, data in given.items()}, spec.name: made})
    for step in range(loaded.steps):
        run.step(step)
    return made


@pytest.fixture(params=IntegerKernels)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on processors whose kernels saturate or wrap, too."""
    for module in (wide, integer_kernels):
        monkeypatch.setattr(module, "integer_kernels", lambda: request.param)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("rows", [1, 2, 33])
def test_products_are_exact(rows: int) -> None:
    program = layer(rows)
    x = np.random.default_rng(0).integers(0, 65536, (rows, DEPTH)).astype(np.uint16)
    x[0, :4] = 0, 255, 256, 65535
    (spec,), weights = program.inputs, program.tensors["w"].quant
    assert isinstance(spec.quant, ScaleOffset)
    assert isinstance(weights, AxisScaleOffset)
    sums = (x.astype(np.int64) + spec.quant.offset) @ levels().astype(np.int64).T
    exact = sums * (spec.quant.scale * np.array(weights.scales) / 0.01) + 32768
    found = computed(program, OrtEngine().load(program), x=x)
    # Float has 24 bits for what is then rounded to 16: only what lies right between two steps may fall either way.
    assert np.abs(found - np.clip(exact, 0, 65535)).max() <= 0.5 + 1e-2


@pytest.mark.usefixtures("kernels")
def test_a_row_does_not_depend_on_others() -> None:
    x = np.random.default_rng(0).integers(0, 65536, (64, DEPTH)).astype(np.uint16)
    many = layer(len(x))
    together = computed(many, OrtEngine().load(many), x=x)
    for rows in (1, 2, 7):
        program = layer(rows)
        np.testing.assert_array_equal(computed(program, OrtEngine().load(program), x=x[:rows]), together[:rows])


@pytest.mark.usefixtures("kernels")
def test_attention_does_not_depend_on_places() -> None:
    """The same scores and values in another order, and among others."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 65536, (1, 1, 40, DEPTH)).astype(np.uint16)
    v = rng.integers(0, 256, (1, 1, DEPTH, WIDTH)).astype(np.uint8)
    order = rng.permutation(DEPTH)
    many, one = attention(40), attention(1)
    together, alone = computed(many, OrtEngine().load(many), x=x, v=v), OrtEngine().load(one)
    assert len(np.unique(together)) > 100
    for row in range(20):
        moved = computed(one, alone, x=x[:, :, row : row + 1, order], v=v[:, :, order])
        np.testing.assert_array_equal(moved[0, 0, 0], together[0, 0, row])


def test_graphs_of_other_sizes_read_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that are loaded one by one; the last one that reads them takes them with it."""
    monkeypatch.setattr(segments, "_SEGMENT_SECONDS", 1e-9)
    loaded = [OrtEngine().load(two_layers(rows)) for rows in (1, 32, 128)]
    places = [
        {
            array.ctypes.data
            for stage in one._stages.stages
            for array in stage.session.held
            if array.dtype == np.int8
        }
        for one in loaded
    ]
    assert places[0] == places[1] == places[2] != set()


def two_layers(rows: int) -> HtpProgram:
    builder = GraphBuilder("g")
    unit = ScaleOffset(0.001, -32768)
    specs = [TensorSpec("x", (rows, DEPTH), U16, unit, TensorKind.APP_WRITE)]
    specs += [TensorSpec(name, (rows, DEPTH), U16, unit, TensorKind.NATIVE) for name in ("h", "g")]
    specs.append(TensorSpec("y", (rows, DEPTH), U16, unit, TensorKind.APP_READ))
    for spec in specs:
        builder.add_tensor(spec)
    for number, (before, after) in enumerate(itertools.pairwise(specs)):
        stored = np.random.default_rng(number).integers(-127, 128, (DEPTH, DEPTH)).astype(np.int8)
        quant = AxisScaleOffset(0, (0.001,) * DEPTH)
        w = TensorSpec(f"w{number}", stored.shape, DType.SFIXED_POINT_8, quant, TensorKind.STATIC)
        builder.add_tensor(w, stored)
        builder.add_node(OpCall("FullyConnected", f"fc{number}", (before, w), (after,), {}, "qti.aisw"))
    return compile_graph(builder.finish(), SOC)
