"""ONNX Runtime sessions: how they are made, what each is made of, and how a model is optimised as a whole."""

from __future__ import annotations

import dataclasses
import itertools
import math
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.errors import UnsupportedFeature
from openhtp.engine.lowering import Lowered
from openhtp.engine.native import (
    DOMAIN,
    ChosenOptions,
    Native,
    NativeSession,
    SessionRefused,
    SharedForms,
    native,
    needs_operators,
    offer_operators,
)
from openhtp.engine.onnx_graph import INLINE_BYTES, is_inline, model_bytes, numpy_type, parse_model
from openhtp.engine.onnx_messages import ModelProto, TensorProto
from openhtp.engine.onnxruntime import MODELS_DECIDE, onnxruntime as ort
from openhtp.engine.opened import BoundSession, ComputeSession, PackagedSession
from openhtp.engine.strips import FLOAT_CONVS, FilterPart, RowWindow
from openhtp.program.container import digest

Array = npt.NDArray[Any]

# The most bytes of one serialized model, well below the format's 2 GiB.
_LARGEST_MESSAGE = 1_500_000_000
# Where the runtime looks for the files of constants.
_FOLDER = "session.model_external_initializers_file_folder_path"
_HERE = str(Path(__file__).parent)
# Whether operators leave constants as they are.
_NO_OWN_FORMS = "session.disable_prepacking"
# Optimisations of the runtime that change results. The first quantizes float weights to 8 bits between 16-bit
# tensors; the second builds a Gemm whose quantization types disagree when activations are signed; the third leaves
# out the first of two roundings in a row.
_HARMFUL = ("WeightBiasQuantization", "MatMulAddFusion", "DoubleQDQPairsRemover")


_VECTOR_BYTES = 64
# Operators that read constants as they lie; for blocked convolutions, the optimiser put filters in order before.
_IN_PLACE = {*FLOAT_CONVS, ("", "Add"), ("", "Gather"), ("", "Mul")}
# Kernels that read weights where they lie if packing is turned off, which is an option of whole sessions.
_IN_PLACE_IF_TOLD = {("", "MatMulInteger")}
# Operators whose kernels keep the form that they make of their weights to themselves.
_NOT_SHARING = {"QLinearConv"}


@dataclass(frozen=True, slots=True)
class SegmentSession:
    """One segment's session and the values that it reads and writes; ``called`` has its other names for them."""

    session: ComputeSession
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    called: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def bind(self, places: Mapping[str, Array]) -> BoundSession:
        """Let the session read and write values where they lie."""
        inputs = {self.called.get(name, name): places[name] for name in self.inputs}
        return self.session.bind(inputs, {self.called.get(name, name): places[name] for name in self.outputs})


