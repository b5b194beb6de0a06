"""Prepared forms: the parts that a program was cut into, stored with it, so that loading it is making sessions.

A file counts as written by an enemy until shown otherwise. A manifest is trusted if it carries the seal of this
user's engine. It names, by hash, the program that it was made from, and has a checksum of all data. Either the
prepared form does what the program says, or the program is lowered again. Even trusted parts are checked for
content that the runtime must not get.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from openhtp.engine import seal
from openhtp.engine.dequantized import Dequantized, dequantize, find_origins
from openhtp.engine.lowering import model_sizes
from openhtp.engine.native import DOMAIN, SharedForms, native
from openhtp.engine.onnx_graph import IN_MEMORY, model_bytes, numpy_type, onnx_type, parse_model
from openhtp.engine.onnx_messages import AttributeProto, ModelProto, TensorProto
from openhtp.engine.opened import End, Sort, agrees
from openhtp.engine.segments import MAX_SEGMENTS
from openhtp.engine.sessions import (
    PreparedSegments,
    SegmentBuffer,
    SegmentModel,
    SegmentSession,
    Staged,
    aligned,
    aligned_copy,
    aligned_room,
)
from openhtp.engine.strips import RowWindow, is_channel_last
from openhtp.engine.workshop import Making, Workshop
from openhtp.hw.soc import SocSpec
from openhtp.program.coding import Coding
from openhtp.program.container import FileSection, make_section, quick_checksum, read_together
from openhtp.program.htp_program import HtpProgram, NativeKv
from openhtp.program.packed import GraphInfo, PackedGraph, pack_program
from openhtp.program.sources import FileSource, ReadBuffers

Array = npt.NDArray[Any]

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]


class Unusable(Exception):
    """A prepared form that must not be used; says why. The program it came with may still be good."""


class Constant(msgspec.Struct, frozen=True):
    """A large constant, and the number of the blob with its data, or with the data that it is ``made`` from.

    ``begin`` is its first byte in the blob, if it is a part of the blob. If it is some columns of the blob,
    ``row_bytes`` is the distance between two rows there.
    """

    name: str
    dtype: int
    shape: list[Count]
    blob: Count
    made: Dequantized | None = None
    begin: Count | None = None
    row_bytes: Count | None = None

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return math.prod(self.shape) * _dtype(self.dtype).itemsize


class PartWords(msgspec.Struct, frozen=True):
    """One segment; constants by number, those that are read where they lie, and those of unshared forms.

    ``called`` has the names of values that are others in the model.
    """

    model: bytes
    inputs: list[str]
    outputs: list[str]
    constants: list[Count]
    in_place: list[Count] = []
    apart: list[Count] = []
    unpacked: bool = False
    called: dict[str, str] = {}


class BufferWords(msgspec.Struct, frozen=True):
    """A value between two segments."""

    name: str
    dtype: int
    shape: list[Count]
    slot: Count


class WindowWords(msgspec.Struct, frozen=True):
    """Rows of a value, as one segment reads or makes them."""

    name: str
    of: str
    begin: Count
    dtype: int
    shape: list[Count]


class Manifest(msgspec.Struct, frozen=True):
    """The sealed content. ``program`` is a hash of the packed graph that it belongs to; ``blobs`` are checksums.

    Data needs no hash: it decides numbers and no actions, and anybody may write a program with any data.
    """

    fingerprint: str
    soc: str
    program: bytes
    blobs: list[bytes]
    constants: list[Constant]
    parts: Annotated[list[PartWords], msgspec.Meta(min_length=1, max_length=MAX_SEGMENTS)]
    buffers: list[BufferWords]
    slot_bytes: list[Count]
    native_kv: NativeKv | None = None
    windows: list[WindowWords] = []


_ROOMS = ReadBuffers()
_DECODER = msgspec.msgpack.Decoder(Manifest)


def pack_prepared(program: HtpProgram, prepared: PreparedSegments, key: bytes) -> PackedGraph:
    """A program packed together with its prepared form. Raises Unusable if that must not be sealed."""
    for part in prepared.parts:
        inspect_part(part.model, part.constants)
    constants = {name: array for part in prepared.parts for name, array in part.constants.items()}
    cut_from = {name: piece for part in prepared.parts for name, piece in part.cut_from.items()}
    # A constant that was cut into parts is stored whole: the program has it, too, and perhaps another graph.
    kept = {name: array for name, array in constants.items() if name not in cut_from} | dict(prepared.whole)
    origins, lies_in = find_origins(program.source, kept)
    stored = [origins[name].stored if name in origins else array for name, array in kept.items()]
    packed, blobs = pack_program(program.source, stored, lies_in, compact=True)
    blob_of = dict(zip(kept, blobs, strict=True))

    def words_of(name: str, array: Array) -> Constant:
        part = cut_from.get(name)
        whole = name if part is None else part.of
        origin = origins[whole].how if whole in origins else None
        begin = row_bytes = None
        if part is not None:
            entry_bytes = math.prod(array.shape[part.axis + 1 :]) * array.dtype.itemsize
            begin = part.first * entry_bytes
            row_bytes = kept[whole].shape[part.axis] * entry_bytes if part.axis else None
        return Constant(name, onnx_type(array.dtype), list(array.shape), blob_of[whole], origin, begin, row_bytes)

    numbers = {name: number for number, name in enumerate(constants)}
    staged = prepared.staged
    manifest = Manifest(
        fingerprint=seal.fingerprint(),
        soc=program.soc.name,
        program=packed.identity(),
        blobs=[_checksum(blob, blob.read()) for blob in packed.blobs],
        constants=[words_of(name, array) for name, array in constants.items()],
        parts=[
            PartWords(
                part.model,
                list(part.inputs),
                list(part.outputs),
                [numbers[name] for name in part.constants],
                [numbers[name] for name in sorted(part.in_place)],
                [numbers[name] for name in sorted(part.apart)],
                part.unpacked,
                dict(part.called),
            )
            for part in prepared.parts
        ],
        buffers=[
            BufferWords(name, onnx_type(buffer.dtype), list(buffer.shape), buffer.slot)
            for name, buffer in staged.buffers.items()
        ],
        slot_bytes=list(staged.slot_bytes),
        native_kv=program.native_kv,
        windows=[
            WindowWords(name, window.of, window.begin, onnx_type(window.dtype), list(window.shape))
            for name, window in staged.windows.items()
        ],
    )
    words = msgspec.msgpack.encode(manifest)
    return dataclasses.replace(packed, prepared=make_section(words), seal=seal.sealed(key, words))


def open_prepared(
    packed: PackedGraph, info: GraphInfo, soc: SocSpec, key: bytes, threads: int, workshop: Workshop
) -> tuple[Staged, NativeKv | None]:
    """Sessions from a prepared form, and its native caches.

    Raises Unusable with the reason; then the program must be lowered.
    """
    manifest = _believed(packed, key)
    if manifest.soc != soc.name:
        raise Unusable(f"it was made for {manifest.soc}, not for {soc.name}")
    buffers = _buffers(manifest)
    used = {constant.blob for constant in manifest.constants}
    for number in range(len(packed.blobs)):
        if number not in used:  # only the program uses this data; yet the prepared form must match the whole file
            _stored(packed, manifest, [number])
    if packed.chip is not None:  # damage is reported, although the execution does not depend on this part
        packed.chip.checked(f"the chip's program of graph {packed.name!r}")
    makings = [_making(packed, manifest, part, threads, workshop) for part in manifest.parts]
    windows = {
        words.name: RowWindow(words.of, words.begin, _dtype(words.dtype), tuple(words.shape))
        for words in manifest.windows
    }
    stages = [
        dataclasses.replace(session, inputs=tuple(words.inputs), outputs=tuple(words.outputs), called=words.called)
        for session, words in zip(workshop.make(makings), manifest.parts, strict=True)
    ]
    staged = Staged(tuple(stages), buffers, tuple(manifest.slot_bytes), windows)
    inspect_sessions(staged, info)
    return staged, manifest.native_kv


def _believed(packed: PackedGraph, key: bytes) -> Manifest:
    """The manifest, after checks of its author, its machine and its program."""
    if packed.prepared is None:
        raise Unusable("there is none")
    words = bytes(packed.prepared.read())
    if not seal.is_own(key, words, packed.seal):
        raise Unusable("it was not made by this user's engine, or was changed since")
    try:
        manifest = _DECODER.decode(words)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Unusable(f"it cannot be read: {error}") from error
    if manifest.fingerprint != seal.fingerprint():
        raise Unusable("it was made by another version, or for another processor")
    if manifest.program != packed.identity():
        raise Unusable("it was made from another program")
    if len(manifest.blobs) != len(packed.blobs):
        raise Unusable("its data is not what was sealed")
    if any(number >= len(manifest.constants) for part in manifest.parts for number in part.constants):
        raise Unusable("a part names a constant that does not exist")
    if not all({*part.in_place, *part.apart}.issubset(part.constants) for part in manifest.parts):
        raise Unusable("a part reads a constant that it does not have")
    return manifest


def _making(packed: PackedGraph, manifest: Manifest, words: PartWords, threads: int, workshop: Workshop) -> Making:
    """How one part becomes a session. Equal parts of equal data are one session, whichever graph they are of."""
    constants = [manifest.constants[number] for number in words.constants]
    if any(constant.blob >= len(packed.blobs) for constant in constants):
        raise Unusable("a constant has data that does not exist")
    model = with_free_sizes(words.model) if workshop.shares_forms else words.model
    # The buffers name the values that it reads and writes, and so does the model.
    key = (model, tuple((packed.blobs[one.blob].place, msgspec.msgpack.encode(one)) for one in constants), threads)
    in_place = frozenset(manifest.constants[number].name for number in words.in_place)
    apart = frozenset(manifest.constants[number].name for number in words.apart)

    def open_part(arrays: Mapping[str, Array], forms: SharedForms | None, *, lasting: bool) -> SegmentSession:
        ends = tuple(words.inputs), tuple(words.outputs)
        part = SegmentModel(model, arrays, *ends, in_place, apart, unpacked=words.unpacked)
        try:
            return part.open(threads, forms, lasting=lasting)
        except Exception as error:  # the runtime's own exceptions have no base in common
            raise Unusable(f"the CPU runtime refuses it: {error}") from error

    def make() -> SegmentSession:
        if not constants:
            return open_part({}, None, lasting=True)
        # Data that only serves parts is read once for all of them.
        read_once = in_place | {constant.name for constant in constants if constant.row_bytes is not None}
        outside = [one for one in constants if one.name not in read_once]
        others = list(dict.fromkeys(one.blob for one in outside))
        with _ROOMS.room(sum(packed.blobs[number].end - packed.blobs[number].begin for number in others)) as room:
            read = _data_of(packed, manifest, others, room)
            arrays = {
                constant.name: (
                    _held_array(packed, manifest, constant, workshop)
                    if constant.name in read_once
                    else _array(constant, read[constant.blob])
                )
                for constant in constants
            }
            forms = workshop.forms() if len(apart) < len(constants) else None
            return open_part(arrays, forms, lasting=all(_is_made(packed, one) for one in outside))

    # Parts of one whole sort alike: they are made one after the other, and then the whole is given back.
    sizes = {
        constant.blob: constant.nbytes if constant.row_bytes is None else _stored_bytes(packed, constant)
        for constant in constants
    }
    return Making(key, sum(sizes.values()), make, starts_threads=threads > 1)


def _is_own(packed: PackedGraph, constant: Constant) -> bool:
    """Whether reading a constant puts it into memory of our own."""
    return _is_made(packed, constant) or isinstance(packed.blobs[constant.blob].source, FileSource)


def _is_made(packed: PackedGraph, constant: Constant) -> bool:
    """Whether a constant differs from the stored data, and is computed from it in memory of its own."""
    return constant.made is not None or packed.blobs[constant.blob].record.coding is not Coding.PLAIN


def _stored(
    packed: PackedGraph, manifest: Manifest, numbers: Sequence[int], room: memoryview | None = None
) -> list[memoryview]:
    """Several pieces, each named once, as they were sealed; ``room`` is where to read to."""
    stored = read_together([packed.blobs[number] for number in numbers], room)
    for number, data in zip(numbers, stored, strict=True):
        if _checksum(packed.blobs[number], data) != manifest.blobs[number]:
            raise Unusable("its data is not what was sealed")
    return stored


def _checksum(section: FileSection, stored: memoryview) -> bytes:
    """The checksum of stored data, and of how constants come out of it."""
    return quick_checksum(stored) + bytes((section.record.coding, section.record.lowest))


def _data_of(
    packed: PackedGraph, manifest: Manifest, numbers: Sequence[int], room: memoryview | None = None
) -> dict[int, memoryview]:
    """The data of several pieces."""
    stored = _stored(packed, manifest, numbers, room)
    return {number: decode(packed.blobs[number], data) for number, data in zip(numbers, stored, strict=True)}


def decode(section: FileSection, stored: memoryview) -> memoryview:
    """The data of a section, decoded as fast as it is read. Coded data gets memory of its own."""
    side = native()
    if side is None or section.record.coding is not Coding.HALF or stored.nbytes % 2:
        return section.decoded(stored)
    halves = np.frombuffer(stored, np.uint16)
    floats = aligned_room(4 * halves.size)
    side.widen(halves.ctypes.data, floats.ctypes.data, halves.size)
    return floats.data


def _held_array(packed: PackedGraph, manifest: Manifest, constant: Constant, workshop: Workshop) -> Array:
    """Data in memory of our own, which stays as long as a session reads it, even without the binary."""

    in_columns = constant.row_bytes is not None  # the runtime copies these anyway

    def make() -> Array:
        array = _whole(constant, _data_of(packed, manifest, [constant.blob])[constant.blob])
        return array if in_columns else aligned(array) if _is_own(packed, constant) else aligned_copy(array)

    key = (packed.blobs[constant.blob].place, msgspec.msgpack.encode(constant.made), in_columns)
    shared = workshop.hold(key, make, _column_parts(manifest, constant) if in_columns else None)
    return _typed(constant, shared.reshape(-1).view(np.uint8).data)


def _column_parts(manifest: Manifest, whole: Constant) -> int:
    """How many parts take columns of the whole that this constant belongs to."""
    parts_of = (manifest.constants[number] for part in manifest.parts for number in part.constants)
    return sum(
        constant.blob == whole.blob and constant.made == whole.made and constant.row_bytes is not None
        for constant in parts_of
    )


def _stored_bytes(packed: PackedGraph, constant: Constant) -> int:
    """Bytes of the whole that a constant belongs to."""
    section = packed.blobs[constant.blob]
    return section.end - section.begin


def _array(constant: Constant, data: memoryview) -> Array:
    return _typed(constant, _whole(constant, data).data)


def _whole(constant: Constant, data: memoryview) -> Array:
    """The bytes of a constant, or of the whole that it belongs to."""
    if constant.made is None:
        return np.frombuffer(data, np.uint8)
    try:
        return dequantize(constant.made, data).reshape(-1).view(np.uint8)
    except ValueError as error:
        raise Unusable(f"constant {constant.name!r} cannot be made: {error}") from error


def _typed(constant: Constant, data: memoryview) -> Array:
    if constant.begin is not None and constant.row_bytes is None:
        data = data[constant.begin : constant.begin + constant.nbytes]
    elif constant.begin is not None and constant.row_bytes is not None:
        data = _columns(constant, data, constant.begin, constant.row_bytes)
    if constant.nbytes != data.nbytes:
        raise Unusable(f"constant {constant.name!r} has another size than its data")
    return np.frombuffer(data, _dtype(constant.dtype)).reshape(constant.shape)


def _columns(constant: Constant, data: memoryview, begin: int, row_bytes: int) -> memoryview:
    """Some columns of a blob, in memory of their own."""
    rows, rest = divmod(data.nbytes, row_bytes) if row_bytes else (0, 1)
    wide = constant.nbytes // rows if rows else 0
    if rest or begin + wide > row_bytes:
        raise Unusable(f"constant {constant.name!r} is no part of its data")
    table = np.frombuffer(data, np.uint8).reshape(rows, row_bytes)
    return np.ascontiguousarray(table[:, begin : begin + wide]).reshape(-1).data


def _buffers(manifest: Manifest) -> dict[str, SegmentBuffer]:
    buffers = {
        words.name: SegmentBuffer(_dtype(words.dtype), tuple(words.shape), words.slot)
        for words in manifest.buffers
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


# Parts that fit images of any size, so that graphs of one network for several sizes can have the same sessions.
# The runtime makes its own form of the filters of an 8-bit convolution. No other session can use this form,
# although it does not depend on the image. So where several graphs are loaded together, the models of such parts
# leave the number and the size of images open: where two graphs are cut at the same places, their parts are equal,
# and one session serves both. Neither results nor times change (decision 026).


_IMAGE = 4


def with_free_sizes(part: bytes) -> bytes:
    """The model of a part with the sizes of its ends left open, if it has convolutions in channel-last order.

    Bytes that are no model stay as they are, for the runtime to refuse.
    """
    try:
        model: ModelProto = parse_model(part)
    except DecodeError:
        return part
    if not any(map(is_channel_last, model.graph.node)):
        return part
    _free((*model.graph.input, *model.graph.output))
    return model_bytes(model)


def _free(ends: Iterable[Any]) -> None:
    """Give names to all sizes of images in either order. The runtime compares the channels with the filters."""
    for end in ends:
        sizes = end.type.tensor_type.shape.dim
        if len(sizes) == _IMAGE:
            for axis, size in enumerate(sizes):
                size.dim_param = f"{end.name}.{axis}"


# Checks of a part before and after the runtime gets it. A seal says who made a part. Even so, the part must hold
# nothing that lowering could not have made: no operators from elsewhere, no code, no files, and ends that fit the
# program and each other.

# ONNX's own operators, those that the runtime's optimiser puts in their place, and ours.
_DOMAINS = {"", "ai.onnx", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc", DOMAIN}
# Operators that run other graphs, other libraries or files.
_FORBIDDEN = {"EPContext", "If", "Loop", "Scan", "SequenceMap"}
_GRAPHS = {AttributeProto.GRAPH, AttributeProto.GRAPHS}
# Large constants are stored beside the model; the rest is small.
_MOST_MODEL_BYTES = 64 << 20


def inspect_part(data: bytes, constants: Collection[str]) -> None:
    """Raise Unusable unless a part's model is a plain graph whose data is all at hand: that of these constants."""
    if len(data) > _MOST_MODEL_BYTES:
        raise Unusable(f"a part has {len(data)} bytes")
    try:
        model: ModelProto = parse_model(data)
    except DecodeError as error:
        raise Unusable("a part is no model") from error
    graph = model.graph
    if model.functions or model.training_info or graph.sparse_initializer:
        raise Unusable("a part holds more than a graph")
    for node in graph.node:
        if node.domain not in _DOMAINS or node.op_type in _FORBIDDEN:
            raise Unusable(f"a part has the operator {node.domain}:{node.op_type}")
        if any(attribute.type in _GRAPHS for attribute in node.attribute):
            raise Unusable(f"operator {node.op_type} holds a graph")
    for tensor in graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            places = [entry.value for entry in tensor.external_data if entry.key == "location"]
            if tensor.name not in constants or places != [IN_MEMORY]:
                raise Unusable(f"constant {tensor.name!r} is taken from a file")
    for node in graph.node:
        for attribute in node.attribute:
            tensors = (attribute.t, *attribute.tensors)
            if any(tensor.data_location == TensorProto.EXTERNAL for tensor in tensors):
                raise Unusable(f"an attribute of {node.op_type} is taken from a file")


