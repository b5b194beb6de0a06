"""Notes that files carry about themselves and their parts, taken off before a tool that stumbles over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from openhtp.frontend.onnx_reader import model_bytes, parse_model

Notes = dict[tuple[str, str], dict[str, str]]
"""Keys and values by part of a model: its kind and its name."""


def without_notes(model: bytes) -> tuple[bytes, Notes]:
    """The model without ``metadata_props`` at any level, and what they were."""
    proto = parse_model(model)
    notes: Notes = {}
    for place, part in _parts(proto):
        if part.metadata_props:
            notes[place] = {item.key: item.value for item in part.metadata_props}
            del part.metadata_props[:]
    return (model_bytes(proto), notes) if notes else (model, notes)


def with_notes(model: bytes, notes: Notes) -> bytes:
    """The model with notes on those of its parts that are still there; what it has by now is kept."""
    if not notes:
        return model
    proto = parse_model(model)
    for place, part in _parts(proto):
        known = {item.key for item in part.metadata_props}
        for key, value in notes.get(place, {}).items():
            if key not in known:
                part.metadata_props.add(key=key, value=value)
    return model_bytes(proto)


def _parts(proto: Any) -> Iterator[tuple[tuple[str, str], Any]]:
    graph = proto.graph
    yield ("model", ""), proto
    yield ("graph", ""), graph
    for node in graph.node:
        # A node may have no name before, and one afterwards; the values that it makes keep theirs.
        yield ("node", next(iter(node.output), node.name)), node
    for tensor in graph.initializer:
        yield ("tensor", tensor.name), tensor
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield ("value", value.name), value
