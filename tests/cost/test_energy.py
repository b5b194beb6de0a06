"""The modelled energy of a run: only ratios mean anything, and these are as the documents order them."""

from __future__ import annotations

import numpy as np
import pytest

from openhtp.compiler.driver import portable_program, program_for
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.cost import NumberFormat, estimate as estimate_program
from openhtp.cost.model import estimate_kernels
from openhtp.estimation import estimate
from openhtp.hw.catalog import find_soc
from openhtp.ir.builder import GraphBuilder
from openhtp.program.qnn_program import QnnProgram
from openhtp.zoo import MODELS
from published import published_kernels


@pytest.mark.parametrize("network", sorted(MODELS))
def test_a8_needs_less_than_a16_and_that_less_than_half_precision(network: str) -> None:
    byte, wide, half = (
        estimate(f"zoo:{network}", "SM8650", precision=each).energy_pj for each in ("w8a8", "w8a16", "float")
    )
    assert 1.005 * byte < wide
    assert 1.2 * wide < half


def test_the_order_holds_for_every_published_network() -> None:
    soc = find_soc("SM8650")
    for name, kernels in published_kernels().items():
        byte, wide, half = (
            estimate_kernels(kernels, soc, each).energy_pj
            for each in (NumberFormat.W8A8, NumberFormat.W8A16, NumberFormat.FLOAT)
        )
        assert byte < wide < half, name


def product(activation: DType, weight: DType) -> QnnProgram:
    """A convolution of one precision."""

    def spec(name: str, shape: tuple[int, ...], dtype: DType, kind: TensorKind) -> TensorSpec:
        middle = 0 if dtype.signed else -(1 << (dtype.bits - 1))
        quant = ScaleOffset(0.01, middle) if dtype.is_fixed_point else None
        return TensorSpec(name, shape, dtype, quant, kind)

    builder = GraphBuilder("g")
    x = spec("x", (1, 28, 28, 64), activation, TensorKind.APP_WRITE)
    w = spec("w", (3, 3, 64, 64), weight, TensorKind.STATIC)
    y = spec("y", (1, 26, 26, 64), activation, TensorKind.APP_READ)
    builder.add_tensor(x)
    builder.add_tensor(w, np.ones(w.shape, weight.numpy))
    builder.add_tensor(y)
    params = {"stride": (1, 1), "pad_amount": ((0, 0), (0, 0))}
    builder.add_node(OpCall("Conv2d", "conv", (x, w), (y,), params))
    return portable_program(builder.finish())


def test_weights_of_16_bits_need_more_than_of_8_and_less_than_half_precision() -> None:
    small, wide, half = (
        estimate_program(program_for(product(*types), "SM8650")).energy_pj
        for types in (
            (DType.UFIXED_POINT_16, DType.SFIXED_POINT_8),
            (DType.UFIXED_POINT_16, DType.SFIXED_POINT_16),
            (DType.FLOAT_16, DType.FLOAT_16),
        )
    )
    assert 1.05 * small < wide
    assert 1.05 * wide < half


def test_lower_clocks_save_energy_and_take_longer() -> None:
    burst, saver = (estimate("zoo:resnet18", "SM8650", perf_profile=each) for each in ("burst", "power_saver"))
    assert saver.energy_pj < 0.95 * burst.energy_pj
    assert saver.total_us > burst.total_us
