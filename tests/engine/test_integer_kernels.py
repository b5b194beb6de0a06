"""Extreme numbers are multiplied exactly, whatever the processor's kernels do with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import openhtp as htp
from openhtp.core.dtype import DType
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.engine import encoding, integer_kernels
from openhtp.engine.integer_kernels import IntegerKernels, takes_signed

Array = npt.NDArray[Any]
DEPTH = 96


@pytest.mark.parametrize("kernels", IntegerKernels)
@pytest.mark.parametrize("dtype", [DType.UFIXED_POINT_8, DType.SFIXED_POINT_8])
@pytest.mark.parametrize("lowest", [-128, -127])
def test_weights_keep_their_values(
    kernels: IntegerKernels, dtype: DType, lowest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integer_kernels, "integer_kernels", lambda: kernels)
    levels = np.array([[lowest, 5], [0, 127]], np.int16)
    middle = 0 if dtype.signed else 128
    quant = AxisScaleOffset(0, (0.5, 0.25), (-middle, -middle))

    form, stored, moved = encoding.integer_weights(dtype, (levels + middle).astype(dtype.numpy), quant)

    assert isinstance(moved, AxisScaleOffset)
    np.testing.assert_array_equal(stored.astype(int) + moved.offsets[0], levels)
    # Twice -128 by -128 is the one sum that does not fit kernels that wrap.
    wraps = kernels is IntegerKernels.WRAPS and lowest == -128
    assert form is (DType.UFIXED_POINT_8 if wraps else DType.SFIXED_POINT_8)


def test_other_types_stay_as_they_are() -> None:
    stored = np.zeros(3, np.int16)
    assert encoding.integer_weights(DType.SFIXED_POINT_16, stored, ScaleOffset(1.0, 0))[1] is stored
    assert takes_signed(np.zeros(0, np.int8))


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("weight", [-128, 127])
@pytest.mark.parametrize("activation", [0, 255])
def test_extreme_products_on_this_processor(rows: int, weight: int, activation: int) -> None:
    with htp.Backend() as backend:
        graph = backend.create_device(host="thread").create_context().create_graph("g")
        x = graph.add_tensor("x", (rows, DEPTH), "ufixed8", quant=htp.ScaleOffset(1.0, -128), kind="app_write")
        weights: Array = np.full((4, DEPTH), weight, np.int8)
        w = graph.add_tensor("w", weights.shape, "sfixed8", quant=htp.ScaleOffset(1.0, 0), data=weights)
        out = htp.ScaleOffset(16384.0, -128)
        y = graph.add_tensor("y", (rows, 4), "ufixed8", quant=out, kind="app_read")
        graph.add_node("FullyConnected", inputs=[x, w], outputs=[y])
        graph.finalize()
        computed = graph.execute({"x": np.full((rows, DEPTH), activation, np.uint8)})["y"]
    exact = (activation - 128) * weight * DEPTH / 16384 + 128
    assert np.abs(computed - np.clip(exact, 0, 255)).max() <= 0.5
