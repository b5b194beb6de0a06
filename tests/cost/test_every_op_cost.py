"""Every op that a graph may hold has a time."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from openhtp.compiler.driver import CompileOptions, compile_graph
from openhtp.core.tensor import TensorKind
from openhtp.cost import estimate
from openhtp.ir.builder import GraphBuilder
from openhtp.ops import find_op, op_names

sys.path.append(str(Path(__file__).parents[1] / "ops"))
from ops_cases import all_cases, make_case


def program_of(name):
    """The op's first sample as a graph of one node."""
    _, parts = next(iter(all_cases(find_op(name))))
    case = make_case(*parts)
    builder = GraphBuilder("g")
    for spec in dict.fromkeys(spec for spec in case.call.inputs if spec is not None):
        builder.add_tensor(spec, case.stored[spec.name] if spec.kind is TensorKind.STATIC else None)
    for spec in case.call.outputs:
        builder.add_tensor(spec)
    builder.add_node(case.call)
    return compile_graph(builder.finish(), "SM8650", CompileOptions(fold=False))


@pytest.mark.parametrize("name", op_names())
def test_every_op_takes_time(name):
    program = program_of(name)
    estimated = estimate(program)
    assert len(estimated.ops) == 1
    assert estimated.steps == len(program.steps) == 1
    assert math.isfinite(estimated.total_us)
    assert estimated.total_us > estimated.launch_us
    assert estimated.macs == sum(node.work.macs for node in program.nodes)
    assert bool(estimated.notes) == (find_op(name).kind is None)