@dataclass(frozen=True, slots=True)
class SegmentModel:
    """The parts of one segment's session: an optimised model and the large constants that it names.

    Those ``in_place`` are read where they lie; sessions of several graphs may do that. Of the others the runtime
    makes a form of its own, which sessions can share unless the constant is ``apart``. With
    ``unpacked`` it makes none at all. ``cut_from`` has those that are parts of larger constants. Segments that
    differ in nothing but the values that they read and write have one session, which has names of its own for
    them: ``called``.
    """

    model: bytes
    constants: Mapping[str, Array]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    in_place: frozenset[str] = frozenset()
    apart: frozenset[str] = frozenset()
    unpacked: bool = False
    cut_from: Mapping[str, FilterPart] = dataclasses.field(default_factory=dict)
    called: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def open(
        self,
        threads: int,
        forms: SharedForms | None = None,
        *,
        lasting: bool = True,
        flowing: bool = False,
    ) -> SegmentSession:
        """Make the session. It shares ``forms`` with other sessions that are made with them.

        Unless the constants are ``lasting`` none of them is needed any more afterwards but those in place. Where
        values are ``flowing``, the runtime's package makes it.
        """
        side = None if flowing else native()
        session = self._packaged(threads) if side is None else self._native(side, threads, forms, lasting=lasting)
        return SegmentSession(session, self.inputs, self.outputs, self.called)

    def _native(self, side: Native, threads: int, forms: SharedForms | None, *, lasting: bool) -> NativeSession:
        constants = {
            name: aligned(array) if name in self.in_place else array for name, array in self.constants.items()
        }

        def make(shared: SharedForms | None) -> NativeSession:
            if not constants:
                options = _chosen_options(side, threads, self.unpacked, needs_operators(self.model))
                return NativeSession(side, self.model, {}, options, shared)
            options = self._options(threads)
            # Where some are shared, the runtime refuses those that cannot be: it gets a copy of them.
            copied = {} if shared is None else {name: constants[name] for name in self.apart}
            add_external(options, copied)
            lent = {name: array for name, array in constants.items() if name not in copied}
            return NativeSession(side, self.model, lent, options, shared)

        try:
            session = make(forms)
        except SessionRefused:
            if forms is None or not constants:
                raise
            forms, session = None, make(None)  # one of its kernels shares nothing
        read = session.reads - self.in_place
        if read and not lasting:  # the device that prepared it did not know that
            constants |= {name: aligned_copy(constants[name]) for name in read}
            session = make(forms)
        return session

    def _options(self, threads: int) -> Any:
        options = _part_options(threads, self.unpacked)
        options.add_session_config_entry(_FOLDER, _HERE)
        return options

    def _packaged(self, threads: int) -> PackagedSession:
        options = self._options(threads)
        if needs_operators(self.model):
            offer_operators(options)
        in_place = {name: _with_value(aligned(self.constants[name])) for name in sorted(self.in_place)}
        for name, (_, value) in in_place.items():
            options.add_initializer(name, value)
        rest = {name: array for name, array in self.constants.items() if name not in in_place}
        add_external(options, rest)
        session = ort.InferenceSession(self.model, options, providers=["CPUExecutionProvider"])
        return PackagedSession(session, in_place)


def _part_options(threads: int, unpacked: bool) -> Any:
    options = session_options(threads, optimise=False)
    if unpacked:
        options.add_session_config_entry(_NO_OWN_FORMS, "1")
    return options


@cache
def _chosen_options(side: Native, threads: int, unpacked: bool, operators: bool) -> ChosenOptions:
    """The options of all parts without large constants: choosing them takes a third as long as a small session."""
    return side.choose(_part_options(threads, unpacked), operators=operators)


def _with_value(array: Array) -> tuple[Array, Any]:
    return array, ort.OrtValue.ortvalue_from_numpy(array)


# Constants that sessions read where they lie, by content, as long as a session reads them.
_shared: weakref.WeakValueDictionary[tuple[bytes, str, tuple[int, ...]], Array] = weakref.WeakValueDictionary()


def shared(array: Array) -> Array:
    """An equal constant that other sessions read already, otherwise a copy for later sessions."""
    key = (digest(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data), array.dtype.str, array.shape)
    constant = _shared.get(key)
    if constant is None:
        constant = _shared[key] = aligned_copy(array)
    return constant


def aligned(array: Array) -> Array:
    """The array if it starts where vectors are loaded at once, otherwise a copy that does."""
    return array if array.ctypes.data % _VECTOR_BYTES == 0 else aligned_copy(array)


def aligned_copy(array: Array) -> Array:
    """A copy that starts where vectors are loaded at once."""
    copy = aligned_room(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def aligned_room(nbytes: int) -> npt.NDArray[np.uint8]:
    """Memory that starts where vectors are loaded at once, with anything in it."""
    room = np.empty(nbytes + _VECTOR_BYTES, np.uint8)
    begin = -room.ctypes.data % _VECTOR_BYTES
    return room[begin : begin + nbytes]


@dataclass(frozen=True, slots=True)
class SegmentBuffer:
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
    """All stages of a program, the buffers between them, and the windows that stages have on values.

    Where sizes are only known when it runs there are no buffers, and the values between stages are ``flowing``.
    """

    stages: tuple[SegmentSession, ...]
    buffers: Mapping[str, SegmentBuffer]
    slot_bytes: tuple[int, ...] = ()
    windows: Mapping[str, RowWindow] = dataclasses.field(default_factory=dict)
    flowing: frozenset[str] = frozenset()

    @property
    def ends(self) -> set[str]:
        """The inputs and outputs of the program that its stages read and write."""
        named = {name for stage in self.stages for name in (*stage.inputs, *stage.outputs)}
        whole = {self.windows[name].of if name in self.windows else name for name in named}
        return whole.difference(self.buffers, self.flowing)

    def with_buffers(self, ends: Mapping[str, Array], room: memoryview | None = None) -> dict[str, Array]:
        """The arrays of the ends, memory for one execution's values between them, and the windows.

        Values lie in ``room`` as far as they fit.
        """
        slots = make_slots(self.slot_bytes) if room is None else _slots_in(room, self.slot_bytes)
        arrays = dict(ends)
        for name, buffer in self.buffers.items():
            arrays[name] = slots[buffer.slot][: buffer.nbytes].view(buffer.dtype).reshape(buffer.shape)
        for name, window in self.windows.items():
            seen = arrays[window.of].reshape(-1).view(np.uint8)[window.begin : window.begin + window.nbytes]
            arrays[name] = seen.view(window.dtype).reshape(window.shape)
        return arrays


@dataclass(frozen=True, slots=True)
class PreparedSegments:
    """The parts that a program was cut into, and the sessions made from these parts alone.

    ``whole`` has the constants of which segments have only parts.
    """

    parts: tuple[SegmentModel, ...]
    staged: Staged
    whole: Mapping[str, Array] = dataclasses.field(default_factory=dict)


@cache
def _share_one_arena() -> None:
    """Let all sessions of the process take memory from one arena.

    The segments of a program run one after the other: with an arena each, they would work in as many places, and
    find none of them in the cache.
    """
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, None)


