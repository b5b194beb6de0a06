"""The bytes of a context binary: a preamble, a header, and sections. ``docs/context-binary.md`` has the layout.

::

    preamble   magic 8s | version u32 | header checksum u32 | total bytes u64 | header bytes u64 | checksum u32
    header     length u64 | MessagePack, padded with zeros up to byte 4096, or a multiple of that
    sections   in order, each from a multiple of 4096 (of 64 if it has fewer bytes), with zeros between

Every byte is covered: the preamble by its own checksum, the header (with padding) by the preamble's, a section by
its record, and bytes between sections must be zero. A section is checked when it is first used, so opening a
large file stays quick. Checksums find accidents. They prove nothing about who wrote a file.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import msgspec
import xxhash
from blake3 import blake3

from openhtp.core import status as st
from openhtp.core.errors import BadBinary
from openhtp.program.coding import CodedData, Coding, decoded
from openhtp.program.sources import BinarySource, MemorySource

MAGIC = b"OPENHTP\x00"
# 7: sections may be coded: floats in half precision, bytes in 4 bits.
# 6: per-channel encodings are packed numbers.
# 5: data below a page is in the program; float weights are stored once, in the precision of the computation.
# 4: sections that can be mapped; a program, its prepared form and its data are apart from the header.
# 3: programs hold QNN ops alone. Versions 1 and 2 held nodes with fused clamps, which no longer exist.
VERSION = 7
PAGE = 4096
SMALL = 64
PREAMBLE_BYTES = 64
# A header describes graphs and their ends; openhtp writes no file that claims a longer header than this.
MOST_HEADER_BYTES = 256 << 20
_PREAMBLE = struct.Struct("<8sIIQQ")
_CHECKSUM = struct.Struct("<I")
# What stands for a section in the checksum of a graph: its own, and how it is coded.
_MARK = struct.Struct("<IBB")
_LENGTH = struct.Struct("<Q")
_ZEROS = bytes(PAGE)


class SectionRecord(msgspec.Struct, frozen=True, array_like=True):
    """One section: length without padding, checksum of what is stored, and how data comes out of that."""

    nbytes: int
    checksum: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    coding: Coding = Coding.PLAIN
    lowest: Annotated[int, msgspec.Meta(ge=0, lt=1 << 8)] = 0


class FileSection(NamedTuple):
    """A piece of a binary, where it lies. The next one begins at ``end``; zeros fill the space between."""

    record: SectionRecord
    source: BinarySource
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Length without padding."""
        return self.record.nbytes

    @property
    def data_bytes(self) -> int:
        """Length of the data that comes out of it."""
        return self.nbytes * self.record.coding.growth

    @property
    def place(self) -> tuple[int, int]:
        """A key that no other section has while the source lives."""
        return id(self.source), self.begin

    def read(self) -> memoryview:
        """The data, not checked. Each read of a file makes a new copy: check the copy that you use."""
        return self._without_padding(self.source.read(self.begin, self.end))

    def _without_padding(self, stored: memoryview) -> memoryview:
        padding = stored[self.nbytes :]
        if padding.nbytes and bytes(padding) != _ZEROS[: padding.nbytes]:
            raise BadBinary(
                f"bytes {self.begin + self.nbytes}..{self.end} are padding and not zero: the binary is damaged;"
                " make it again from its model"
            )
        return stored[: self.nbytes]

    def checked(self, what: str) -> memoryview:
        """The data, after its checksum was compared. ``what`` names the data in the error message."""
        data = self.read()
        checksum = zlib.crc32(data)
        if checksum != self.record.checksum:
            raise BadBinary(
                f"{what} (bytes {self.begin}..{self.begin + self.nbytes}) is damaged: its checksum is"
                f" {checksum:#010x}, expected {self.record.checksum:#010x}; make the binary again from its model"
            )
        return data

    def decoded(self, stored: memoryview) -> memoryview:
        """The data that comes out of what is stored; that itself unless it is coded."""
        return decoded(stored, self.record.coding, self.record.lowest)


def read_together(sections: Sequence[FileSection], room: memoryview | None = None) -> list[memoryview]:
    """The data of several sections, as ``read`` gives it; adjacent sections are read at once.

    Data that must be copied is copied into ``room``, as long as it has space.
    """
    by_section: dict[int, memoryview] = {}
    run: list[FileSection] = []
    for section in sorted(sections, key=lambda section: section.begin):
        if run and (section.begin != run[-1].end or section.source is not run[0].source):
            by_section |= _read_run(run, room)
            room = None if room is None else room[run[-1].end - run[0].begin :]
            run = []
        run.append(section)
    by_section |= _read_run(run, room)
    return [by_section[id(section)] for section in sections]


def _read_run(run: Sequence[FileSection], room: memoryview | None) -> dict[int, memoryview]:
    if not run:
        return {}
    begin = run[0].begin
    stored = run[0].source.read(begin, run[-1].end, room)
    return {
        id(section): section._without_padding(stored[section.begin - begin : section.end - begin])
        for section in run
    }


def joint_checksum(sections: Iterable[FileSection]) -> int:
    """A checksum of the sections and their order."""
    records = (section.record for section in sections)
    return zlib.crc32(b"".join(_MARK.pack(one.checksum, one.coding, one.lowest) for one in records))


def digest(data: memoryview) -> bytes:
    """A hash that nobody can forge, unlike a checksum: BLAKE3, which is as quick as one."""
    return blake3(data).digest()


def quick_checksum(data: memoryview) -> bytes:
    """Finds accidents as fast as memory is read: XXH3 of 128 bits. Anybody can forge data with the same value."""
    return xxhash.xxh3_128_digest(data)