def inspect_sessions(staged: Staged, info: GraphInfo) -> None:
    """Raise Unusable unless each value is made once, before it is read, and in the shape that is read.

    A value that is made in windows is complete when all its bytes are made. Each window must border on those
    before it.
    """
    specs = (*info.inputs, *info.updateable_statics)
    inputs = {f"in:{spec.name}": (spec.dtype.numpy, model_sizes(spec)) for spec in specs}
    outputs = {f"out:{spec.name}": (spec.dtype.numpy, model_sizes(spec)) for spec in info.outputs}
    between: dict[str, Sort] = {name: (buffer.dtype, buffer.shape) for name, buffer in staged.buffers.items()}
    whole_bytes = _windows_in_bounds(staged, info)
    windows = {name: (window.dtype, window.shape) for name, window in staged.windows.items()}
    made = outputs | between | windows
    written: set[str] = set()
    begun: dict[str, tuple[int, int]] = {}
    for stage in staged.stages:
        reads: dict[str, Sort] = {}
        for name in stage.inputs:
            whole = staged.windows[name].of if name in windows else name
            if whole in inputs or (whole in written and whole in between):
                reads[name] = windows[name] if name in windows else inputs.get(name) or between[name]
        _check_ends(stage, reads, made)
        if written.intersection(stage.outputs) or begun.keys() & set(stage.outputs):
            raise Unusable("a value is made twice")
        for name in stage.outputs:
            if name not in staged.windows:
                written.add(name)
                continue
            window = staged.windows[name]
            end = window.begin + window.nbytes
            first, last = begun.get(window.of, (end, end))
            if window.of in written or (window.begin != last and end != first):
                raise Unusable(f"value {window.of!r} is made twice, or with a gap")
            begun[window.of] = min(first, window.begin), max(last, end)
            if begun[window.of] == (0, whole_bytes[window.of]):
                written.add(window.of)
    if not written.issuperset(outputs):
        raise Unusable("an output is never made")


