"""Sessions by ONNX Runtime's C interface (``native/sessions.c``), where that part of the package was compiled.

Unlike sessions of the runtime's Python package, these are made without the interpreter's lock, so other threads
compute and load meanwhile. They read constants where these lie, and several sessions can share the forms that
kernels make of equal constants.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
from collections.abc import Mapping, Sequence
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
    create_string_buffer,
)
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from openhtp.core.errors import QnnError
from openhtp.core.shared_library import FOREIGN_WHEEL, OUTDATED, RENEW, check_file, is_outdated, loading_failure
from openhtp.engine.onnx_graph import numpy_type, onnx_type
from openhtp.engine.onnxruntime import onnxruntime as ort, part
from openhtp.engine.opened import BoundSession, End, Sort
from openhtp.engine.protocol import RowDone, RowWatch

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]

LIBRARY = "libopenhtp_sessions.so"
_OrtValue = part("capi.onnxruntime_pybind11_state").OrtValue
_DLPACK_CODES = {"i": 0, "u": 1, "f": 2, "b": 1}
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, (c_void_p, c_char_p, c_void_p)
SWITCH = "OPENHTP_NATIVE_SESSIONS"
"""An environment variable: ``0`` has all sessions made by the runtime's Python package."""
DOMAIN = "openhtp"
"""That of the operators which the C side brings along."""
FOLDER = Path(__file__).absolute().parent / "lib"
SOURCES = FOLDER.with_name("native")
# Two looks at a descriptor lie less than a microsecond apart; this far only if somebody else had the processor.
_TAKEN_NS = 200_000
# How long callers are let finish who need the interpreter's lock for a moment: being woken for it takes longer.
_COURTESY_NS = 30_000
# Bytes of the names, types and sizes of what most sessions read and write.
_USUAL_FIELDS = 1024


class SessionRefused(Exception):
    """The runtime does not make such a session, or cannot bind it; in its own words."""


class _End(ctypes.Structure):
    _fields_ = (
        ("name", c_char_p),
        ("data", c_void_p),
        ("nbytes", c_size_t),
        ("sizes", POINTER(c_int64)),
        ("rank", c_size_t),
        ("type", c_int32),
        ("is_output", c_int32),
    )


class ChosenOptions(NamedTuple):
    """Options of the runtime, and where the C side finds them. Any number of sessions may be made with them."""

    options: Any
    place: int


class _Row(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("looked", "interval", "until", "began", "ended")),
        ("news", c_int32),
        ("done", c_int32),
    )


MOST_KEY_BYTES, MOST_KNOWN, MOST_WAITING = 256, 64, 512


class _Waiting(ctypes.Structure):
    _fields_ = (("job", c_uint64), ("received", c_int64), ("known", c_int32), ("waited", c_int32))


class _Line(ctypes.Structure):
    _fields_ = (
        *((name, c_uint32) for name in ("graph", "bindings", "key_bytes")),
        *((name, c_int32) for name in ("known_count", "latest", "room", "first", "count")),
        ("last_job", c_uint64),
        *((name, c_int32) for name in ("many", "unused")),
        *((name, c_int64) for name in ("ended", "took", "took_before")),
        *((name, c_int32) for name in ("any_queued", "failed")),
        ("bound", c_void_p * MOST_KNOWN),
        ("keys", c_uint8 * MOST_KEY_BYTES * MOST_KNOWN),
        ("waiting", _Waiting * MOST_WAITING),
    )


class _Watch(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("patience", "taken", "courtesy")),
        ("turns", c_void_p),
        ("waited", c_int64),
        ("descriptor", c_int32),
        ("was_taken", c_int32),
    )


class Handle:
    """An object of the C side, released with this one. This one exists first, so no interrupt loses the other."""

    __slots__ = ("_release", "place")

    def __init__(self, release: Any) -> None:
        self._release = release
        self.place = c_void_p()

    def __del__(self) -> None:
        if self.place:
            self._release(self.place)


