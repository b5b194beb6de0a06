"""Recognises groups of ONNX nodes that are one QNN op.

Each pattern is a module with a function that looks at one node (the one that is rarest in other models) and
answers with the group around it, if it is one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from openhtp.frontend.gelu_pattern import find_gelu
from openhtp.frontend.matching import Neighbours, PatternMatch
from openhtp.frontend.model import OnnxNode
from openhtp.frontend.typing_pass import TypedModel

Pattern = Callable[[OnnxNode, Neighbours], PatternMatch | None]


_PATTERNS: tuple[Pattern, ...] = (find_gelu,)


def fuse_patterns(model: TypedModel) -> TypedModel:
    """Replace each recognised group by one node, at the place of the group's last."""
    around = Neighbours(model)
    gone: set[int] = set()
    instead: dict[int, OnnxNode] = {}
    for node in model.nodes:
        for pattern in _PATTERNS:
            group = pattern(node, around)
            if group is not None and not gone & {id(part) for part in group.nodes}:
                gone.update(id(part) for part in group.nodes)
                instead[id(group.nodes[-1])] = group.replacement
    if not gone:
        return model
    return dataclasses.replace(model, nodes=tuple(_replaced(model.nodes, gone, instead)))


def _replaced(nodes: Sequence[OnnxNode], gone: set[int], instead: dict[int, OnnxNode]) -> list[OnnxNode]:
    found = []
    for node in nodes:
        if id(node) in instead:
            found.append(instead[id(node)])
        elif id(node) not in gone:
            found.append(node)
    return found
