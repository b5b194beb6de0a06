"""Context binaries: several programs and their metadata in one buffer, equal static data stored once."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from openhtp.core.errors import BadBinary, InvalidArgument, QnnError, error_context
from openhtp.core.status import QNN_GRAPH_ERROR_GRAPH_DOES_NOT_EXIST
from openhtp.core.tensor import TensorSpec
from openhtp.program import container, records
from openhtp.program.options import GraphOptions
from openhtp.program.program import Program, verify_order

Array = npt.NDArray[Any]


class BinaryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """For which chip and by what a binary was made, and the ids of its tensors by graph and name."""

    soc: str = ""
    soc_model: int = 0
    arch: int = 0
    blob_version: str = "1.0.0"
    build_id: str = ""
    tensor_ids: dict[str, dict[str, int]] = {}


class _Header(msgspec.Struct, frozen=True):
    info: BinaryInfo
    blobs: list[container.BlobRecord]
    programs: list[records.ProgramRecord]


_DECODER = msgspec.msgpack.Decoder(_Header)


@dataclass(frozen=True, slots=True)
class GraphInfo:
    """What a binary says about one graph without loading it."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    options: GraphOptions
    static_bytes: int


def write_binary(programs: Sequence[Program], info: BinaryInfo) -> bytes:
    """Serialize programs. Static tensors with the same bytes are stored once, across programs."""
    names = [program.name for program in programs]
    if not names or len(set(names)) != len(names):
        raise InvalidArgument(f"a binary takes at least one program, of distinct names; given {names}")
    blobs: list[memoryview] = []
    by_digest: dict[bytes, int] = {}
    by_identity: dict[int, int] = {}
    rows: list[records.ProgramRecord] = []
    for program in programs:
        numbers: dict[str, int] = {}
        for name, data in program.statics.items():
            if id(data) not in by_identity:
                view = np.asarray(data, order="C").reshape(-1).view(np.uint8).data
                digest = hashlib.blake2b(view, digest_size=16).digest()
                if digest not in by_digest:
                    by_digest[digest] = len(blobs)
                    blobs.append(view)
                by_identity[id(data)] = by_digest[digest]
            numbers[name] = by_identity[id(data)]
        rows.append(records.record_program(program, numbers))
    header = _Header(info, [container.record_blob(blob) for blob in blobs], rows)
    return container.pack(msgspec.msgpack.encode(header), blobs)


class ContextBinary:
    """An opened binary. Programs are built, and their data checked, when asked for.

    The buffer must stay as it is while programs from it live: their weights are views into it.
    """

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        header, blobs_begin = container.open_header(buffer)
        self._header = _decode(header)
        self._offsets = container.locate_blobs(buffer, blobs_begin, self._header.blobs)
        self._records = {record.name: record for record in self._header.programs}
        if not self._records or len(self._records) != len(self._header.programs):
            raise BadBinary("header lists no programs, or two of one name")

    @property
    def info(self) -> BinaryInfo:
        """For which chip and by what the binary was made."""
        return self._header.info

    @property
    def graph_names(self) -> tuple[str, ...]:
        """Names of the graphs, in the order they were written."""
        return tuple(self._records)

    @property
    def nbytes(self) -> int:
        """Size of the whole binary."""
        return self._buffer.nbytes

    def graph_info(self, name: str) -> GraphInfo:
        """Inputs, outputs and options of a graph, without touching its data."""
        record = self._record(name)
        with error_context(graph=name), _as_bad_binary():
            specs = tuple(records.tensor_specs(record).values())
            options = records.build_program(record, {}).options
        used = {tensor.blob for tensor in record.tensors if tensor.blob is not None}
        return GraphInfo(
            name=name,
            inputs=tuple(spec for spec in specs if spec.kind.is_input),
            outputs=tuple(spec for spec in specs if spec.kind.is_output),
            options=options,
            static_bytes=sum(self._header.blobs[blob].nbytes for blob in used if blob < len(self._offsets)),
        )

    def program(self, name: str) -> Program:
        """Build one program. Raises BadBinary with the place when its part of the file is damaged."""
        record = self._record(name)
        with error_context(graph=name), _as_bad_binary():
            statics = {tensor.name: self._static(tensor) for tensor in record.tensors if tensor.blob is not None}
            program = records.build_program(record, statics)
            verify_order(program)
        return program

    def _record(self, name: str) -> records.ProgramRecord:
        try:
            return self._records[name]
        except KeyError:
            raise InvalidArgument(
                f"binary holds no graph {name!r}; it has {', '.join(self._records)}",
                QNN_GRAPH_ERROR_GRAPH_DOES_NOT_EXIST,
            ) from None

    def _static(self, tensor: records.TensorRecord) -> Array:
        spec = records.tensor_spec(tensor)
        if tensor.blob is None or tensor.blob >= len(self._offsets):
            raise BadBinary(f"tensor {tensor.name!r} refers to blob {tensor.blob} of {len(self._offsets)}")
        blob = self._header.blobs[tensor.blob]
        if math.prod(spec.shape) * spec.dtype.itemsize != blob.nbytes:
            raise BadBinary(f"tensor {spec} takes {spec.nbytes} bytes; its blob has {blob.nbytes}")
        data = container.check_blob(self._buffer, self._offsets[tensor.blob], blob)
        array = np.frombuffer(data, spec.dtype.numpy).reshape(spec.shape)
        array.flags.writeable = False
        return array


def read_binary(buffer: bytes | bytearray | memoryview) -> ContextBinary:
    """Open a context binary. Raises BadBinary with the place that is wrong."""
    return ContextBinary(memoryview(buffer).cast("B"))


def _decode(header: bytes) -> _Header:
    try:
        return _DECODER.decode(header)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadBinary(f"header cannot be read: {error}") from error


@contextlib.contextmanager
def _as_bad_binary() -> Iterator[None]:
    """Any complaint about what a file holds is the file's fault."""
    try:
        yield
    except BadBinary:
        raise
    except QnnError as error:
        raise BadBinary(f"binary holds something invalid: {error.message}") from error