class Native:
    """The functions of the C side."""

    def __init__(self, path: Path) -> None:
        """Raises OSError or SessionRefused if sessions cannot be made with it."""
        library = ctypes.CDLL(str(path))
        self._path = str(path)
        self._need_operators = _function(library.openhtp_need_operators, None, c_int)
        self._chosen = _function(library.openhtp_chosen, c_void_p)
        self.choose(ort.SessionOptions())
        self.begin = _function(library.openhtp_begin, c_int)
        self._words = _function(library.openhtp_words, c_char_p, c_void_p)
        self._forget = _function(library.openhtp_forget, None, c_void_p)
        size, handle = c_size_t, POINTER(c_void_p)
        self.lend = _function(library.openhtp_lend, c_void_p, c_void_p, POINTER(c_int64), c_int, c_int, c_int)
        self.settle = _function(library.openhtp_settle, c_int, c_void_p)
        fields = (c_char_p, size, POINTER(size))
        self.make = _function(library.openhtp_make, c_void_p, c_char_p, size, c_void_p, c_void_p, handle, *fields)
        self.describe = _function(library.openhtp_describe, c_void_p, c_void_p, *fields)
        self.bind = _function(library.openhtp_bind, c_void_p, c_void_p, POINTER(_End), size, handle)
        self.run = _function(library.openhtp_run, c_void_p, c_void_p)
        self.run_row = _function(library.openhtp_run_row, c_void_p, c_void_p, c_int, POINTER(_Row))
        line = POINTER(_Line)
        self.take_frames = _function(library.openhtp_take_frames, c_int64, line, c_int, c_void_p, size, c_int)
        self.compute_frames = _function(library.openhtp_compute_frames, c_int, line, c_void_p, c_int, c_int64)
        self.await_news = _function(library.openhtp_await_news, None, POINTER(_Watch), c_int64)
        self.widen = _function(library.openhtp_widen, None, c_void_p, c_void_p, size)
        self.has_products = bool(_function(library.openhtp_has_products, c_int)())
        places = (c_void_p,) * 3
        self.follow = _function(library.openhtp_follow, None, c_int, *places, size, size, size, size, size)
        self.create_container = _function(library.openhtp_create_container, c_void_p, handle)
        self.release_session = _function(library.openhtp_release_session, None, c_void_p)
        self.release_bound = _function(library.openhtp_release_bound, None, c_void_p)
        self.release_container = _function(library.openhtp_release_container, None, c_void_p)
        if self.begin() or not hasattr(_OrtValue, "from_dlpack"):
            raise SessionRefused(f"ONNX Runtime {ort.__version__} is too old for it")

    def choose(self, options: Any, *, operators: bool = False) -> ChosenOptions:
        """Show the C side these options; sessions made with them have its operators if wanted."""
        self._need_operators(operators)
        try:
            options.register_custom_ops_library(self._path)
        finally:
            self._need_operators(True)
        return ChosenOptions(options, self._chosen())

    def words(self, status: int) -> str:
        """The words for a failure, which is forgotten afterwards."""
        text: bytes = self._words(status)
        words = text.decode(errors="replace")
        self._forget(status)
        return words

    def check(self, status: int | None) -> None:
        """Raise SessionRefused for a failure."""
        if status:
            raise SessionRefused(self.words(status))


