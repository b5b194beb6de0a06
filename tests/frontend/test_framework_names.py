"""D5: which nodes of the model became which nodes of the graph, also where one became several."""

from __future__ import annotations

import numpy as np
import pytest
from import_cases import model_of, node

from openhtp.compiler.driver import portable_program, program_for
from openhtp.core.errors import BadProfile
from openhtp.ir.graph import Graph
from openhtp.onnx import load
from openhtp.program.binary import BinaryInfo, read_binary, write_binary
from openhtp.records.schematic import FIRST_NODE, Schematic
from openhtp.report.schematic import schematic_of
from openhtp.report.viewing import zoomed


def block() -> Graph:
    """An Einsum, which becomes several nodes, between two that stay as they are."""
    nodes = [
        node("Relu", "x", "a", name="/blk/act"),
        node("Einsum", "a w", "b", name="/blk/ein", equation="bij,bjk->bik"),
        node("Tanh", "b", "y", name="/blk/end"),
    ]
    weights = np.random.default_rng(0).random((1, 8, 16), np.float32)
    return load(model_of(nodes, {"x": (1, 4, 8)}, ["y"], {"w": weights}))


@pytest.fixture(scope="module")
def schematic() -> Schematic:
    return schematic_of(program_for(portable_program(block()), "SM8650"))


def test_d5_each_part_names_the_node_of_the_model(schematic: Schematic) -> None:
    names = [node.framework for node in schematic.nodes if node.number >= FIRST_NODE]
    assert set(names) == {("/blk/act",), ("/blk/ein",), ("/blk/end",)}
    assert names.count(("/blk/ein",)) > 1


def test_d5_zoom_takes_names_of_nodes_that_were_expanded(schematic: Schematic) -> None:
    parts = {node.number for node in schematic.nodes if node.framework == ("/blk/ein",)}
    owners = {op.owner for op in zoomed(schematic, "/blk/ein", "/blk/ein").ops}
    assert owners
    assert owners <= parts
    whole = {op.owner for op in zoomed(schematic, "/blk/act", "/blk/end").ops}
    assert whole >= {op.owner for op in schematic.executed if op.owner >= FIRST_NODE}
    with pytest.raises(BadProfile, match="no node of that name"):
        zoomed(schematic, "/blk/eim", "/blk/end")


def test_d5_a_binary_keeps_them() -> None:
    program = portable_program(block())
    again = read_binary(write_binary([program], BinaryInfo(soc="SM8650"))).packed(program.name).program()
    assert [node.origin for node in again.nodes] == [node.origin for node in program.nodes]
    assert "/blk/ein" in {node.origin for node in again.nodes}
