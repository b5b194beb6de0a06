"""Prepared forms: the parts that a program was cut into, stored with it, so that loading it is making sessions.

Everything in a file is written by an enemy until shown otherwise. A manifest is believed if it carries the seal of
this user's engine; it names, by hash, the program it was made from and every byte of data. What runs is what the
program says, or the program is lowered again. What is believed is still checked for what no runtime must be given.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from openhtp.engine import seal
from openhtp.engine.inspection import Unusable, inspect_part, inspect_sessions
from openhtp.engine.onnx_graph import numpy_type, onnx_type
from openhtp.engine.segments import MAX_SEGMENTS
from openhtp.engine.sessions import Buffer, Part, Prepared, Stage, Staged
from openhtp.hw.soc import SocSpec
from openhtp.program.htp_program import HtpProgram
from openhtp.program.packed import GraphInfo, PackedGraph, pack_program
from openhtp.program.records import PreparedRecord, ProgramRecord
from openhtp.program.spilling import spill_fill_bytes

Array = npt.NDArray[Any]

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
# Sessions are made, and hashes taken, on this many threads at once.
_THREADS = 2


class Constant(msgspec.Struct, frozen=True):
    """A large constant, and the number of the blob that holds its data."""

    name: str
    dtype: int
    shape: list[Count]
    blob: Count


class PartWords(msgspec.Struct, frozen=True):
    """One segment; constants by number."""

    model: bytes
    inputs: list[str]
    outputs: list[str]
    constants: list[Count]


class BufferWords(msgspec.Struct, frozen=True):
    """A value between two segments."""

    name: str
    dtype: int
    shape: list[Count]
    slot: Count


class Manifest(msgspec.Struct, frozen=True):
    """What is sealed. ``program`` and ``blobs`` are hashes of the packed graph that it belongs to."""

    fingerprint: str
    soc: str
    program: bytes
    blobs: list[bytes]
    constants: list[Constant]
    parts: Annotated[list[PartWords], msgspec.Meta(min_length=1, max_length=MAX_SEGMENTS)]
    buffers: list[BufferWords]
    slot_bytes: list[Count]


_DECODER = msgspec.msgpack.Decoder(Manifest)


def pack_prepared(program: HtpProgram, prepared: Prepared, key: bytes) -> PackedGraph:
    """A program packed together with its prepared form."""
    constants = {name: array for part in prepared.parts for name, array in part.constants.items()}
    packed, places = pack_program(program.source, list(constants.values()))
    numbers = {name: number for number, name in enumerate(constants)}
    staged = prepared.staged
    manifest = Manifest(
        fingerprint=seal.fingerprint(),
        soc=program.soc.name,
        program=_program_hash(packed.record),
        blobs=[blob.digest for blob in packed.blobs],
        constants=[
            Constant(name, onnx_type(array.dtype), list(array.shape), place)
            for (name, array), place in zip(constants.items(), places, strict=True)
        ],
        parts=[
            PartWords(
                part.model, list(part.inputs), list(part.outputs), [numbers[name] for name in part.constants]
            )
            for part in prepared.parts
        ],
        buffers=[
            BufferWords(name, onnx_type(buffer.dtype), list(buffer.shape), buffer.slot)
            for name, buffer in staged.buffers.items()
        ],
        slot_bytes=list(staged.slot_bytes),
    )
    words = msgspec.msgpack.encode(manifest)
    record = PreparedRecord(words, seal.sealed(key, words), places, spill_fill_bytes(program))
    return PackedGraph(packed.record, packed.blobs, record)


def open_prepared(packed: PackedGraph, info: GraphInfo, soc: SocSpec, key: bytes, threads: int) -> Staged:
    """Sessions from a prepared form. Raises Unusable with the reason; the program has to be lowered then."""
    manifest = _believed(packed, key)
    if manifest.soc != soc.name:
        raise Unusable(f"it was made for {manifest.soc}, not for {soc.name}")
    with ThreadPoolExecutor(min(_THREADS, len(os.sched_getaffinity(0)))) as pool:
        digests = list(pool.map(lambda blob: blob.digest, packed.blobs))
        if digests != manifest.blobs:
            raise Unusable("its data is not what was sealed")
        parts = _parts(packed, manifest)
        buffers = _buffers(manifest)
        for part in parts:
            inspect_part(part)
        stages = _open_all(pool, parts, threads)
    staged = Staged(tuple(stages), buffers, tuple(manifest.slot_bytes))
    inspect_sessions(staged, info)
    return staged


def _believed(packed: PackedGraph, key: bytes) -> Manifest:
    """The manifest, once it is known who wrote it, for what machine, and for which program."""
    record = packed.prepared
    if record is None:
        raise Unusable("there is none")
    if not seal.is_own(key, record.manifest, record.seal):
        raise Unusable("it was not made by this user's engine, or was changed since")
    try:
        manifest = _DECODER.decode(record.manifest)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Unusable(f"it cannot be read: {error}") from error
    if manifest.fingerprint != seal.fingerprint():
        raise Unusable("it was made by another version, or for another processor")
    if manifest.program != _program_hash(packed.record):
        raise Unusable("it was made from another program")
    # What the file says outside the seal only serves to find and number the blobs.
    if [constant.blob for constant in manifest.constants] != record.blobs:
        raise Unusable("its constants are not those that were sealed")
    return manifest


def _program_hash(record: ProgramRecord) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(record)).digest()


def _parts(packed: PackedGraph, manifest: Manifest) -> list[Part]:
    arrays: list[Array] = []
    for constant in manifest.constants:
        dtype, data = _dtype(constant.dtype), packed.blobs[constant.blob].data
        if math.prod(constant.shape) * dtype.itemsize != data.nbytes:
            raise Unusable(f"constant {constant.name!r} has another size than its data")
        arrays.append(np.frombuffer(data, dtype).reshape(constant.shape))
    if any(number >= len(arrays) for part in manifest.parts for number in part.constants):
        raise Unusable("a part names a constant that does not exist")
    return [
        Part(
            part.model,
            {manifest.constants[number].name: arrays[number] for number in part.constants},
            tuple(part.inputs),
            tuple(part.outputs),
        )
        for part in manifest.parts
    ]


def _buffers(manifest: Manifest) -> dict[str, Buffer]:
    buffers = {
        words.name: Buffer(_dtype(words.dtype), tuple(words.shape), words.slot) for words in manifest.buffers
    }
    sizes = manifest.slot_bytes
    if any(buffer.slot >= len(sizes) or buffer.nbytes > sizes[buffer.slot] for buffer in buffers.values()):
        raise Unusable("a buffer does not fit its slot")
    return buffers


def _dtype(number: int) -> np.dtype[Any]:
    try:
        return numpy_type(number)
    except KeyError:
        raise Unusable(f"type {number} is unknown") from None


def _open_all(pool: ThreadPoolExecutor, parts: Sequence[Part], threads: int) -> list[Stage]:
    """Make all sessions, the long ones first, so that no thread is left with one at the end."""
    order = sorted(range(len(parts)), key=lambda n: -sum(a.nbytes for a in parts[n].constants.values()))
    try:
        made = list(pool.map(lambda part: part.open(threads), [parts[number] for number in order]))
    except Exception as error:  # the runtime's own have no base in common
        raise Unusable(f"the CPU runtime refuses it: {error}") from error
    placed = dict(zip(order, made, strict=True))
    return [placed[number] for number in range(len(parts))]
