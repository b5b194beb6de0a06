"""The compiler's pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field

from openhtp.compiler.draft import Draft, draft_graph
from openhtp.compiler.passes.dead_code import drop_unused_nodes, drop_unused_tensors
from openhtp.compiler.passes.fold_constants import fold_constants
from openhtp.compiler.passes.fuse_activation import fuse_activation
from openhtp.core.errors import error_context
from openhtp.ir.graph import Graph
from openhtp.program.options import GraphOptions
from openhtp.program.program import Program, frozen_array


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of the graph, and which optional passes run."""

    graph: GraphOptions = field(default_factory=GraphOptions)
    fold: bool = True
    fuse: bool = True


def compile_graph(graph: Graph, options: CompileOptions | None = None) -> Program:
    """Compile a verified graph. Names of inputs and outputs, and their encodings, are never changed."""
    options = options or CompileOptions()
    with error_context(graph=graph.name):
        draft = draft_graph(graph)
        draft = drop_unused_nodes(draft)
        if options.fold:
            draft = fold_constants(draft, options.graph.precision)
        if options.fuse:
            draft = fuse_activation(draft)
        draft = drop_unused_tensors(draft)
        return _program_of(draft, options.graph)


def _program_of(draft: Draft, options: GraphOptions) -> Program:
    return Program(
        name=draft.name,
        tensors=dict(draft.tensors),
        nodes=draft.nodes,
        statics={name: frozen_array(data) for name, data in draft.statics.items()},
        options=options,
    )
