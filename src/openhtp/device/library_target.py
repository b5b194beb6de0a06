"""A device that computes with Qualcomm's library, which compiles programs and runs each as one step.

One thread makes all calls into the library, in the order of the requests. The library has one device, its compiler
and its executions take turns anyway, and so nothing is freed while it is in use.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TypeVar
from weakref import WeakKeyDictionary

from openhtp.core import status as st
from openhtp.core.errors import Aborted, BadBinary, InternalError, QnnError, UnsupportedFeature, error_context
from openhtp.core.files import Descriptor
from openhtp.core.latches import Latch
from openhtp.core.threads import OwnThread
from openhtp.engine.protocol import Arrays, SharedRange
from openhtp.engine.workshop import Workshop
from openhtp.hw.power import DcvsVote
from openhtp.hw.soc import SocSpec
from openhtp.program.packed import GraphInfo, PackedGraph, pack_ends
from openhtp.program.qnn_program import QnnProgram
from openhtp.vendor.backend import LibraryBackend, LibraryDevice, PlatformDevice
from openhtp.vendor.context import LibraryContext, LibraryMemory, TensorRange
from openhtp.vendor.forms import graph_options_of, nodes_of
from openhtp.vendor.graph import LibraryGraph, LibrarySignal
from openhtp.vendor.library import load
from openhtp.vendor.metadata import SystemLibrary
from openhtp.vendor.power import PowerVotes

_T = TypeVar("_T")

# Machines on which the library is a simulator and must be told which chip to simulate.
_SIMULATED_ON = ("x86_64", "AMD64")
# The seal of a graph whose prepared form is one of the library's context binaries.
_SEAL = b"libQnnHtp"
_LOG_LINES = 200
# The library takes this signal only after it has begun the execution, and does not report when it begins.
_RETRY_S = 0.001

log = logging.getLogger(__name__)


class LibraryTarget:
    """The library, loaded when the first client comes."""

    def __init__(self, library: str, soc: SocSpec) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="openhtp-library")
        self.log = LogLines()
        self._path = library
        self._soc = soc
        self._device: LibraryDevice | None = None
        self._platform: tuple[PlatformDevice, ...] = ()
        self._votes: PowerVotes | None = None
        self._abilities = LibraryAbilities()
        self._interruption = Interruption(self._abilities)
        # Graphs of one binary are in one of the library's contexts.
        self._restored: WeakKeyDictionary[Workshop, _RestoredContext] = WeakKeyDictionary()

    # What a device asks of its target

    def load(self, program: QnnProgram) -> LibraryProgram:
        """Build and compile a graph, in a context of its own: the library frees graphs only with their context."""
        return self._do(self._load, program)

    def check(self, program: QnnProgram) -> None:
        """Have the library's validator check every node. Raises UnsupportedOp with the validator's reason."""
        self._do(self._check, program)

    def load_packed(self, packed: PackedGraph, info: GraphInfo, workshop: Workshop) -> LibraryProgram | None:
        """Load a graph that the library saved in its own binary format; None if the graph has no such form."""
        if packed.prepared is None or packed.seal != _SEAL:
            return None
        return self._do(self._load_saved, packed, info, workshop)

    def pack(self, program: QnnProgram) -> PackedGraph | None:
        """None: our binaries carry programs, which the library compiles again."""
        return None

    # Requests that only a library can serve

    def start(self) -> None:
        """Load the library for the chosen chip. Raises if the library cannot be used, or not for that chip."""
        if self._device is None:
            self._do(self._open)

    def describe(self) -> dict[str, object]:
        """The library that was loaded, and the chips that it reports."""
        device = self._opened
        return {
            "library": self._path,
            "library_version": device.library.build_id,
            "platform": [asdict(chip) for chip in self._platform],
            "abilities": asdict(self._abilities),
        }

    def export_binary(self, programs: Sequence[QnnProgram], *, weight_sharing: bool) -> bytes:
        """Have the library compile these programs in one context and save that in its own format."""
        return self._do(self._export, programs, weight_sharing)

    def import_binary(self, blob: bytes) -> list[PackedGraph]:
        """The graphs of a binary that the library saved, each as a packed graph prepared by that binary."""
        return self._do(self._import, blob)

    def vote(
        self, *, dcvs: DcvsVote | None, rpc_latency_us: int | None = None, rpc_polling_us: int | None = None
    ) -> None:
        """Change the power votes of this process; the library has one set of them."""
        if (dcvs, rpc_latency_us, rpc_polling_us) != (None, None, None):
            self._do(self._vote, dcvs, rpc_latency_us, rpc_polling_us)

    def close(self) -> None:
        """Free all that the library holds, after its present work."""
        if self._device is not None:
            self._do(self._device.backend.free)

    # On the library's thread

    def _do(self, call: Callable[..., _T], *arguments: object) -> _T:
        return self.thread.submit(call, *arguments).result()

    @property
    def _opened(self) -> LibraryDevice:
        if self._device is None:
            raise InternalError("the vendor's library was asked for work before it was loaded")
        return self._device

    def _open(self) -> None:
        model = self._soc.soc_model if platform.machine() in _SIMULATED_ON else None
        backend = LibraryBackend(load(self._path), soc=model)
        device = backend.create_device(soc=model)
        self._platform = backend.platform()
        if model is not None and model not in [chip.soc_model for chip in self._platform]:
            backend.free()
            raise UnsupportedFeature(
                f"the vendor's library cannot simulate {self._soc.name} (SoC model {model}); a newer library may"
                " know it",
                st.QNN_DEVICE_ERROR_INVALID_CONFIG,
            )
        self._device = device

    def _load(self, program: QnnProgram) -> LibraryProgram:
        context = LibraryContext.create(self._opened, priority=program.options.priority)
        try:
            graph = build_graph(context, program)
            graph.finalize()
        except BaseException:
            context.free()
            raise
        return self._program(graph, context.free)

    def _check(self, program: QnnProgram) -> None:
        with error_context(graph=program.name):
            for call, params in nodes_of(program):
                self._opened.backend.validate_op(call, params, program.statics)

    def _load_saved(self, packed: PackedGraph, info: GraphInfo, workshop: Workshop) -> LibraryProgram:
        restored = self._restored.get(workshop)
        if restored is None:
            assert packed.prepared is not None
            blob = bytes(packed.prepared.checked(f"the library's saved form of graph {packed.name!r}"))
            context = LibraryContext.from_binary(self._opened, blob, priority=info.options.priority)
            restored = self._restored[workshop] = _RestoredContext(context)
        graph = restored.context.graphs.get(packed.name)
        if graph is None:
            restored.free_if_unused()
            raise BadBinary(f"the library's binary has no graph {packed.name!r}")
        restored.users += 1
        return self._program(graph, restored.leave)

    def _export(self, programs: Sequence[QnnProgram], weight_sharing: bool) -> bytes:
        with LibraryContext.create(self._opened, weight_sharing=weight_sharing) as context:
            for program in programs:
                build_graph(context, program)
            for graph in context.graphs.values():
                graph.finalize()
            return context.get_binary()

    def _import(self, blob: bytes) -> list[PackedGraph]:
        saved = SystemLibrary.beside(self._opened.library).binary_info(blob)
        return [
            pack_ends(
                graph.name, [(tensor.spec, tensor.id) for tensor in graph.tensors], prepared=blob, seal=_SEAL
            )
            for graph in saved.graphs
        ]

    def _vote(self, dcvs: DcvsVote | None, rpc_latency_us: int | None, rpc_polling_us: int | None) -> None:
        if self._votes is None:
            self._votes = PowerVotes(self._opened.backend)
        self._votes.vote(dcvs=dcvs, rpc_latency_us=rpc_latency_us, rpc_polling_us=rpc_polling_us)

    def _program(self, graph: LibraryGraph, free: Callable[[], None]) -> LibraryProgram:
        return LibraryProgram(graph, self._later(free), self._interruption, self._abilities, self._later)

    def _later(self, chore: Callable[[], None]) -> Callable[[], None]:
        """A function that the loop may call: it schedules the chore for when the library is idle."""

        def submit() -> None:
            self.thread.submit(chore)

        return submit


def build_graph(context: LibraryContext, program: QnnProgram) -> LibraryGraph:
    """Build a program as one of the library's graphs, not compiled yet. Raises for ops that the library lacks."""
    with error_context(graph=program.name):
        nodes = nodes_of(program)
        graph = context.create_graph(program.name, graph_options_of(program))
        specs = (spec for call, _ in nodes for spec in (*call.inputs, *call.outputs) if spec is not None)
        for spec in {spec.name: spec for spec in specs}.values():
            graph.add_tensor(spec, program.statics.get(spec.name))
        for call, params in nodes:
            graph.add_node(call, params)
    return graph


