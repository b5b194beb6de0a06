"""Functions that a model brings along: every call is replaced by what the function does."""

from __future__ import annotations

import graphlib
from typing import Any

import onnx.inliner

from openhtp.core.errors import BadModel

# Functions that call functions grow quickly: a small file must not become an endless graph.
_MAX_NODES = 1 << 18


def inlined(proto: Any) -> Any:
    """The model without functions of its own. Raises BadModel when they call each other in a circle."""
    if not proto.functions:
        return proto
    sizes = _sizes(proto)
    if sum(sizes.get(_key(node), 1) for node in proto.graph.node) > _MAX_NODES:
        raise BadModel(f"the model's functions stand for more than {_MAX_NODES} nodes")
    try:
        return onnx.inliner.inline_local_functions(proto)
    except (RuntimeError, ValueError, TypeError) as error:
        raise BadModel(f"the model's functions cannot be put in place of their calls: {error}") from error


def _sizes(proto: Any) -> dict[tuple[str, str], int]:
    """How many nodes each function comes to."""
    functions = {(function.domain, function.name): function for function in proto.functions}
    calls = {
        key: {_key(node) for node in function.node if _key(node) in functions}
        for key, function in functions.items()
    }
    try:
        order = list(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError as error:
        names = " -> ".join(name for _, name in error.args[1])
        raise BadModel(f"functions of the model call each other in a circle: {names}") from None
    sizes: dict[tuple[str, str], int] = {}
    for key in order:
        sizes[key] = sum(sizes.get(_key(node), 1) for node in functions[key].node)
    return sizes


def _key(node: Any) -> tuple[str, str]:
    return node.domain, node.op_type
