"""A graph as it is stored: its inputs and outputs, its program, the program's numbered data, and an engine's
prepared form.

Data is numbered in the order in which the program first names it, that of the prepared form last. So a graph has
one packed form, whatever else is in the same file. Data below a page has no number: it is in the program itself.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.dtype import DType
from openhtp.core.errors import BadBinary, QnnError, error_context
from openhtp.core.precision import FloatPrecision, half_rounded
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ops import PACKAGE, require_package
from openhtp.ops._packages import OpPackage, find_package
from openhtp.options import GRAPH, Changeable, OptionValues
from openhtp.program import records
from openhtp.program.arranging import arrange, by_trait, find_arrangement
from openhtp.program.chip_program import ChipProgram, read_chip_program
from openhtp.program.coding import CodedData, Coding, halved, nibbles, plain
from openhtp.program.container import PAGE, SMALL, FileSection, digest, make_section
from openhtp.program.qnn_program import QnnProgram, frozen_array, verify_program

Array = npt.NDArray[Any]

_DECODER = msgspec.msgpack.Decoder(records.ProgramRecord)
_CHANGED_LATER = frozenset(row.name for row in GRAPH.rows if row.changes is Changeable.BEFORE_EXECUTION)
# Stored for a graph that leaves the number of its HVX threads open.
_THREADS_STORED = 4
# Stands for the section of updateable data among numbers of blobs.
_UPDATES = -1


@dataclass(frozen=True, slots=True)
class GraphInfo:
    """A binary's description of one graph, known without loading it."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    options: OptionValues
    static_bytes: int
    updateables: tuple[TensorSpec, ...] = ()

    @property
    def hvx_threads(self) -> int:
        """The stored number of HVX threads."""
        return self.options.hvx_threads or _THREADS_STORED

    @property
    def updateable_statics(self) -> tuple[TensorSpec, ...]:
        """The updateable tensors that have data."""
        return tuple(spec for spec in self.updateables if spec.kind.is_static)