def _function(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype, function.argtypes = result, arguments
    return function


@cache
def native() -> Native | None:
    """The C side of this process; None where it was not compiled, is switched off or does not fit the runtime."""
    path = FOLDER / LIBRARY
    if os.environ.get(SWITCH) == "0" or not path.is_file():
        return None
    slower = "sessions are made by the Python package of ONNX Runtime, which is slower"
    if is_outdated(path, SOURCES):
        log.warning("%s, as %s. What to do: %s", slower, OUTDATED, RENEW)
        return None
    try:
        return Native(path)
    except Exception as error:  # the runtime's own have no base in common
        log.warning("%s: %s. What to do: see openhtp doctor", slower, error)
        return None


def offer_operators(options: Any) -> None:
    """Let a session of the runtime's Python package have the operators of the C side, if that was compiled."""
    path = FOLDER / LIBRARY
    if path.is_file():
        options.register_custom_ops_library(str(path))


def absence() -> str:
    """Why sessions are not made by the C side; empty if they are."""
    if native() is not None:
        return ""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0 in your environment"
    if not (FOLDER / LIBRARY).is_file():
        return "there was no C compiler when openhtp was built"
    try:
        check_file(FOLDER / LIBRARY, FOREIGN_WHEEL)
        ctypes.CDLL(str(FOLDER / LIBRARY))
    except QnnError as error:
        return str(error)
    except OSError as error:
        return str(loading_failure(FOLDER / LIBRARY, error))
    if is_outdated(FOLDER / LIBRARY, SOURCES):
        return OUTDATED
    return f"it does not fit ONNX Runtime {ort.__version__}"


class SharedForms:
    """The forms that kernels make of weights, shared by sessions that are made with it; equal forms exist once."""

    def __init__(self, side: Native) -> None:
        self.handle = Handle(side.release_container)
        side.check(side.create_container(byref(self.handle.place)))


class _Loan:
    """An array that the runtime reads where it lies; ``value`` is the runtime's name for it."""

    def __init__(self, side: Native, array: Array) -> None:
        code, bits = _DLPACK_CODES[array.dtype.kind], array.dtype.itemsize * 8
        self._settle = side.settle
        self._place = side.lend(_address(array), _sizes(array.shape), array.ndim, code, bits)
        if not self._place:
            raise SessionRefused(f"an array of {array.ndim} dimensions, or no memory")
        self.value = ort.OrtValue(
            _OrtValue.from_dlpack(_capsule(self._place, b"dltensor", None), array.dtype == bool)
        )

    def is_read(self) -> bool:
        """Whether the runtime still reads it; to be asked once, at the end."""
        del self.value
        return bool(self._settle(self._place))


class NativeSession:
    """A session of the C side; constants that it reads where they lie live as long as it does."""

    def __init__(
        self,
        side: Native,
        model: bytes,
        constants: Mapping[str, Array],
        options: Any,
        forms: SharedForms | None = None,
    ) -> None:
        """``options`` are the runtime's, and used up if they are not chosen yet. Raises SessionRefused."""
        self._side = side
        self._forms = forms
        self._handle = Handle(side.release_session)
        loans = {}
        try:
            for name, array in constants.items():
                loans[name] = _Loan(side, array)
                options.add_initializer(name, loans[name].value)
            if not isinstance(options, ChosenOptions):
                options = side.choose(options, operators=needs_operators(model))
            container = None if forms is None else forms.handle.place
            fields, used = create_string_buffer(_USUAL_FIELDS), c_size_t()
            place = byref(self._handle.place)
            side.check(
                side.make(model, len(model), options.place, container, place, fields, len(fields), byref(used))
            )
        finally:
            read = {name for name, loan in loans.items() if loan.is_read()}
        self.reads = frozenset(read)
        """Names of the constants that it reads where they lie."""
        self.held = tuple(constants[name] for name in constants if name in read)
        if used.value > len(fields):
            fields = create_string_buffer(used.value)
            side.check(side.describe(self._handle.place, fields, len(fields), byref(used)))
        self._ends = fields.raw[: used.value]

    def inputs(self) -> list[End]:
        """What it reads."""
        return _read_ends(self._told()[0])

    def outputs(self) -> list[End]:
        """What it writes, as far as the runtime knows."""
        return _read_ends(self._told()[1])

    def fits(self, inputs: Mapping[str, Sort], outputs: Mapping[str, Sort]) -> bool:
        """Whether it reads and writes just these; a size that it leaves free may be any."""
        return all(
            len(told) == len(expected)
            and all(_fits(told.get(name.encode(), b""), _words_of(*sort)) for name, sort in expected.items())
            for told, expected in zip(self._told(), (inputs, outputs), strict=True)
        )

    def _told(self) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
        """The names of its inputs and of its outputs, and type and sizes of each in the C side's words."""
        words = self._ends.split(b"\0")
        outputs = 2 * int(words[0]) + 1
        return (
            dict(zip(words[1:outputs:2], words[2:outputs:2], strict=True)),
            dict(zip(words[outputs + 1 : -1 : 2], words[outputs + 2 : -1 : 2], strict=True)),
        )

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> BoundSession:
        """Let it read and write these arrays."""
        side, handle = self._side, Handle(self._side.release_bound)
        ends = (_End * (len(inputs) + len(outputs)))(
            *(_End(*_where(name, array)) for name, array in inputs.items()),
            *(_End(*_where(name, array), is_output=1) for name, array in outputs.items()),
        )
        side.check(side.bind(self._handle.place, ends, len(ends), byref(handle.place)))
        return BoundSession(partial(side.run, handle.place), (handle, self), handle.place.value or 0)


_SEPARATOR = b"\xff"


def _read_ends(told: Mapping[bytes, bytes]) -> list[End]:
    ends = []
    for name, words in told.items():
        number, *sizes = words.split(_SEPARATOR)
        shape = tuple(size[1:].decode() if size.startswith(b"?") else int(size) for size in sizes)
        ends.append(End(name.decode(), numpy_type(int(number)), shape))
    return ends


def _fits(told: bytes, expected: bytes) -> bool:
    if told == expected or b"?" not in told:
        return told == expected
    pairs = itertools.zip_longest(told.split(_SEPARATOR), expected.split(_SEPARATOR), fillvalue=b"")
    return all(expected_size and (size.startswith(b"?") or size == expected_size) for size, expected_size in pairs)


@lru_cache(maxsize=1024)
def _words_of(dtype: np.dtype[Any], shape: tuple[int | str, ...]) -> bytes:
    """Type and sizes in the C side's words."""
    sizes = (f"?{size}" if isinstance(size, str) else str(size) for size in shape)
    return _SEPARATOR.join(word.encode() for word in (str(onnx_type(dtype)), *sizes))


def needs_operators(model: bytes) -> bool:
    """Whether a model has operators that the C side brings along, or only their name somewhere."""
    return DOMAIN.encode() in model


def _where(name: str, array: Array) -> tuple[bytes, int, int, Any, int, int]:
    shape = array.shape
    return name.encode(), _address(array), array.nbytes, _sizes(shape), len(shape), _type_number(array.dtype)


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]  # in a third of the time of array.ctypes.data
    return address


