"""Context binaries: several graphs and their metadata in one buffer, equal static data stored once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from openhtp.core.errors import BadBinary, InvalidArgument
from openhtp.core.status import QNN_GRAPH_ERROR_GRAPH_DOES_NOT_EXIST
from openhtp.program import container, records
from openhtp.program.packed import GraphInfo, PackedGraph, pack_program, renumbered, with_numbers
from openhtp.program.qnn_program import QnnProgram

__all__ = ["BinaryInfo", "ContextBinary", "GraphInfo", "pack_graphs", "read_binary", "write_binary"]


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
    prepared: dict[str, records.PreparedRecord] = {}


_DECODER = msgspec.msgpack.Decoder(_Header)


def write_binary(programs: Sequence[QnnProgram], info: BinaryInfo) -> bytes:
    """Serialize programs, with nothing prepared."""
    return b"".join(pack_graphs([pack_program(program)[0] for program in programs], info))


def pack_graphs(graphs: Sequence[PackedGraph], info: BinaryInfo) -> list[bytes | memoryview]:
    """A binary of several graphs, as the pieces that it consists of. Equal data is stored once, across graphs."""
    names = [graph.name for graph in graphs]
    if not names or len(set(names)) != len(names):
        raise InvalidArgument(f"a binary takes at least one program, of distinct names; given {names}")
    blobs: list[container.Blob] = []
    known: dict[bytes, int] = {}
    placed: list[PackedGraph] = []
    for graph in graphs:
        new: dict[int, int] = {}
        for number, blob in enumerate(graph.blobs):
            # A graph's own blobs are all different: only several graphs have anything to share.
            digest = blob.digest if len(graphs) > 1 else b""
            if digest and digest in known:
                new[number] = known[digest]
                continue
            new[number] = known[digest] = len(blobs)
            blobs.append(blob)
        placed.append(with_numbers(graph, new, ()))
    return _pack(info, placed, blobs)


class ContextBinary:
    """An opened binary. Graphs are built, and their data checked, when asked for.

    The buffer must stay as it is while graphs from it live: their weights are views into it.
    """

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        header, blobs_begin = container.open_header(buffer)
        self._header = _decode(header)
        self._blobs = tuple(container.locate_blobs(buffer, blobs_begin, self._header.blobs))
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
        return self.packed(name).info()

    def program(self, name: str) -> QnnProgram:
        """Build one program. Raises BadBinary with the place when its part of the file is damaged."""
        return self.packed(name).program()

    def packed(self, name: str) -> PackedGraph:
        """One graph as it is stored, to be sent on or stored again. Its data is not checked yet."""
        return renumbered(self._stored(name))

    def blobs_of(self, name: str) -> list[int]:
        """Numbers, in the whole binary, of the blobs of ``packed(name)``: equal ones are shared between graphs."""
        return self._stored(name).blob_order()

    def parts(self, names: Sequence[str]) -> list[bytes | memoryview]:
        """These graphs as a binary of their own, as the pieces that it consists of.

        What they share is still stored once; that takes no comparing, as they name it by the same number.
        """
        graphs = [self._stored(name) for name in names]
        order = dict.fromkeys(old for graph in graphs for old in graph.blob_order())
        new = {old: number for number, old in enumerate(order)}
        blobs = [self._blobs[old] for old in order]
        return _pack(BinaryInfo(), [with_numbers(graph, new, ()) for graph in graphs], blobs)

    def _stored(self, name: str) -> PackedGraph:
        try:
            record = self._records[name]
        except KeyError:
            raise InvalidArgument(
                f"binary holds no graph {name!r}; it has {', '.join(self._records)}",
                QNN_GRAPH_ERROR_GRAPH_DOES_NOT_EXIST,
            ) from None
        return PackedGraph(record, self._blobs, self._header.prepared.get(name))


def read_binary(buffer: bytes | bytearray | memoryview) -> ContextBinary:
    """Open a context binary. Raises BadBinary with the place that is wrong."""
    return ContextBinary(memoryview(buffer).cast("B"))


def _pack(
    info: BinaryInfo, graphs: Sequence[PackedGraph], blobs: Sequence[container.Blob]
) -> list[bytes | memoryview]:
    """The pieces of a binary whose graphs have these blobs by number."""
    prepared = {graph.name: graph.prepared for graph in graphs if graph.prepared is not None}
    header = _Header(info, [blob.record for blob in blobs], [graph.record for graph in graphs], prepared)
    return container.pack(msgspec.msgpack.encode(header), blobs)


def _decode(header: bytes) -> _Header:
    try:
        return _DECODER.decode(header)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadBinary(f"header cannot be read: {error}") from error