class _RestoredContext:
    """One of the library's contexts and how many of its graphs are in use. It is freed with the last of them."""

    def __init__(self, context: LibraryContext) -> None:
        self.context = context
        self.users = 0

    def leave(self) -> None:
        """One of its graphs is no longer in use."""
        self.users -= 1
        self.free_if_unused()

    def free_if_unused(self) -> None:
        """Give it back to the library."""
        if not self.users:
            self.context.free()


# Executions


@dataclass(slots=True)
class LibraryAbilities:
    """What the library was seen to do, or why it does not."""

    tensors_registered: int = 0
    memory_refusal: str = ""
    signal_refusal: str = ""
    # Answers that hold for every later request, too.
    no_memory: bool = False
    no_signals: bool = False


class Interruption:
    """Ends the execution that the library runs now. The library runs one at a time, so one signal is enough."""

    def __init__(self, abilities: LibraryAbilities) -> None:
        self._abilities = abilities
        self._lock = threading.Lock()
        self._signal: LibrarySignal | None = None
        self._of: LibraryRun | None = None

    @property
    def possible(self) -> bool:
        """Whether the library has signals, as far as is known."""
        return not self._abilities.no_signals

    def begin(self, run: LibraryRun, backend: LibraryBackend) -> LibrarySignal | None:
        """The signal for a run that begins now; None if the library has none."""
        if self._signal is None and not self._abilities.no_signals:
            try:
                self._signal = LibrarySignal(backend)
            except QnnError as error:
                self._abilities.no_signals = True
                self._abilities.signal_refusal = error.message
        with self._lock:
            self._of = run
        return self._signal

    def end(self) -> None:
        """The run has ended. A signal that was triggered may stay so: the next run gets another."""
        with self._lock:
            run, self._of = self._of, None
        if self._signal is not None and run is not None and run.was_stopped():
            self._signal.free()
            self._signal = None

    def trigger(self, run: LibraryRun) -> bool:
        """End this run if it is under way. False if it is not, or not yet. May be called on any thread."""
        with self._lock:
            return self._of is run and self._signal is not None and self._signal.trigger()


