"""Profile logs and schematics as files: a head, a checksum, and MessagePack.

::

    head    magic 8s | version u32 | kind u32 | body bytes u64 | checksum of the body u32 | of the head u32
    body    MessagePack of a ``records.profile.ProfileLogContent`` or a ``records.schematic.Schematic``

A file may come from anywhere, so it is checked in full before use. The vendor's own
logs have a format that nobody has described; they are recognised and refused.
"""

from __future__ import annotations

import enum
import hashlib
import os
import struct
import zlib
from typing import TypeVar

import msgspec

from openhtp.core.errors import BadProfile
from openhtp.core.files import read_file
from openhtp.core.units import MIB
from openhtp.records.profile import ProfileEvent, ProfileLogContent
from openhtp.records.schematic import SYSTEM, OpRole, Schematic

MAGIC = b"OHTPPROF"
LOG_VERSION = 1
_HEAD = struct.Struct("<8sIIQI")
_SEAL = struct.Struct("<I")
_HEAD_BYTES = _HEAD.size + _SEAL.size
_MOST_BYTES = 512 * MIB
_MOST_DEPTH = 8
_LARGEST = 1 << 62
_T = TypeVar("_T", ProfileLogContent, Schematic)


class LogFileKind(enum.IntEnum):
    """The content of a file."""

    LOG = 1
    SCHEMATIC = 2


_WORDS = {LogFileKind.LOG: "a profile log", LogFileKind.SCHEMATIC: "a schematic"}


def log_bytes(log: ProfileLogContent) -> bytes:
    """A log as a file."""
    return _sealed(LogFileKind.LOG, log)


def schematic_bytes(schematic: Schematic) -> bytes:
    """A schematic as a file."""
    return _sealed(LogFileKind.SCHEMATIC, schematic)


def schematic_digest(schematic: Schematic) -> str:
    """The digest by which a log identifies its schematic."""
    return hashlib.sha256(msgspec.msgpack.encode(schematic)).hexdigest()[:32]


def preparation_digest(schematic: Schematic) -> str:
    """A digest by which a log recognises the preparation, whatever the clocks and the core of its runs were.

    How many tiles and waits there are depends on the clocks, and so does not count.
    """
    results = {
        (op.owner, op.name, op.dims, op.dtype)
        for op in schematic.ops
        if op.role in (OpRole.COMPUTE, OpRole.CONSTANT) and op.owner != SYSTEM
    }
    nodes = [(node.number, node.name, node.type, node.into) for node in schematic.nodes]
    whole = (schematic.graph, schematic.soc, schematic.vtcm_bytes, nodes, sorted(results))
    return hashlib.sha256(msgspec.msgpack.encode(whole)).hexdigest()[:32]


def _sealed(kind: LogFileKind, content: ProfileLogContent | Schematic) -> bytes:
    body = msgspec.msgpack.encode(content)
    head = _HEAD.pack(MAGIC, LOG_VERSION, kind, len(body), zlib.crc32(body))
    return head + _SEAL.pack(zlib.crc32(head)) + body


def read_log(path: str | os.PathLike[str]) -> ProfileLogContent:
    """The log in a file. Raises BadProfile with the place of what is wrong."""
    return log_from(read_file(path, most=_MOST_BYTES, what=_WORDS[LogFileKind.LOG], error=BadProfile), str(path))


def read_schematic(path: str | os.PathLike[str]) -> Schematic:
    """The schematic in a file. Raises BadProfile with the place of what is wrong."""
    data = read_file(path, most=_MOST_BYTES, what=_WORDS[LogFileKind.SCHEMATIC], error=BadProfile)
    return schematic_from(data, str(path))


def log_from(data: bytes, where: str = "profile log") -> ProfileLogContent:
    """The log in bytes."""
    log = _decoded(data, LogFileKind.LOG, ProfileLogContent, where)
    for number, message in enumerate(log.messages):
        _check_events(message.events, f"{where}: message {number}", 1)
        if not 0 <= message.timeline_cycles < _LARGEST:
            raise BadProfile(f"{where}: message {number} has a timeline of {message.timeline_cycles} cycles")
        run = message.run
        if not 0 <= message.clock_hz < _LARGEST:
            raise BadProfile(f"{where}: message {number} has a clock of {message.clock_hz} Hz")
        if run is not None:
            if not 0 <= run.power_up_ns < _LARGEST:
                raise BadProfile(f"{where}: message {number} powered up for {run.power_up_ns} ns")
            times = (run.received_ns, run.started_ns, run.finished_ns)
            if any(not 0 <= time < _LARGEST for time in times) or sorted(times) != list(times):
                raise BadProfile(f"{where}: message {number} was received, started and finished at {list(times)}")
            pauses = [(pause.step, min(msgspec.structs.astuple(pause))) for pause in run.pauses]
            if any(not 0 <= step < _LARGEST or least < 0 for step, least in pauses):
                raise BadProfile(f"{where}: message {number} has a pause before a step below 0, or before time 0")
    return log