@lru_cache(maxsize=256)
def _sizes(shape: tuple[int, ...]) -> Any:
    """A shape as the runtime reads it, which it does not change."""
    return (c_int64 * max(1, len(shape)))(*shape)


_type_number = lru_cache(maxsize=64)(onnx_type)


class NativeRow:
    """Bound sessions that can be computed one after another without coming back to Python."""

    __slots__ = ("_places", "_row", "_side")

    def __init__(self, side: Native, places: Sequence[int]) -> None:
        self._side = side
        self._places = (c_void_p * len(places))(*places)
        self._row = _Row()

    def run(self, first: int, end: int, watch: RowWatch) -> RowDone:
        """Compute from ``first`` to before ``end``, or until the watch has news. One that fails does not count."""
        row = self._row
        row.looked, row.interval, row.until, row.news = watch
        begin = byref(self._places, first * ctypes.sizeof(c_void_p))
        failed = self._side.run_row(begin, end - first, byref(row))
        if failed:
            self._side.words(failed)  # forgets it; computed by itself it fails again, and is reported then
        return RowDone(row.done, row.began, row.ended)


def native_row(bound: Sequence[BoundSession]) -> NativeRow | None:
    """The same sessions as a row; None if there is one only, or one of the runtime's package."""
    if len(bound) < 2:
        return None
    side, places = native(), [one.place for one in bound]
    return NativeRow(side, places) if side is not None and all(places) else None


class WaitingFrame(NamedTuple):
    """An execution in a line: its number, its memory, when it was read, and whether its client waits for it."""

    job: int
    key: bytes
    received_ns: int
    waited: bool


# Instead of the size of a frame: there is none yet, or as many as wanted were read.
NOTHING_MORE, ENOUGH = -1, -2