class RunMemory:
    """The shared memory of a run's tensors: registered before its first step, taken back when the run goes."""

    def __init__(
        self, graph: LibraryGraph, ranges: Mapping[str, SharedRange], abilities: LibraryAbilities
    ) -> None:
        """Called by the loop, while the descriptors are open: the copies last until they are registered."""
        self._graph = graph
        self._ranges = ranges
        self._abilities = abilities
        numbers = () if abilities.no_memory else {shared.fd for shared in ranges.values()}
        self._copies = {number: Descriptor(os.dup, number) for number in numbers}
        self._registered: dict[str, LibraryMemory] = {}

    def register(self, arrays: Arrays) -> Mapping[str, LibraryMemory]:
        """The registered memory by tensor, as far as the library takes it; the rest has plain addresses."""
        copies, self._copies = self._copies, {}
        if copies and not self._abilities.no_memory:
            specs = {spec.name: spec for spec in (*self._graph.inputs, *self._graph.outputs)}
            try:
                for name, shared in self._ranges.items():
                    whole = TensorRange(copies[shared.fd].number, shared.nbytes, shared.offset, arrays[name].shape)
                    self._registered[name] = self._graph.context.register_memory(specs[name], whole)
                    self._abilities.tensors_registered += 1
            except QnnError as error:
                self._abilities.memory_refusal = error.message
                self._abilities.no_memory = isinstance(error, UnsupportedFeature)
                log.info("tensors are given by their addresses: %s", error.message)
        for copy in copies.values():
            copy.close()
        return self._registered

    def take_back(self) -> None:
        """Have the library forget the memory."""
        for memory in self._registered.values():
            if memory.alive:  # otherwise its context was freed, and all of it
                self._graph.context.leave_memory(memory)
        self._registered = {}


