"""Random graphs: how they are drawn, how they are judged, and how they come out on both engines."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorKind
from openhtp.engine.ort import OrtEngine
from openhtp.ops import op_names
from vendor_agreement.agreement import read_deviations, summarize
from vendor_agreement.differential import NotOffered, draw_case, rows_of
from vendor_agreement.graph_agreement import (
    judge,
    offered_rows,
    run_graph_ours,
    run_graph_vendor,
    same_inside,
    takes,
)
from vendor_agreement.graph_report import GraphReport, compare_graphs
from vendor_agreement.random_graphs import Dice, GraphNode, Offered, RandomGraph, draw_graph

T = TypeVar("T")
SOC = "SM8650"
FOLDER = Path(__file__).parent
DEVIATIONS = (
    *read_deviations(FOLDER / "deviations.toml"),
    *read_deviations(FOLDER / "graph_deviations.toml"),
)
SETTINGS = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


class Drawn:
    """Choices that hypothesis makes, and makes smaller when a graph fails."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def pick(self, options: Sequence[T]) -> T:
        return self._draw(st.sampled_from(options))

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))


@functools.cache
def engine() -> OrtEngine:
    return OrtEngine()


@functools.cache
def all_rows() -> Offered:
    return Offered(tuple(row for op in op_names() for row in rows_of(op)))


@functools.cache
def rows_of_both() -> Offered:
    return Offered(tuple(offered_rows(SOC)))


@st.composite
def graphs(draw: Any) -> RandomGraph:
    return draw_graph(all_rows(), Drawn(draw), lambda call, stored: True)


@st.composite
def graphs_for_both(draw: Any) -> RandomGraph:
    return draw_graph(rows_of_both(), Drawn(draw), lambda call, stored: takes(call, stored, SOC))


def drawn(seed: int) -> RandomGraph:
    return draw_graph(all_rows(), Dice(seed), lambda call, stored: True)


def read_by_others(graph: RandomGraph) -> list[str]:
    made = {spec.name for node in graph.nodes for spec in node.call.outputs}
    return [spec.name for node in graph.nodes for spec in node.call.inputs if spec and spec.name in made]


def test_the_same_seed_gives_the_same_graph() -> None:
    one, again, other = drawn(3), drawn(3), drawn(4)
    assert one.nodes == again.nodes
    assert all((one.stored[name] == again.stored[name]).all() for name in one.stored)
    assert one.nodes != other.nodes


def test_graphs_have_chains_branches_and_joins() -> None:
    seen = [drawn(seed) for seed in range(40)]
    reads = [read_by_others(graph) for graph in seen]
    assert sum(len(graph.nodes) >= 2 for graph in seen) > 30
    assert sum(bool(names) for names in reads) > 25
    assert any(len(names) > len(set(names)) for names in reads)
    joins = [
        node
        for graph in seen
        for node in graph.nodes
        if len({spec.name for spec in node.call.inputs if spec and spec.kind is TensorKind.APP_READ}) > 1
    ]
    assert joins
    assert len({node.row.op for graph in seen for node in graph.nodes}) > 40


def test_what_is_not_accepted_is_not_in_a_graph() -> None:
    for seed in range(10):
        graph = draw_graph(all_rows(), Dice(seed), lambda call, stored: call.op.startswith("ElementWise"))
        assert all(node.row.op.startswith("ElementWise") for node in graph.nodes)


@settings(SETTINGS, max_examples=60)
@given(graph=graphs())
def test_every_node_of_ours_is_exact_on_the_inputs_it_had(graph: RandomGraph) -> None:
    results = run_graph_ours(graph, engine())
    for item in judge(graph, results, results):
        assert item.kind != "8" or item.exact.most <= 1
        assert item.kind != "16" or item.error_steps <= 1.0


def chain() -> RandomGraph:
    """An addition and a Relu of its result, in 8 bits."""
    row = next(row for row in rows_of("ElementWiseAdd") if row.types == "u8 u8 > u8")
    relu = next(row for row in rows_of("Relu") if row.types == "u8 > u8")
    case = draw_case(row, 0)
    (between,) = case.call.outputs
    last = OpCall("Relu", "last", (between,), (dataclasses.replace(between, name="z"),))
    return RandomGraph((GraphNode(row, case.call, 0), GraphNode(relu, last, 0)), case.stored)


def test_a_wrong_node_is_found_and_those_after_it_are_not_blamed() -> None:
    graph = chain()
    right = run_graph_ours(graph, engine(), inside=False)
    zero = -graph.nodes[1].call.outputs[0].quant.offset
    wrong = {"y0": np.clip(right["y0"].astype(int) + 3, 0, 255).astype(np.uint8)}
    wrong["z"] = np.maximum(wrong["y0"], zero)
    first, second = judge(graph, wrong, right)
    assert (first.is_exact, second.is_exact) == (False, True)
    assert not first.agrees
    assert second.vendor.most == 0  # all of the difference comes with the input


def test_values_kept_inside_are_no_outputs_and_change_nothing() -> None:
    graph = chain()
    results, inside = run_graph_ours(graph, engine()), run_graph_ours(graph, engine(), inside=True)
    assert (set(results), set(inside)) == ({"y0", "z"}, {"z"})
    assert same_inside(results, inside) == (results["z"].size, results["z"].size)
    inside["z"] = inside["z"] ^ 1
    assert same_inside(results, inside)[0] == 0


@pytest.mark.vendor
@settings(SETTINGS, max_examples=80)
@given(graph=graphs_for_both())
def test_any_graph_is_as_exact_as_the_vendors(graph: RandomGraph, oracle_devices: None) -> None:
    try:
        theirs = run_graph_vendor(graph, SOC)
    except NotOffered:
        return
    for item in judge(graph, run_graph_ours(graph, engine()), theirs):
        assert item.is_exact


@pytest.mark.vendor
def test_graphs_agree_with_the_vendors(oracle_devices: None) -> None:
    report = GraphReport()
    for report in compare_graphs(rows_of_both(), range(200), SOC, engine()):  # noqa: B007
        pass
    assert report.graphs > 150
    assert not report.misses
    for line in summarize(report.found, DEVIATIONS, per_op=False):
        assert not line.broken
    ours, _, count = report.inside
    assert ours >= 0.999 * count
