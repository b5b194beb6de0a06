"""Where models are cut and how buffers share memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openhtp.engine.segments import MAX_SEGMENTS, Segment, cut, segment_count, share_memory, used_nodes


def node(inputs: str, outputs: str) -> SimpleNamespace:
    return SimpleNamespace(input=inputs.split(), output=outputs.split())


CHAIN = [node("x", "a"), node("a", "b"), node("b", "c"), node("c", "d"), node("d", "y")]


@pytest.mark.parametrize(("seconds", "count"), [(0.0, 1), (1e-4, 1), (5e-3, 2), (20e-3, 10), (10.0, MAX_SEGMENTS)])
def test_short_work_is_not_cut_and_long_work_not_too_often(seconds: float, count: int) -> None:
    assert segment_count(seconds) == count


def test_cuts_are_even_and_name_what_crosses() -> None:
    segments = cut(CHAIN, ["y"], [1.0, 1.0, 1.0, 1.0, 1.0], 2, lambda name: 1)
    assert [len(segment.nodes) for segment in segments] in ([2, 3], [3, 2])
    assert segments[0].inputs == ("x",)
    assert segments[0].outputs == segments[1].inputs
    assert segments[1].outputs == ("y",)


def test_a_cut_moves_to_where_fewer_bytes_cross() -> None:
    sizes = {"a": 100, "b": 100, "c": 1, "d": 100}
    segments = cut(CHAIN, ["y"], [1.0] * 5, 2, lambda name: sizes.get(name, 0))
    assert segments[0].outputs == ("c",)


def test_a_value_read_much_later_crosses_every_cut_between() -> None:
    nodes = [node("x", "a"), node("a", "b"), node("b", "c"), node("c a", "y")]
    segments = cut(nodes, ["y"], [1.0] * 4, 4, lambda name: 1)
    assert segments[0].outputs == ("a",)
    assert segments[-1].inputs == ("c", "a")


def test_nodes_that_no_output_depends_on_are_left_out() -> None:
    nodes = [node("x", "a dead"), node("dead", "deader"), node("a", "y"), node("y", "unread")]
    assert used_nodes(nodes, ["y"]) == [nodes[0], nodes[2]]
    assert used_nodes(CHAIN, ["y"]) == CHAIN


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 4)), min_size=1, max_size=12))
def test_values_alive_together_never_share_memory(values: list[tuple[int, int]]) -> None:
    """Value i is made by segment i and last read ``life`` segments later."""
    count = len(values) + 5
    reads: list[list[str]] = [[] for _ in range(count)]
    for made, (_, life) in enumerate(values):
        for place in range(made + 1, made + life + 1):
            reads[place].append(f"v{made}")
    segments = [
        Segment((), tuple(reads[place]), (f"v{place}",) if place < len(values) else ()) for place in range(count)
    ]
    slots, sizes = share_memory(segments, {f"v{i}": size for i, (size, _) in enumerate(values)})
    for one, (size, life) in enumerate(values):
        assert sizes[slots[f"v{one}"]] >= size
        for other in range(one + 1, min(one + life + 1, len(values))):
            assert slots[f"v{one}"] != slots[f"v{other}"]
