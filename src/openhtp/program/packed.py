"""A graph as it is stored: its record, the blobs that the record numbers, and what an engine prepared from it.

Blobs are numbered in the order in which the record first names them, those of the prepared form last. So a graph
has one packed form, whatever else is in the same file.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from openhtp.core.errors import BadBinary, QnnError, error_context
from openhtp.core.tensor import TensorSpec
from openhtp.options import Values
from openhtp.program import records
from openhtp.program.arranging import arrange, by_trait, find_arrangement
from openhtp.program.container import Blob, make_blob
from openhtp.program.qnn_program import QnnProgram, verify_program

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class GraphInfo:
    """What a binary says about one graph without loading it."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    options: Values
    static_bytes: int


@dataclass(frozen=True, slots=True)
class PackedGraph:
    """A graph that can be stored or sent. Its blobs may be views into a file and are not checked yet."""

    record: records.ProgramRecord
    blobs: tuple[Blob, ...]
    prepared: records.PreparedRecord | None = None

    @property
    def name(self) -> str:
        """Name of the graph."""
        return self.record.name

    @property
    def spill_fill_bytes(self) -> int:
        """The spill-fill buffer that it was prepared with; nothing is known of a graph that was not prepared."""
        return 0 if self.prepared is None else self.prepared.spill_fill_bytes

    def blob_order(self) -> list[int]:
        """Numbers of its blobs, in the one order. Raises BadBinary if one does not exist."""
        named = [tensor.blob for tensor in self.record.tensors if tensor.blob is not None]
        order = list(dict.fromkeys([*named, *(self.prepared.blobs if self.prepared else ())]))
        if order and max(order) >= len(self.blobs):
            raise BadBinary(f"graph {self.name!r} refers to blob {max(order)} of {len(self.blobs)}")
        return order

    def info(self) -> GraphInfo:
        """Inputs, outputs and options, without touching any data."""
        with error_context(graph=self.name), _as_bad_binary():
            specs = tuple(records.tensor_specs(self.record).values())
            options = records.build_options(self.record)
        used = {tensor.blob for tensor in self.record.tensors if tensor.blob is not None}
        return GraphInfo(
            name=self.name,
            inputs=tuple(spec for spec in specs if spec.kind.is_input),
            outputs=tuple(spec for spec in specs if spec.kind.is_output),
            options=options,
            static_bytes=sum(self.blobs[number].record.nbytes for number in used),
        )

    def program(self) -> QnnProgram:
        """Build the program. Raises BadBinary with the place when its part of the file is damaged."""
        with error_context(graph=self.name), _as_bad_binary():
            statics = {
                tensor.name: self._static(tensor) for tensor in self.record.tensors if tensor.blob is not None
            }
            program = records.build_program(self.record, statics)
            verify_program(program)
        return program

    def _static(self, tensor: records.TensorRecord) -> Array:
        assert tensor.blob is not None
        spec, blob = records.tensor_spec(tensor), self.blobs[tensor.blob]
        if math.prod(spec.shape) * spec.dtype.itemsize != blob.record.nbytes:
            raise BadBinary(f"tensor {spec} takes {spec.nbytes} bytes; its blob has {blob.record.nbytes}")
        if not blob.is_sound:
            raise BadBinary(f"static data of tensor {tensor.name!r} is damaged")
        array = np.frombuffer(blob.data, spec.dtype.numpy)
        array = array.reshape(spec.shape) if tensor.stored is None else arrange(array, spec, tensor.stored)
        array.flags.writeable = False
        return array


def pack_program(program: QnnProgram, extra: Sequence[Array] = ()) -> tuple[PackedGraph, list[int]]:
    """Pack a program, and arrays that an engine wants stored with it; also returns the numbers of the latter.

    Equal data is stored once. So is a static tensor that is one of the arrays in another arrangement.
    """
    known: dict[bytes, int] = {}
    by_identity: dict[int, int] = {}
    blobs: list[Blob] = []

    def number(data: Array) -> int:
        if id(data) not in by_identity:
            blob = make_blob(_bytes_of(data))
            digest = blob.digest
            if digest not in known:
                known[digest] = len(blobs)
                blobs.append(blob)
            by_identity[id(data)] = known[digest]
        return by_identity[id(data)]

    candidates = by_trait(extra)
    numbers: dict[str, int] = {}
    stored: dict[str, records.Arrangement] = {}
    for name in program.tensors:
        data = program.statics.get(name)
        if data is None:
            continue
        found = find_arrangement(data, candidates)
        if found is None:
            numbers[name] = number(data)
        else:
            numbers[name], stored[name] = number(found[0]), found[1]
    record = records.record_program(program, numbers, stored)
    places = [number(array) for array in extra]
    return PackedGraph(record, tuple(blobs)), places


def renumbered(graph: PackedGraph) -> PackedGraph:
    """The graph with its own blobs in their one order, and no others. Raises BadBinary if one does not exist."""
    order = graph.blob_order()
    new = {old: number for number, old in enumerate(order)}
    return with_numbers(graph, new, tuple(graph.blobs[old] for old in order))


def with_numbers(graph: PackedGraph, new: dict[int, int], blobs: tuple[Blob, ...]) -> PackedGraph:
    """The graph with other numbers for the same blobs, which are among these."""
    tensors = [
        tensor if tensor.blob is None else msgspec.structs.replace(tensor, blob=new[tensor.blob])
        for tensor in graph.record.tensors
    ]
    prepared = graph.prepared
    if prepared is not None:
        prepared = msgspec.structs.replace(prepared, blobs=[new[old] for old in prepared.blobs])
    return PackedGraph(msgspec.structs.replace(graph.record, tensors=tensors), blobs, prepared)


def _bytes_of(data: Array) -> memoryview:
    return np.asarray(data, order="C").reshape(-1).view(np.uint8).data


@contextlib.contextmanager
def _as_bad_binary() -> Iterator[None]:
    """Any complaint about what a file holds is the file's fault."""
    try:
        yield
    except BadBinary:
        raise
    except QnnError as error:
        raise BadBinary(f"binary holds something invalid: {error.message}") from error