def session_options(threads: int, *, optimise: bool) -> Any:
    """How sessions are made."""
    _share_one_arena()
    options = ort.SessionOptions()
    for key, value in _settings().items():
        options.add_session_config_entry(key, value)
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    return options


@cache
def _settings() -> dict[str, str]:
    return {
        "session.use_env_allocators": "1",
        # A spinning thread would take the core that the client, or another graph, could use.
        "session.intra_op.allow_spinning": "0",
        # Signed activations stay signed: the runtime's change to unsigned ones builds invalid graphs in places.
        "session.qdqisint8allowed": "1",
    }


def open_session(model: bytes, external: Mapping[str, Array], options: Any) -> ComputeSession:
    """A session of a model and the constants that it names."""
    add_external(options, external)
    side = native()
    if side is not None:
        options.add_session_config_entry("optimization.disable_specified_optimizers", ";".join(_HARMFUL))
        return NativeSession(side, model, {}, options)
    if DOMAIN.encode() in model:
        offer_operators(options)
    return PackagedSession(
        ort.InferenceSession(
            model, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(_HARMFUL)
        )
    )


def add_external(options: Any, external: Mapping[str, Array]) -> None:
    """Give a session constants; it makes a copy of each."""
    if external:
        values = [ort.OrtValue.ortvalue_from_numpy(array) for array in external.values()]
        options.add_external_initializers(list(external), values)


def read_in_place(nodes: Sequence[Any], names: Iterable[str]) -> tuple[frozenset[str], bool]:
    """The constants of a session that operators read as they are, and whether they must be told to.

    Operators that are told make no form of any constant, those inside the model included, and put these in order
    in each run. So they are told only if all large constants are read as they are then.
    """
    large = frozenset(names)
    others = frozenset[str]()
    for operators, told in ((_IN_PLACE | _IN_PLACE_IF_TOLD, True), (_IN_PLACE, False)):
        others = large.intersection(
            name
            for node in nodes
            if node.domain != DOMAIN and (node.domain, node.op_type) not in operators
            for name in node.input
        )
        if told and large and not others:
            needs_telling = any((node.domain, node.op_type) in _IN_PLACE_IF_TOLD for node in nodes)
            return large, needs_telling
    return large - others, False


def kept_apart(nodes: Iterable[Any], names: Collection[str]) -> frozenset[str]:
    """The constants of which operators make a form that no other session can use."""
    return frozenset(
        name for node in nodes if node.op_type in _NOT_SHARING for name in node.input if name in names
    )


