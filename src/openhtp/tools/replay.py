"""Saved calls, made again on the emulator or on a library; their outputs are compared with the saved ones."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.errors import FormatError, QnnError, WrongState
from openhtp.core.files import open_file, read_file
from openhtp.core.quant import AxisScaleOffset, Encoding, ScaleOffset
from openhtp.core.units import GIB, MIB
from openhtp.records import calls as cs
from openhtp.report.c_source import c_source
from openhtp.runtime.calls.execution import Execution
from openhtp.runtime.objects.backend import Backend
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.graph import Graph
from openhtp.runtime.objects.mem import Mem
from openhtp.runtime.objects.power import PowerConfig
from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.signal import Signal
from openhtp.tools.stages import Tell

# Outputs of a replay beside the saved ones.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The greatest allowed error: integers in steps, floats in parts of the output's largest number."""

    steps: int = 1
    share: float = 0.01


@dataclass(slots=True, kw_only=True)
class ComparedOutput:
    """An output of a graph over all executions. ``worst`` is in steps, or in parts of the largest number."""

    graph: str
    output: str
    executions: int = 0
    elements: int = 0
    equal: int = 0
    worst: float = 0.0
    in_steps: bool = False
    holds: bool = True

    def add(self, now: Array, then: Array, tolerance: Tolerance) -> None:
        """One more execution."""
        self.executions += 1
        a, b = now.astype(np.float64), then.astype(np.float64)
        self.in_steps = now.dtype.kind in "iub"
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        self.elements += now.size
        self.equal += int(np.count_nonzero(same))
        with np.errstate(all="ignore"):
            off = np.where(same, 0.0, np.abs(a - b))
        worst = float(np.max(off, initial=0.0))
        if not self.in_steps:
            largest = float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0))
            worst = worst / largest if largest else worst
        self.worst = max(self.worst, worst) if worst == worst else float("inf")
        self.holds = self.worst <= (tolerance.steps if self.in_steps else tolerance.share)


