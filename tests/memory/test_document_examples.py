"""The document's worked examples of sessions, buffers and retention, as plans. Sizes are the document's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.units import GIB, MIB
from openhtp.memory.advice import advise
from openhtp.memory.needs import ContextNeeds, GraphNeeds
from openhtp.memory.planning import (
    ContextPlan,
    Hold,
    LetGo,
    Load,
    MapIo,
    io_after_each,
    loads_then_io,
    plan_memory,
)
from openhtp.memory.switching import Turns, loaded_first


def context(name: str, gib: float, io_gib: float = 0.0, **rest: object) -> ContextPlan:
    graph = GraphNeeds(name="g", own_bytes=int(gib * GIB), io_bytes=int(io_gib * GIB))
    return ContextPlan(name=name, needs=ContextNeeds(graphs=(graph,)), **rest)  # type: ignore[arg-type]


def test_five_models_are_packed() -> None:
    sizes = (1.5, 1.5, 1.0, 1.0, 0.25)
    plan = plan_memory([context(str(n), size) for n, size in enumerate(sizes)], most=4)
    assert [plan.domain_of(str(n)) for n in range(5)] == [0, 0, 1, 1, 0]
    assert [domain.left for domain in plan.domains] == [512 * MIB, int(1.75 * GIB)]
    assert plan.fits


# Four fit into the first session and the fifth does not; then there is no room for the buffers of one of the four.
CROWD = [context(str(n), 0.9, 0.045) for n in range(1, 5)] + [context("5", 0.9, 0.045)]


def test_io_buffer_registration_failure() -> None:
    plan = plan_memory(CROWD, most=2)
    assert [plan.domain_of(c.name) for c in CROWD] == [0, 0, 0, 0, 1]
    (failed,) = plan.failures
    assert failed.act == MapIo("4")
    assert failed.domain == 0
    for said in ("needs 46.08 MiB", "process domain 0", "15.36 MiB left", "io_memory_estimation", "dummy buffer"):
        assert said in failed.error


def test_first_remedy_io_memory_estimation() -> None:
    estimated = [replace(c, io_estimation=True) for c in CROWD]
    plan = plan_memory(estimated, io_after_each(estimated), most=2)
    assert plan.fits
    assert [plan.domain_of(c.name) for c in CROWD] == [0, 0, 0, 1, 1]


def test_io_memory_estimation_holds_nothing_afterwards() -> None:
    """Buffers that are registered late find the room taken, as the document warns."""
    late = [context(str(n), 1.7, 0.1, io_estimation=True) for n in range(3)]
    plan = plan_memory([*late, context("small", 0.3)], most=2)
    assert not plan.fits


def test_second_remedy_dummy_buffer() -> None:
    loads = [Load(c.name) for c in CROWD]
    acts = [*loads[:3], Hold("3", 300 * MIB), *loads[3:], LetGo(), *loads_then_io(CROWD)[5:]]
    plan = plan_memory(CROWD, acts, most=2)
    assert plan.fits
    assert [plan.domain_of(c.name) for c in CROWD] == [0, 0, 0, 1, 1]


def test_advice_finds_the_remedy() -> None:
    advice = advise(CROWD, most=2, limit=SESSION_LIMIT_BYTES)
    assert (advice.fits, advice.way) == (True, "I/O estimation")


def test_advice_finds_an_order() -> None:
    contexts = [context(str(n), gib) for n, gib in enumerate((1.0, 1.0, 1.5, 2.25, 1.0, 0.75))]
    assert not plan_memory(contexts, most=2).fits
    advice = advise(contexts, most=2, limit=SESSION_LIMIT_BYTES)
    assert (advice.fits, advice.way) == (True, "load order")
    assert sum(domain.left for domain in advice.plan.domains) == 0


def test_advice_shares_spill_fill_buffers() -> None:
    def with_spill(name: str) -> ContextPlan:
        graph = GraphNeeds(name="g", own_bytes=GIB, spill_fill_bytes=512 * MIB)
        return ContextPlan(name=name, needs=ContextNeeds(graphs=(graph,)))

    contexts = [with_spill(name) for name in "abc"]
    assert not plan_memory(contexts, most=1).fits
    advice = advise(contexts, most=1, limit=SESSION_LIMIT_BYTES)
    assert (advice.fits, advice.way) == (True, "spill-fill group")
    assert advice.plan.domains[0].used == 3 * GIB + 512 * MIB


def test_advice_switches_graphs_and_retains_what_fits() -> None:
    graphs = tuple(GraphNeeds(name=name, own_bytes=GIB) for name in "abcde")
    advice = advise(
        [ContextPlan(name="llm", needs=ContextNeeds(graphs=graphs))], most=1, limit=SESSION_LIMIT_BYTES
    )
    assert (advice.fits, advice.way) == (True, "graph switching")
    assert advice.plan.contexts[0].retained == ("a", "b")
    # Nothing that would not help: neither an order of one, nor room for buffers that fit.
    (words,) = advice.words
    assert words.endswith("memory_limit_hint=1, graph_retention_order=['a', 'b'].")


def test_an_order_is_only_told_if_it_is_another() -> None:
    graphs = tuple(GraphNeeds(name=name, own_bytes=GIB) for name in "ab")
    large = ContextPlan(name="large", needs=ContextNeeds(graphs=graphs))
    advice = advise([large, context("tight", 2.5, 0.25)], most=1, limit=SESSION_LIMIT_BYTES)
    assert (advice.fits, advice.way) == (True, "graph switching")
    assert not [line for line in advice.words if "order:" in line]


def test_advice_says_what_cannot_be() -> None:
    advice = advise([context("huge", 4.0)], most=4, limit=SESSION_LIMIT_BYTES)
    assert not advice.fits
    assert "huge alone is larger than a process domain" in advice.words[0]


CASES = {
    "case 1": ("ABAB", ["AB", "AB", "AB", "AB"]),
    "case 2": ("ABCD", ["AB", "AB", "AC", "AD"]),
    "case 3": ("ABCABD", ["AB", "AB", "AC", "AC", "AB", "AD"]),
}


def run_in_order(order: str, retained: str, room: int) -> list[str]:
    """The graphs that are loaded after each execution, all of size 1 and ``room`` of them fitting."""
    turns = Turns(dict.fromkeys("ABCD", 1), tuple(retained))
    turns.loaded = dict.fromkeys(loaded_first("ABCD", retained))
    seen = []
    for job, graph in enumerate(order):
        turns.asked(job, graph)
        turn = turns.next(room - len(turns.loaded))
        assert turn is not None
        for gone in turn.unload or ():
            del turns.loaded[gone]
        turns.loaded[graph] = None
        assert len(turns.loaded) <= room
        turns.ended(job)
        seen.append("".join(sorted(turns.loaded)))
    return seen


@pytest.mark.parametrize("case", CASES)
def test_graph_retention(case: str) -> None:
    order, expected = CASES[case]
    assert run_in_order(order, "AB", room=2) == expected


def test_without_retention_one_graph_is_loaded() -> None:
    assert run_in_order("ABCA", "", room=4) == ["A", "B", "C", "A"]
