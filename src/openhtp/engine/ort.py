"""The engine that computes: ONNX Runtime's CPU kernels.

A program becomes one ONNX model (``lowering.py``), is optimised as a whole, and is cut into segments when it is
long (``cutting.py``). The result can be stored, and is then ready quickly (``prepared.py``). Inputs and
outputs are bound to the caller's arrays, so nothing is copied on the way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.compiler.sizes import sizes_of, weights_fill
from openhtp.compiler.vtcm.place import placed_of, vtcm_peak_bytes
from openhtp.compiler.vtcm.spill_fill import spill_fill_bytes, spill_fill_of
from openhtp.core import status as st
from openhtp.core.errors import (
    ExecutionError,
    InternalError,
    InvalidArgument,
    OutOfMemory,
    QnnError,
    error_context,
)
from openhtp.core.tensor import TensorSpec
from openhtp.core.units import MIB
from openhtp.engine.cutting import make_stages, prepare
from openhtp.engine.lowering import lower_program
from openhtp.engine.native import failure, native, native_row
from openhtp.engine.native_kv import Mirrors, NativeState
from openhtp.engine.opened import BoundSession, PackagedSession
from openhtp.engine.own_ops import ChainedProgram, has_own_ops, load_in_turns
from openhtp.engine.prepared import Unusable, open_prepared, pack_prepared
from openhtp.engine.protocol import NOT_IN_A_ROW, Rehearsal, RowDone, RowWatch
from openhtp.engine.seal import fingerprint, read_key
from openhtp.engine.segments import cuts_of
from openhtp.engine.sessions import SegmentSession, Staged
from openhtp.engine.workshop import Workshop, give_back_copies
from openhtp.hw.soc import SocSpec
from openhtp.program.chip_program import pack_chip_program
from openhtp.program.container import make_section
from openhtp.program.htp_program import HtpProgram, NativeKv
from openhtp.program.packed import GraphInfo, PackedGraph, pack_program

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]

# From so many kernels, or bytes of weights, on, lowering and optimising take so long that the result is worth
# storing.
_KERNELS_WORTH_STORING = 8
_BYTES_WORTH_STORING = 4 * MIB


# The size of the tensors up to which a program is rehearsed, and the number of runs, fewer if a run takes long.
_REHEARSED_BYTES = 1 << 19
_REHEARSALS = 3
_LONG_NS = 1_000_000


class OrtRun:
    """One execution's bindings. ``step`` is one call into the runtime: about two microseconds of our own."""

    __slots__ = ("_calls", "_kept", "_row", "place")

    def __init__(self, bound: Sequence[BoundSession], kept: tuple[Any, ...]) -> None:
        """``kept`` is memory that the calls read and write by its address."""
        self.place = bound[0].place if len(bound) == 1 else 0
        """Where the C side has the only session, for as long as this lives; 0 if it has not, or there are more."""
        self._calls = [one.call for one in bound]
        self._kept = (kept, bound)
        self._row = native_row(bound)

    def step(self, index: int) -> None:
        """Compute one segment."""
        try:
            failed = self._calls[index]()
        except Exception as error:
            raise ExecutionError(f"step {index} failed in the CPU runtime: {error}") from error
        if failed:
            raise ExecutionError(f"step {index} failed in the CPU runtime: {failure(failed)}")

    def row(self, first: int, end: int, watch: RowWatch) -> RowDone:
        """Compute segments in a row, where sessions are made by the C side."""
        return NOT_IN_A_ROW if self._row is None else self._row.run(first, end, watch)

    def rehearse(self) -> bool:
        """Compute the first segment on what lies in its arrays, outside of any execution; whether that worked."""
        return not self._calls[0]()