class LibraryProgram:
    """A graph that the library has compiled."""

    steps = 1  # the library has no yield points that we could see
    spill_fill_bytes = 0  # the library allocates its own
    vtcm_peak_bytes = None

    def __init__(
        self,
        graph: LibraryGraph,
        close: Callable[[], None],
        interruption: Interruption,
        abilities: LibraryAbilities,
        later: Callable[[Callable[[], None]], Callable[[], None]],
    ) -> None:
        """``later`` makes, of a chore for the library's thread, a function that any thread may call."""
        self._graph = graph
        self._close = close
        self._interruption = interruption
        self._abilities = abilities
        self._later = later

    def bind(self, arrays: Arrays) -> LibraryRun:
        """Run on these arrays, where they lie."""
        return self.bind_shared(arrays, {})

    def bind_shared(self, arrays: Arrays, ranges: Mapping[str, SharedRange]) -> LibraryRun:
        """Run on these arrays, and have the DSP map those in shared memory if the library can do that."""
        memory = RunMemory(self._graph, ranges, self._abilities)
        run = LibraryRun(self._graph, arrays, memory, self._interruption)
        if ranges and not self._abilities.no_memory:
            weakref.finalize(run, self._later(memory.take_back)).atexit = False
        return run

    def close(self) -> None:
        """Free the graph once the library is idle."""
        self._close()


class LibraryRun:
    """One execution. After ``stop`` it is of no further use."""

    def __init__(self, graph: LibraryGraph, arrays: Arrays, memory: RunMemory, interruption: Interruption) -> None:
        self._stop_asked = False
        self._graph = graph
        self._inputs = {spec.name: arrays[spec.name] for spec in graph.inputs}
        self._outputs = {spec.name: arrays[spec.name] for spec in graph.outputs}
        self._memory = memory
        self._memories: Mapping[str, LibraryMemory] | None = None
        self._interruption = interruption
        self._over = Latch()

    def step(self, index: int) -> None:
        """Run the whole graph."""
        if self.was_stopped():
            self._over.unlock()
            return
        if self._memories is None:
            self._memories = self._memory.register(self._inputs | self._outputs)
        signal = self._interruption.begin(self, self._graph.context.device.backend)
        try:
            self._graph.execute(self._inputs, outputs=self._outputs, memories=self._memories, signal=signal)
        except Aborted:
            if not self.was_stopped():
                raise
        finally:
            self._interruption.end()
            if self.was_stopped():
                self._over.unlock()

    def stop(self) -> None:
        """End the execution if it is under way, or as soon as it begins. The loop calls it, and does not wait."""
        self._stop_asked = True
        if self._interruption.possible:
            OwnThread(self._insist, name="openhtp-stop").start()

    def was_stopped(self) -> bool:
        """Whether its execution was told to end."""
        return self._stop_asked

    def _insist(self) -> None:
        """Trigger the signal until the library takes it or the execution is over."""
        while not self._interruption.trigger(self):
            if self._over.wait(_RETRY_S):
                return


class LogLines(logging.Handler):
    """Lines that the library logged, until a reply takes them to the client's log."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[tuple[int, str]] = []

    def attach(self) -> None:
        """Take all lines that the library logs in this process."""
        logger = logging.getLogger("openhtp.vendor")
        logger.addHandler(self)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line; the first ones of a flood tell most."""
        if len(self._lines) < _LOG_LINES:
            self._lines.append((record.levelno, record.getMessage()))

    def take(self) -> list[tuple[int, str]]:
        """The lines so far, once."""
        lines, self._lines = self._lines, []
        return lines