def make_section(data: bytes | memoryview | CodedData) -> FileSection:
    """Measure data before it is stored."""
    coded = data if isinstance(data, CodedData) else CodedData(memoryview(data))
    memory = MemorySource(coded.stored)
    record = SectionRecord(memory.nbytes, zlib.crc32(coded.stored), coded.coding, coded.lowest)
    return FileSection(record, memory, 0, memory.nbytes)


def _aligned(offset: int, nbytes: int) -> int:
    """Where a section of this length starts after ``offset``."""
    unit = PAGE if nbytes >= PAGE else SMALL
    return -(-offset // unit) * unit


def order_of(sizes: Sequence[int]) -> list[int]:
    """The order of sections that wastes least: small ones together in front, then those that start on a page."""
    return sorted(range(len(sizes)), key=lambda index: sizes[index] >= PAGE)


def pack(header: bytes, sections: Sequence[FileSection]) -> list[bytes | memoryview]:
    """Preamble, header and sections, as the pieces of a file."""
    header = _LENGTH.pack(len(header)) + header
    header += _ZEROS[: -(PREAMBLE_BYTES + len(header)) % PAGE]
    parts: list[bytes | memoryview] = [b"", header]
    offset = PREAMBLE_BYTES + len(header)
    for number, section in enumerate(sections):
        begin = _aligned(offset, section.nbytes)
        parts += [_ZEROS[: begin - offset], section.checked(f"section {number}")]
        offset = begin + section.nbytes
    total = _aligned(offset, PAGE)
    parts.append(_ZEROS[: total - offset])
    parts[0] = _sealed(_PREAMBLE.pack(MAGIC, VERSION, zlib.crc32(header), total, len(header)))
    return [part for part in parts if len(part)]


def _sealed(preamble: bytes) -> bytes:
    body = preamble.ljust(PREAMBLE_BYTES - _CHECKSUM.size, b"\0")
    return body + _CHECKSUM.pack(zlib.crc32(body))


def open_header(source: BinarySource) -> tuple[bytes, int]:
    """Check preamble and header; return the MessagePack part and the start of the sections."""
    if source.nbytes < PREAMBLE_BYTES:
        raise BadBinary(
            f"binary of {source.nbytes} bytes is shorter than its {PREAMBLE_BYTES}-byte preamble: it was cut,"
            " or is no context binary"
        )
    preamble = bytes(source.read(0, PREAMBLE_BYTES))
    magic, version, checksum, total, header_bytes = _PREAMBLE.unpack_from(preamble)
    if magic != MAGIC:
        raise BadBinary(
            f"binary starts with {magic!r}; expected {MAGIC!r}: it was not made by openhtp, whose binaries come"
            " from Context.get_binary (the vendor's own go to the vendor's library)"
        )
    if _CHECKSUM.unpack_from(preamble, PREAMBLE_BYTES - 4)[0] != zlib.crc32(preamble[:-4]):
        raise BadBinary(
            f"preamble (bytes 0..{PREAMBLE_BYTES}) is damaged: it does not match its checksum; make the binary"
            " again from its model"
        )
    if version != VERSION:
        raise BadBinary(
            f"binary has format version {version}; this openhtp reads version {VERSION}:"
            " make it again from its model",
            st.QNN_CONTEXT_ERROR_BINARY_VERSION,
        )
    if total != source.nbytes or header_bytes > total - PREAMBLE_BYTES:
        error = "it was cut" if source.nbytes < total else "something was added to it"
        raise BadBinary(
            f"binary has {source.nbytes} bytes; its preamble says {total}: {error}; copy it again, or make it"
            " again from its model"
        )
    if header_bytes > MOST_HEADER_BYTES:
        raise BadBinary(f"header says it has {header_bytes} bytes; at most {MOST_HEADER_BYTES} are read")
    header = bytes(source.read(PREAMBLE_BYTES, PREAMBLE_BYTES + header_bytes))
    if zlib.crc32(header) != checksum:
        raise BadBinary(
            f"header (bytes {PREAMBLE_BYTES}..{PREAMBLE_BYTES + header_bytes}) is damaged: it does not match its"
            " checksum; make the binary again from its model"
        )
    if (PREAMBLE_BYTES + header_bytes) % PAGE:
        raise BadBinary(f"header of {header_bytes} bytes does not end on a page of {PAGE} bytes")
    length = _LENGTH.unpack_from(header)[0] if header_bytes >= _LENGTH.size else header_bytes
    if length > header_bytes - _LENGTH.size:
        raise BadBinary(f"header says it has {length} bytes; there are {header_bytes}")
    return header[_LENGTH.size : _LENGTH.size + length], PREAMBLE_BYTES + header_bytes


def locate_sections(source: BinarySource, begin: int, records: Sequence[SectionRecord]) -> list[FileSection]:
    """All sections, not checked yet; they must fill the file exactly."""
    starts: list[int] = []
    offset = begin
    for record in records:
        if not 0 <= record.nbytes <= source.nbytes:
            raise BadBinary(f"section {len(starts)} at byte {offset} says it has {record.nbytes} bytes")
        starts.append(_aligned(offset, record.nbytes))
        offset = starts[-1] + record.nbytes
    if _aligned(offset, PAGE) != source.nbytes:
        raise BadBinary(f"sections end at byte {offset}; the binary has {source.nbytes}")
    ends = [*starts[1:], source.nbytes]
    return [
        FileSection(record, source, start, end) for record, start, end in zip(records, starts, ends, strict=True)
    ]