class FlowingRun:
    """One execution whose sizes are only known when it runs, in several stages between which it may yield.

    Has the client's arrays, and values that live until their last reader has run. The runtime makes the values
    between two stages itself, in the size that they turn out to have, and the next stage reads them where they
    lie. So nothing is bound ahead, which costs some microseconds a stage.
    """

    __slots__ = ("_ends", "_last_reader", "_stages", "_values")

    def __init__(self, stages: Sequence[SegmentSession], ends: Mapping[str, Array]) -> None:
        self._stages = stages
        self._ends = ends
        self._last_reader = {name: place for place, stage in enumerate(stages) for name in stage.inputs}
        self._values: dict[str, Any] = {}

    def step(self, index: int) -> None:
        """Compute one stage."""
        stage = self._stages[index]
        session = stage.session
        assert isinstance(session, PackagedSession)
        if index == 0:
            self._values.clear()  # left by an execution that did not reach its end
        places = {name: self._ends[name] if name in self._ends else self._values[name] for name in stage.inputs}
        targets = {name: self._ends.get(name) for name in stage.outputs}
        try:
            self._values |= session.flow(places, targets)
        except Exception as error:
            raise ExecutionError(f"step {index} failed in the CPU runtime: {error}") from error
        for name in [name for name in self._values if self._last_reader.get(name, -1) <= index]:
            del self._values[name]


class NativeRun:
    """A run of a graph with a native KV cache: its sessions read mirrors of the client's memory."""

    def __init__(self, program: OrtProgram, arrays: Mapping[str, Array], kv: NativeKv, mirrors: Mirrors) -> None:
        self._program = program
        self._arrays = dict(arrays)
        self._kv = kv
        self._last = program.steps - 1
        self._use(mirrors)

    def _use(self, mirrors: Mirrors | None) -> None:
        self._state = NativeState(self._kv, self._program.name, self._arrays, mirrors)
        self._run = self._program.bind_plain(self._arrays | self._state.private)

    def step(self, index: int) -> None:
        """Compute one segment, after the cache was looked at and before new tokens are given out."""
        if index == 0 and not self._state.begin():
            # Another execution on the same cache is under way, perhaps paused: its mirrors must not change.
            self._use(None)
            self._state.begin()
        self._run.step(index)
        if index == self._last:
            self._state.end()

    def row(self, first: int, end: int, watch: RowWatch) -> RowDone:
        """Compute segments in a row, except for those that look at the cache."""
        end, run = min(end, self._last), self._run
        return run.row(first, end, watch) if 0 < first < end and isinstance(run, OrtRun) else NOT_IN_A_ROW


