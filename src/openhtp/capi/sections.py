"""Sections of a binary: the updateable data of a graph, taken out and put in."""

from __future__ import annotations

from openhtp.abi import memory
from openhtp.abi.numbers import VERSION_1, MemoryKind
from openhtp.abi.structs import struct
from openhtp.capi import handles
from openhtp.capi.context import ContextHeld, binary_at
from openhtp.capi.entries import answers
from openhtp.capi.graph import GraphHeld
from openhtp.capi.profile import ProfileHeld
from openhtp.capi.signals import SignalHeld
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument
from openhtp.runtime.binaries.adapters import SECTIONS


def _found(context: int, graph: int, section: int) -> tuple[ContextHeld, GraphHeld, str]:
    held, of = handles.find(ContextHeld, context), handles.find(GraphHeld, graph)
    if of.context is not held:
        raise InvalidArgument(f"graph {of.graph.name!r} is of another context", st.QNN_GRAPH_ERROR_INVALID_HANDLE)
    if not 1 <= section <= len(SECTIONS):
        words = ", ".join(f"{name} ({number})" for number, name in enumerate(SECTIONS, 1))
        raise InvalidArgument(f"section type {section}; expected one of {words}")
    return held, of, SECTIONS[section - 1]


def _buffer(address: int) -> tuple[int, int]:
    given = memory.structure(struct("ContextBuffer"), address, "the section's buffer")
    if given.version != VERSION_1 or given.mem_type != MemoryKind.RAW:
        raise InvalidArgument(
            f"a buffer of version {given.version} and memory type {given.mem_type}; expected version 1, raw (0)"
        )
    return given.buffer.data or 0, given.buffer.size


@answers("contextGetBinarySectionSize")
def context_get_binary_section_size(context: int, graph: int, section: int, out: int) -> None:
    """Bytes that a graph's updateable data take."""
    held, of, kind = _found(context, graph, section)
    handles.require_place(out, "size")
    memory.write_number(out, len(held.context.get_binary_section(of.graph, section=kind)))


@answers("contextGetBinarySection")
def context_get_binary_section(
    context: int, graph: int, section: int, buffer: int, written: int, profile: int, signal: int
) -> None:
    """A graph's updateable data, into a buffer that must be large enough."""
    held, of, kind = _found(context, graph, section)
    handles.require_place(written, "written size")
    handles.find_or_none(ProfileHeld, profile)
    handles.find_or_none(SignalHeld, signal)
    address, size = _buffer(buffer)
    blob = held.context.get_binary_section(of.graph, section=kind)
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
    held, of, _ = _found(context, graph, section)
    sheet = handles.find_or_none(ProfileHeld, profile)
    cut = handles.find_or_none(SignalHeld, signal)
    held.context.apply_binary_section(
        of.graph,
        binary_at(*_buffer(buffer)),
        signal=None if cut is None else cut.signal,
        profile=None if sheet is None else sheet.profile,
    )
    held.binary = None