def schematic_from(data: bytes, where: str = "schematic") -> Schematic:
    """The schematic in bytes."""
    schematic = _decoded(data, LogFileKind.SCHEMATIC, Schematic, where)
    check_schematic(schematic, where)
    return schematic


def check_schematic(schematic: Schematic, where: str) -> None:
    """Raises BadProfile for numbers that no schematic has."""
    hz, cores = schematic.clock_hz, schematic.cores
    if not 0 < hz < _LARGEST or not 0 < cores <= 64 or not 0 <= schematic.launch_cycles < _LARGEST:
        raise BadProfile(f"{where}: a clock of {hz} Hz and {cores} cores; expected some of each")
    numbers = [node.number for node in schematic.nodes]
    if len(set(numbers)) != len(numbers) or any(not 0 <= number < 1 << 32 for number in numbers):
        raise BadProfile(f"{where}: nodes must have numbers of their own, from 0 to 2^32")
    known, serials = set(numbers), set[int]()
    for op in schematic.ops:
        counts = (op.start, op.cycles, op.dram_read, op.dram_write, op.vtcm_read, op.vtcm_write, op.thread)
        if any(not 0 <= count < _LARGEST for count in counts) or op.end >= _LARGEST:
            raise BadProfile(f"{where}: op {op.serial} has a time or a number of bytes that cannot be: {counts}")
        if op.owner not in known or not 0 <= op.core < cores:
            raise BadProfile(
                f"{where}: op {op.serial} belongs to node {op.owner} on core {op.core}; there is none"
            )
        if op.serial in serials or not 0 < op.serial < 1 << 31:
            raise BadProfile(f"{where}: op number {op.serial} is there twice, or no number of an op")
        serials.add(op.serial)
    for region in schematic.regions:
        if not 0 <= region.start <= region.end < _LARGEST or not 0 <= region.nbytes < _LARGEST:
            raise BadProfile(f"{where}: {region.tensor!r} lies in VTCM from cycle {region.start} to {region.end}")
        if not 0 <= region.core < cores or not 0 <= region.offset < _LARGEST:
            raise BadProfile(f"{where}: {region.tensor!r} lies on core {region.core} at {region.offset}")


def kind_of(data: bytes) -> LogFileKind | None:
    """The kind that the head of a file states; None if the file is none of ours."""
    if len(data) < _HEAD_BYTES or not data.startswith(MAGIC):
        return None
    number = _HEAD.unpack_from(data)[2]
    return LogFileKind(number) if number in LogFileKind._value2member_map_ else None


def _decoded(data: bytes, kind: LogFileKind, content: type[_T], where: str) -> _T:
    if len(data) < _HEAD_BYTES or not data.startswith(MAGIC):
        raise BadProfile(
            f"{where} is not {_WORDS[kind]} of openhtp: it begins with {data[:8]!r}, expected {MAGIC!r}"
            " (the vendor's tools write another format, which only they read)"
        )
    _, version, stored_kind, length, checksum = _HEAD.unpack_from(data)
    if _SEAL.unpack_from(data, _HEAD.size)[0] != zlib.crc32(data[: _HEAD.size]):
        raise BadProfile(f"{where}: bytes 0..{_HEAD_BYTES - 1} do not match their checksum (damaged)")
    if version != LOG_VERSION:
        raise BadProfile(f"{where} has format version {version}; this openhtp reads {LOG_VERSION}: profile again")
    if stored_kind != kind:
        known = stored_kind in LogFileKind._value2member_map_
        named = _WORDS[LogFileKind(stored_kind)] if known else f"of kind {stored_kind}"
        raise BadProfile(f"{where} is {named}; expected {_WORDS[kind]}")
    body = data[_HEAD_BYTES:]
    if len(body) != length or zlib.crc32(body) != checksum:
        raise BadProfile(f"{where}: {len(body)} bytes behind the head; it says {length} (cut off, or damaged)")
    try:
        return msgspec.msgpack.decode(body, type=content)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as problem:
        raise BadProfile(f"{where}: {problem or 'nested too deeply'}") from problem


def _check_events(events: tuple[ProfileEvent, ...], where: str, depth: int) -> None:
    if depth > _MOST_DEPTH:
        raise BadProfile(f"{where}: events are nested more than {_MOST_DEPTH} deep")
    for event in events:
        if not 0 <= event.value < 1 << 64 or event.type < 0:
            raise BadProfile(f"{where}: event {event.name!r} of type {event.type} has the value {event.value}")
        _check_events(event.events, where, depth + 1)