class OrtProgram:
    """A program whose sessions are made."""

    def __init__(
        self,
        name: str,
        specs: Sequence[TensorSpec],
        staged: Staged,
        names: Mapping[str, str],
        memory: tuple[int, int | None],
        updateable: Mapping[str, Array],
        native_kv: tuple[NativeKv, Mirrors] | None = None,
    ) -> None:
        """``specs`` are inputs, outputs and what is ``updateable``, whose data is given.

        ``names`` says what those that are used are called in the sessions. ``memory`` is the spill-fill buffer and
        the most that is in VTCM at once.
        """
        self.spill_fill_bytes, self.vtcm_peak_bytes = memory
        self._updateable = dict(updateable)
        self.name = name
        self._native_kv = native_kv
        self._staged: Staged | None = staged
        self._names = names
        self._specs = {spec.name: spec for spec in specs}
        self._spill_room: memoryview | None = None
        self.rehearsal = self._rehearse()

    def _rehearse(self) -> Rehearsal | None:
        """Run a small program on zeros, so that its first execution finds everything in place.

        Programs of several steps, with large data, with sizes that vary or with a state are left alone.
        """
        specs = self._specs.values()
        if self.steps != 1 or self._native_kv is not None or self._updateable:
            return None
        if any(spec.is_dynamic for spec in specs) or sum(spec.nbytes for spec in specs) > _REHEARSED_BYTES:
            return None
        took_ns: list[int] = []
        try:
            arrays = {spec.name: np.zeros(spec.shape, spec.dtype.numpy) for spec in specs}
            run = self.bind_plain(arrays)
            for _ in range(_REHEARSALS):
                began_ns = time.perf_counter_ns()
                if not isinstance(run, OrtRun) or not run.rehearse():
                    return None
                took_ns.append(time.perf_counter_ns() - began_ns)
                if took_ns[-1] > _LONG_NS:
                    break
        except Exception as error:  # an execution reports its own error
            log.debug("program %r was not rehearsed: %s", self.name, error)
            return None
        return Rehearsal(min(took_ns), run, arrays)

    @property
    def steps(self) -> int:
        """Number of segments."""
        return len(self._stages.stages)

    @property
    def _stages(self) -> Staged:
        if self._staged is None:
            raise InternalError(f"program {self.name!r} is used after it was closed")
        return self._staged

    def bind(self, arrays: Mapping[str, Array]) -> OrtRun | FlowingRun | NativeRun:
        """Bind every input and output to an array; intermediate buffers are made here, once."""
        if self._updateable:
            arrays = {**arrays, **self._updateable}
        if self._native_kv is None:
            return self.bind_plain(arrays)
        with error_context(graph=self.name):
            for name in self._names:
                self._checked(name, arrays)
        return NativeRun(self, arrays, *self._native_kv)

    def bind_plain(self, arrays: Mapping[str, Array]) -> OrtRun | FlowingRun:
        """Bind arrays that are as the sessions take them."""
        with error_context(graph=self.name):
            places = {self._names[name]: self._checked(name, arrays) for name in self._names}
        if self._stages.flowing:
            return FlowingRun(self._stages.stages, places)
        places = self._stages.with_buffers(places, self._spill_room)
        bound = [stage.bind(places) for stage in self._stages.stages]
        return OrtRun(bound, tuple(places.values()))

    def update(self, arrays: Mapping[str, Array]) -> None:
        """Use this data for the updateable tensors in what is bound from now on."""
        self._updateable |= arrays

    def spill_into(self, room: memoryview) -> None:
        """Keep values between segments in this memory, as far as they fit. One run at a time uses it."""
        self._spill_room = room

    def close(self) -> None:
        """Drop the sessions. Runs that still live keep theirs until they go."""
        self._staged = self._spill_room = self.rehearsal = None

    def _checked(self, key: str, arrays: Mapping[str, Array]) -> Array:
        spec = self._specs[key.partition(":")[2]]
        array = arrays.get(spec.name)
        if array is None:
            raise InvalidArgument(f"no array is bound to {spec.name!r}", st.QNN_GRAPH_ERROR_INVALID_TENSOR)
        if array.dtype != spec.dtype.numpy or not spec.accepts(array.shape) or not array.flags.c_contiguous:
            raise InvalidArgument(
                f"array {array.dtype}{list(array.shape)} is bound to {spec};"
                f" expected contiguous {spec.dtype.numpy}{list(spec.shape)}",
                st.QNN_GRAPH_ERROR_INVALID_TENSOR,
            )
        return array


