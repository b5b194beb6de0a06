"""The bytes of a context binary: a preamble, a header, and blobs of static data.

::

    preamble   magic 8s | version u32 | header checksum u32 | total bytes u64 | header bytes u64 | checksum u32
    header     length u64 | MessagePack, padded with zeros to a multiple of 64
    blobs      each starts at a multiple of 64, in order, padded with zeros

Every byte is covered by a checksum: the preamble by its own, the header (with padding) by the preamble's, a
blob (with padding) by its record. Blobs are checked when first used, so opening a large file stays quick.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import msgspec

from openhtp.core import status as st
from openhtp.core.errors import BadBinary

MAGIC = b"OPENHTP\x00"
VERSION = 1
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


def record_blob(data: memoryview) -> BlobRecord:
    """Measure a blob."""
    checksum = zlib.crc32(bytes(padded(data.nbytes) - data.nbytes), zlib.crc32(data))
    return BlobRecord(data.nbytes, checksum)


def pack(header: bytes, blobs: Sequence[memoryview]) -> bytes:
    """Put preamble, header and blobs together."""
    header = _LENGTH.pack(len(header)) + header
    header = header.ljust(padded(len(header)), b"\0")
    total = PREAMBLE_BYTES + len(header) + sum(padded(blob.nbytes) for blob in blobs)
    preamble = _PREAMBLE.pack(MAGIC, VERSION, zlib.crc32(header), total, len(header))
    parts: list[bytes | memoryview] = [_sealed(preamble), header]
    for blob in blobs:
        parts += [blob, bytes(padded(blob.nbytes) - blob.nbytes)]
    return b"".join(parts)


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
            f"binary has format version {version}; this openhtp reads version {VERSION}",
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


def locate_blobs(buffer: memoryview, begin: int, records: Sequence[BlobRecord]) -> list[int]:
    """Offsets of all blobs; they must fill the file exactly."""
    offset = begin
    offsets = []
    for record in records:
        offsets.append(offset)
        if record.nbytes < 0 or record.nbytes > buffer.nbytes:
            raise BadBinary(f"blob at byte {offset} says it has {record.nbytes} bytes")
        offset += padded(record.nbytes)
    if offset != buffer.nbytes:
        raise BadBinary(f"blobs end at byte {offset}; the binary has {buffer.nbytes}")
    return offsets


def check_blob(buffer: memoryview, offset: int, record: BlobRecord) -> memoryview:
    """The blob's bytes, after checking them."""
    end = offset + padded(record.nbytes)
    if zlib.crc32(buffer[offset:end]) != record.checksum:
        raise BadBinary(f"static data at bytes {offset}..{end} is damaged")
    return buffer[offset : offset + record.nbytes]
