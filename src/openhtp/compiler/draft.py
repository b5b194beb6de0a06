"""Where the compiling for a SoC starts: every node of the portable program is a kernel by itself."""

from __future__ import annotations

from openhtp.hw.soc import SocSpec
from openhtp.ir.graph import QnnNode
from openhtp.ops import find_op
from openhtp.program.htp_program import HtpNode, HtpProgram, Kernel
from openhtp.program.qnn_program import QnnProgram


def draft_program(program: QnnProgram, soc: SocSpec) -> HtpProgram:
    """One kernel for each node, its work measured."""
    return HtpProgram(
        program, soc, tuple(Kernel((htp_node(program, node, (node.name,)),)) for node in program.nodes)
    )


def htp_node(program: QnnProgram, node: QnnNode, sources: tuple[str, ...]) -> HtpNode:
    """A node with its work, standing for these nodes of the graph."""
    return HtpNode(
        op=node.op,
        name=node.name,
        inputs=node.inputs,
        outputs=node.outputs,
        params=node.params,
        package=node.package,
        work=find_op(node.op).work(program.resolved(node)),
        sources=sources,
    )
