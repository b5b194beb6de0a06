"""The vendor's library as an engine of our device: our queue and scheduler decide when, it computes.

A graph is one step: the library has no yield points that we could see. Everything that talks to the library's
process is meant for threads that may wait; what the loop's thread calls here returns at once.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping

import numpy as np

from openhtp.core import status as st
from openhtp.core.errors import InternalError, UnsupportedFeature, error_context
from openhtp.core.precision import FloatPrecision
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.core.units import MIB
from openhtp.engine.protocol import Arrays
from openhtp.options import GRAPH
from openhtp.program.qnn_program import QnnProgram
from openhtp.rpc.shm import SharedBuffer
from openhtp.vendor.forms import params_of
from openhtp.vendor.graph import GraphOptions
from openhtp.vendor.recipe import GraphRecipe
from openhtp.vendor.worker import ContextRef, GraphRef, MemoryRef, VendorProcess

log = logging.getLogger(__name__)

Later = Callable[[Callable[[], None]], None]
Memories = Callable[[], Mapping[int, SharedBuffer]]


class VendorEngine:
    """Makes programs ready in the library's process.

    ``memories`` gives the client's registered ones by number; ``later`` does work on the thread that runs steps.
    """

    def __init__(self, process: VendorProcess, memories: Memories, later: Later) -> None:
        self.later = later
        self.process = process
        self._memories = memories
        self._shared: dict[int, _Shared] = {}

    def load(self, program: QnnProgram) -> VendorProgram:
        """Build and compile a graph, in a context of its own: the library frees graphs only with their context."""
        recipe = program_to_recipe(program)
        context = self.process.create_context(priority=program.options.priority)
        try:
            graph = self.process.build(recipe, context)
            self.process.finalize(graph)
        except BaseException:
            self.process.free(context)
            raise
        return VendorProgram(self, context, graph)

    def place_of(self, name: str, address: int) -> tuple[_Shared, int]:
        """In which of the client's memories an address lies, and where in it."""
        for number, buffer in self._memories().items():
            if buffer.address <= address < buffer.address + buffer.nbytes:
                if number not in self._shared:
                    # A descriptor of our own: the client may take its memory back while a step still uses it.
                    self._shared[number] = _Shared(
                        self.process, SharedBuffer.attach(os.dup(buffer.fd), may_shrink=True)
                    )
                return self._shared[number], address - buffer.address
        raise InternalError(f"tensor {name!r} lies in no registered memory")

    def forget_memory(self) -> None:
        """Let go of memory that the client has taken back."""
        for number in self._shared.keys() - self._memories().keys():
            self.later(self._shared.pop(number).close)

    def close(self) -> None:
        """Let go of all memory, when the library's process is gone or going."""
        for shared in self._shared.values():
            shared.close_here()
        self._shared.clear()


class _Shared:
    """A client's memory in the library's process, shared with it at first use."""

    def __init__(self, process: VendorProcess, buffer: SharedBuffer) -> None:
        self._process = process
        self._buffer = buffer
        self._ref: MemoryRef | None = None

    def ref(self) -> MemoryRef:
        """The library's name for it."""
        if self._ref is None:
            self._ref = self._process.attach(self._buffer)
        return self._ref

    def close_here(self) -> None:
        """Give back our own descriptor only."""
        self._buffer.close()

    def close(self) -> None:
        """Stop sharing."""
        self.close_here()
        if self._ref is not None:
            self._process.detach(self._ref)


class VendorProgram:
    """A compiled graph of the library."""

    steps = 1
    spill_fill_bytes = 0  # what it needs is the library's own
    vtcm_peak_bytes = None

    def __init__(self, engine: VendorEngine, context: ContextRef, graph: GraphRef) -> None:
        self._engine = engine
        self._context = context
        self._graph = graph

    def bind(self, arrays: Arrays) -> VendorRun:
        """Find the memory that the arrays lie in; nothing is copied."""
        places = {
            name: self._engine.place_of(name, int(array.__array_interface__["data"][0]))
            for name, array in arrays.items()
        }
        return VendorRun(self._engine.process, self._graph, places)

    def close(self) -> None:
        """Free the graph's context once the library is idle."""
        self._engine.later(lambda: self._engine.process.free(self._context))


class VendorRun:
    """One execution on memory that the library's process shares with the client."""

    def __init__(self, process: VendorProcess, graph: GraphRef, places: Mapping[str, tuple[_Shared, int]]) -> None:
        self._process = process
        self._graph = graph
        self._places = places

    def step(self, index: int) -> None:
        """Run the whole graph."""
        places = {name: (shared.ref(), offset) for name, (shared, offset) in self._places.items()}
        self._process.execute_shared(self._graph, places)


def program_to_recipe(program: QnnProgram) -> GraphRecipe:
    """A program as the library is told of it. Raises UnsupportedFeature for what the library does not have."""
    with error_context(graph=program.name):
        for spec in program.tensors.values():
            _refuse_beyond_library(spec)
        calls = [program.call(node) for node in program.nodes]
        nodes = tuple((call, params_of(call, program.statics)) for call in calls)
    used = {spec.name for call in calls for spec in call.inputs if spec is not None}
    statics = {name: np.asarray(data) for name, data in program.statics.items() if name in used}
    chosen, level = program.options, program.options.optimization_level
    options = GraphOptions(
        priority=chosen.priority,
        vtcm_mb=None if chosen.vtcm_bytes is None else math.ceil(chosen.vtcm_bytes / MIB),
        hvx_threads=chosen.hvx_threads,
        optimization=None if level == GRAPH.option("optimization_level").default else level,
        float16=chosen.precision is FloatPrecision.FLOAT16,
    )
    _warn_of_dropped(program)
    return GraphRecipe(program.name, nodes, statics, options)


# Options of a graph that the library is told of, or that are not about how it computes.
_HANDED_ON = {"priority", "vtcm_bytes", "vtcm_mb", "hvx_threads", "optimization_level", "precision", "core"}


def _warn_of_dropped(program: QnnProgram) -> None:
    """Say which options have no effect on the vendor's library, as it is not told of them."""
    chosen = program.options
    dropped = [
        row.name
        for row in GRAPH.rows
        if row.name not in _HANDED_ON and row.name in chosen and chosen[row.name] != row.default
    ]
    if dropped:
        log.warning(
            "graph %r: %s: not handed on to the vendor's library, so without effect there",
            program.name,
            ", ".join(dropped),
        )


def _refuse_beyond_library(spec: TensorSpec) -> None:
    problem = ""
    if spec.is_dynamic:
        problem = "has dynamic dimensions"
    elif spec.sparse_elements is not None:
        problem = "is sparse"
    elif spec.kind.is_optional or spec.kind.is_updateable or spec.kind is TensorKind.APP_READWRITE:
        problem = f"is of kind {spec.kind.name}"
    if problem:
        raise UnsupportedFeature(
            f"tensor {spec.name!r} {problem}, which the vendor's library does not offer; the emulator does",
            st.QNN_TENSOR_ERROR_UNSUPPORTED_TENSOR_PARAM,
        )
