"""A device that computes with Qualcomm's library, which compiles programs and runs each as one step.

One thread makes all calls into the library, in the order of the requests. The library has one device, its compiler
and its executions take turns anyway, and so nothing is freed while it is in use.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TypeVar
from weakref import WeakKeyDictionary

from openhtp.core import status as st
from openhtp.core.errors import BadBinary, InternalError, UnsupportedFeature, error_context
from openhtp.engine.protocol import Arrays
from openhtp.engine.workshop import Workshop
from openhtp.hw.power import DcvsVote
from openhtp.hw.soc import SocSpec
from openhtp.program.packed import GraphInfo, PackedGraph, pack_ends
from openhtp.program.qnn_program import QnnProgram
from openhtp.vendor.backend import LibraryBackend, LibraryDevice, PlatformDevice
from openhtp.vendor.context import LibraryContext
from openhtp.vendor.forms import graph_options_of, nodes_of
from openhtp.vendor.graph import LibraryGraph
from openhtp.vendor.library import load
from openhtp.vendor.metadata import SystemLibrary
from openhtp.vendor.power import PowerVotes

_T = TypeVar("_T")

# Machines on which the library is a simulator and must be told which chip to simulate.
_SIMULATED_ON = ("x86_64", "AMD64")
# The seal of a graph whose prepared form is one of the library's context binaries.
_SEAL = b"libQnnHtp"
_LOG_LINES = 200


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
        return LibraryProgram(graph, self._later(context.free))

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
        return LibraryProgram(graph, self._later(restored.leave))

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


class LibraryProgram:
    """A graph that the library has compiled."""

    steps = 1  # the library has no yield points that we could see
    spill_fill_bytes = 0  # the library allocates its own
    vtcm_peak_bytes = None

    def __init__(self, graph: LibraryGraph, close: Callable[[], None]) -> None:
        self._graph = graph
        self._close = close

    def bind(self, arrays: Arrays) -> LibraryRun:
        """Run on these arrays, where they lie."""
        return LibraryRun(self._graph, arrays)

    def close(self) -> None:
        """Free the graph once the library is idle."""
        self._close()


class LibraryRun:
    """One execution."""

    def __init__(self, graph: LibraryGraph, arrays: Arrays) -> None:
        self._graph = graph
        self._inputs = {spec.name: arrays[spec.name] for spec in graph.inputs}
        self._outputs = {spec.name: arrays[spec.name] for spec in graph.outputs}

    def step(self, index: int) -> None:
        """Run the whole graph, on the library's thread."""
        self._graph.execute(self._inputs, outputs=self._outputs)


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
