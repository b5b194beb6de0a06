"""Context binaries: several graphs and their metadata in one file, equal data stored once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from openhtp.core.errors import BadBinary, InvalidArgument
from openhtp.core.renamed import renamed_names
from openhtp.core.status import QNN_GRAPH_ERROR_GRAPH_DOES_NOT_EXIST
from openhtp.core.version import VERSION
from openhtp.program import container, records
from openhtp.program.container import FileSection
from openhtp.program.packed import GraphInfo, PackedGraph, pack_program
from openhtp.program.qnn_program import QnnProgram
from openhtp.program.sources import BinarySource, MemorySource

__all__ = [
    "BinaryInfo",
    "ByteRange",
    "ContextBinary",
    "GraphInfo",
    "joined",
    "open_binary",
    "pack_graphs",
    "read_binary",
    "write_binary",
]

__getattr__ = renamed_names(__name__, {"Range": "ByteRange"})


class BinaryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The chip that a binary was made for, and its maker. ``vtcm_mb`` is the VTCM of a core of that chip.

    ``driver`` is the version of the system's driver (HNRD) that made the binary, empty for an app's own libraries.
    """

    soc: str = ""
    soc_model: int = 0
    arch: int = 0
    vtcm_mb: int = 0
    cores: int = 0
    build_id: str = ""
    sdk_version: str = VERSION
    weight_sharing: bool = False
    lora_weight_sharing: bool = False
    extended_udma: bool = False
    driver: str = ""

    @property
    def blob_version(self) -> str:
        """The version of the format."""
        return f"{container.VERSION}.0.0"


class _BinaryHeader(msgspec.Struct, frozen=True):
    info: BinaryInfo
    sections: list[container.SectionRecord]
    graphs: list[records.GraphRecord]


_DECODER = msgspec.msgpack.Decoder(_BinaryHeader)


def write_binary(programs: Sequence[QnnProgram], info: BinaryInfo, *, compact: bool = False) -> bytes:
    """Serialize programs, with nothing prepared; ``compact`` as for ``pack_program``."""
    return b"".join(pack_graphs([pack_program(program, compact=compact)[0] for program in programs], info))


def pack_graphs(graphs: Sequence[PackedGraph], info: BinaryInfo) -> list[bytes | memoryview]:
    """A binary of several graphs, as a list of pieces. Data that graphs have in common is stored for each of them,
    or once if ``info`` says that they share it."""
    names = [graph.name for graph in graphs]
    if not names or len(set(names)) != len(names):
        raise InvalidArgument(f"a binary takes at least one program, and distinct names; given {names}")
    updates = _largest_updates(graphs) if info.lora_weight_sharing else None
    if updates is not None:
        graphs = [_sharing(graph, updates) for graph in graphs]
    pool = _Pool(shared=info.weight_sharing and len(graphs) > 1, updates=updates)
    placed = [pool.numbers(graph) for graph in graphs]
    order = container.order_of([section.nbytes for section in pool.sections])
    new = {old: number for number, old in enumerate(order)}
    header = _BinaryHeader(
        info,
        [pool.sections[old].record for old in order],
        [
            _record(graph, ids, [new[old] for old in places])
            for graph, ids, places in zip(graphs, _all_ids(graphs), placed, strict=True)
        ],
    )
    return container.pack(msgspec.msgpack.encode(header), [pool.sections[old] for old in order])


def _largest_updates(graphs: Sequence[PackedGraph]) -> FileSection | None:
    """The updateable data of the graph that has the most of its own; another's if no graph has its own."""
    having = [graph for graph in graphs if graph.updates is not None]
    owners = [graph for graph in having if not graph.foreign_updates]
    sections = [graph.updates for graph in owners or having if graph.updates is not None]
    return max(sections, key=lambda section: section.nbytes, default=None)


def _sharing(graph: PackedGraph, updates: FileSection) -> PackedGraph:
    """The graph with the updateable data that all have in common."""
    if graph.updates is None or graph.updates is updates:
        return graph
    return replace(graph, updates=updates, foreign_updates=True)


class _Pool:
    """Numbers sections. If graphs share data, equal ones get the same number; within a graph none are equal."""

    def __init__(self, *, shared: bool, updates: FileSection | None) -> None:
        """``updates`` is shared in any case."""
        self.sections: list[FileSection] = []
        self._shared = shared
        self._updates = updates
        self._known: dict[tuple[container.SectionRecord, bytes], int] = {}
        self._places: dict[tuple[int, int], int] = {}

    def numbers(self, graph: PackedGraph) -> list[int]:
        """Numbers of all sections of a graph, in their order."""
        return [
            self._shared_number(section) if self._shared or section is self._updates else self._add(section)
            for section in graph.sections
        ]

    def _shared_number(self, section: FileSection) -> int:
        place = section.place  # sections that graphs of one file share have one place already
        if place not in self._places:
            key = (section.record, container.digest(section.read()))
            if key not in self._known:
                self._known[key] = self._add(section)
            self._places[place] = self._known[key]
        return self._places[place]

    def _add(self, section: FileSection) -> int:
        self.sections.append(section)
        return len(self.sections) - 1


def _all_ids(graphs: Sequence[PackedGraph | records.GraphRecord]) -> list[tuple[int, ...]]:
    """Ids of each graph's inputs and outputs. Graphs without any get those that a context would give them."""
    first = 1 + max((number for graph in graphs for number in graph.ids), default=0)
    completed = []
    for graph in graphs:
        count = 0 if graph.ids else len(graph.ends.inputs) + len(graph.ends.outputs)
        completed.append(tuple(graph.ids) or tuple(range(first, first + count)))
        first += count
    return completed


