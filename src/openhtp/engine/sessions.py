"""ONNX Runtime sessions: made from a lowered program, optimised as a whole, then cut into segments."""

from __future__ import annotations

import dataclasses
import math
import mmap
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, ValueInfoProto, helper

from openhtp.engine.half import place_rounding
from openhtp.engine.lowering import Lowered, lower_program, origin
from openhtp.engine.onnx_graph import (
    INLINE_BYTES,
    external_tensor,
    is_inline,
    model_bytes,
    numpy_type,
    onnx_type,
    parse_model,
)
from openhtp.engine.onnxruntime import onnxruntime as ort
from openhtp.engine.segments import (
    Segment,
    choose_cuts,
    crossing_bytes,
    cut,
    segment_count,
    share_memory,
    step_seconds,
    used_nodes,
)
from openhtp.engine.values import Rounding
from openhtp.program.htp_program import HtpProgram

Array = npt.NDArray[Any]

# What one serialized model may hold, with room to spare below the format's 2 GiB.
_LARGEST_MESSAGE = 1_500_000_000
# Optimisations of the runtime that change results. The first quantizes float weights to 8 bits between 16-bit
# tensors; the second builds a Gemm whose quantization types disagree when activations are signed.
_HARMFUL = ("WeightBiasQuantization", "MatMulAddFusion")


@dataclass(frozen=True, slots=True)
class Stage:
    """One segment's session and the names it reads and writes."""

    session: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """What one segment's session is made of: an optimised model and the large constants that it names."""

    model: bytes
    constants: Mapping[str, Array]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def open(self, threads: int) -> Stage:
        """Make the session."""
        session = _session(self.model, self.constants, _options(threads, optimise=False))
        return Stage(session, self.inputs, self.outputs)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Type and shape of a value that is handed from one stage to a later one, and the slot it lives in."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    slot: int = 0

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Staged:
    """All stages of a program and the buffers between them."""

    stages: tuple[Stage, ...]
    buffers: Mapping[str, Buffer]
    slot_bytes: tuple[int, ...] = ()

    def new_buffers(self) -> dict[str, Array]:
        """Memory for one execution's intermediate values."""
        slots = [np.empty(nbytes, np.uint8) for nbytes in self.slot_bytes]
        return {
            name: slots[buffer.slot][: buffer.nbytes].view(buffer.dtype).reshape(buffer.shape)
            for name, buffer in self.buffers.items()
        }


@dataclass(frozen=True, slots=True)
class Prepared:
    """The parts that a program was cut into, and its sessions, made from nothing but them."""

    parts: tuple[Part, ...]
    staged: Staged


def make_stages(program: HtpProgram, lowered: Lowered, threads: int, *, yield_points: bool = True) -> Staged:
    """Sessions for a lowered program: one, or several when it is long enough to be worth cutting."""
    prepared = prepare(program, lowered, threads, yield_points=yield_points)
    if prepared is not None:
        return prepared.staged
    if lowered.marks:
        lowered = lower_program(program, Rounding.CASTS)
    session = _session(model_bytes(lowered.model), lowered.external, _options(threads, optimise=True))
    stage = Stage(session, tuple(lowered.inputs.values()), tuple(lowered.outputs.values()))
    return Staged((stage,), {})


def prepare(
    program: HtpProgram, lowered: Lowered, threads: int, *, yield_points: bool = True, whole: bool = False
) -> Prepared | None:
    """Optimise a program as a whole and cut it. None if it cannot be cut, or is too short to be worth it.

    ``whole``: one part is worth it, too.
    """
    seconds = step_seconds(program)
    count = 1 if program.source.is_dynamic or not yield_points else segment_count(sum(seconds))
    if count == 1 and not lowered.marks and not whole:
        return None
    model, external = _optimised(lowered, threads)
    if not place_rounding(model, lowered.marks):
        return None
    return _cut_model(model, external, choose_cuts(seconds, crossing_bytes(program), count), threads)


@cache
def _multiplies_exactly() -> bool:
    """Whether this CPU adds products of u8 and s8 without saturating on the way (VNNI on x86)."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    try:
        return "vnni" in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


@cache
def _share_one_arena() -> None:
    """Let all sessions of the process take memory from one arena.

    The segments of a program run one after the other: with an arena each, they would work in as many places, and
    find none of them in the cache.
    """
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, None)


def _options(threads: int, *, optimise: bool) -> Any:
    _share_one_arena()
    options = ort.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    # A spinning thread would take the core that the client, or another graph, could use.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Signed activations stay signed: the runtime's change to unsigned ones builds invalid graphs in places.
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    if not _multiplies_exactly():
        options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def _session(model: bytes, external: Mapping[str, Array], options: Any) -> Any:
    if external:
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in external.values()]
        options.add_external_initializers(list(external), values)
    return ort.InferenceSession(
        model, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(_HARMFUL)
    )


def _optimised(lowered: Lowered, threads: int) -> tuple[ModelProto, dict[str, Array]]:
    """The model after all of the runtime's optimisations, and its large constants."""
    if sum(array.nbytes for array in lowered.external.values()) > _LARGEST_MESSAGE:
        return _optimised_in_a_folder(lowered, threads)
    # A file without a name: a device that is killed here leaves nothing behind.
    fd = os.memfd_create("openhtp-model", os.MFD_CLOEXEC)
    try:
        options = _saving_options(threads, f"/proc/self/fd/{fd}")
        _session(model_bytes(lowered.model), lowered.external, options)
        size = os.fstat(fd).st_size
        with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as data:
            model = parse_model(data[:])
    finally:
        os.close(fd)
    return model, _take_large_constants(model)


