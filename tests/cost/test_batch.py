"""Many settings at once are priced as each would be alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openhtp.compiler.driver import program_for
from openhtp.core.errors import InvalidArgument, QnnError, UnsupportedFeature
from openhtp.cost import NumberFormat, Priced, Setting, estimate as estimate_program, price_many, sizes_of
from openhtp.estimation import compiled, estimate
from openhtp.hw.catalog import catalog, find_soc
from openhtp.zoo import quantized, tiny_mlp

SOC = find_soc("SM8650")


@pytest.fixture(scope="module")
def network():
    return compiled("zoo:mobilenet_v2")


def kernels_of(program, soc):
    return sizes_of(program_for(program, soc))


def test_every_soc_and_precision_as_estimate_has_it(network):
    for soc in catalog().values():
        settings = [Setting(soc=soc, precision=each) for each in (None, *NumberFormat)]
        program = program_for(network, soc)
        found = price_many(sizes_of(program), settings)
        assert len(found) == len(settings)
        for setting, priced in zip(settings, found, strict=True):
            if isinstance(priced, QnnError):
                with pytest.raises(type(priced)) as refused:
                    estimate_program(program, setting.precision)
                assert refused.value.message == priced.message
                continue
            alone = estimate_program(program, setting.precision)
            for name in ("total_us", "low_us", "high_us"):
                assert getattr(priced, name) == pytest.approx(getattr(alone, name), rel=1e-12)
            assert priced.extrapolated == alone.extrapolated


def test_chips_that_run_the_same_kernels_can_be_priced_together(network):
    kernels = kernels_of(network, SOC)
    socs = [soc for soc in catalog().values() if kernels_of(network, soc) == kernels]
    together = price_many(kernels, [Setting(soc=soc, precision=NumberFormat.W8A8) for soc in socs])
    for soc, priced in zip(socs, together, strict=True):
        assert priced.total_us == pytest.approx(estimate(network, soc, precision="w8a8").total_us, rel=1e-12)


def test_less_vtcm_is_a_soc_with_less(network):
    for megabytes in range(1, SOC.vtcm_mb + 1):
        (priced,) = price_many(kernels_of(network, SOC), [Setting(soc=SOC, vtcm_mb=megabytes)])
        alone = estimate(network, replace(SOC, vtcm_mb=megabytes))
        assert priced.total_us == pytest.approx(alone.total_us, rel=1e-12)


def test_results_do_not_depend_on_the_company(network):
    settings = [
        Setting(soc=soc, precision=NumberFormat.W8A8, hvx_threads=threads, ddr_gbs=gbs)
        for soc in list(catalog().values())[:8]
        for threads in (1, 2)
        for gbs in (4.0, 30.0)
    ]
    kernels = kernels_of(network, SOC)
    together = price_many(kernels, settings)
    assert [price_many(kernels, [setting])[0] for setting in settings] == together
    assert price_many(kernels, settings[::-1]) == together[::-1]


def test_threads_and_bandwidth_help_and_movement_costs_energy(network):
    kernels = kernels_of(network, SOC)
    slow, fast = price_many(kernels, [Setting(soc=SOC, hvx_threads=1), Setting(soc=SOC, hvx_threads=SOC.hvx)])
    assert slow.total_us > fast.total_us
    slow, fast = price_many(kernels, [Setting(soc=SOC, ddr_gbs=2.0), Setting(soc=SOC, ddr_gbs=40.0)])
    assert slow.total_us > fast.total_us
    half, byte = price_many(
        kernels, [Setting(soc=SOC, precision=each) for each in (NumberFormat.FLOAT, NumberFormat.W8A8)]
    )
    assert half.energy_class > byte.energy_class


def test_what_a_soc_has_not_is_an_answer_for_that_setting_alone(network):
    lacking = next(soc for soc in catalog().values() if not soc.fp16)
    bad = [
        Setting(soc=SOC, vtcm_mb=SOC.vtcm_mb + 1),
        Setting(soc=SOC, hvx_threads=0),
        Setting(soc=SOC, ddr_gbs=0.0),
        Setting(soc=lacking, precision=NumberFormat.FLOAT),
    ]
    found = price_many(kernels_of(network, SOC), [*bad, Setting(soc=SOC)])
    assert [type(each) for each in found] == [InvalidArgument] * 3 + [UnsupportedFeature, Priced]
    assert "SM8650 has 8" in found[0].message


def test_a_quantized_model_keeps_its_precision():
    program = compiled(quantized(tiny_mlp()))
    own, other = price_many(
        kernels_of(program, SOC), [Setting(soc=SOC), Setting(soc=SOC, precision=NumberFormat.W8A16)]
    )
    assert own.total_us == pytest.approx(estimate(program, SOC).total_us, rel=1e-12)
    assert "quantized already" in other.message
