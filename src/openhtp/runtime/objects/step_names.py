"""Which ops a step of a loaded graph computes: for profiles and traces, which know steps by number."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from openhtp.compiler.driver import program_for
from openhtp.engine.segments import Cuts, cuts_of

if TYPE_CHECKING:
    from openhtp.program.htp_program import HtpProgram
    from openhtp.runtime.objects.graph import Graph

# Names of the nodes, and the type of each.
StepOps = tuple[tuple[str, ...], tuple[str, ...]]


def ops_of_steps(graph: Graph) -> list[StepOps]:
    """Nodes and their types for every step. Empty if the device cut the graph in a way that is not known here.

    The device compiles a program and joins its steps by rules that depend on nothing else, so they are followed
    again.
    """
    assert graph.loaded is not None  # it is finalized
    return step_nodes(program_for(graph.loaded.program(), graph.context.device.soc), graph.steps)


def step_nodes(program: HtpProgram, steps: int) -> list[StepOps]:
    """The same for a compiled program that a device cut into so many steps."""
    whole = tuple(range(1, len(program.steps)))
    cuts = Cuts(whole) if steps == len(program.steps) else Cuts() if steps == 1 else cuts_of(program)
    if cuts.segments != steps:
        return []
    found = []
    for begin, end in pairwise((0, *cuts.after, len(program.steps))):
        nodes = [node for step in program.steps[begin:end] for k in program.kernels_of(step) for node in k.nodes]
        names = (tuple(node.name for node in nodes), tuple(node.op for node in nodes))
        # A step that is computed in strips is there once for each.
        found += [names] * (1 + len(cuts.rows.get(begin, ())))
    return found
