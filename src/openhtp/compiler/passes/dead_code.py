"""Drop what no output depends on."""

from __future__ import annotations

import dataclasses

from openhtp.compiler.draft import Draft


def drop_unused_nodes(draft: Draft) -> Draft:
    """Keep the nodes that an output needs, directly or through others."""
    needed = {spec.name for spec in draft.tensors.values() if spec.kind.is_output}
    kept = []
    for node in reversed(draft.nodes):
        if any(spec.name in needed for spec in node.call.outputs):
            kept.append(node)
            needed.update(spec.name for spec in node.call.inputs if spec is not None)
    return draft.with_nodes(reversed(kept))


def drop_unused_tensors(draft: Draft) -> Draft:
    """Keep the tensors that some node touches, and all that the client sees, used or not."""
    touched = {
        spec.name for node in draft.nodes for spec in (*node.call.inputs, *node.call.outputs) if spec is not None
    }
    kept = {
        name: spec
        for name, spec in draft.tensors.items()
        if name in touched or spec.kind.is_input or spec.kind.is_output
    }
    statics = {name: data for name, data in draft.statics.items() if name in kept}
    return dataclasses.replace(draft, tensors=kept, statics=statics)
