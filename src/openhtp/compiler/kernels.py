"""Kernels: each node of the portable program begins as one, and passes join them into longer ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from openhtp.hw.soc import SocSpec
from openhtp.ir.graph import QnnNode
from openhtp.ops import op_of
from openhtp.program.htp_program import HtpNode, HtpProgram, Kernel
from openhtp.program.qnn_program import QnnProgram

Grow = Callable[[Kernel, Kernel], Kernel | None]
"""Joins two kernels, of which the second is the only reader of the first; None if they stay apart."""


def join_chains(program: HtpProgram, grow: Grow) -> HtpProgram:
    """Let every kernel take in the only reader of its result, for as long as ``grow`` joins the two.

    The joined kernel runs where its last part did: all inputs of its parts have been made by then.
    """
    uses = program.def_use()
    index_of = {kernel.name: index for index, kernel in enumerate(program.kernels)}
    placed: list[Kernel | None] = [None] * len(program.kernels)
    joined: set[str] = set()
    for index, kernel in enumerate(program.kernels):
        if kernel.name in joined:
            continue
        while len(kernel.outputs) == 1 and (reader := uses.only_reader(kernel.outputs[0])) is not None:
            grown = None if reader.name in joined else grow(kernel, reader)
            if grown is None:
                break
            joined.add(reader.name)
            kernel, index = grown, index_of[reader.name]
        placed[index] = kernel
    return dataclasses.replace(program, kernels=tuple(kernel for kernel in placed if kernel is not None))


def draft_program(program: QnnProgram, soc: SocSpec) -> HtpProgram:
    """One kernel for each node, with its work measured."""
    return HtpProgram(
        program, soc, tuple(Kernel((htp_node(program, node, (node.name,)),)) for node in program.nodes)
    )


def htp_node(program: QnnProgram, node: QnnNode, sources: tuple[str, ...]) -> HtpNode:
    """A node with its work that stands for these nodes of the graph."""
    resolved = program.resolved(node)
    return HtpNode(
        op=resolved.op,
        name=node.name,
        inputs=node.inputs,
        outputs=node.outputs,
        params=node.params,
        package=node.package,
        work=op_of(node).work(resolved),
        sources=sources,
    )
