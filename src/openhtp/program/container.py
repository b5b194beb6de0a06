"""The bytes of a context binary: a preamble, a header, and blobs of static data.

::

    preamble   magic 8s | version u32 | header checksum u32 | total bytes u64 | header bytes u64 | checksum u32
    header     length u64 | MessagePack, padded with zeros to a multiple of 64
    blobs      each starts at a multiple of 64, in order, padded with zeros

Every byte is covered by a checksum: the preamble by its own, the header (with padding) by the preamble's, a
blob (with padding) by its record. Blobs are checked when first used, so opening a large file stays quick.
Checksums find accidents. They prove nothing about who wrote a file.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from openhtp.core import status as st
from openhtp.core.errors import BadBinary

MAGIC = b"OPENHTP\x00"
# 3: programs hold QNN ops alone. Versions 1 and 2 held nodes with fused clamps, which no longer exist.
VERSION = 3
ALIGN = 64
_PREAMBLE = struct.Struct("<8sIIQQ")
_CHECKSUM = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
PREAMBLE_BYTES = ALIGN


class BlobRecord(msgspec.Struct, frozen=True):
    """One blob: length without padding, and the checksum of its bytes with padding."""

    nbytes: int
    checksum: int


def padded(nbytes: int) -> int:
    """The length rounded up to the alignment."""
    return -(-nbytes // ALIGN) * ALIGN


class Blob(NamedTuple):
    """Data as it is stored, with the zeros behind it and the record of both."""

    data: memoryview
    padding: memoryview
    record: BlobRecord

    @property
    def is_sound(self) -> bool:
        """Whether the bytes are those that were measured."""
        return zlib.crc32(self.padding, zlib.crc32(self.data)) == self.record.checksum

    @property
    def digest(self) -> bytes:
        """A hash that nobody can aim at, unlike a checksum."""
        # Padding makes a short run of zeros look like a longer one: the length tells them apart.
        found = hashlib.sha256(_LENGTH.pack(self.data.nbytes))
        found.update(self.data)
        found.update(self.padding)
        return found.digest()


def make_blob(data: memoryview) -> Blob:
    """Measure data that is to be stored."""
    padding = memoryview(bytes(padded(data.nbytes) - data.nbytes))
    return Blob(data, padding, BlobRecord(data.nbytes, zlib.crc32(padding, zlib.crc32(data))))


def pack(header: bytes, blobs: Sequence[Blob]) -> list[bytes | memoryview]:
    """Preamble, header and blobs, as the pieces that a file consists of."""
    header = _LENGTH.pack(len(header)) + header
    header = header.ljust(padded(len(header)), b"\0")
    total = PREAMBLE_BYTES + len(header) + sum(padded(blob.record.nbytes) for blob in blobs)
    preamble = _PREAMBLE.pack(MAGIC, VERSION, zlib.crc32(header), total, len(header))
    parts: list[bytes | memoryview] = [_sealed(preamble), header]
    for blob in blobs:
        parts += [blob.data, blob.padding]
    return parts


def _sealed(preamble: bytes) -> bytes:
    body = preamble.ljust(PREAMBLE_BYTES - _CHECKSUM.size, b"\0")
    return body + _CHECKSUM.pack(zlib.crc32(body))


def open_header(buffer: memoryview) -> tuple[bytes, int]:
    """Check preamble and header; return the MessagePack part, and where the blobs begin."""
    if buffer.nbytes < PREAMBLE_BYTES:
        raise BadBinary(f"binary of {buffer.nbytes} bytes is shorter than its {PREAMBLE_BYTES}-byte preamble")
    preamble = bytes(buffer[:PREAMBLE_BYTES])
    magic, version, checksum, total, header_bytes = _PREAMBLE.unpack_from(preamble)
    if magic != MAGIC:
        raise BadBinary(f"binary starts with {magic!r}; expected {MAGIC!r} (not made by openhtp?)")
    if _CHECKSUM.unpack_from(preamble, PREAMBLE_BYTES - 4)[0] != zlib.crc32(preamble[:-4]):
        raise BadBinary("preamble does not match its checksum; bytes 0..63 are damaged")
    if version != VERSION:
        raise BadBinary(
            f"binary has format version {version}; this openhtp reads version {VERSION}:"
            " make it again from its model",
            st.QNN_CONTEXT_ERROR_BINARY_VERSION,
        )
    if total != buffer.nbytes or header_bytes > total - PREAMBLE_BYTES:
        raise BadBinary(f"binary has {buffer.nbytes} bytes; its preamble says {total} (truncated?)")
    header = bytes(buffer[PREAMBLE_BYTES : PREAMBLE_BYTES + header_bytes])
    if zlib.crc32(header) != checksum:
        raise BadBinary(f"header (bytes {PREAMBLE_BYTES}..{PREAMBLE_BYTES + header_bytes}) is damaged")
    length = _LENGTH.unpack_from(header)[0] if header_bytes >= _LENGTH.size else header_bytes
    if length > header_bytes - _LENGTH.size:
        raise BadBinary(f"header says it has {length} bytes; there are {header_bytes}")
    return header[_LENGTH.size : _LENGTH.size + length], PREAMBLE_BYTES + header_bytes


def locate_blobs(buffer: memoryview, begin: int, records: Sequence[BlobRecord]) -> list[Blob]:
    """All blobs, not checked yet; they must fill the file exactly."""
    offset = begin
    blobs = []
    for record in records:
        if record.nbytes < 0 or record.nbytes > buffer.nbytes:
            raise BadBinary(f"blob at byte {offset} says it has {record.nbytes} bytes")
        end, after = offset + record.nbytes, offset + padded(record.nbytes)
        blobs.append(Blob(buffer[offset:end], buffer[end:after], record))
        offset = after
    if offset != buffer.nbytes:
        raise BadBinary(f"blobs end at byte {offset}; the binary has {buffer.nbytes}")
    return blobs