@dataclass(frozen=True, slots=True)
class PackedGraph:
    """A graph that can be stored or sent. Its sections may be parts of a file and are not checked yet."""

    ends: records.EndsRecord
    words: FileSection
    blobs: tuple[FileSection, ...]
    prepared: FileSection | None = None
    seal: bytes = b""
    ids: tuple[int, ...] = ()
    static_bytes: int = 0
    spill_fill_bytes: int = 0
    vtcm_peak_bytes: int | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    updates: FileSection | None = None
    foreign_updates: bool = False
    chip: FileSection | None = None
    _told: list[GraphInfo] = field(default_factory=list, init=False, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Name of the graph."""
        return self.ends.name

    @property
    def tensor_ids(self) -> dict[str, int]:
        """Ids of inputs and outputs by name; empty if it has none yet."""
        ends = (*self.ends.inputs, *self.ends.outputs)
        return {tensor.name: number for tensor, number in zip(ends, self.ids, strict=False)}

    @property
    def sections(self) -> tuple[FileSection, ...]:
        """All its parts that are not in a header."""
        others = (self.prepared, self.updates, self.chip)
        return (self.words, *self.blobs, *(section for section in others if section is not None))

    @property
    def stored_data(self) -> tuple[FileSection, ...]:
        """Its weights: those that are fixed, and those of updateable tensors."""
        return self.blobs if self.updates is None else (*self.blobs, self.updates)

    @property
    def nbytes(self) -> int:
        """Bytes of its sections."""
        return sum(section.nbytes for section in self.sections)

    def info(self) -> GraphInfo:
        """Inputs, outputs and options, without touching any data. Loading asks for it several times."""
        if not self._told:
            with error_context(graph=self.name), _as_bad_binary():
                info = GraphInfo(
                    name=self.name,
                    inputs=records.end_specs(self.ends.inputs),
                    outputs=records.end_specs(self.ends.outputs),
                    options=records.build_options(self.ends),
                    static_bytes=self.static_bytes,
                    updateables=records.end_specs(self.ends.updateables),
                )
            self._told.append(info)
        return self._told[0]

    def record(self) -> records.ProgramRecord:
        """The program's record, checked against its checksum only. Raises BadBinary if there is none."""
        with error_context(graph=self.name):
            return self._decoded(self.words.checked(f"the program of graph {self.name!r}"))

    def _decoded(self, words: memoryview) -> records.ProgramRecord:
        try:
            return _DECODER.decode(words)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise BadBinary(f"the program of graph {self.name!r} cannot be read: {error}") from error

    def program(self) -> QnnProgram:
        """Build the program. Raises BadBinary, with the position, if its part of the file is damaged."""
        with error_context(graph=self.name), _as_bad_binary():
            check_packages(self.packages, find_package)
            record = self.record()
            _check_named(self.packages, record)
            # Equal data is one section, whatever its use: it is read and checked once.
            blobs_read: dict[int, memoryview] = {}
            statics = {
                tensor.name: self._static(tensor, blobs_read)
                for tensor in record.tensors
                if any(place is not None for place in (tensor.blob, tensor.data, tensor.update))
            }
            program = records.build_program(self.ends, record, statics)
            verify_program(program)
            if program.static_bytes != self.static_bytes:
                raise BadBinary(f"data has {program.static_bytes} bytes; the header says {self.static_bytes}")
        return program

    def check_rest(self) -> None:
        """Check the parts that ``program`` does not: raises BadBinary if the prepared form is damaged."""
        if self.prepared is not None:
            self.prepared.checked(f"the prepared form of graph {self.name!r}")
        if self.updates is not None:
            self.updates.checked(f"data of updateable tensors of graph {self.name!r}")
        self.chip_program()
        used = {tensor.blob for tensor in self.record().tensors}
        for number, blob in enumerate(self.blobs):
            if number not in used:
                blob.checked(f"data {number} of graph {self.name!r}")

    def chip_program(self) -> ChipProgram | None:
        """The program of the chip that the graph was compiled for, None if it was for none. Raises BadBinary."""
        if self.chip is None:
            return None
        with error_context(graph=self.name):
            return read_chip_program(self.chip.checked(f"the chip's program of graph {self.name!r}"))

    def identity(self) -> bytes:
        """A hash of the program and of its ends, as they are in the file now.

        Options that may change until the first execution do not belong to a program's identity.
        """
        fixed = {name: value for name, value in self.ends.options.items() if name not in _CHANGED_LATER}
        ends = msgspec.msgpack.encode(msgspec.structs.replace(self.ends, options=fixed))
        return digest(memoryview(digest(self.words.read()) + ends))

    def updateable_data(self) -> dict[str, Array]:
        """Data of the tensors that may be exchanged later. Raises BadBinary if it is damaged."""
        with error_context(graph=self.name), _as_bad_binary():
            blobs_read: dict[int, memoryview] = {}
            return {
                tensor.name: self._static(tensor, blobs_read)
                for tensor in self.record().tensors
                if tensor.kind == TensorKind.UPDATEABLE_STATIC
            }

    def _static(self, tensor: records.TensorRecord, blobs_read: dict[int, memoryview]) -> Array:
        spec, number = records.tensor_spec(tensor), tensor.blob
        if tensor.data is not None:
            return arrange(memoryview(tensor.data), spec, None)
        if tensor.update is not None:
            return self._update(spec, tensor.update, blobs_read)
        if number is None or number >= len(self.blobs):
            raise BadBinary(f"tensor {tensor.name!r} has data number {number}; there are {len(self.blobs)}")
        blob = self.blobs[number]
        if math.prod(spec.shape) * spec.dtype.itemsize > blob.data_bytes:
            raise BadBinary(f"tensor {spec} takes {spec.nbytes} bytes; its data has {blob.data_bytes}")
        if number not in blobs_read:
            blobs_read[number] = blob.decoded(blob.checked(f"static data of tensor {tensor.name!r}"))
        return arrange(blobs_read[number], spec, tensor.stored)

    def _update(self, spec: TensorSpec, begin: int, blobs_read: dict[int, memoryview]) -> Array:
        """Data of an updateable tensor; zeros if its memory holds another graph's data."""
        nbytes = math.prod(spec.shape) * spec.dtype.itemsize
        if self.updates is None or begin + nbytes > self.updates.nbytes:
            raise BadBinary(f"tensor {spec} is at byte {begin} of the updateable data, which ends before it does")
        if self.foreign_updates:
            return frozen_array(np.zeros(spec.shape, spec.dtype.numpy))
        if _UPDATES not in blobs_read:
            blobs_read[_UPDATES] = self.updates.checked(f"data of updateable tensors of graph {self.name!r}")
        return arrange(blobs_read[_UPDATES][begin : begin + nbytes], spec, None)


class _NumberedData:
    """The data of one graph, each piece once, in the order in which it is first named."""

    def __init__(self, *, halves: bool, packs: bool) -> None:
        """``halves``: floats may be stored in half precision; ``packs``: bytes may be stored in 4 bits."""
        self.blobs: list[FileSection] = []
        self._halves, self._packs = halves, packs
        self._known: dict[tuple[Coding, int, bytes], int] = {}
        # With the array itself, so that no other array gets its identity.
        self._by_identity: dict[int, tuple[Array, int]] = {}

    def number(self, data: Array) -> int:
        """The number of a piece."""
        if id(data) not in self._by_identity:
            coded = self._coded(data)
            key = coded.coding, coded.lowest, digest(coded.stored)
            if key not in self._known:
                self._known[key] = len(self.blobs)
                self.blobs.append(make_section(coded))
            self._by_identity[id(data)] = data, self._known[key]
        return self._by_identity[id(data)][1]

    def _coded(self, data: Array) -> CodedData:
        coded = None
        if self._halves and data.dtype == np.float32 and data.nbytes >= PAGE:
            coded = halved(data)
        elif self._packs and data.dtype.itemsize == 1 and data.dtype.kind in "iu":
            coded = nibbles(data)
        return coded or plain(data)


class UpdateableData:
    """The data of a graph's updateable tensors, one after the other in a section of their own."""

    def __init__(self) -> None:
        self.begins: dict[str, int] = {}
        self._pieces: list[bytes] = []
        self._end = 0

    def add(self, name: str, data: Array) -> None:
        """Append the data of a tensor, where a vector can be loaded at once."""
        padding = -self._end % SMALL
        self._pieces += [bytes(padding), data.tobytes()]
        self.begins[name] = self._end + padding
        self._end = self.begins[name] + data.nbytes

    def section(self) -> FileSection | None:
        """The section; None if there are no updateable tensors with data."""
        return make_section(b"".join(self._pieces)) if self.begins else None


def pack_program(
    program: QnnProgram,
    extra: Sequence[Array] = (),
    lies_in: Mapping[str, tuple[Array, records.Arrangement]] | None = None,
    *,
    compact: bool = False,
) -> tuple[PackedGraph, list[int]]:
    """Pack a program with arrays that an engine wants stored beside it; also returns the arrays' numbers.

    ``lies_in`` names, for some static tensors, the array that holds them and its arrangement.
    Equal data is stored once. So is a static tensor whose data is one of the arrays in another arrangement, even
    if the array is rounded to half precision: computations round the data likewise. The array is then stored.
    A ``compact`` form is for a file: floats that are computed with in half precision are stored in it, and weights
    that need 4 bits in these, if the graph's options ask for it.
    """
    in_halves = _used_in_halves(program) if compact or extra else frozenset()
    numbered = _NumberedData(
        halves=compact and program.options.precision is FloatPrecision.FLOAT16,
        packs=compact and program.options.weights_packing,
    )
    candidates = by_trait(extra)
    numbers: dict[str, int] = {}
    stored: dict[str, records.Arrangement] = {}
    small: dict[str, bytes] = {}
    updates = UpdateableData()
    for name, spec in program.tensors.items():
        data = program.statics.get(name)
        if data is None:
            continue
        if spec.kind is TensorKind.UPDATEABLE_STATIC:
            updates.add(name, data)
            continue
        arrangement = (lies_in or {}).get(name)
        if arrangement is None and data.nbytes < PAGE:
            small[name] = data.tobytes()
            continue
        if arrangement is None:
            arrangement = find_arrangement(data, candidates)
        if name in in_halves:
            data = half_rounded(data)
            arrangement = arrangement or find_arrangement(data, candidates)
        if arrangement is not None:
            data, stored[name] = arrangement
        numbers[name] = numbered.number(data)
    places = [numbered.number(array) for array in extra]
    record = records.record_program(program, numbers, stored, small, updates.begins)
    packed = PackedGraph(
        records.record_ends(program),
        make_section(msgspec.msgpack.encode(record)),
        tuple(numbered.blobs),
        static_bytes=program.static_bytes,
        packages=packages_of(program),
        updates=updates.section(),
    )
    return packed, places


def packages_of(program: QnnProgram) -> dict[str, str]:
    """The versions of the users' op packages that a program uses."""
    names = sorted({node.package for node in program.nodes} - {PACKAGE})
    return {name: require_package(name).version for name in names}


def check_packages(packages: Mapping[str, str], find: Callable[[str], OpPackage | None]) -> None:
    """Raise BadBinary for a package that is not registered, or in another version than the graph was made with."""
    for name, version in packages.items():
        package = find(name)
        if package is None:
            raise BadBinary(
                f"the graph has operators of op package {name!r} {version}, which is not registered; register it"
                " before the binary is loaded (backend.register_op_package)",
                st.QNN_CONTEXT_ERROR_BINARY_CONFIGURATION,
            )
        if package.version != version:
            raise BadBinary(
                f"the graph was made with version {version} of op package {name!r}, and {package.version} is"
                " registered; register that version, or make the binary again",
                st.QNN_CONTEXT_ERROR_BINARY_VERSION,
            )


def _check_named(packages: Mapping[str, str], record: records.ProgramRecord) -> None:
    unnamed = {node.package for node in record.nodes}.difference(packages, (PACKAGE,))
    if unnamed:
        raise BadBinary(f"nodes come from op packages that the header does not name: {sorted(unnamed)}")


def pack_ends(name: str, ends: Sequence[tuple[TensorSpec, int]], *, prepared: bytes, seal: bytes) -> PackedGraph:
    """A graph without a program: only its ends, with their ids, and its prepared form are known."""
    inputs = [end for end in ends if end[0].kind.is_input]
    outputs = [end for end in ends if end[0].kind.is_output]
    return PackedGraph(
        records.ends_of(name, [spec for spec, _ in inputs], [spec for spec, _ in outputs], GRAPH.defaults()),
        make_section(b""),
        (),
        prepared=make_section(prepared),
        seal=seal,
        ids=tuple(number for _, number in (*inputs, *outputs)),
    )


def _used_in_halves(program: QnnProgram) -> frozenset[str]:
    """Float constants, which every use rounds to half precision before computing."""
    if program.options.precision is not FloatPrecision.FLOAT16:
        return frozenset()
    return frozenset(
        name
        for name, spec in program.tensors.items()
        if spec.kind is TensorKind.STATIC and spec.dtype is DType.FLOAT_32
    )


@contextlib.contextmanager
def _as_bad_binary() -> Iterator[None]:
    """Turn any error about a file's content into BadBinary: the file is at fault."""
    try:
        yield
    except BadBinary:
        raise
    except QnnError as error:
        raise BadBinary(f"binary holds something invalid: {error.message}") from error
