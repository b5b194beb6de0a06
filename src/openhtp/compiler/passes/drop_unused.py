"""Drop what no output depends on."""

from __future__ import annotations

import dataclasses

from openhtp.ir.def_use import needed_nodes
from openhtp.program.qnn_program import QnnProgram


def drop_unused(program: QnnProgram) -> QnnProgram:
    """Keep the nodes that an output needs, the tensors that these touch, and all tensors that the client sees."""
    nodes = needed_nodes(program.nodes, program.output_names)
    touched = {name for node in nodes for name in (*node.inputs, *node.outputs)}
    tensors = {
        name: spec
        for name, spec in program.tensors.items()
        if name in touched or spec.kind.is_input or spec.kind.is_output
    }
    statics = {name: data for name, data in program.statics.items() if name in tensors}
    return dataclasses.replace(program, tensors=tensors, statics=statics, nodes=tuple(nodes))