def _record(graph: PackedGraph, ids: Sequence[int], places: Sequence[int]) -> records.GraphRecord:
    count = 1 + len(graph.blobs)
    rest = iter(places[count:])
    return records.GraphRecord(
        ends=graph.ends,
        checksum=container.joint_checksum(graph.sections),
        program=places[0],
        data=list(places[1:count]),
        prepared=None if graph.prepared is None else next(rest),
        updates=None if graph.updates is None else next(rest),
        foreign_updates=graph.foreign_updates,
        chip=None if graph.chip is None else next(rest),
        seal=graph.seal,
        ids=list(ids),
        static_bytes=graph.static_bytes,
        spill_fill_bytes=graph.spill_fill_bytes,
        vtcm_peak_bytes=graph.vtcm_peak_bytes,
        packages=dict(graph.packages),
    )


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A piece of a file, from ``begin`` up to ``end``."""

    begin: int
    end: int


def joined(pieces: Sequence[ByteRange]) -> list[ByteRange]:
    """The bytes of ``pieces`` in as few ranges as possible; ``pieces`` are in the order of the file."""
    ranges: list[ByteRange] = []
    for byte_range in pieces:
        if ranges and ranges[-1].end == byte_range.begin:
            ranges[-1] = ByteRange(ranges[-1].begin, byte_range.end)
        else:
            ranges.append(byte_range)
    return ranges


class ContextBinary:
    """An opened binary with its metadata. Graphs are built, and their data is checked, on demand."""

    def __init__(self, source: BinarySource) -> None:
        self.source = source
        header, self._begin = container.open_header(source)
        try:
            self._header = _DECODER.decode(header)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise BadBinary(f"header cannot be read: {error}") from error
        self._sections = container.locate_sections(source, self._begin, self._header.sections)
        self._records = {record.ends.name: record for record in self._header.graphs}
        # A binary without ids is read with those that its context will have, as clients use what they read here.
        ids = _all_ids(self._header.graphs)
        self._ids = dict(zip(self._records, ids, strict=False))
        self._packed: dict[str, PackedGraph] = {}
        if not self._records or len(self._records) != len(self._header.graphs):
            raise BadBinary("header lists no graphs, or two of one name")

    @property
    def info(self) -> BinaryInfo:
        """The chip that the binary was made for, and its maker."""
        return self._header.info

    @property
    def graph_names(self) -> tuple[str, ...]:
        """Names of the graphs, in the order they were written."""
        return tuple(self._records)

    @property
    def nbytes(self) -> int:
        """Size of the whole binary."""
        return self.source.nbytes

    @property
    def header_bytes(self) -> int:
        """Size of the part that describes the graphs."""
        return self._begin

    def graph_info(self, name: str) -> GraphInfo:
        """Inputs, outputs and options of a graph, without touching its data."""
        return self.packed(name).info()

    def program(self, name: str) -> QnnProgram:
        """Build one program. Raises BadBinary, with the position, if its part of the file is damaged."""
        return self.packed(name).program()

    def packed(self, name: str) -> PackedGraph:
        """One graph as it is stored, to be loaded, sent on or stored again. Its data is not checked yet."""
        graph = self._packed.get(name)
        if graph is not None:
            return graph
        record = self._record(name)
        prepared = record.prepared
        packed = PackedGraph(
            record.ends,
            self._section(record.program),
            tuple(self._section(number) for number in record.data),
            None if prepared is None else self._section(prepared),
            record.seal,
            self._ids[name],
            record.static_bytes,
            record.spill_fill_bytes,
            record.vtcm_peak_bytes,
            record.packages,
            None if record.updates is None else self._section(record.updates),
            record.foreign_updates,
            None if record.chip is None else self._section(record.chip),
        )
        if container.joint_checksum(packed.sections) != record.checksum:
            raise BadBinary(
                f"graph {name!r} refers to other sections than it was made with: the binary is damaged; make it"
                " again from its model"
            )
        self._packed[name] = packed
        return packed

    def data_of(self, name: str) -> list[int]:
        """Numbers, in the whole binary, of the stored data of ``packed(name)``: graphs may share some."""
        record = self._record(name)
        return record.data if record.updates is None else [*record.data, record.updates]

    def ranges(self, names: Sequence[str]) -> list[ByteRange]:
        """The parts of the file that these graphs need, the header first; shared parts appear once."""
        numbers = {
            number
            for record in map(self._record, names)
            for number in (record.program, record.prepared, record.updates, record.chip, *record.data)
            if number is not None
        }
        bounds = sorted((section.begin, section.end) for section in map(self._section, numbers))
        return [ByteRange(0, self._begin), *(ByteRange(begin, end) for begin, end in bounds)]

    def _section(self, number: int) -> FileSection:
        if number >= len(self._sections):
            raise BadBinary(f"header refers to section {number} of {len(self._sections)}")
        return self._sections[number]

    def _record(self, name: str) -> records.GraphRecord:
        try:
            return self._records[name]
        except KeyError:
            raise InvalidArgument(
                f"binary holds no graph {name!r}; it has {', '.join(self._records)}",
                QNN_GRAPH_ERROR_GRAPH_DOES_NOT_EXIST,
            ) from None


def open_binary(source: BinarySource) -> ContextBinary:
    """Open a context binary from any source. Raises BadBinary with the position of an error."""
    return ContextBinary(source)


def read_binary(buffer: bytes | bytearray | memoryview) -> ContextBinary:
    """Open a context binary in memory, which must not change while graphs from it live."""
    return ContextBinary(MemorySource(buffer))
