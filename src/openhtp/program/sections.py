"""Binary sections: the exchangeable parts of a graph, apart from the graph. One adapter of a network, say.

::

    magic 8s | version u32 | checksum u32 | header bytes u64 | MessagePack | data of each tensor, in its order

A section has the data of updateable static tensors, or the encodings of all updateable fixed-point tensors, or
both. The checksum is the CRC-32 of all that follows it. It finds accidents and proves nothing about the writer.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.core.errors import BadBinary, InvalidArgument
from openhtp.core.quant import Encoding
from openhtp.core.status import QNN_CONTEXT_ERROR_BINARY_VERSION, QNN_CONTEXT_ERROR_INVALID_ARGUMENT
from openhtp.core.tensor import TensorSpec
from openhtp.program.records import PerAxis, Scalar, build_encoding, record_encoding

Array = npt.NDArray[Any]

_MAGIC = b"OHTPSECT"
# 2: per-channel encodings are packed numbers.
_VERSION = 2
_HEAD = struct.Struct("<8sIIQ")
# Bytes of a file that ``is_section`` has to see.
SECTION_HEAD = len(_MAGIC)


class _SectionTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    dtype: int
    shape: list[int]
    quant: Scalar | PerAxis | None = None
    has_data: bool = True


class _SectionHeader(msgspec.Struct, frozen=True):
    graph: str
    tensors: list[_SectionTensor]
    # Further graphs of the same context with the same tensors.
    others: list[str] = []


_DECODER = msgspec.msgpack.Decoder(_SectionHeader)


@dataclass(frozen=True, slots=True)
class TensorSection:
    """The content of a section, by tensor."""

    data: dict[str, Array]
    encodings: dict[str, Encoding]


def pack_section(
    graph: str,
    specs: Sequence[TensorSpec],
    data: Mapping[str, Array],
    encodings: Mapping[str, Encoding] | None = None,
    *,
    others: Sequence[str] = (),
) -> bytes:
    """A section of these tensors of a graph, with the data, the encoding or both of each, as given.

    ``others`` are further graphs that the section can be applied to: they have the same updateable tensors.
    """
    encodings = encodings or {}
    tensors = [
        _SectionTensor(
            spec.name,
            spec.dtype.value,
            list(spec.shape),
            record_encoding(encodings.get(spec.name)),
            spec.name in data,
        )
        for spec in specs
        if spec.name in data or spec.name in encodings
    ]
    stored = [np.ascontiguousarray(data[tensor.name]).tobytes() for tensor in tensors if tensor.has_data]
    return _sealed(_SectionHeader(graph, tensors, list(others)), *stored)


def is_section(head: bytes | memoryview) -> bool:
    """Whether a file that begins so is a binary section."""
    return bytes(head[: len(_MAGIC)]) == _MAGIC


def section_graphs(section: bytes) -> tuple[str, ...]:
    """Names of the graphs that a section can be applied to. Raises BadBinary for a damaged section."""
    nbytes = _header_bytes(memoryview(section), validate=True)
    header = _decoded(section[_HEAD.size : _HEAD.size + nbytes])
    return (header.graph, *header.others)


def section_for(section: bytes, graph: str) -> bytes:
    """A section for another graph with the same updateable tensors: one that has the same weights.

    Whether the tensors are the same is checked when the section is applied.
    """
    nbytes = _header_bytes(memoryview(section), validate=True)
    header = _decoded(section[_HEAD.size : _HEAD.size + nbytes])
    return _sealed(_SectionHeader(graph, header.tensors), section[_HEAD.size + nbytes :])


def _sealed(content: _SectionHeader, *data: bytes) -> bytes:
    """Header and data of a section behind their checksum."""
    header = msgspec.msgpack.encode(content)
    checksum = zlib.crc32(struct.pack("<Q", len(header)))
    for part in (header, *data):
        checksum = zlib.crc32(part, checksum)
    return b"".join((_HEAD.pack(_MAGIC, _VERSION, checksum, len(header)), header, *data))


def read_section(
    buffer: bytes | bytearray | memoryview, graph: str, specs: Sequence[TensorSpec], *, validate: bool
) -> TensorSection:
    """A section for a graph with these updateable tensors; its data are views into the buffer.

    ``validate=False`` leaves out the checksum and nothing else. Raises BadBinary for a damaged section, and
    InvalidArgument for another graph's section.
    """
    view = memoryview(buffer).cast("B")
    nbytes = _header_bytes(view, validate=validate)
    header = _decoded(bytes(view[_HEAD.size : _HEAD.size + nbytes]))
    _check_ends(header, graph, specs)
    return TensorSection(_arrays(view, _HEAD.size + nbytes, header, specs), _encodings(header))


def _header_bytes(view: memoryview, *, validate: bool) -> int:
    """The length of a section's header, after a check that the section seems whole."""
    if view.nbytes < _HEAD.size:
        raise BadBinary(f"binary section of {view.nbytes} bytes is shorter than its {_HEAD.size}-byte head")
    magic, version, checksum, nbytes = _HEAD.unpack_from(view)
    if magic != _MAGIC:
        raise BadBinary(f"binary section starts with {magic!r}; expected {_MAGIC!r} (from get_binary_section)")
    if version != _VERSION:
        raise BadBinary(
            f"binary section has version {version}; this openhtp reads {_VERSION}: make it again",
            QNN_CONTEXT_ERROR_BINARY_VERSION,
        )
    if nbytes > view.nbytes - _HEAD.size:
        raise BadBinary(f"binary section of {view.nbytes} bytes says that its header has {nbytes} (truncated?)")
    if validate and zlib.crc32(view[_HEAD.size - 8 :]) != checksum:
        raise BadBinary("binary section does not match its checksum; it is damaged")
    return int(nbytes)


