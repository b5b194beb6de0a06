"""What a graph's options do to its kernels and its modelled time."""

from __future__ import annotations

import pytest

from openhtp.compiler.driver import program_for
from openhtp.core.errors import InvalidArgument
from openhtp.estimation import compiled, estimate, with_options
from openhtp.hw.catalog import find_soc
from openhtp.program.htp_program import HtpProgram, Unit
from openhtp.program.qnn_program import QnnProgram


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


def test_fewer_bytes_take_less_time() -> None:
    net = compiled("zoo:resnet50")
    assert time(net, dlbc_weights=True) < time(net)
    assert time(net, vtcm_mb=2, dlbc=True) <= time(net, vtcm_mb=2)
    assert time(net, vtcm_mb=2, slc_alloc_enable=True) <= time(net, vtcm_mb=2)


def test_less_vtcm_and_fewer_threads_take_longer(network: QnnProgram) -> None:
    assert time(network, vtcm_mb=1) > time(network)
    assert time(network, hvx_threads=1) > time(network)
    assert time(network, vtcm_mb="max") == time(network)


def test_cores_that_are_not_there_are_refused(network: QnnProgram) -> None:
    with pytest.raises(InvalidArgument, match="num_cores is 9; SM8650 has"):
        time(network, num_cores=9)
    several = next(soc for soc in ("SA8295P", "QCS9075", "SA8775P") if find_soc(soc).cores > 1)
    assert time(network, several, num_cores=2) < time(network, several)


def test_weights_that_need_four_bits_move_in_half() -> None:
    from openhtp.cost.running import packed_share

    net = compiled("zoo:tiny_mlp")
    assert packed_share(program_for(net, "SM8650")) == 1.0


def test_a_perf_profile_slows_down(network: QnnProgram) -> None:
    burst, saver = (estimate(network, "SM8650", perf_profile=name) for name in ("burst", "power_saver"))
    assert saver.total_us > 1.3 * burst.total_us
    assert saver.energy_class <= burst.energy_class
