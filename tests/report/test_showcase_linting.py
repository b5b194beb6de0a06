"""D2: the lessons of the document's linting showcase, with its signs and about its sizes."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from tests.report import showcase_networks
from tests.report.showcase_networks import EDGE, merged, scheduled, two_branches

from openhtp.report.linting import Lint, lint

CONVOLUTIONS = ("convStart", "convCombined1", "convCombined2")


def linted(graph) -> dict[str, Lint]:
    return {each.node.name: each for each in lint(scheduled(graph))}


@pytest.fixture(scope="module")
def meetings() -> dict[str, dict[str, Lint]]:
    return {op: linted(two_branches(f"ElementWise{op}")) for op in ("Subtract", "Divide", "Multiply")}


@pytest.fixture(scope="module")
def relu() -> dict[str, Lint]:
    return linted(merged("Relu"))


@pytest.fixture(scope="module")
def prelu() -> dict[str, Lint]:
    return linted(merged("Prelu"))


def overlap(*lints: Lint) -> float:
    """The part of the main thread's time in which something else ran beside it."""
    return sum(each.overlap for each in lints) / sum(each.cycles for each in lints)


def total(lints: dict[str, Lint]) -> int:
    return sum(each.cycles + each.wait for each in lints.values())


def on_main_thread(lints: dict[str, Lint]) -> int:
    return sum(each.cycles for each in lints.values())


@pytest.mark.parametrize(("op", "documented"), [("Subtract", 0.215), ("Divide", 0.10), ("Multiply", 0.593)])
def test_d2_beside_a_difference_and_a_quotient_hardly_anything_runs(meetings, op, documented):
    assert overlap(meetings[op]["meet"]) == pytest.approx(documented, rel=0.2)


@pytest.mark.parametrize(("op", "least"), [("Subtract", 0.27), ("Divide", 0.45)])
def test_d2_where_two_branches_meet_is_the_bottleneck(meetings, op, least):
    """The document: half of the time, and 68 %."""
    lints = meetings[op]
    assert max(lints.values(), key=lambda each: each.cycles).node.name == "meet"
    assert lints["meet"].cycles > least * on_main_thread(lints)


def test_d2_a_product_takes_a_fraction_and_has_more_beside_it(meetings):
    """The document: 738 thousand cycles, where the quotient takes 5344 and the difference 2165."""
    cycles = {op: lints["meet"].cycles for op, lints in meetings.items()}
    assert cycles["Divide"] / cycles["Multiply"] == pytest.approx(7.2, rel=0.2)
    assert cycles["Subtract"] / cycles["Multiply"] == pytest.approx(2.9, rel=0.2)
    assert total(meetings["Multiply"]) < total(meetings["Subtract"]) < total(meetings["Divide"])
    assert overlap(meetings["Multiply"]["meet"]) > 2 * overlap(meetings["Subtract"]["meet"])


def test_d2_merged_branches_are_faster_and_have_more_beside_them(meetings, relu):
    assert total(relu) < 0.7 * total(meetings["Subtract"])
    assert overlap(*relu.values()) > 1.1 * overlap(*meetings["Subtract"].values())
    assert all(overlap(relu[name]) > 0.5 for name in (*CONVOLUTIONS, "subConv", "add"))


def test_d2_prelu_is_slower_and_lowers_the_overlap(relu, prelu):
    """Its slopes keep the HVX busy while the HMX waits for it."""
    assert total(prelu) > 1.5 * total(relu)
    assert overlap(*prelu.values()) < 0.8 * overlap(*relu.values())
    for name in CONVOLUTIONS:
        assert overlap(prelu[name]) < overlap(relu[name])


def test_d2_own_work_on_other_hvx_threads_is_no_background(meetings):
    """What is beside it is its own data on their way, and what brings the result out."""
    lints = meetings["Subtract"]
    names = {each.node.number: name for name, each in lints.items()}
    assert {names[number] for number in lints["meet"].beside} <= {"meet", "Output", "add"}
    assert lints["meet"].overlap < lints["meet"].cycles


def test_d2_the_example_prints_the_same_networks(monkeypatch, capsys):
    """At another size, as it computes them."""
    width, height, channels = 320, 180, 3
    monkeypatch.setattr(showcase_networks, "SHAPE", (1, height + 2 * EDGE, width + 2 * EDGE, channels))
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "linting_showcase.py"))
    example["main"](showcase_networks.SOC, f"{width}x{height}x{channels}", only_figures=False)
    text = capsys.readouterr().out
    for graph in (two_branches("ElementWiseDivide"), merged("Prelu")):
        assert f"(cycles)): {total(linted(graph))}  cycles" in text