def _decoded(header: bytes) -> _SectionHeader:
    try:
        return _DECODER.decode(header)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadBinary(f"header of the binary section cannot be read: {error}") from error


def _check_ends(header: _SectionHeader, graph: str, specs: Sequence[TensorSpec]) -> None:
    """Check that a section has the data of all static tensors or of none, and the encodings of all or of none."""
    known = {spec.name: (spec.name, spec.dtype.value, spec.shape) for spec in specs}
    tensors = [(tensor.name, tensor.dtype, tuple(tensor.shape)) for tensor in header.tensors]
    with_data = [tensor.name for tensor in header.tensors if tensor.has_data]
    encoded = [tensor.name for tensor in header.tensors if tensor.quant is not None]
    fits = (
        graph in (header.graph, *header.others)
        and all(item == known.get(item[0]) for item in tensors)
        and with_data in ([], [spec.name for spec in specs if spec.kind.is_static])
        and encoded in ([], [spec.name for spec in specs if spec.quant is not None])
        and set(with_data) | set(encoded) == {name for name, _, _ in tensors} != set()
    )
    if not fits:
        raise InvalidArgument(
            f"the binary section is for graph {header.graph!r} with {_listed(tensors)}; graph {graph!r} has"
            f" {_listed(list(known.values()))}",
            QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
        )


def _encodings(header: _SectionHeader) -> dict[str, Encoding]:
    try:
        built = {tensor.name: build_encoding(tensor.name, tensor.shape, tensor.quant) for tensor in header.tensors}
    except InvalidArgument as error:
        raise BadBinary(f"binary section holds an invalid encoding: {error.message}") from error
    return {name: encoding for name, encoding in built.items() if encoding is not None}


def _arrays(view: memoryview, begin: int, header: _SectionHeader, specs: Sequence[TensorSpec]) -> dict[str, Array]:
    by_name = {spec.name: spec for spec in specs}
    arrays: dict[str, Array] = {}
    for spec in (by_name[tensor.name] for tensor in header.tensors if tensor.has_data):
        end = begin + math.prod(spec.shape) * spec.dtype.itemsize
        if end > view.nbytes:
            raise BadBinary(f"binary section ends in the data of tensor {spec.name!r} (truncated?)")
        arrays[spec.name] = np.frombuffer(view[begin:end], spec.dtype.numpy).reshape(spec.shape)
        begin = end
    if begin != view.nbytes:
        raise BadBinary(f"binary section has {view.nbytes - begin} bytes too many")
    return arrays


def _listed(tensors: Sequence[tuple[str, int, tuple[int, ...]]]) -> str:
    words = [f"{name}: {_type_name(dtype)}{list(shape)}" for name, dtype, shape in tensors[:4]]
    more = len(tensors) - len(words)
    return ("updateable tensors " + ", ".join(words) + (f" and {more} more" if more else "")) if words else "none"


def _type_name(number: int) -> str:
    return DType(number).short if number in DType._value2member_map_ else f"type {number} "
