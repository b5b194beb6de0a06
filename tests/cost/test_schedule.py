"""The modelled timeline of a program: tiles on units, transfers, waits."""

from __future__ import annotations

import itertools

import pytest
from tests.report.showcase_networks import SOC, two_branches

from openhtp.compiler.driver import portable_program, program_for
from openhtp.core.precision import NumberFormat
from openhtp.cost import estimate, schedule_of
from openhtp.estimation import compiled
from openhtp.hw.clocks import Clocks
from openhtp.program.htp_program import HtpProgram, Unit
from openhtp.program.schedule import Activity


@pytest.fixture(scope="module", params=["zoo:mobilenet_v2", "zoo:transformer_blocks"])
def program(request: pytest.FixtureRequest) -> HtpProgram:
    return program_for(compiled(request.param), "SM8650")


def test_a_schedule_takes_as_long_as_the_estimate(program: HtpProgram) -> None:
    for precision in NumberFormat:
        told = estimate(program, precision)
        schedule = schedule_of(program, precision)
        assert schedule.us == pytest.approx(told.total_us - told.launch_us, abs=0.01)
        assert [kernel.cycles / schedule.mhz for kernel in schedule.kernels] == pytest.approx(
            [op.us for op in told.ops], abs=0.01
        )
        assert [kernel.nodes for kernel in schedule.kernels] == [op.nodes for op in told.ops]


def test_kernels_follow_one_another_and_hold_their_tiles(program: HtpProgram) -> None:
    schedule = schedule_of(program)
    assert [kernel.start for kernel in schedule.kernels[1:]] == [kernel.end for kernel in schedule.kernels[:-1]]
    for each in schedule.operations:
        kernel = schedule.kernels[each.kernel]
        assert each.start <= each.end <= kernel.end + 1
        if each.tile is not None:
            assert kernel.start <= each.start
            assert each.tile < kernel.tiles
        if each.activity is Activity.WEIGHTS:
            assert each.ddr_read == each.vtcm_written > 0


def test_matrix_and_vector_units_do_one_tile_at_a_time(program: HtpProgram) -> None:
    schedule = schedule_of(program)
    for unit in (Unit.HMX, Unit.HVX):
        spans = sorted((each.start, each.end) for each in schedule.operations if each.unit is unit)
        assert spans
        assert all(before[1] <= after[0] + 1 for before, after in itertools.pairwise(spans))


def test_the_dma_does_not_write_a_tile_while_it_reads_another() -> None:
    """Data of the kernel come from DDR and go there. As the DMA is what takes longest, it is always busy."""
    schedule = schedule_of(program_for(portable_program(two_branches("ElementWiseSubtract")), SOC))
    (kernel,) = [each for each in schedule.kernels if each.name == "add"]
    own = [each for each in schedule.operations if each.kernel == kernel.index and each.unit is Unit.DMA]
    moves = sorted((each.start, each.end) for each in own if each.tile is not None)
    assert {each.activity for each in own} >= {Activity.FILL, Activity.STORE}
    assert all(before[1] <= after[0] + 1 for before, after in itertools.pairwise(moves))
    assert sum(end - start for start, end in moves) > 0.95 * (moves[-1][1] - moves[0][0])


def test_all_bytes_that_were_placed_are_moved(program: HtpProgram) -> None:
    schedule = schedule_of(program)
    moved = sum(each.ddr_read + each.ddr_written for each in schedule.operations)
    assert moved == sum(each.nbytes for each in schedule.placed.transfers)
    assert moved == sum(kernel.ddr_read + kernel.ddr_written for kernel in schedule.kernels)


def test_half_the_clocks_are_twice_the_time_in_as_many_cycles(program: HtpProgram) -> None:
    full = schedule_of(program)
    half = schedule_of(program, clocks=Clocks(core=0.5, hmx=0.5, bus=0.5))
    assert half.us == pytest.approx(2 * full.us)
    assert half.cycles == pytest.approx(full.cycles, abs=2)
    slow_bus = schedule_of(program, clocks=Clocks(bus=0.25))
    assert slow_bus.us > full.us
