"""Weights with a scale per channel, along either axis; results that do not depend on the processor."""

from __future__ import annotations

import numpy as np
import pytest
from one_op import Given, call_of
from ops_cases import Case, real, run_case

from openhtp.core.dtype import DType
from openhtp.core.errors import UnsupportedOp
from openhtp.core.opcall import OpCall
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine import emitter
from openhtp.engine.integer_kernels import rounds_products_alone
from openhtp.ops import find_op, resolve

SCALES = (0.01, 0.02, 0.04)


def fully_connected(axis: int, *, bias: bool = False) -> Case:
    """Three units of three features, so that scales along the wrong axis would fit, too."""
    random = np.random.default_rng(3)
    u16 = DType.UFIXED_POINT_16
    x = TensorSpec("x", (2, 3), u16, ScaleOffset(1e-4, -32768), TensorKind.APP_WRITE)
    quant = AxisScaleOffset(axis, SCALES, (0, 0, 0))
    w = TensorSpec("w", (3, 3), DType.SFIXED_POINT_8, quant, TensorKind.STATIC)
    b = TensorSpec("b", (3,), DType.SFIXED_POINT_32, None, TensorKind.STATIC)
    y = TensorSpec("y", (2, 3), u16, ScaleOffset(1e-3, -32768), TensorKind.APP_READ)
    stored = {
        "x": random.integers(0, 65536, (2, 3)).astype(np.uint16),
        "w": random.integers(-127, 128, (3, 3)).astype(np.int8),
    }
    if bias:
        stored["b"] = np.zeros(3, np.int32)
    call = OpCall("FullyConnected", "fc", (x, w, b) if bias else (x, w), (y,))
    return Case(find_op("FullyConnected"), call, stored, ())


@pytest.mark.parametrize("axis", [0, 1])
def test_a_fully_connected_layer_uses_each_scale_where_it_belongs(axis: int) -> None:
    case = fully_connected(axis)
    (got,) = run_case(case)
    x, w = (real(spec, case.stored[spec.name]) for spec in case.call.inputs)
    assert np.abs(real(case.call.outputs[0], got) - x @ w.T).max() <= 1.5e-3


def test_a_bias_needs_the_scales_of_its_units() -> None:
    case = fully_connected(1, bias=True)
    with pytest.raises(UnsupportedOp, match="along the output channels where there is a bias"):
        resolve(case.call, case.stored)


@pytest.mark.parametrize("alone", [True, False])
def test_a_hard_sigmoid_rounds_after_each_operation(alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As x86 does it; a product and a sum that are rounded at once end one step away now and then."""
    if alone and not rounds_products_alone():
        pytest.skip("the runtime's own operator rounds them at once on this processor")
    monkeypatch.setattr(emitter, "rounds_products_alone", lambda: alone)
    given, result = ScaleOffset(8 / 65535, -32768), ScaleOffset(1 / 65536, 0)
    stored = np.arange(0, 65536, 7).reshape(1, -1)
    case = call_of(
        "ElementWiseNeuron",
        [Given(given.dequantize(stored), "u16", given)],
        [(stored.shape, "u16", result)],
        {"operation": "HARD_SIGMOID"},
    )
    (got,) = run_case(case)
    x = (case.stored["x0"].astype(np.float32) + np.float32(given.offset)) * np.float32(given.scale)
    line = np.clip(x * np.float32(0.2) + np.float32(0.5), 0, 1)
    np.testing.assert_array_equal(got, np.minimum(np.rint(line / np.float32(result.scale)), 65535))
