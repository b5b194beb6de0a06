"""What lies where in VTCM: rules that hold for whatever kernels come."""

from __future__ import annotations

import itertools

from hypothesis import given, strategies as st

from openhtp.compiler.sizes import KernelSize
from openhtp.compiler.vtcm.place import place, tiles_of
from openhtp.compiler.vtcm.spill import ALIGNMENT, Arena, aligned
from openhtp.core.precision import NumberFormat
from openhtp.core.units import MIB
from openhtp.program.placement import Move, Placed, RangeRole

SIZES = st.sampled_from([0, 1, 5_000, 70_000, 400_000, 900_000, 3_000_000, 12_000_000])


@st.composite
def networks(draw: st.DrawFn) -> list[KernelSize]:
    kernels: list[KernelSize] = []
    for index in range(draw(st.integers(1, 14))):
        reads = tuple(sorted(draw(st.sets(st.integers(0, index - 1), max_size=3)))) if index else ()
        moves_nothing = bool(reads) and draw(st.integers(0, 7)) == 0
        kernels.append(
            KernelSize(
                name=f"k{index}",
                op="Add",
                kind="reshape" if moves_nothing else "add",
                read=sum(kernels[maker].written for maker in reads),
                written=draw(SIZES),
                weights=0 if moves_nothing else draw(SIZES),
                edge_in=0 if reads else draw(SIZES),
                reads=tuple(maker for maker in reads if kernels[maker].kind != "reshape"),
                strips=draw(st.sampled_from([1, 2, 7, 40])),
            )
        )
    return kernels


def placed(kernels: list[KernelSize], megabytes: int, form: NumberFormat = NumberFormat.W8A8) -> Placed:
    return place(kernels, [form] * len(kernels), megabytes * MIB)


@given(networks(), st.sampled_from([1, 2, 8]), st.sampled_from([1, 2, 3]))
def test_live_ranges_never_overlap_and_stay_inside(kernels: list[KernelSize], megabytes: int, level: int) -> None:
    layout = place(kernels, [NumberFormat.FLOAT] * len(kernels), megabytes * MIB, level)
    assert layout.peak_bytes <= megabytes * MIB
    for each in layout.placements:
        assert 0 <= each.offset <= megabytes * MIB - each.nbytes
        assert each.nbytes > 0
        assert each.first <= each.last
        assert each.offset % ALIGNMENT == 0
    for one, other in itertools.combinations(layout.placements, 2):
        together = one.first <= other.last and other.first <= one.last
        apart = one.offset + one.nbytes <= other.offset or other.offset + other.nbytes <= one.offset
        assert not together or apart, (one, other)


@given(networks(), st.sampled_from([1, 2, 8]))
def test_every_value_is_where_its_reader_looks(kernels: list[KernelSize], megabytes: int) -> None:
    """Whatever a kernel reads lies in VTCM at that time, or comes from DDR, where it was put before."""
    layout = placed(kernels, megabytes)
    for index, kernel in enumerate(kernels):
        if kernel.kind == "reshape":
            continue
        for maker in kernel.reads:
            whole = kernels[maker].written
            here = sum(
                each.nbytes
                for each in layout.placements
                if each.role is RangeRole.RESULT and each.maker == maker and each.first <= index <= each.last
            )
            filled = sum(
                each.nbytes
                for each in layout.transfers
                if each.move is Move.FILL and each.maker == maker and each.at == index
            )
            spilled = sum(
                each.nbytes
                for each in layout.transfers
                if each.move is Move.SPILL and each.maker == maker and each.at <= index
            )
            if maker in layout.handed_over:
                # A change of shape reads nothing: who reads its result is a reader of the maker's.
                assert sum(maker in other.reads for other in kernels if other.kind != "reshape") == 1
                assert not any(
                    between.written for between in kernels[maker + 1 : index] if between.kind != "reshape"
                )
                continue
            assert here + filled >= whole
            assert filled <= spilled


@given(networks())
def test_nothing_is_spilled_where_everything_fits(kernels: list[KernelSize]) -> None:
    whole = sum(2 * aligned(k.written) + 2 * aligned(k.read) + aligned(k.weights) for k in kernels)
    layout = place(kernels, [NumberFormat.W8A8] * len(kernels), aligned(8 * whole) + 64 * ALIGNMENT)
    assert layout.moved(Move.SPILL, Move.FILL) == 0


@given(networks(), st.sampled_from([1, 8]))
def test_weights_are_fetched_once_and_wait_for_their_place(kernels: list[KernelSize], megabytes: int) -> None:
    layout = placed(kernels, megabytes)
    assert layout.moved(Move.WEIGHTS) == sum(kernel.weights for kernel in kernels)
    for index, after in enumerate(layout.free_after):
        assert -1 <= after < index


@given(st.integers(0, 10**9), st.integers(1, 500))
def test_tiles_are_no_more_than_strips(touched: int, strips: int) -> None:
    count = tiles_of(touched, strips, 8 * MIB)
    assert 1 <= count <= strips


def test_an_arena_gives_every_byte_and_joins_what_it_gets_back() -> None:
    arena = Arena(4 * ALIGNMENT)
    places = [arena.take(ALIGNMENT) for _ in range(4)]
    assert places == [0, ALIGNMENT, 2 * ALIGNMENT, 3 * ALIGNMENT]
    assert arena.take(1) is None
    for offset in (ALIGNMENT, 3 * ALIGNMENT, 2 * ALIGNMENT):
        arena.give(offset, ALIGNMENT)
    assert arena.largest == 3 * ALIGNMENT
    assert arena.take(3 * ALIGNMENT) == ALIGNMENT


def test_the_smallest_hole_that_fits_or_the_first() -> None:
    for best_fit, expected in ((True, 6 * ALIGNMENT), (False, 0)):
        arena = Arena(8 * ALIGNMENT, best_fit=best_fit)
        held = [arena.take(size * ALIGNMENT) for size in (4, 2, 1, 1)]
        assert held == [0, 4 * ALIGNMENT, 6 * ALIGNMENT, 7 * ALIGNMENT]
        arena.give(0, 4 * ALIGNMENT)
        arena.give(6 * ALIGNMENT, ALIGNMENT)
        assert arena.take(ALIGNMENT) == expected


def test_the_peak_is_what_is_there_at_once() -> None:
    """Weights lie at the end of VTCM, however few they are."""
    first = KernelSize(name="a", op="Conv2d", kind="add", read=1000, written=1000, weights=1000, edge_in=1000)
    second = KernelSize(name="b", op="Relu", kind="add", read=1000, written=1000, edge_out=1000, reads=(0,))
    layout = placed([first, second], 8)
    assert max(each.offset + each.nbytes for each in layout.placements) == 8 * MIB
    live = [sum(e.nbytes for e in layout.placements if e.first <= at <= e.last) for at in range(2)]
    assert 0 < layout.peak_bytes == max(live) < 16 * 1024
