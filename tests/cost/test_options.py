"""What a graph's options do to its kernels and its modelled time."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest

from openhtp.compiler.driver import portable_program, program_for
from openhtp.compiler.sizes import sizes_of
from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument
from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.cost import NumberFormat, estimate as estimate_program, schedule_of
from openhtp.cost.model import estimate_kernels
from openhtp.cost.running import Tuning, packed_share
from openhtp.engine.ort import OrtEngine
from openhtp.estimation import compiled, estimate, with_options
from openhtp.hw.catalog import find_soc
from openhtp.hw.perf_profiles import PERF_PROFILES
from openhtp.ir.builder import GraphBuilder
from openhtp.ir.graph import Graph
from openhtp.program.htp_program import HtpProgram, Unit
from openhtp.program.qnn_program import QnnProgram
from openhtp.program.schedule import Activity
from published import published_kernels


@pytest.fixture(scope="module")
def network() -> QnnProgram:
    return compiled("zoo:mobilenet_v2")


def program(network: QnnProgram, **options: object) -> HtpProgram:
    return program_for(with_options(network, options), "SM8650")


def time(network: QnnProgram, soc: str = "SM8650", **options: object) -> float:
    return estimate(with_options(network, options), soc).total_us


def test_a_higher_level_is_never_slower_and_the_lowest_is(network: QnnProgram) -> None:
    first, second, third = (time(network, optimization_level=level) for level in (1, 2, 3))
    assert first > 1.02 * second
    assert third <= second * 1.001


@pytest.mark.parametrize(
    ("name", "precision", "soc"), [("resnet101", "w8a8", "QCS6490"), ("beit", "float", "SM8650")]
)
def test_the_highest_level_finds_a_faster_placement(name: str, precision: str, soc: str) -> None:
    """Of all ways to divide VTCM between weights and results it takes the fastest, not what spills least."""
    second, third = (
        estimate_kernels(
            published_kernels()[name], find_soc(soc), NumberFormat(precision), tuning=Tuning(level=level)
        )
        for level in (2, 3)
    )
    assert third.total_us < 0.985 * second.total_us
    assert third.vtcm_peak_bytes <= find_soc(soc).vtcm_bytes


def test_levels_hold_the_same_nodes(network: QnnProgram) -> None:
    found = [
        {name for kernel in program(network, optimization_level=level).kernels for name in kernel.sources}
        for level in (1, 2, 3)
    ]
    assert found[0] == found[1] == found[2]


def test_relu_stays_apart_if_asked(network: QnnProgram) -> None:
    folded = program(network)
    apart = program(network, fold_relu_activation_into_conv_off=True)
    assert any(node.clamp is not None for node in folded.nodes)
    assert not any(node.clamp is not None for node in apart.nodes)
    assert len(apart.kernels) > len(folded.kernels)
    assert time(network, fold_relu_activation_into_conv_off=True) > time(network)


def test_short_convolutions_leave_the_hmx_if_asked(network: QnnProgram) -> None:
    stem = next(kernel for kernel in program(network).kernels if kernel.kind == "stem")
    moved = next(
        kernel for kernel in program(network, short_depth_conv_on_hmx_off=True).kernels if kernel.name == stem.name
    )
    assert Unit.HMX in stem.units
    assert Unit.HMX not in moved.units
    assert time(network, short_depth_conv_on_hmx_off=True) > 1.1 * time(network)


def test_fewer_bytes_take_less_time() -> None:
    net = compiled("zoo:resnet50")
    assert time(net, dlbc_weights=True) < 0.95 * time(net)
    assert time(net, vtcm_mb=2, dlbc=True) < 0.99 * time(net, vtcm_mb=2)
    assert time(net, vtcm_mb=2, slc_alloc_enable=True) < 0.99 * time(net, vtcm_mb=2)


@pytest.mark.parametrize("option", ["dlbc", "slc_alloc_enable", "dlbc_weights", "weights_packing"])
def test_what_saves_bandwidth_moves_fewer_bytes(option: str) -> None:
    """In estimates, and operation by operation in the schedule, of which profiles are made."""
    net = portable_program(chain(7, 512)) if option == "weights_packing" else compiled("zoo:resnet50")
    plain, less = (with_options(net, {"vtcm_mb": 1, **options}) for options in ({}, {option: True}))
    before, after = (ddr_bytes(program_for(each, "SM8650")) for each in (plain, less))
    saves_weights = "weights" in option
    assert (after.weights < 0.9 * before.weights) is saves_weights
    assert (after.activations < 0.9 * before.activations) is not saves_weights
    assert after.to_vtcm == before.to_vtcm
    for each, found in ((plain, before), (less, after)):
        told = estimate(each, "SM8650")
        assert told.ddr_read_bytes + told.ddr_written_bytes == pytest.approx(
            found.weights + found.activations, 1e-4
        )


class MovedBytes(NamedTuple):
    """Bytes that go over the bus to DDR, and bytes that the DMA writes into VTCM."""

    weights: int
    activations: int
    to_vtcm: int


def ddr_bytes(program: HtpProgram) -> MovedBytes:
    moves = [each for each in schedule_of(program).operations if each.unit is Unit.DMA]
    by_weights = [each.activity is Activity.WEIGHTS for each in moves]
    over_the_bus = [each.ddr_read + each.ddr_written for each in moves]
    weights = sum(itertools.compress(over_the_bus, by_weights))
    return MovedBytes(weights, sum(over_the_bus) - weights, sum(each.vtcm_written for each in moves))


def test_less_vtcm_and_fewer_threads_take_longer(network: QnnProgram) -> None:
    assert time(network, vtcm_mb=1) > time(network)
    assert time(network, hvx_threads=1) > time(network)
    assert time(network, vtcm_mb="max") == time(network)


def test_vtcm_in_bytes_counts_every_step_of_64_kib() -> None:
    net = compiled("zoo:resnet50")
    placed = [program(net, vtcm_bytes=size) for size in (2 << 20, (2 << 20) + 65536)]
    peaks = [estimate_program(each).vtcm_peak_bytes for each in placed]
    assert peaks[0] <= 2 << 20 < peaks[1] <= (2 << 20) + 65536
    with pytest.raises(InvalidArgument, match="multiple of 65536"):
        time(net, vtcm_bytes=(2 << 20) + 4096)


def test_cores_that_are_not_there_are_refused(network: QnnProgram) -> None:
    with pytest.raises(InvalidArgument, match="num_cores is 9; SM8650 has"):
        time(network, num_cores=9)
    several = next(soc for soc in ("SA8295P", "QCS9075", "SA8775P") if find_soc(soc).cores > 1)
    assert time(network, several, num_cores=2) < time(network, several)


def test_weights_that_need_four_bits_move_in_half() -> None:
    assert packed_share(program_for(compiled("zoo:tiny_mlp"), "SM8650")) == 1.0
    wide, narrow = (portable_program(chain(reach, 2048)) for reach in (100, 7))
    assert packed_share(program_for(narrow, "SM8650")) == pytest.approx(0.5, abs=0.01)
    assert time(narrow, weights_packing=True) < 0.9 * time(narrow)
    assert time(wide, weights_packing=True) == time(wide)


def chain(reach: int, channels: int, floats: tuple[int, ...] = ()) -> Graph:
    """Four 1x1 convolutions with weights from -reach to reach; those in ``floats`` compute in half precision."""
    builder = GraphBuilder("chain")
    rng = np.random.default_rng(2)

    def tensor(name: str, kind: TensorKind, *, is_float: bool) -> TensorSpec:
        dtype, quant = (DType.FLOAT_16, None) if is_float else (DType.UFIXED_POINT_8, ScaleOffset(0.05, -128))
        spec = TensorSpec(name, (1, 8, 8, channels), dtype, quant, kind)
        builder.add_tensor(spec, None)
        return spec

    x = tensor("x", TensorKind.APP_WRITE, is_float=0 in floats)
    for number in range(4):
        is_float, kind = number in floats, TensorKind.APP_READ if number == 3 else TensorKind.NATIVE
        data = rng.integers(-reach, reach + 1, (1, 1, channels, channels)).astype(np.int8)
        dtype, quant = (DType.FLOAT_16, None) if is_float else (DType.SFIXED_POINT_8, ScaleOffset(0.001, 0))
        weights = TensorSpec(f"w{number}", data.shape, dtype, quant, TensorKind.STATIC)
        builder.add_tensor(weights, (data * 0.001).astype(np.float16) if is_float else data)
        y = tensor(f"y{number}", kind, is_float=is_float)
        if x.dtype != y.dtype:
            turned = tensor(f"x{number}", TensorKind.NATIVE, is_float=is_float)
            op = "Dequantize" if is_float else "Quantize"
            builder.add_node(OpCall(op, f"turn{number}", (x,), (turned,)))
            x = turned
        params = {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}
        builder.add_node(OpCall("Conv2d", f"c{number}", (x, weights), (y,), params))
        x = y
    return builder.finish()


def test_each_op_has_the_precision_of_its_tensors() -> None:
    """A graph may mix half precision and fixed point: kernels, times and results follow op by op."""
    whole, mixed, fixed = (portable_program(chain(90, 256, floats)) for floats in ((0, 1, 2, 3), (1,), ()))
    assert time(fixed) < time(mixed) < time(whole)
    sizes = {size.name: size for size in sizes_of(program(mixed))}
    assert sizes["c1"].precision is NumberFormat.FLOAT
    assert {sizes[f"c{number}"].precision for number in (0, 2, 3)} == {NumberFormat.W8A8}
    ops = [{op.name: op for op in estimate(each, "SM8650").ops} for each in (fixed, mixed)]
    assert ops[1]["c1"].hmx_us > 2 * ops[0]["c1"].hmx_us
    assert ops[1]["c2"].hmx_us == pytest.approx(ops[0]["c2"].hmx_us)
    results = [computed(program(each)) for each in (fixed, mixed)]
    assert 0 < np.abs(results[0].astype(int) - results[1].astype(int)).max() <= 8


def computed(program: HtpProgram) -> np.ndarray:
    (x,), (y,) = program.inputs, program.outputs
    data = np.random.default_rng(4).integers(0, 256, x.shape).astype(x.dtype.numpy)
    out = np.zeros(y.shape, y.dtype.numpy)
    loaded = OrtEngine().load(program)
    run = loaded.bind({x.name: data, y.name: out})
    for step in range(loaded.steps):
        run.step(step)
    return out


def test_a_perf_profile_slows_down(network: QnnProgram) -> None:
    burst, saver = (estimate(network, "SM8650", perf_profile=name) for name in ("burst", "power_saver"))
    assert saver.total_us > 1.3 * burst.total_us
    assert saver.energy_class <= burst.energy_class


def test_the_slowest_profile_needs_the_least_energy(network: QnnProgram) -> None:
    found = {
        name: estimate(network, "SM8650", perf_profile=name)
        for name in PERF_PROFILES
        if name not in ("system_settings", "extreme_power_saver")
    }
    least = estimate(network, "SM8650", perf_profile="extreme_power_saver")
    assert all(least.total_us >= each.total_us for each in found.values())
    assert all(least.energy_pj <= each.energy_pj for each in found.values())
    assert least.energy_pj < 0.9 * found["burst"].energy_pj
