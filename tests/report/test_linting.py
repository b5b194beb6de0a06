"""Whose cycles are whose: the sum of all threads, or the main thread with what it waits for."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st
from tests.report.schematics import NODES, SMALL, op, schematic

from openhtp.records.schematic import OpRole, dominant_path, label
from openhtp.report.linting import cycles_event, lint, linting_event


def rows(event):
    return {row.name.removesuffix(" (cycles)"): row.value for row in event.events}


def test_detailed_counts_the_work_of_all_threads():
    event = cycles_event(SMALL)
    assert (event.type, event.name, event.unit) == (3003, "Accelerator (execute) time (cycles)", "cycles")
    assert event.modelled
    assert rows(event) == {
        "Input OpId_2": 0,
        "OpId_0": 0,
        "conv:OpId_4": 150,
        "sub:OpId_5": 140,
        "relu:OpId_6": 0,
        "Output OpId_3": 30,
    }
    assert event.value == 320
    assert all(row.type == 404 for row in event.events)


def test_linting_follows_the_main_thread():
    found = {each.node.name: each for each in lint(SMALL)}
    conv, sub, out = found["conv"], found["sub"], found["Output"]
    assert (conv.cycles, conv.wait, conv.overlap, conv.wait_overlap) == (100, 50, 40, 0)
    assert dict(conv.beside) == {5: 40}  # the fetch of the next op
    assert (sub.cycles, sub.wait, sub.overlap) == (60, 10, 0)
    assert not sub.beside  # its own work on another thread is itself
    assert out.cycles == 30
    assert [each.resources for each in (conv, sub, out)] == ["HMX, DMA", "HVX, DMA", "DMA"]


def test_the_total_is_cycles_and_waits():
    event = linting_event(SMALL)
    assert event.type == 6001
    assert event.value == 250 == SMALL.cycles
    (details,) = (row.events for row in event.events if row.name.startswith("conv"))
    assert [(each.type, each.name, each.value) for each in details] == [
        (5001, "Wait (Scheduler) time", 50),
        (5002, "Overlap time", 40),
        (5003, "Overlap (wait) time", 0),
        (5004, "Resources", 6),
    ]
    assert [name.name for name in details[1].events] == ["sub:OpId_5"]
    assert details[3].text == "HMX, DMA"


def test_a_fetch_for_somebody_else_is_background_of_a_wait():
    whole = schematic(
        op(1, 4, "DMA", 0, 30),
        op(2, 5, "DMA", 0, 20),
        op(3, 4, "HMX", 30, 10, inputs=(1 << 32 | 4,)),
    )
    conv = next(each for each in lint(whole) if each.node.number == 4)
    assert (conv.wait, conv.wait_overlap, dict(conv.wait_beside)) == (30, 20, {5: 20})


def test_own_work_of_another_engine_is_background():
    """Its next tile is fetched, and the last one is converted, while a tile is multiplied."""
    whole = schematic(
        op(1, 4, "HMX", 0, 100),
        op(2, 4, "HVX", 10, 30),
        op(3, 4, "DMA", 60, 20),
        op(4, 5, "HVX", 100, 50, thread=0),
        op(5, 5, "HVX", 100, 40, thread=1),
        op(6, 4, "HVX", 120, 10, thread=2),
    )
    conv, sub = (each for each in lint(whole) if each.node.number in (4, 5))
    assert (conv.cycles, conv.overlap, dict(conv.beside)) == (100, 50, {4: 50})
    assert (sub.cycles, sub.overlap, dict(sub.beside)) == (50, 10, {4: 10})


def test_at_most_ten_names_the_longest_first():
    nodes = (*NODES[:3], *(NODES[3].__class__(number, f"n{number}", "Relu") for number in range(4, 20)))
    ops = [op(1, 4, "HMX", 0, 1000)] + [
        op(number, number, "HVX", 0, number, thread=number) for number in range(5, 20)
    ]
    event = linting_event(schematic(*ops, nodes=nodes))
    (row,) = (row for row in event.events if row.name.startswith("n4:"))
    assert [name.name for name in row.events[1].events] == [f"n{n}:OpId_{n}" for n in range(19, 9, -1)]


def test_labels():
    assert [label(node) for node in NODES] == [
        "OpId_0",
        "Input OpId_2",
        "Output OpId_3",
        "conv:OpId_4",
        "sub:OpId_5",
        "relu:OpId_6",
    ]


OPS = st.lists(
    st.tuples(st.integers(4, 6), st.sampled_from(["HMX", "HVX", "DMA"]), st.integers(0, 60), st.integers(0, 30)),
    max_size=12,
)


@given(OPS)
def test_every_cycle_is_counted_once(drawn):
    whole = schematic(*(op(serial, *each) for serial, each in enumerate(drawn, start=1)))
    path = dominant_path(whole.executed)
    assert all(before.end == after.start for before, after in pairwise(path))
    busy = [each for each in whole.executed if each.cycles]
    span = max((each.end for each in busy), default=0) - min((each.start for each in busy), default=0)
    assert sum(each.cycles for each in path) == span
    assert linting_event(whole).value == span
    for each in lint(whole):
        assert each.overlap <= each.cycles or each.node.name == "Output"
        assert each.wait_overlap <= each.wait


RANKED = [
    ("HMX", OpRole.COMPUTE),
    ("HVX", OpRole.COMPUTE),
    ("DMA", OpRole.READ),
    ("DMA", OpRole.WRITE),
    ("DMA", OpRole.SET),
    ("DMA", OpRole.WAIT),
    ("HVX", OpRole.SYNC),
]


@given(st.lists(st.tuples(st.sampled_from(RANKED), st.integers(0, 60), st.integers(0, 30)), max_size=12))
def test_higher_ranks_have_the_say(drawn):
    """The order of the page; checkpoints, set or waited for, are of one rank."""

    def rank(each):
        place = RANKED.index((each.engine.value, each.role))
        return min(place, 4) if place < 6 else place

    whole = schematic(
        *(
            op(serial, 4, engine, start, cycles, role=role)
            for serial, ((engine, role), start, cycles) in enumerate(drawn, start=1)
        )
    )
    for stretch in dominant_path(whole.executed):
        running = [each for each in whole.executed if each.start <= stretch.start < each.end]
        assert (stretch.op is None) is (not running)
        assert stretch.op is None or rank(stretch.op) == min(map(rank, running))
