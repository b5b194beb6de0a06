"""What a stored part of a program must be before, and after, the runtime is given it.

A seal says who made a part. Even so it must hold nothing that lowering could not have made: no operators from
elsewhere, no code, no files, and ends that fit the program and each other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, ModelProto, TensorProto

from openhtp.engine.lowering import model_sizes
from openhtp.engine.onnx_graph import IN_MEMORY, parse_model
from openhtp.engine.opened import End
from openhtp.engine.sessions import Staged
from openhtp.program.packed import GraphInfo


class Unusable(Exception):
    """A prepared form that must not be used; says why. The program it came with may still be good."""


# ONNX's own operators, and those that the runtime's optimiser puts in their place.
_DOMAINS = {"", "ai.onnx", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"}
# Operators that run something else than themselves: other graphs, other libraries, files.
_FORBIDDEN = {"EPContext", "If", "Loop", "Scan", "SequenceMap"}
_GRAPHS = {AttributeProto.GRAPH, AttributeProto.GRAPHS}
# Large constants are stored beside the model; what is left is small.
_MOST_MODEL_BYTES = 64 << 20

# Type and sizes of a value where two parts, or a part and the client, meet.
_End = tuple[np.dtype[Any], tuple[int | str, ...]]


def inspect_part(data: bytes, constants: Collection[str]) -> None:
    """Raise Unusable unless a part's model is a plain graph whose data is all at hand: that of these constants."""
    if len(data) > _MOST_MODEL_BYTES:
        raise Unusable(f"a part has {len(data)} bytes")
    try:
        model: ModelProto = parse_model(data)
    except DecodeError as error:
        raise Unusable("a part is no model") from error
    graph = model.graph
    if model.functions or model.training_info or graph.sparse_initializer:
        raise Unusable("a part holds more than a graph")
    for node in graph.node:
        if node.domain not in _DOMAINS or node.op_type in _FORBIDDEN:
            raise Unusable(f"a part has the operator {node.domain}:{node.op_type}")
        if any(attribute.type in _GRAPHS for attribute in node.attribute):
            raise Unusable(f"operator {node.op_type} holds a graph")
    for tensor in graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            places = [entry.value for entry in tensor.external_data if entry.key == "location"]
            if tensor.name not in constants or places != [IN_MEMORY]:
                raise Unusable(f"constant {tensor.name!r} is taken from a file")
    for node in graph.node:
        for attribute in node.attribute:
            held = (attribute.t, *attribute.tensors)
            if any(tensor.data_location == TensorProto.EXTERNAL for tensor in held):
                raise Unusable(f"an attribute of {node.op_type} is taken from a file")


def inspect_sessions(staged: Staged, info: GraphInfo) -> None:
    """Raise Unusable unless all ends meet: each value is made once, before it is read, in that shape.

    What is made in windows is made when its last byte is, each window right behind the one before.
    """
    given = (*info.inputs, *info.updateable_statics)
    inputs = {f"in:{spec.name}": (spec.dtype.numpy, model_sizes(spec)) for spec in given}
    outputs = {f"out:{spec.name}": (spec.dtype.numpy, model_sizes(spec)) for spec in info.outputs}
    between: dict[str, _End] = {name: (buffer.dtype, buffer.shape) for name, buffer in staged.buffers.items()}
    whole_bytes = _windows_in_bounds(staged, info)
    made: set[str] = set()
    begun: dict[str, int] = {}
    for stage in staged.stages:
        reads = inputs | {name: between[name] for name in made if name in between}
        windows = {name: (window.dtype, window.shape) for name, window in staged.windows.items()}
        seen = {name: end for name, end in windows.items() if staged.windows[name].of in reads}
        _check_ends(stage.session.inputs(), stage.inputs, reads | seen)
        _check_ends(stage.session.outputs(), stage.outputs, outputs | between | windows)
        if made.intersection(stage.outputs) or begun.keys() & set(stage.outputs):
            raise Unusable("a value is made twice")
        for name in stage.outputs:
            if name not in staged.windows:
                made.add(name)
                continue
            window = staged.windows[name]
            if window.of in made or window.begin != begun.get(window.of, 0):
                raise Unusable(f"value {window.of!r} is made twice, or with a gap")
            begun[window.of] = window.begin + window.nbytes
            if begun[window.of] == whole_bytes[window.of]:
                made.add(window.of)
    if not made.issuperset(outputs):
        raise Unusable("an output is never made")


def _windows_in_bounds(staged: Staged, info: GraphInfo) -> dict[str, int]:
    """Bytes of every value that windows are of. Raises Unusable if one looks beyond, or at what may vary."""
    sizes = {name: buffer.nbytes for name, buffer in staged.buffers.items()}
    sizes |= {f"in:{spec.name}": spec.nbytes for spec in info.inputs if not any(spec.free)}
    for name, window in staged.windows.items():
        if name in sizes or window.begin + window.nbytes > sizes.get(window.of, -1):
            raise Unusable(f"window {name!r} is not within a value")
    return sizes


def _agrees(value: End, known: _End | None) -> bool:
    """Whether a session's end is the value that is known. The runtime compares free sizes when it runs."""
    if known is None or value.dtype != known[0] or len(value.shape) != len(known[1]):
        return False
    return all(isinstance(own, str) or own == size for own, size in zip(value.shape, known[1], strict=True))


def _check_ends(values: list[End], names: tuple[str, ...], known: Mapping[str, _End]) -> None:
    if sorted(value.name for value in values) != sorted(names):
        raise Unusable("a part reads or makes other values than it says")
    for value in values:
        if not _agrees(value, known.get(value.name)):
            raise Unusable(f"value {value.name!r} has another type or shape, or comes from nowhere")
