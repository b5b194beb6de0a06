"""Graphs: tensors, nodes, options."""

from __future__ import annotations

import ctypes
import logging
from typing import Any

from openhtp.abi import memory
from openhtp.abi.numbers import VERSION_1, MemoryKind, ParamKind
from openhtp.abi.reading import data_of, op_parts, param_of, spec_of, widened
from openhtp.abi.structs import struct
from openhtp.capi import configs, handles
from openhtp.capi.configs import clipped
from openhtp.capi.context import ContextHeld, binary_at
from openhtp.capi.entries import answers, null
from openhtp.capi.handles import HandleEntry
from openhtp.capi.profile import profile_at
from openhtp.capi.signals import signal_at
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, InvalidHandle, UnsupportedOp
from openhtp.core.tensor import TensorKind
from openhtp.ops import PACKAGE, op_names
from openhtp.options import GRAPH
from openhtp.runtime.binaries.adapters import SECTIONS
from openhtp.runtime.objects.graph import Graph
from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.signal import Signal
from openhtp.runtime.objects.tensor import Tensor

log = logging.getLogger("openhtp.capi")

TENSOR_BYTES = ctypes.sizeof(struct("Tensor"))
_ID = struct("Tensor").id.offset


class GraphHeld(HandleEntry):
    """A graph, its tensors by id, and the data of constants until it is finalized."""

    word, invalid = "graph", st.QNN_GRAPH_ERROR_INVALID_HANDLE

    def __init__(self, context: ContextHeld, graph: Graph) -> None:
        super().__init__(context)
        self.context = context
        self.graph = graph
        self.tensors: dict[int, Tensor] = {tensor.id: tensor for tensor in graph.tensors.values()}
        self.statics: dict[int, Any] = {}
        # Names of nodes, and how often each was repeated: clients repeat names, and the vendor's library accepts
        # that.
        self.names: dict[str, int] = {}
        # Results of nodes that cannot be computed, by tensor id, and why. Using one of them is an error.
        self.missing: dict[int, UnsupportedOp] = {}
        # How executions find their arrays: made when the graph can be executed, or by an execution.
        self.plan: Any = None

    def memory_changed(self) -> None:
        """Forget the arrays that lie on registered memory: some of it is gone."""
        self.plan = None


@answers("graphCreate")
def graph_create(context: int, name: int, config: int, out: int) -> None:
    """An empty graph."""
    entry = handles.find(ContextHeld, context)
    handles.require_place(out, "graph")
    if not name:
        raise null("the graph's name")
    options = {"precision": entry.device.precision, **configs.read(GRAPH, config, soc=entry.device.spec)}
    graph = entry.context.create_graph(memory.text(name, "the graph's name"), **options)
    entry.binary = None
    handles.give(out, GraphHeld(entry, graph))


@answers("graphCreateSubgraph")
def graph_create_subgraph(graph: int, name: int, out: int) -> None:
    """Make a graph inside a graph."""
    entry = handles.find(GraphHeld, graph)
    handles.require_place(out, "graph")
    if not name:
        raise null("the graph's name")
    sub = entry.graph.create_subgraph(memory.text(name, "the graph's name"))
    handles.give(out, GraphHeld(entry.context, sub))


@answers("graphSetConfig")
def graph_set_config(graph: int, config: int) -> None:
    """Change options: any before the graph is finalized, a few after that."""
    entry = handles.find(GraphHeld, graph)
    if not config:
        raise null("the graph's configuration")
    named = configs.read_graph_changes(config, finalized=entry.graph.is_finalized)
    within = clipped(
        {name: value for name, value in named.items() if value is not None}, entry.context.device.spec
    )
    options: Any = {name: within.get(name) for name in named}
    entry.graph.set_config(**options)
    entry.context.binary = None


@answers("tensorCreateGraphTensor")
def tensor_create_graph_tensor(graph: int, tensor: int) -> None:
    """Add a tensor and write its id into the client's structure."""
    entry = handles.find(GraphHeld, graph)
    handles.require_place(tensor + _ID if tensor else 0, "the tensor", 4)
    tensor_struct = memory.structure(struct("Tensor"), tensor, "the tensor")
    spec = spec_of(tensor_struct)
    data = data_of(tensor_struct, spec) if spec.kind.is_static else None
    spec = widened(spec)
    created = entry.graph.add_tensor(
        spec.name,
        spec.shape,
        spec.dtype,
        quant=spec.quant,
        kind=spec.kind,
        data=data,
        dynamic=spec.dynamic,
        sparse_elements=spec.sparse_elements,
        data_format=spec.data_format,
    )
    entry.tensors[created.id] = created
    if data is not None:
        entry.statics[created.id] = data
    memory.write_number(tensor + _ID, created.id, 4)


@answers("tensorCreateContextTensor")
def tensor_create_context_tensor(context: int, tensor: int) -> int:
    """Tensors belong to graphs here, as in the vendor's HTP backend."""
    handles.find(ContextHeld, context)
    return st.QNN_TENSOR_ERROR_UNSUPPORTED_FEATURE.code