def _windows_in_bounds(staged: Staged, info: GraphInfo) -> dict[str, int]:
    """Bytes of every value with windows. Raises Unusable for a window beyond its value, or on a varying one."""
    sizes = {name: buffer.nbytes for name, buffer in staged.buffers.items()}
    for end, specs in (("in", info.inputs), ("out", info.outputs)):
        sizes |= {f"{end}:{spec.name}": spec.nbytes for spec in specs if not any(spec.free)}
    for name, window in staged.windows.items():
        if name in sizes or window.begin + window.nbytes > sizes.get(window.of, -1):
            raise Unusable(f"window {name!r} is not within a value")
    return sizes


def _check_ends(stage: SegmentSession, reads: Mapping[str, Sort], made: Mapping[str, Sort]) -> None:
    """Raise Unusable unless a stage reads and makes what it says, and that is as it is known."""
    called = stage.called
    if all(name in reads for name in stage.inputs) and all(name in made for name in stage.outputs):
        inputs = {called.get(name, name): reads[name] for name in stage.inputs}
        outputs = {called.get(name, name): made[name] for name in stage.outputs}
        as_many = len(inputs) == len(stage.inputs) and len(outputs) == len(stage.outputs)
        if as_many and stage.session.fits(inputs, outputs):
            return
    # Otherwise something is wrong; what it is takes longer to find out.
    _check_values(stage.session.inputs(), stage.inputs, called, reads)
    _check_values(stage.session.outputs(), stage.outputs, called, made)


def _check_values(
    values: list[End], names: tuple[str, ...], called: Mapping[str, str], known: Mapping[str, Sort]
) -> None:
    name_of = {called.get(name, name): name for name in names}
    if len(name_of) != len(names) or sorted(value.name for value in values) != sorted(name_of):
        raise Unusable("a part reads or makes other values than it says")
    for value in values:
        name = name_of[value.name]
        if not agrees(value, known.get(name)):
            raise Unusable(f"value {name!r} has another type or shape, or comes from nowhere")