def _optimised_in_a_folder(lowered: Lowered, threads: int) -> tuple[ModelProto, dict[str, Array]]:
    """The same for models above what one message holds: their constants go to a file of their own."""
    folder = Path(tempfile.mkdtemp(prefix="openhtp-"))
    try:
        options = _saving_options(threads, str(folder / "model.onnx"))
        add = options.add_session_config_entry
        add("session.optimized_model_external_initializers_file_name", "data")
        add("session.optimized_model_external_initializers_min_size_in_bytes", str(INLINE_BYTES))
        _session(model_bytes(lowered.model), lowered.external, options)
        model = parse_model((folder / "model.onnx").read_bytes())
        data = folder / "data"
        return model, _read_external(model, np.fromfile(data, np.uint8) if data.exists() else None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _saving_options(threads: int, path: str) -> Any:
    """For a session that is made to save its optimised model and never runs."""
    options = _options(threads, optimise=True)
    options.optimized_model_filepath = path
    options.add_session_config_entry("session.disable_prepacking", "1")
    return options


def _take_large_constants(model: ModelProto) -> dict[str, Array]:
    """Move large constants out of the model, so that segments can share them without a copy each."""
    found: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        if not is_inline(numpy_type(tensor.data_type), len(tensor.raw_data)):
            values = np.frombuffer(tensor.raw_data, numpy_type(tensor.data_type))
            found[tensor.name] = values.reshape(tuple(tensor.dims))
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "shared"), ("offset", "0"), ("length", str(values.nbytes))):
                tensor.external_data.add(key=key, value=value)
    return found


def _read_external(model: ModelProto, data: Array | None) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL and data is not None:
            place = {entry.key: entry.value for entry in tensor.external_data}
            begin = int(place.get("offset", 0))
            raw = data[begin : begin + int(place["length"])]
            found[tensor.name] = raw.view(numpy_type(tensor.data_type)).reshape(tuple(tensor.dims))
    return found


def _cut_model(
    model: ModelProto, external: Mapping[str, Array], cuts: Sequence[int], threads: int
) -> Prepared | None:
    external = _write_folded_outputs(model, external)
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    outputs = [value.name for value in model.graph.output]
    segments = cut(used_nodes(model.graph.node, outputs), outputs, _step_of, cuts)
    known = {value.name: value for value in (*model.graph.input, *model.graph.output)}
    parts: list[Part] = []
    stages: list[Stage] = []
    buffers: dict[str, Buffer] = {}
    for segment in segments:
        parts.append(_make_part(model, segment, initializers, external, known))
        stage = parts[-1].open(threads)
        stages.append(stage)
        for value in stage.session.get_outputs():
            if value.name in known:
                continue
            if not all(isinstance(size, int) for size in value.shape):
                return None
            buffers[value.name] = Buffer(type_in_words(value.type), tuple(value.shape))
            known[value.name] = helper.make_tensor_value_info(
                value.name, onnx_type(buffers[value.name].dtype), value.shape
            )
    slots, sizes = share_memory(segments, {name: buffer.nbytes for name, buffer in buffers.items()})
    placed = {name: dataclasses.replace(buffer, slot=slots[name]) for name, buffer in buffers.items()}
    return Prepared(tuple(parts), Staged(tuple(stages), placed, tuple(sizes)))


def _write_folded_outputs(model: ModelProto, external: Mapping[str, Array]) -> Mapping[str, Array]:
    """Let a node write every output that was folded to a constant, as segments are made of nodes alone."""
    outputs = {value.name for value in model.graph.output}
    renamed = {}
    for tensor in model.graph.initializer:
        if tensor.name in outputs:
            renamed[tensor.name] = f"{tensor.name} folded"
            tensor.name = renamed[tensor.name]
    for node in model.graph.node if renamed else ():
        node.input[:] = [renamed.get(name, name) for name in node.input]
    model.graph.node.extend(helper.make_node("Identity", [new], [old]) for old, new in renamed.items())
    return {renamed.get(name, name): array for name, array in external.items()}


def _step_of(node: Any) -> int | None:
    """The step of the program that a node of the optimised model was made from; its last one, if of several."""
    return next((found for name in (*node.output, node.name) if (found := origin(name)) is not None), None)


def _make_part(
    model: ModelProto,
    segment: Segment,
    initializers: Mapping[str, TensorProto],
    external: Mapping[str, Array],
    known: Mapping[str, ValueInfoProto],
) -> Part:
    inputs = tuple(name for name in segment.inputs if name not in initializers)
    constants = [name for name in segment.inputs if name in initializers]
    graph = helper.make_graph(
        segment.nodes,
        "segment",
        [known[name] for name in inputs],
        # The runtime infers types that are not given; a later segment is told what it found.
        [known.get(name) or ValueInfoProto(name=name) for name in segment.outputs],
        [external_tensor(name, external[name]) if name in external else initializers[name] for name in constants],
    )
    part = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    mine = {name: external[name] for name in constants if name in external}
    return Part(model_bytes(part), mine, inputs, segment.outputs)


def type_in_words(words: str) -> np.dtype[Any]:
    """``tensor(uint8)`` -> the numpy type."""
    inner = words.removeprefix("tensor(").removesuffix(")")
    return np.dtype({"float": "float32", "double": "float64"}.get(inner, inner))