def optimised(lowered: Lowered, threads: int) -> tuple[ModelProto, dict[str, Array]]:
    """The model after all of the runtime's optimisations, and its large constants."""
    if sum(array.nbytes for array in lowered.external.values()) > _LARGEST_MESSAGE:
        return _optimised_in_a_folder(lowered, threads)
    # A file without a name: a device that is killed here leaves nothing behind.
    fd = os.memfd_create("openhtp-model", os.MFD_CLOEXEC)
    try:
        options = _saving_options(threads, f"/proc/self/fd/{fd}")
        open_session(model_bytes(lowered.model), lowered.external, options)
        size = os.fstat(fd).st_size
        if not size and os.environ.get(MODELS_DECIDE) == "1":
            raise UnsupportedFeature(
                f"{MODELS_DECIDE}=1: in a process with this variable, the CPU runtime drops the options that an"
                " emulated HTP needs; unset it, or give the device a process of its own (host='process')"
            )
        with mmap.mmap(fd, size, access=mmap.ACCESS_READ) as data:
            model = parse_model(data[:])
    finally:
        os.close(fd)
    return model, _take_large_constants(model)


def _optimised_in_a_folder(lowered: Lowered, threads: int) -> tuple[ModelProto, dict[str, Array]]:
    """Optimise a model that is larger than one message may be: its constants go to a file of their own."""
    folder = Path(tempfile.mkdtemp(prefix="openhtp-"))
    try:
        options = _saving_options(threads, str(folder / "model.onnx"))
        add = options.add_session_config_entry
        add("session.optimized_model_external_initializers_file_name", "data")
        add("session.optimized_model_external_initializers_min_size_in_bytes", str(INLINE_BYTES))
        open_session(model_bytes(lowered.model), lowered.external, options)
        model = parse_model((folder / "model.onnx").read_bytes())
        data = folder / "data"
        return model, _read_external(model, np.fromfile(data, np.uint8) if data.exists() else None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _saving_options(threads: int, path: str) -> Any:
    """Options of a session that saves its optimised model and never runs."""
    options = session_options(threads, optimise=True)
    options.optimized_model_filepath = path
    options.add_session_config_entry(_NO_OWN_FORMS, "1")
    return options


def _take_large_constants(model: ModelProto) -> dict[str, Array]:
    """Move large constants out of the model, so that segments can share them without a copy each."""
    constants: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        if not is_inline(numpy_type(tensor.data_type), len(tensor.raw_data)):
            values = np.frombuffer(tensor.raw_data, numpy_type(tensor.data_type))
            constants[tensor.name] = values.reshape(tuple(tensor.dims))
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "shared"), ("offset", "0"), ("length", str(values.nbytes))):
                tensor.external_data.add(key=key, value=value)
    return constants


def _read_external(model: ModelProto, data: Array | None) -> dict[str, Array]:
    constants: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL and data is not None:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            begin = int(entries.get("offset", 0))
            raw = data[begin : begin + int(entries["length"])]
            constants[tensor.name] = raw.view(numpy_type(tensor.data_type)).reshape(tuple(tensor.dims))
    return constants


# Memory for the values that one execution hands from one segment to the next.


_HUGE_PAGE = 2 << 20
_LINE = 64
# Below this, most of a huge page would lie idle.
_WORTH_A_HUGE_PAGE = _HUGE_PAGE // 2


def _slots_in(room: memoryview, sizes: Sequence[int]) -> list[npt.NDArray[Any]]:
    """Bytes for each slot: in a room as long as it has some left, then elsewhere."""
    memory, slots, end = np.frombuffer(room, np.uint8), [], 0
    for size in sizes:
        if end + size <= memory.size:
            slots.append(memory[end : end + size])
            end += -(-size // _LINE) * _LINE
        else:
            slots.append(np.empty(size, np.uint8))
    return slots


def make_slots(sizes: Sequence[int]) -> list[npt.NDArray[Any]]:
    """Bytes for each slot, on as few pages of the machine as it has to offer.

    On small pages, which the system takes from all over the memory, some values get into each other's way in the
    cache, for as long as the execution's bindings live.
    """
    rooms = [-(-size // _LINE) * _LINE for size in sizes]
    ends = list(itertools.accumulate(rooms, initial=0))
    total = ends[-1]
    if total < _WORTH_A_HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return [np.empty(size, np.uint8) for size in sizes]
    mapped = mmap.mmap(-1, -(-total // _HUGE_PAGE) * _HUGE_PAGE + _HUGE_PAGE, flags=mmap.MAP_PRIVATE)
    mapped.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapped, np.uint8)  # keeps the mapping for as long as anything of it is used
    begin = -memory.ctypes.data % _HUGE_PAGE
    return [memory[begin + start : begin + start + size] for start, size in zip(ends, sizes, strict=False)]
