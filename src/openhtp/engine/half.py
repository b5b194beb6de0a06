"""Half-precision rounding that leaves the runtime its optimisations.

Rounding is a pair of casts, to half and back. Emitted as such, it makes the runtime leave its blocked image layout
and return to it around every convolution, at half the speed. So the lowering emits a *mark* where it rounds: a
Sigmoid, which the runtime carries along in any layout or attaches to the operator before it. Once the model is
optimised, every mark is replaced by the pair of casts. No mark ever runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from openhtp.engine.onnx_messages import NodeProto, TensorProto, make_node

MARK = "Sigmoid"
# Operators that may have taken a mark in as their activation, and what they are without one.
_BARE = {"FusedConv": "Conv", "FusedGemm": "Gemm"}


def place_rounding(model: Any, marks: Mapping[str, str]) -> bool:
    """Replace all marks by casts, in place. False if one cannot be found: the model must not be used then.

    ``marks`` maps each mark to the value that it rounds; an operator that took a mark in may be named by either.
    """
    alone = {mark: mark for mark in marks}
    taken_in = {source: mark for mark, source in marks.items()} | alone
    nodes: list[NodeProto] = []
    placed: set[str] = set()
    for node in model.graph.node:
        mark = _marked(node, alone if node.op_type == MARK else taken_in)
        if mark is None:
            nodes.append(node)
            continue
        if mark in placed:
            return False
        placed.add(mark)
        source = node.input[0]
        if node.op_type != MARK:
            source = f"{mark}/exact"
            nodes.append(_without_activation(node, source))
        half = f"{mark}/half"
        nodes.append(make_node("Cast", [source], [half], name=half, to=TensorProto.FLOAT16))
        nodes.append(make_node("Cast", [half], [node.output[0]], name=f"{mark}/back", to=TensorProto.FLOAT))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return placed == set(marks)


def _marked(node: NodeProto, by_name: Mapping[str, str]) -> str | None:
    """The mark that this node is, or has taken in as its activation."""
    if node.op_type != MARK and _activation(node) != MARK:
        return None
    for name in (*node.output, node.name):
        match = re.search(r"n\d+/\d+", name)
        if match and match[0] in by_name:
            return by_name[match[0]]
    return None


def _activation(node: NodeProto) -> str | None:
    for attribute in node.attribute:
        if attribute.name == "activation":
            return str(attribute.s.decode())
    return None


def _without_activation(node: NodeProto, output: str) -> NodeProto:
    bare = NodeProto()
    bare.CopyFrom(node)
    del bare.attribute[:]
    bare.attribute.extend(a for a in node.attribute if not a.name.startswith("activation"))
    if node.op_type.startswith("Fused"):
        bare.op_type, bare.domain = _BARE[node.op_type], ""
    bare.output[0] = output
    return bare