@dataclass(slots=True)
class ReplayResult:
    """The result of a replay."""

    calls: int = 0
    executions: int = 0
    compared: dict[tuple[str, str], ComparedOutput] = field(default_factory=dict)
    differing: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether every call was answered as it was, and every output is near enough."""
        return not self.differing and all(row.holds for row in self.compared.values())


# A recording of the saver, read as if an enemy had written it: lines are calls, data lies in its file.

_MOST_BYTES = GIB
_MOST_LINE = 64 * MIB
_MOST_DATA = 4 * GIB
_TYPES = ("|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "|b1")

Array = npt.NDArray[Any]


class SavedCalls:
    """An opened recording. ``line`` is where the reader is, for messages."""

    def __init__(self, path: Path) -> None:
        self.path = path / cs.CALLS_NAME if path.is_dir() else path
        self.line = 0
        self._lines = read_file(self.path, most=_MOST_BYTES, what="saved calls", error=FormatError).splitlines()
        if not self._lines:
            self.refuse("is empty; expected what the saver wrote")
        self.line = 1
        first = self._decoded(self._lines[0])
        if not isinstance(first, cs.Begin) or first.format != cs.FORMAT:
            self.refuse(f"does not begin with the format; expected what the saver wrote ({cs.FORMAT})")
        if first.version != cs.FORMAT_VERSION:
            self.refuse(
                f"has version {first.version}; expected {cs.FORMAT_VERSION}: use the openhtp that wrote it"
            )
        if first.data != cs.DATA_NAME:
            self.refuse(f"has its data in {first.data[:100]!r}; expected {cs.DATA_NAME}, beside it")
        self._data = self.path.parent / cs.DATA_NAME

    @property
    def count(self) -> int:
        """The number of lines."""
        return len(self._lines)

    def calls(self) -> Iterator[cs.Call]:
        """One after the other."""
        for number, line in enumerate(self._lines[1:], 2):
            self.line = number
            if line.strip():
                yield self._decoded(line)

    def array(self, data: cs.StoredArray) -> Array:
        """An array from the data file."""
        kind = self._type(data.dtype)
        if math.prod(data.shape) * kind.itemsize != data.nbytes:
            self.refuse(f"has {data.nbytes} bytes for {data.dtype} of shape {data.shape}")
        return np.frombuffer(self.blob(data), kind).reshape(data.shape)

    def blob(self, data: cs.StoredArray) -> bytes:
        """Bytes from the data file."""
        if data.nbytes > _MOST_DATA:
            self.refuse(f"asks for {data.nbytes} bytes; the limit is {_MOST_DATA}")
        with open_file(self._data, most=None, what="the data of saved calls", error=FormatError) as (fd, size):
            if data.offset + data.nbytes > size:
                self.refuse(f"asks for bytes {data.offset} to {data.offset + data.nbytes}; the file has {size}")
            os.lseek(fd, data.offset, os.SEEK_SET)
            parts, left = [], data.nbytes
            while left and (part := os.read(fd, min(left, GIB))):
                parts.append(part)
                left -= len(part)
        return b"".join(parts)

    def param(self, value: Any) -> Any:
        """A parameter of a node: a small array that is written out, or a plain value."""
        if not isinstance(value, dict):
            return value
        try:
            listed = msgspec.convert(value, cs.ListedArray)
            return np.array(listed.values, self._type(listed.dtype)).reshape(listed.shape)
        except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
            self.refuse(f"has a parameter that is no array: {error}")

    def refuse(self, problem: str) -> NoReturn:
        """Raise, naming the line."""
        where = f"{self.path}:{self.line}" if self.line else str(self.path)
        raise FormatError(f"{where}: {problem}")

    def _type(self, text: str) -> np.dtype[Any]:
        if text not in _TYPES:
            self.refuse(f"has data of type {text[:20]!r}; expected one of {', '.join(_TYPES)}")
        return np.dtype(text)

    def _decoded(self, line: bytes) -> cs.Call:
        if len(line) > _MOST_LINE:
            self.refuse(f"has {len(line)} bytes; expected at most {_MOST_LINE}")
        try:
            return cs.decode_call(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            self.refuse(f"is no saved call: {error}")


_T = TypeVar("_T", Backend, Device, Context, Graph, Mem, PowerConfig, Profile, Signal)
# The moment of a signal does not depend on the order of calls, so the ends of such calls are not compared.
_BY_SIGNAL = {st.QNN_GRAPH_ERROR_ABORTED.name, st.QNN_GRAPH_ERROR_TIMED_OUT.name}
# Options of a device that are not replayed: its name, which others may use; and those that no library has.
_NAME = ("name",)
_NOT_OF_LIBRARIES = (
    *_NAME,
    "transport",
    "driver_path",
    "driver_version",
    "threads",
    "parallel_graphs",
    "vtcm_windowing",
)


def replay(
    path: Path, library: str | None, tolerance: Tolerance, tell: Tell, packages: Sequence[str] = ()
) -> ReplayResult:
    """Make all calls of a recording again. Raises FormatError, with the line, for anything else.

    A recording names op packages, but not their paths: every backend gets ``packages``.
    """
    saved = SavedCalls(path)
    with ExitStack() as stack:
        player = _Player(saved, library, tolerance, stack, packages)
        for call in saved.calls():
            tell("Replaying", saved.line, saved.count)
            player.make(call)
        player.drain()
    return player.outcome


def source_of(path: Path) -> str:
    """A recording as a C program. Raises FormatError, with the line, for anything else."""
    saved = SavedCalls(path)
    return c_source(saved.calls(), saved.blob)


class _Player:
    def __init__(
        self,
        saved: SavedCalls,
        library: str | None,
        tolerance: Tolerance,
        stack: ExitStack,
        packages: Sequence[str] = (),
    ) -> None:
        self._packages = packages
        self.outcome = ReplayResult()
        self._saved, self._library, self._tolerance, self._stack = saved, library, tolerance, stack
        self._objects: dict[int, Any] = {}
        # Executions that were made again and whose saved end was not read yet; and those that are queued.
        self._ran: dict[int, tuple[Graph, dict[str, Array] | QnnError]] = {}
        self._queued: deque[tuple[int, Graph, Execution]] = deque()
        self._ends: dict[int, cs.ExecutionEnded] = {}
        self._signalled: set[int] = set()

    def make(self, call: cs.Call) -> None:
        self.outcome.calls += 1
        if not isinstance(
            call, (cs.GraphExecuteAsync, cs.ExecutionEnded, cs.EntryCall, cs.MemRegister, cs.SignalTrigger)
        ):
            self.drain()
        make = _MAKERS.get(type(call))
        if make is not None:
            make(self, call)

    def drain(self) -> None:
        while self._queued:
            number, graph, execution = self._queued.popleft()
            self._note(number, graph, lambda execution=execution: execution.result())  # type: ignore[misc]

    # Objects

    def _find(self, number: int, kind: type[_T]) -> _T:
        known = self._objects.get(number)
        if not isinstance(known, kind):
            self._saved.refuse(f"means {number} as a {kind.__name__.lower()}, which was not made before")
        return known

    def _keep(self, number: int, call: Any, make: Callable[[], Any]) -> Any:
        """Make an object as it was made; a call that was refused then must be refused now."""
        if number in self._objects:
            self._saved.refuse(f"makes {number}, which is there already")
        result = self._answered(call, make)
        if result is not None:
            self._objects[number] = result
        return result

    def _answered(self, call: Any, make: Callable[[], Any]) -> Any:
        """Make a call and return its result; an answer other than the saved one is noted."""
        try:
            result, status, now = make(), "", "success"
        except QnnError as error:
            result, status, now = None, error.name, str(error)
        if status != call.error:
            title = call.__struct_config__.tag
            then = call.error or "success"
            self.outcome.differing.append(f"line {self._saved.line}, {title}: {now}; it was {then}")
        return result

    def _options(self, saved: dict[str, Any], without: tuple[str, ...] = ()) -> dict[str, Any]:
        for name, value in saved.items():
            if isinstance(value, dict):
                self._saved.refuse(f"has the option {name} = {str(value)[:200]}, which cannot be given again")
        return {name: value for name, value in saved.items() if name not in without}

    # Calls

    def backend(self, call: cs.BackendCreate) -> None:
        backend = self._keep(call.backend, call, lambda: Backend(library=self._library))
        if backend is not None:
            self._stack.enter_context(backend)
            for package in self._packages:
                backend.register_op_package(package)

    def device(self, call: cs.DeviceCreate) -> None:
        owner = self._find(call.backend, Backend)
        options = self._options(call.options, _NAME if self._library is None else _NOT_OF_LIBRARIES)
        self._keep(call.device, call, lambda: owner.create_device(**options))

    def context(self, call: cs.ContextCreate) -> None:
        owner, options = self._find(call.device, Device), self._options(call.options)
        self._keep(call.context, call, lambda: owner.create_context(**options))

    def restored(self, call: cs.ContextCreateFromBinary) -> None:
        owner, options = self._find(call.device, Device), self._options(call.options)
        blob = self._saved.blob(call.binary)
        context = self._keep(call.context, call, lambda: owner.create_context_from_binary(blob, **options))
        for name, number in call.graphs.items() if context is not None else ():
            self._keep(number, call, lambda name=name: context.graph(name))  # type: ignore[misc]

    def graph(self, call: cs.GraphCreate) -> None:
        owner, options = self._find(call.context, Context), self._options(call.options)
        self._keep(call.graph, call, lambda: owner.create_graph(call.name, **options))

    def tensor(self, call: cs.TensorCreate) -> None:
        graph = self._find(call.graph, Graph)
        data = None if call.data is None else self._saved.array(call.data)
        more: dict[str, Any] = {"data_format": call.data_format} if call.data_format else {}
        self._answered(
            call,
            lambda: graph.add_tensor(
                call.name,
                call.dimensions,
                call.data_type,
                quant=_encoding(call.quantize_params),
                kind=call.type,
                data=data,
                dynamic=call.dynamic,
                sparse_elements=call.sparse_elements,
                **more,
            ),
        )

    def node(self, call: cs.GraphAddNode) -> None:
        graph = self._find(call.graph, Graph)
        params = {name: self._saved.param(value) for name, value in call.params.items()}
        params |= {name: self._saved.array(data) for name, data in call.arrays.items()}
        self._answered(
            call,
            lambda: graph.add_node(
                call.op,
                name=call.name,
                inputs=call.inputs,
                outputs=call.outputs,
                params=params,
                package=call.package,
            ),
        )

    def finalize(self, call: cs.GraphFinalize) -> None:
        graph, carried = self._find(call.graph, Graph), self._carried(call)
        self._answered(call, lambda: graph.finalize(**carried))

    def execute(self, call: cs.GraphExecute) -> None:
        graph, inputs, carried = self._execution(call)
        self._note(call.execution, graph, lambda: graph.execute(inputs, **carried))

    def execute_async(self, call: cs.GraphExecuteAsync) -> None:
        graph, inputs, carried = self._execution(call)
        if len(self._queued) >= graph.context.queue_depth:
            self.drain()
        try:
            self._queued.append((call.execution, graph, graph.execute_async(inputs, **carried)))
        except QnnError as error:
            self._ran[call.execution] = graph, error
            self._settle(call.execution)

    def _execution(
        self, call: cs.GraphExecute | cs.GraphExecuteAsync
    ) -> tuple[Graph, dict[str, Array], dict[str, Any]]:
        graph = self._find(call.graph, Graph)
        self.outcome.executions += 1
        if call.signal is not None:
            self._signalled.add(call.execution)
        return graph, {name: self._saved.array(data) for name, data in call.inputs.items()}, self._carried(call)

    def _carried(self, call: cs.GraphExecute | cs.GraphExecuteAsync | cs.GraphFinalize) -> dict[str, Any]:
        """The handles of a call; a library is given none, as it has no signals off QNX."""
        handles: dict[str, Any] = {}
        if call.profile is not None and self._library is None:
            handles["profile"] = self._find(call.profile, Profile)
        if call.signal is not None and self._library is None:
            handles["signal"] = self._find(call.signal, Signal)
        return handles

    def _note(self, number: int, graph: Graph, run: Callable[[], dict[str, Array]]) -> None:
        try:
            self._ran[number] = graph, run()
        except QnnError as error:
            self._ran[number] = graph, error
        self._settle(number)

    def ended(self, call: cs.ExecutionEnded) -> None:
        self._ends[call.execution] = call
        self._settle(call.execution)

    def _settle(self, number: int) -> None:
        """Compare, once both ends are known."""
        if number not in self._ran or number not in self._ends:
            return
        graph, ran = self._ran.pop(number)
        end = self._ends.pop(number)
        error_name = ran.name if isinstance(ran, QnnError) else ""
        if number in self._signalled and _BY_SIGNAL & {error_name, end.error}:
            return
        if error_name != end.error:
            now, then = ran if error_name else "success", end.error or "success"
            self.outcome.differing.append(f"execution {number} of {graph.name!r}: {now}; it was {then}")
        elif not isinstance(ran, QnnError):
            for name, data in end.outputs.items():
                if name not in ran:
                    self._saved.refuse(f"has an output {name!r}, which graph {graph.name!r} does not have")
                self._compare(graph, name, ran[name], self._saved.array(data))

    def _compare(self, graph: Graph, name: str, now: Array, then: Array) -> None:
        if now.shape != then.shape:
            self._saved.refuse(f"has output {name!r} of shape {list(then.shape)}; it is {list(now.shape)} now")
        row = self.outcome.compared.setdefault((graph.name, name), ComparedOutput(graph=graph.name, output=name))
        row.add(now, then, self._tolerance)

    def configure(self, call: cs.SetConfig) -> None:
        owner = self._objects.get(call.object)
        if not isinstance(owner, (Context, Graph)):
            self._saved.refuse(f"means {call.object} as a context or graph, which was not made before")
        options = self._options(call.options)
        self._answered(call, lambda: owner.set_config(**options))

    def section(self, call: cs.ApplySection) -> None:
        context, blob = self._find(call.context, Context), self._saved.blob(call.section)
        self._answered(call, lambda: context.apply_binary_section(call.graph, blob))

    def perf_profile(self, call: cs.SetPerfProfile) -> None:
        device, options = self._find(call.device, Device), self._options(call.options)
        self._answered(call, lambda: device.set_perf_profile(call.name, **options))

    def power(self, call: cs.PowerConfigCreate) -> None:
        device = self._find(call.device, Device)
        if self._library is None:
            self._keep(call.power, call, lambda: device.create_power_config(call.core))

    def vote(self, call: cs.SetPowerVotes) -> None:
        if self._library is None:
            power, votes = self._find(call.power, PowerConfig), dict(call.votes)
            self._answered(
                call,
                lambda: (
                    power.set_perf_profile(call.profile, **votes)  # type: ignore[arg-type]
                    if call.profile
                    else power.set(**votes)  # type: ignore[arg-type]
                ),
            )

    def signal(self, call: cs.SignalCreate) -> None:
        owner = self._find(call.backend, Backend)
        self._keep(call.signal, call, lambda: owner.create_signal(call.timeout_us))

    def trigger(self, call: cs.SignalTrigger) -> None:
        """A signal comes; it ends the call that carries it, if that is still under way."""
        signal = self._find(call.signal, Signal)
        if signal.timeout_us is None:
            with suppress(WrongState):
                signal.trigger()

    def profile(self, call: cs.ProfileCreate) -> None:
        owner, options = self._find(call.backend, Backend), self._options(call.options)
        self._keep(call.profile, call, lambda: owner.create_profile(call.level, **options))

    def binary(self, call: cs.GetBinary) -> None:
        """A context is saved; its bytes depend on the library."""
        context = self._find(call.context, Context)
        self._answered(call, context.get_binary)

    def free(self, call: cs.Free) -> None:
        """An object is freed; memory was not registered again."""
        freed = self._objects.pop(call.object, None)
        if isinstance(freed, PowerConfig):
            self._answered(call, freed.destroy)
        elif freed is not None and not isinstance(freed, Backend):
            self._answered(call, freed.free)


def _encoding(params: cs.QuantizeParams | None) -> Encoding | None:
    if params is None:
        return None
    if params.axis is None:
        return ScaleOffset(params.scales[0], params.offsets[0])
    return AxisScaleOffset(params.axis, tuple(params.scales), tuple(params.offsets))


_MAKERS: dict[type, Callable[[_Player, Any], None]] = {
    cs.BackendCreate: _Player.backend,
    cs.DeviceCreate: _Player.device,
    cs.ContextCreate: _Player.context,
    cs.ContextCreateFromBinary: _Player.restored,
    cs.GraphCreate: _Player.graph,
    cs.TensorCreate: _Player.tensor,
    cs.GraphAddNode: _Player.node,
    cs.GraphFinalize: _Player.finalize,
    cs.GraphExecute: _Player.execute,
    cs.GraphExecuteAsync: _Player.execute_async,
    cs.ExecutionEnded: _Player.ended,
    cs.SetConfig: _Player.configure,
    cs.ApplySection: _Player.section,
    cs.SetPerfProfile: _Player.perf_profile,
    cs.PowerConfigCreate: _Player.power,
    cs.SetPowerVotes: _Player.vote,
    cs.SignalCreate: _Player.signal,
    cs.SignalTrigger: _Player.trigger,
    cs.ProfileCreate: _Player.profile,
    cs.GetBinary: _Player.binary,
    cs.Free: _Player.free,
}
