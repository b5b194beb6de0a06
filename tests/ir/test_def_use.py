"""Who makes and who reads a tensor."""

from __future__ import annotations

import pytest

from openhtp.ir.def_use import DefUse, needed_nodes, order_problem
from openhtp.ir.graph import QnnNode


def node(name: str, inputs: str, outputs: str) -> QnnNode:
    given = tuple(None if word == "-" else word for word in inputs.split())
    return QnnNode("Op", name, given, tuple(outputs.split()))


NODES = [node("n0", "x w", "a"), node("n1", "a - a", "b"), node("n2", "a", "c"), node("n3", "b", "y")]
N0, N1, N2, N3 = NODES


def test_makers_and_readers() -> None:
    uses = DefUse(NODES, ["y", "b"])
    assert uses.maker("a") is N0
    assert uses.maker("x") is None
    assert uses.maker(None) is None
    # A node that reads a tensor twice is one reader.
    assert list(uses.readers("a")) == [N1, N2]
    assert list(uses.readers("c")) == []
    assert uses.is_output("y")
    assert not uses.is_output("a")


@pytest.mark.parametrize(("name", "reader"), [("w", N0), ("a", None), ("c", None), ("b", None), ("x", N0)])
def test_only_reader_is_no_other_node_and_not_the_client(name: str, reader: QnnNode | None) -> None:
    assert DefUse(NODES, ["y", "b"]).only_reader(name) is reader


def test_what_no_output_needs_is_left_out_in_order() -> None:
    assert needed_nodes(NODES, ["y"]) == [N0, N1, N3]
    assert needed_nodes(NODES, ["c"]) == [N0, N2]
    assert needed_nodes(NODES, []) == []


@pytest.mark.parametrize(
    ("nodes", "outputs", "problem"),
    [
        (NODES, ["y"], None),
        ([N1, N0], ["b"], "node 'n1' reads 'a' before it is produced"),
        ([N0, node("again", "x", "a")], ["a"], "node 'again' produces 'a', which exists already"),
        ([node("over", "x", "w")], ["w"], "node 'over' produces 'w', which exists already"),
        ([N0], ["y"], "output 'y' is produced by no node"),
    ],
)
def test_a_wrong_order_is_told(nodes: list[QnnNode], outputs: list[str], problem: str | None) -> None:
    assert order_problem(nodes, ["x", "w"], outputs) == problem