class NativeLine:
    """Executions of one graph on known memory, which the C side reads from a socket and computes in order."""

    __slots__ = ("_compute", "_frame", "_kept", "_pointer", "_record_bytes", "_records", "_room", "_take", "state")

    def __init__(self, side: Native, buffer: bytearray, most_records: int, record_bytes: int) -> None:
        """A frame that may not wait here is left in ``buffer``."""
        # As the C side has it: ``count`` wait; the client of the last that was taken has ``many`` under way.
        self.state = _Line()
        self._pointer = byref(self.state)
        self._frame, self._room = (c_uint8 * len(buffer)).from_buffer(buffer), len(buffer)
        self._record_bytes = record_bytes
        self._records = bytearray(most_records * record_bytes)
        self._take = side.take_frames
        self._compute = partial(
            side.compute_frames, self._pointer, (c_uint8 * len(self._records)).from_buffer(self._records)
        )
        self._kept: list[object] = []

    def serve(self, graph: int, bindings: int, key_bytes: int) -> None:
        """Take executions of this graph with so much to say about their memory; none is known yet."""
        line, self._kept = self.state, []
        line.graph, line.bindings, line.key_bytes = graph, bindings, key_bytes
        line.known_count = line.latest = line.took = line.took_before = 0

    def learn(self, key: bytes, place: int, kept: object) -> None:
        """Know memory: the session that is bound to it has its ``place`` for as long as ``kept`` lives.

        Keys are no longer than ``MOST_KEY_BYTES``, and no more than ``MOST_KNOWN``.
        """
        line = self.state
        number = line.known_count
        self._kept.append(kept)
        ctypes.memmove(line.keys[number], key, len(key))
        line.bound[number] = place
        line.known_count = number + 1

    def take(self, socket: int, most: int, room: int) -> int:
        """Read frames: at most ``most``, while no more than ``room`` wait.

        Returns the size of a frame that may not wait here; 0 at the end of the connection, ``NOTHING_MORE`` or
        ``ENOUGH``.
        """
        self.state.room = min(room, MOST_WAITING)
        size: int = self._take(self._pointer, socket, self._frame, self._room, most)
        return size

    def compute(self, most: int, longest_ns: int) -> bytes:
        """Compute what waits, in order: at most ``most``, none begun after ``longest_ns``; returns their records.

        ``state`` then says when the last of them ``ended``, how long it and the one before it ``took``, whether
        the client of any of them does not wait, and whether the next one ``failed``, which still waits.
        """
        done: int = self._compute(most, longest_ns)
        return bytes(self._records[: done * self._record_bytes])

    def take_back(self) -> list[WaitingFrame]:
        """Those that wait, which wait here no longer."""
        line = self.state
        places = [line.waiting[(line.first + number) % MOST_WAITING] for number in range(line.count)]
        line.count = 0
        return [
            WaitingFrame(one.job, bytes(line.keys[one.known])[: line.key_bytes], one.received, bool(one.waited))
            for one in places
        ]


class NativeWatch:
    """Waits for a descriptor to become readable without the interpreter's lock, at first by looking at it."""

    __slots__ = ("_await_news", "_place", "_watch")

    def __init__(self, side: Native, descriptor: int, turns: int) -> None:
        """``turns`` is where it and callers take turns with the interpreter's lock; 0: nowhere."""
        self._await_news = side.await_news
        self._watch = _Watch(descriptor=descriptor, taken=_TAKEN_NS, courtesy=_COURTESY_NS, turns=turns or None)
        self._place = byref(self._watch)

    def wait(self, timeout_ns: int | None, patience_ns: int) -> tuple[int, bool]:
        """Wait; look for ``patience_ns`` before. Returns how long it took, and if the processor was taken away."""
        watch = self._watch
        watch.patience = patience_ns
        self._await_news(self._place, -1 if timeout_ns is None else timeout_ns)
        return watch.waited, bool(watch.was_taken)


def failure(status: object) -> str:
    """The failure that a bound session returned, in words."""
    side = native()
    return side.words(status) if side is not None and isinstance(status, int) else str(status)