class OrtEngine:
    """Runs programs on this machine's CPU with a fixed number of threads per graph."""

    def __init__(self, threads: int = 1, *, yield_points: bool = True) -> None:
        """``yield_points`` off runs every program in one piece; only good for measuring what they cost."""
        if threads < 1:
            raise InvalidArgument(f"threads is {threads}; expected at least 1")
        self._threads = threads
        self._yield_points = yield_points
        self._mirrors = Mirrors()
        fingerprint()  # now, when nobody waits for a graph yet
        native()

    def load(self, program: HtpProgram) -> OrtProgram | ChainedProgram:
        """Lower, optimise and cut a program."""
        if has_own_ops(program):
            return load_in_turns(program, self._load)
        return self._load(program)

    def _load(self, program: HtpProgram) -> OrtProgram:
        with error_context(graph=program.name), _refusals_reported():
            lowered = lower_program(program)
            staged = make_stages(program, lowered, self._threads, yield_points=self._yield_points)
        names = {f"in:{name}": location for name, location in lowered.inputs.items()}
        names |= {f"out:{name}": location for name, location in lowered.outputs.items()}
        read_bytes = sum(array.nbytes for array in lowered.external.values())
        del lowered
        give_back_copies(read_bytes)
        source, native = program.source, self._native(program.native_kv)
        specs = (*program.inputs, *program.outputs, *source.updateable_statics)
        updateable = {spec.name: source.statics[spec.name] for spec in source.updateable_statics}
        sizes = sizes_of(program)
        memory = spill_fill_bytes(program, sizes), vtcm_peak_bytes(program, sizes)
        return OrtProgram(program.name, specs, staged, names, memory, updateable, native)

    def load_packed(
        self, packed: PackedGraph, info: GraphInfo, soc: SocSpec, workshop: Workshop
    ) -> OrtProgram | None:
        """Make ready a graph that was prepared before. None if it was not, or not by and for this engine."""
        if packed.prepared is None or not self._yield_points:
            return None
        key = read_key()
        if key is None:
            return None
        try:
            staged, native_kv = open_prepared(packed, info, soc, key, self._threads, workshop)
        except Unusable as reason:
            log.info("graph %r is prepared anew; its stored form is not used: %s", packed.name, reason)
            return None
        names = {name: name for name in staged.ends}
        specs = (*info.inputs, *info.outputs, *info.updateable_statics)
        updateable = packed.updateable_data() if info.updateable_statics else {}
        native = self._native(native_kv)
        memory = packed.spill_fill_bytes, packed.vtcm_peak_bytes
        return OrtProgram(info.name, specs, staged, names, memory, updateable, native)

    def _native(self, native_kv: NativeKv | None) -> tuple[NativeKv, Mirrors] | None:
        return None if native_kv is None else (native_kv, self._mirrors)

    def pack(self, program: HtpProgram) -> PackedGraph:
        """The program with its needs of memory, and with its prepared form unless it is quick without one."""
        packed = self._packed_with_form(program) or pack_program(program.source, compact=True)[0]
        sizes = sizes_of(program)
        spilled = spill_fill_of(program, sizes)
        return dataclasses.replace(
            packed,
            spill_fill_bytes=spilled.nbytes,
            vtcm_peak_bytes=vtcm_peak_bytes(program, sizes),
            chip=make_section(
                pack_chip_program(program, placed_of(program, sizes), spilled.waiting, weights_fill(program))
            ),
        )

    def _packed_with_form(self, program: HtpProgram) -> PackedGraph | None:
        key = read_key()
        flows = program.source.is_dynamic and cuts_of(program).segments > 1
        if key is None or has_own_ops(program) or flows:
            return None
        with error_context(graph=program.name), _refusals_reported():
            prepared = prepare(program, lower_program(program), self._threads, whole=_is_slow_to_prepare(program))
        if prepared is None:
            return None
        try:
            return pack_prepared(program, prepared, key)
        except Unusable as reason:
            log.warning("graph %r is stored without its prepared form: %s", program.name, reason)
            return None


def _is_slow_to_prepare(program: HtpProgram) -> bool:
    """Whether a program of one part is loaded more quickly, and in less memory, from its prepared form."""
    if program.source.is_dynamic:
        return False
    return len(program.kernels) >= _KERNELS_WORTH_STORING or program.source.static_bytes >= _BYTES_WORTH_STORING


@contextlib.contextmanager
def _refusals_reported() -> Iterator[None]:
    """Name the runtime in its refusals. Its exceptions have no base in common but ``Exception``."""
    try:
        yield
    except QnnError:
        raise
    except Exception as error:
        if "std::bad_alloc" in str(error):
            raise OutOfMemory(f"this process has no memory left for the CPU runtime: {error}") from error
        raise InternalError(f"the CPU runtime refuses the lowered program: {error}") from error
