"""Extreme numbers are multiplied exactly, whatever the processor's kernels do with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import openhtp as htp
from openhtp.core.dtype import DType
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.engine import encoding, integer_kernels
from openhtp.engine.integer_kernels import IntegerKernels, takes_signed
from openhtp.engine.sessions import _settings

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
    is_exact = {IntegerKernels.EXACT: True, IntegerKernels.WRAPS: lowest > -128, IntegerKernels.SATURATES: False}
    assert form is (DType.SFIXED_POINT_8 if is_exact[kernels] else DType.UFIXED_POINT_8)


@pytest.mark.parametrize(("levels", "is_signed"), [((-64, 64), True), ((-65, 0), False), ((0, 65), False)])
def test_two_products_that_fit_sixteen_bits_are_not_cut_off(
    levels: tuple[int, int], is_signed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integer_kernels, "integer_kernels", lambda: IntegerKernels.SATURATES)
    assert takes_signed(np.array(levels, np.int8)) is is_signed


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


@pytest.fixture
def without_vnni(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lower for an x86 processor that adds pairs of products in 16 bits; another processor stays what it is."""
    monkeypatch.setattr(integer_kernels, "_processor_words", lambda: "")
    integer_kernels.integer_kernels.cache_clear()
    _settings.cache_clear()
    yield
    integer_kernels.integer_kernels.cache_clear()
    _settings.cache_clear()


@pytest.mark.usefixtures("without_vnni")
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("activation", ["ufixed16", "ufixed8"])
def test_networks_with_signed_weights_are_computed_without_vnni(activation: str, rows: int) -> None:
    """ONNX Runtime has an option that makes them unsigned, which fails where weights are used twice."""
    middle = 1 << (7 if activation == "ufixed8" else 15)
    encoding, out = htp.ScaleOffset(1 / middle, -middle), htp.ScaleOffset(128 / middle, -middle)
    weights: Array = np.random.default_rng(0).integers(-128, 128, (4, DEPTH), np.int8)
    weights[0], weights[1] = -128, 127
    scales = htp.AxisScaleOffset(0, (1 / 128, 1 / 64, 1 / 32, 1 / 128), (0, 0, 0, 0))
    with htp.Backend() as backend:
        graph = backend.create_device(host="thread").create_context().create_graph("g")
        x = graph.add_tensor("x", (rows, DEPTH), activation, quant=encoding, kind="app_write")
        w = graph.add_tensor("w", weights.shape, "sfixed8", quant=scales, data=weights)
        y = graph.add_tensor("y", (rows, 4), activation, quant=out, kind="app_read")
        graph.add_node("FullyConnected", inputs=[x, w], outputs=[y])
        graph.finalize()
        inputs = np.random.default_rng(1).integers(0, 2 * middle, (rows, DEPTH)).astype(x.spec.dtype.numpy)
        inputs[:, :8] = 2 * middle - 1
        computed = graph.execute({"x": inputs})["y"]
    exact = (inputs / middle - 1) @ (weights * np.array(scales.scales)[:, None]).T * middle / 128 + middle
    assert np.abs(computed - np.clip(exact, 0, 2 * middle - 1)).max() <= 1