@answers("graphAddNode")
def graph_add_node(graph: int, config: int) -> None:
    """Add an operation on tensors that were created before."""
    entry = handles.find(GraphHeld, graph)
    description = memory.structure(struct("OpConfig"), config, "an operation's description")
    if description.version != VERSION_1:
        raise InvalidArgument(
            f"an operation's description has version {description.version}; expected 1",
            st.QNN_GRAPH_ERROR_INVALID_OP_CONFIG,
        )
    op, name = memory.text(description.type, "the operation"), memory.text(description.name, "the node's name")
    where = f"{op} {name!r}"
    inputs, outputs, params = op_parts(description)
    results = [_graph_tensor(entry, tensor, where) for tensor in outputs]
    used = [None if tensor.kind == TensorKind.NULL else _graph_tensor(entry, tensor, where) for tensor in inputs]
    for tensor in used:
        if tensor is not None and tensor.id in entry.missing:
            raise entry.missing[tensor.id]
    free = _free_name(entry, name)
    try:
        entry.graph.add_node(
            op,
            name=free,
            inputs=used,
            outputs=results,
            params=dict(_param(entry, param, where) for param in params),
            package=memory.text(description.package, "the op package"),
        )
        entry.names[free] = 0
    except UnsupportedOp as error:
        if memory.text(description.package) != PACKAGE:
            raise
        if op not in op_names() or any(tensor.spec.kind is not TensorKind.NATIVE for tensor in results):
            raise
        # As in the vendor's library, which drops unused nodes before it checks whether they can be computed.
        log.info("%s; it is left out unless its result is used", error.message)
        entry.missing.update({tensor.id: error for tensor in results})


def _free_name(entry: GraphHeld, name: str) -> str:
    """The client's name for a node, with a number behind it if the name was used before."""
    free = name
    while free in entry.names:
        entry.names[name] += 1
        free = f"{name}_{entry.names[name]}"
    return free


def _graph_tensor(entry: GraphHeld, tensor: Any, where: str) -> Tensor:
    known = entry.tensors.get(tensor.id)
    if known is None:
        name = memory.text(tensor.name, "a tensor's name")
        known = entry.graph.tensors.get(name)
    if known is None:
        raise InvalidArgument(
            f"{where} uses tensor {tensor.id} {name!r}, which was not created in this graph",
            st.QNN_GRAPH_ERROR_INVALID_OP_CONFIG,
        )
    return known


def _param(entry: GraphHeld, param: Any, where: str) -> tuple[str, Any]:
    if param.kind == ParamKind.TENSOR and param.of.tensor.id in entry.statics:
        return memory.text(param.name, "a parameter's name"), entry.statics[param.of.tensor.id]
    return param_of(param, where)


def carried(profile: int, signal: int) -> tuple[Profile | None, Signal | None]:
    """The handles that a call on a graph carries. A bad one is a bad argument of that call."""
    try:
        return profile_at(profile), signal_at(signal)
    except InvalidHandle as error:
        error.status = st.QNN_GRAPH_ERROR_INVALID_ARGUMENT
        raise


@answers("graphPrepareExecutionEnvironment")
@answers("graphReleaseExecutionEnvironment")
def graph_execution_environment(graph: int, environments: int, count: int) -> int:
    """Refuse: nothing can be prepared ahead of an execution here."""
    handles.find(GraphHeld, graph)
    return st.QNN_GRAPH_ERROR_UNSUPPORTED_FEATURE.code


@answers("graphGetProperty")
def graph_get_property(graph: int, properties: int) -> int:
    """Refuse: a graph has no properties."""
    handles.find(GraphHeld, graph)
    return st.QNN_GRAPH_ERROR_UNSUPPORTED_FEATURE.code


def _section_of(context: int, graph: int, section: int) -> tuple[ContextHeld, GraphHeld, str]:
    entry, of = handles.find(ContextHeld, context), handles.find(GraphHeld, graph)
    if of.context is not entry:
        raise InvalidArgument(f"graph {of.graph.name!r} is of another context", st.QNN_GRAPH_ERROR_INVALID_HANDLE)
    if not 1 <= section <= len(SECTIONS):
        words = ", ".join(f"{name} ({number})" for number, name in enumerate(SECTIONS, 1))
        raise InvalidArgument(f"section type {section}; expected one of {words}")
    return entry, of, SECTIONS[section - 1]


def _section_buffer(address: int) -> tuple[int, int]:
    description = memory.structure(struct("ContextBuffer"), address, "the section's buffer")
    if description.version != VERSION_1 or description.mem_type != MemoryKind.RAW:
        raise InvalidArgument(
            f"a buffer of version {description.version} and memory type {description.mem_type}; expected"
            " version 1, raw (0)"
        )
    return description.buffer.data or 0, description.buffer.size


@answers("contextGetBinarySectionSize")
def context_get_binary_section_size(context: int, graph: int, section: int, out: int) -> None:
    """Bytes that a graph's updateable data take."""
    entry, of, kind = _section_of(context, graph, section)
    handles.require_place(out, "size")
    memory.write_number(out, len(entry.context.get_binary_section(of.graph, section=kind)))


@answers("contextGetBinarySection")
def context_get_binary_section(
    context: int, graph: int, section: int, buffer: int, written: int, profile: int, signal: int
) -> None:
    """A graph's updateable data, into a buffer that must be large enough."""
    entry, of, kind = _section_of(context, graph, section)
    handles.require_place(written, "written size")
    profile_at(profile)
    signal_at(signal)
    address, size = _section_buffer(buffer)
    blob = entry.context.get_binary_section(of.graph, section=kind)
    if size < len(blob):
        raise InvalidArgument(
            f"a buffer of {size} bytes for a section of {len(blob)}", st.QNN_CONTEXT_ERROR_GET_BINARY_FAILED
        )
    memory.write(address, blob, "the section's buffer")
    memory.write_number(written, len(blob))


@answers("contextApplyBinarySection")
def context_apply_binary_section(
    context: int, graph: int, section: int, buffer: int, profile: int, signal: int
) -> None:
    """Exchange a graph's updateable data."""
    entry, of, _ = _section_of(context, graph, section)
    filled, until = profile_at(profile), signal_at(signal)
    entry.context.apply_binary_section(of.graph, binary_at(*_section_buffer(buffer)), signal=until, profile=filled)
    entry.binary = None
