"""Where models are cut and how buffers share memory."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from openhtp import zoo
from openhtp.compiler.driver import compile_graph
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine import segments as segments_module
from openhtp.engine.cutting import prepare
from openhtp.engine.lowering import lower_program, origin
from openhtp.engine.onnx_graph import parse_model
from openhtp.engine.segments import (
    Segment,
    choose_cuts,
    crossing_bytes,
    cut,
    even_ends,
    longest_seconds,
    share_memory,
    step_seconds,
    used_nodes,
)
from openhtp.frontend.onnx_import import load
from openhtp.ir.builder import GraphBuilder
from openhtp.program.htp_program import HtpProgram


def node(inputs: str, outputs: str, step: int | None = None) -> SimpleNamespace:
    return SimpleNamespace(input=inputs.split(), output=outputs.split(), step=step)


def step_of(each: SimpleNamespace) -> int | None:
    return each.step


CHAIN = [node("x", "a", 0), node("a", "b", 1), node("b", "c", 2), node("c", "d", 3), node("d", "y", 4)]


def names(segments: list[Segment]) -> list[str]:
    """What each segment makes."""
    return [" ".join(name for each in segment.nodes for name in each.output) for segment in segments]


def test_short_work_is_not_cut_and_long_work_not_too_often() -> None:
    assert longest_seconds(1e-4) > 1e-4
    assert longest_seconds(10.0) >= 0.99 * 10.0 / 32


def test_parts_of_short_programs_leave_time_for_the_way_there_and_back() -> None:
    shares = [longest_seconds(seconds) / seconds for seconds in (0.02, 0.03, 0.1, 1.0)]
    assert shares == sorted(shares)
    assert shares[0] < 0.85 * shares[-1]


def test_depthwise_convolutions_take_longer_the_more_pixels_there_are() -> None:
    """However few channels these have: where each lies is looked up."""
    few_pixels, many_pixels = (sum(step_seconds(depthwise(side, depth))) for side, depth in ((80, 256), (320, 16)))
    assert many_pixels > 1.5 * few_pixels


def depthwise(side: int, channels: int) -> HtpProgram:
    builder = GraphBuilder("g")
    quant, weights = ScaleOffset(0.02, -128), np.ones((3, 3, 1, channels), np.int8)
    ends = [
        TensorSpec(name, (1, side, side, channels), DType.UFIXED_POINT_8, quant, kind)
        for name, kind in (("x", TensorKind.APP_WRITE), ("y", TensorKind.APP_READ))
    ]
    w = TensorSpec("w", weights.shape, DType.SFIXED_POINT_8, ScaleOffset(0.01, 0), TensorKind.STATIC)
    for spec, data in ((ends[0], None), (w, weights), (ends[1], None)):
        builder.add_tensor(spec, data)
    params = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}
    builder.add_node(OpCall("DepthWiseConv2d", "n", (ends[0], w), (ends[1],), params))
    return compile_graph(builder.finish(), "SM8650")


@pytest.mark.parametrize(
    ("seconds", "crossing", "longest", "cuts"),
    [
        ([1.0, 1.0, 1.0, 1.0], [1, 1, 1, 0], 2.0, [2]),
        ([1.0, 1.0, 1.0, 1.0], [1, 1, 1, 0], 4.0, []),
        # Two places are as good: the one that less crosses is taken.
        ([1.0] * 5, [9, 9, 1, 9, 0], 3.0, [3]),
        # A step that is longer by itself is a segment; what is short goes with it only within the limit.
        ([0.1, 9.0, 0.1], [1, 1, 0], 5.0, [1, 2]),
        ([1.0, 1.0, 1.0], [1, 1, 0], 1.5, [1, 2]),
        # One cut more costs more than anything that crosses here.
        ([1.0] * 6, [0, 0, 9000, 0, 0, 0], 3.0, [3]),
    ],
)
def test_cuts_keep_to_the_limit_and_cost_little(
    seconds: list[float], crossing: list[int], longest: float, cuts: list[int]
) -> None:
    assert choose_cuts(seconds, crossing, longest) == cuts


def test_steps_in_strips_are_cut_off_on_both_sides() -> None:
    assert choose_cuts([1.0] * 4, [0] * 4, 10.0, alone={1}) == [1, 2]


@given(st.lists(st.floats(0.01, 2.0), min_size=1, max_size=40), st.floats(0.5, 4.0))
def test_no_segment_is_longer_than_the_limit_but_a_single_step(seconds: list[float], longest: float) -> None:
    cuts = choose_cuts(seconds, [1] * len(seconds), longest)
    for begin, end in itertools.pairwise([0, *cuts, len(seconds)]):
        assert end - begin == 1 or sum(seconds[begin:end]) <= longest * (1 + 1e-9)


@pytest.mark.parametrize(
    ("ends", "pieces", "chosen"),
    [((8, 16, 24), 2, (16,)), ((8, 16, 24), 9, (8, 16, 24)), ((8, 16), 2, (16,)), ((8,), 1, ())],
)
def test_strips_end_where_tiles_do(ends: tuple[int, ...], pieces: int, chosen: tuple[int, ...]) -> None:
    assert even_ends(ends, pieces) == chosen


@pytest.mark.parametrize(
    ("first", "chosen"), [(0.0, (10, 20, 30)), (0.1, (7, 18, 29)), (0.3, (1, 11, 26)), (0.9, (1, 2, 3))]
)
def test_a_first_strip_that_does_more_is_shorter(first: float, chosen: tuple[int, ...]) -> None:
    assert even_ends(range(1, 40), 4, first) == chosen


@given(st.integers(1, 100), st.integers(1, 40), st.floats(0.0, 0.99))
def test_strips_are_as_many_as_asked_for_and_none_is_empty(ends: int, pieces: int, first: float) -> None:
    chosen = even_ends(range(1, ends + 1), pieces, first)
    assert len(chosen) == min(pieces, ends + 1) - 1
    assert list(chosen) == sorted(set(chosen))


def test_a_run_of_nodes_has_a_segment_of_its_own() -> None:
    segments = cut(CHAIN, ["y"], step_of, [2], run_of=lambda node: {"c": "first"}.get(node.output[0]))
    assert names(segments) == ["a b", "c", "d y"]
    segments = cut(CHAIN, ["y"], step_of, [2], run_of=lambda node: {"c": "first", "d": "next"}.get(node.output[0]))
    assert names(segments) == ["a b", "c", "d", "y"]
    segments = cut(
        CHAIN, ["y"], step_of, [2], run_of=lambda node: {"c": "first", "d": "first"}.get(node.output[0])
    )
    assert names(segments) == ["a b", "c d", "y"]


def test_what_stands_beside_a_run_goes_to_its_neighbours() -> None:
    # Two runs one after the other: what the first reads and what follows it are computed before and after both.
    nodes = [
        node("x", "a", 0),
        node("a", "padded", 1),
        node("padded", "one", 1),
        node("one", "rounded", 1),
        node("padded", "two", 2),
        node("two", "other", 2),
        node("rounded other", "y", 3),
    ]
    runs = {"one": "one", "two": "two"}
    segments = cut(nodes, ["y"], step_of, [1, 2, 3], run_of=lambda node: runs.get(node.output[0]))
    assert names(segments) == ["a padded", "one", "two", "rounded other y"]
    # What the second run reads of the first has to be there before it.
    nodes[4] = node("rounded", "two", 2)
    segments = cut(nodes, ["y"], step_of, [1, 2, 3], run_of=lambda node: runs.get(node.output[0]))
    assert names(segments) == ["a padded", "one", "rounded", "two", "other y"]


def test_what_a_run_reads_is_no_later_than_the_run() -> None:
    """Of what two steps compute alike the runtime made one node, named after the later."""
    nodes = [node("x", "padded", 2), node("padded", "one", 1), node("padded one", "y", 2)]
    segments = cut(nodes, ["y"], step_of, [1, 2], run_of=lambda node: {"one": "one"}.get(node.output[0]))
    assert names(segments) == ["padded", "one", "y"]


def test_segments_are_steps_between_cuts_and_name_what_crosses() -> None:
    segments = cut(CHAIN, ["y"], step_of, [2])
    assert names(segments) == ["a b", "c d y"]
    assert [segment.inputs for segment in segments] == [("x",), ("b",)]
    assert [segment.outputs for segment in segments] == [("b",), ("y",)]


def test_a_value_read_much_later_crosses_every_cut_between() -> None:
    nodes = [node("x", "a", 0), node("a", "b", 1), node("b", "c", 2), node("c a", "y", 3)]
    segments = cut(nodes, ["y"], step_of, [1, 2, 3])
    assert segments[0].outputs == ("a",)
    assert segments[-1].inputs == ("c", "a")


def test_a_node_of_two_steps_belongs_to_the_later_one() -> None:
    """The runtime may fuse across a cut: then what it reads tells where it can be."""
    nodes = [node("x", "a", 0), node("a", "b", 2), node("b a", "y", 1)]
    assert names(cut(nodes, ["y"], step_of, [2])) == ["a", "b y"]
    assert names(cut(nodes, ["y"], step_of, [1, 2])) == ["a", "b y"]


def test_nodes_of_no_step_go_with_their_neighbours() -> None:
    nodes = [node("x", "reordered"), node("x", "a", 0), node("a", "back"), node("back reordered", "y", 1)]
    segments = cut(nodes, ["y"], step_of, [1])
    assert names(segments) == ["a back", "reordered y"]
    assert segments[1].inputs == ("x", "back")


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


def test_a_network_is_cut_at_the_ends_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments_module, "_SEGMENT_SECONDS", 3e-5)
    program = compile_graph(load(zoo.quantized(zoo.small_cnn(), samples=2)), "SM8650")
    prepared = prepare(program, lower_program(program), 1)
    assert prepared is not None
    steps = [
        [step for node in parse_model(part.model).graph.node if (step := origin(node.output[0])) is not None]
        for part in prepared.parts
    ]
    assert 3 < len(steps) <= len(program.steps)
    for one, other in itertools.pairwise(steps):
        assert max(one) < min(other)


def test_what_crosses_the_end_of_a_step_is_what_its_buffers_hold() -> None:
    program = compile_graph(load(zoo.small_cnn()), "SM8650")
    crossing = crossing_bytes(program)
    assert len(crossing) == len(program.steps)
    assert crossing[-1] == 0
    # The stem's result: 2 bytes for each element.
    first = program.kernels[program.steps[1].end - 1]
    assert crossing[1] == 2 * program.tensors[first.outputs[0]].elements


def test_one_long_step_does_not_make_the_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that stays whole takes a third of the time; what lies around it is cut as finely as ever."""
    program = compile_graph(load(zoo.MODELS["resnet18"]()), "SM8650")
    count = len(program.steps)
    seconds = [1.0] * count
    seconds[count // 2] = count / 2
    monkeypatch.setattr(segments_module, "step_seconds", lambda program: seconds)
    ends = (0, *segments_module.cuts_of(program).after, count)
    parts = [seconds[begin:end] for begin, end in itertools.pairwise(ends)]
    assert [count / 2] in parts
    assert max(sum(part) for part in parts if part != [count / 2]) <= max(
        1.0, segments_module.longest_seconds(sum(seconds))
    )
