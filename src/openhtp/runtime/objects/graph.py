"""A graph: built from tensors and nodes, finalized once, then executed any number of times."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

import numpy.typing as npt

from openhtp.compiler.driver import CompileOptions, portable_program
from openhtp.core.dtype import DType
from openhtp.core.enumerations import DataFormat, Priority
from openhtp.core.errors import error_context
from openhtp.core.locks import make_lock
from openhtp.core.quant import Encoding
from openhtp.core.tensor import TensorKind
from openhtp.hw.catalog import find_soc
from openhtp.ir.graph import Graph as IrGraph
from openhtp.options import OptionValues as Options
from openhtp.program.packed import PackedGraph, pack_program
from openhtp.program.qnn_program import QnnProgram
from openhtp.records.profile import Method
from openhtp.runtime.binaries.send import GraphOrder, fresh, load_graphs
from openhtp.runtime.calls.arguments import Values
from openhtp.runtime.calls.call import Call, enqueue, send
from openhtp.runtime.calls.execution import Execution, Notify, Outputs
from openhtp.runtime.calls.long_call import OF_GRAPH, CallStop, carrying
from openhtp.runtime.calls.sheet import Fill, NotedCall
from openhtp.runtime.instruments.instrument import hooked, news
from openhtp.runtime.links.link import serving
from openhtp.runtime.objects.argument_checks import (
    check_callable,
    check_handle,
    check_name,
    deadline_from,
)
from openhtp.runtime.objects.chosen_options import changed_draft, check_late, check_threads, new_options
from openhtp.runtime.objects.graph_draft import GraphDraft, static_data, tensor_spec
from openhtp.runtime.objects.lifecycle import Life, State
from openhtp.runtime.objects.loaded_graph import LoadedGraph
from openhtp.runtime.objects.notices import tell_of_results
from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.profile_events import finalize_events
from openhtp.runtime.objects.signal import Signal
from openhtp.runtime.objects.tensor import Tensor

if TYPE_CHECKING:
    from openhtp.options._arguments import GraphArguments
    from openhtp.runtime.objects.open_context import OpenContext


def _compiled(source: IrGraph, options: Options) -> tuple[QnnProgram, PackedGraph]:
    program = portable_program(source, CompileOptions(graph=options))
    return program, pack_program(program)[0]


@hooked(
    _compose="graph_compose",
    add_tensor="tensor_add",
    add_node="node_add",
    finalize="graph_finalize",
    set_config="config_set",
    _enqueue="execution_begin",
)
class Graph:
    """Made by ``Context.create_graph`` or restored from a context binary.

    While it is built, its ``draft`` takes tensors and nodes; once the device has it, it is ``loaded``.
    """

    def __init__(
        self,
        context: OpenContext,
        name: str,
        options: Options,
        *,
        packed: PackedGraph | None = None,
        enabled: bool = True,
    ) -> None:
        """``packed`` is the graph of a binary, which is loaded later, or never if it is not ``enabled``."""
        self.context = context.handle
        self.name = name
        self.core: int = options.core
        self.draft: GraphDraft | None = None
        self.loaded: LoadedGraph | None = None
        # Options that have changed since preparation.
        self.changed_options: set[str] = set()
        self._of = context
        self._options = options
        self._tensors: dict[str, Tensor] = {}
        self._build_lock = make_lock("building")
        if packed is None:
            self.life = Life("graph", name, State.BUILDING)
            self.draft = GraphDraft(self, self._tensors, context.next_tensor_id)
            return
        self.life = Life("graph", name, State.DEFERRED if enabled else State.DISABLED)
        ids, info = packed.tensor_ids, packed.info()
        for spec in (*info.inputs, *info.outputs):
            # Ids are kept, so that the tensors of the program that built the binary still fit.
            number = ids.get(spec.name) or context.next_tensor_id()
            self._tensors[spec.name] = Tensor(number, spec, self)

    # Building

    def add_tensor(
        self,
        name: str,
        shape: Iterable[int],
        dtype: DType | str | int | type,
        *,
        quant: Encoding | None = None,
        kind: TensorKind | str | int | None = None,
        data: npt.ArrayLike | None = None,
        dynamic: Iterable[bool] = (),
        sparse_elements: int | None = None,
        data_format: DataFormat | str | int = DataFormat.DENSE,
    ) -> Tensor:
        """Register a tensor.

        ``kind`` is ``app_write`` (input), ``app_read`` (output), ``native`` (between nodes; the default),
        ``static`` (constant; the default when ``data`` is given) or one of the optional kinds. ``data`` is in the
        stored type: integers for fixed point. ``dynamic`` marks dimensions that an execution may lower;
        ``sparse_elements`` makes the tensor sparse, and is the most elements that may be specified.
        ``data_format`` "hmx_weight_layout" is for the KV cache of a language model (``docs/llm.md``).
        """
        self.life.require("add_tensor")
        kind = kind if kind is not None else ("native" if data is None else "static")
        with error_context(graph=self.name):
            spec = tensor_spec(name, shape, dtype, quant, kind, dynamic, sparse_elements, data_format)
            constant = static_data(spec, data)
        with self._build_lock:
            return self._draft_for("add_tensor").add_tensor(spec, constant)

    def add_node(
        self,
        op: str,
        *,
        inputs: Iterable[Tensor | str | None],
        outputs: Iterable[Tensor | str],
        name: str | None = None,
        params: Mapping[str, Any] | None = None,
        package: str = "qti.aisw",
    ) -> None:
        """Add a node after those that make its inputs. Op and parameter names are the API's."""
        with self._build_lock:
            self._draft_for("add_node").add_node(op, name, inputs, outputs, params, package)

    def _draft_for(self, call: str) -> GraphDraft:
        """The draft, for a change by the thread that has the lock; refused while the graph is finalized."""
        self.life.require(call)
        assert self.draft is not None
        return self.draft

    def _compose(self, source: IrGraph) -> None:
        """Compose. A method, so that the saver can come between."""
        self._draft_for("add_node").take_over(source)

    def create_subgraph(self, name: str) -> Graph:
        """A graph inside this one. It takes tensors and nodes but cannot be executed by itself."""
        self.life.require("add_node")
        sub = Graph(self._of, check_name(name, "graph"), self._options)
        sub.life.become(State.SUBGRAPH)
        return sub

    def finalize(self, *, profile: Profile | None = None, signal: Signal | None = None) -> None:
        """Compile the graph and load it on the device. Afterwards it can be executed and no longer changed.

        If several threads finalize a graph, one of them does; the others wait and get the error of a finalized
        graph. If finalizing fails, or ``signal`` ends it, the graph stays as it was and nothing of it is left on
        the device.
        """
        if self.life.state is State.DEFERRED:
            self.context.finalize(profile=profile, signal=signal, graphs=[self])
            return
        self.life.require("finalize")
        self._of.life.require("use")
        check_handle("profile", profile, Profile)
        check_handle("signal", signal, Signal)
        what = f"finalizing graph {self.name!r}"
        with self._build_lock:
            carrying(profile, signal, what, OF_GRAPH, functools.partial(self._finalize, profile))

    def _finalize(self, profile: Profile | None, fill: Fill | None, stop: CallStop | None) -> None:
        compiling = functools.partial(_compiled, self._draft_for("finalize").finish(), self._options)
        with serving() as served:
            link = self._of.link
            begin = link.now()
            program, packed = compiling() if stop is None else stop.run(compiling)
            if self.context.device.backend.library is None:
                tell_of_results(program, find_soc(self.context.device.soc))
            compiled = link.now()
            load_graphs(self._of, fresh(link, packed), [order_of(self, packed, program)], stop)
            self.draft = None
            if fill is not None and profile is not None:
                events = finalize_events(profile.level, begin, compiled, link.now(), served)
                fill(NotedCall(Method.FINALIZE, self.name, events))

    def _adopt(self, loaded: LoadedGraph) -> None:
        """Become executable: the device has made the graph ready."""
        self.loaded = loaded
        self.life.finish("finalize", State.PREPARED if self._of.options.prepare_only else State.FINALIZED)
        if "hvx_threads" in self.changed_options:
            loaded.set_threads(self._options.hvx_threads)
        news.graph_loaded(self)

    # Looking

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """All tensors by name."""
        return dict(self._tensors)

    @property
    def inputs(self) -> list[Tensor]:
        """Tensors that an execution takes."""
        return [tensor for tensor in list(self._tensors.values()) if tensor.kind.is_input]

    @property
    def outputs(self) -> list[Tensor]:
        """Tensors that an execution returns."""
        return [tensor for tensor in list(self._tensors.values()) if tensor.kind.is_output]

    @property
    def is_finalized(self) -> bool:
        """Whether it can be executed."""
        return self.life.state in (State.FINALIZED, State.PREPARED)

    @property
    def steps(self) -> int:
        """The number of steps, after each of which the graph may be pre-empted; 0 before it is finalized."""
        return 0 if self.loaded is None else self.loaded.steps

    @property
    def was_prepared(self) -> bool:
        """Whether the graph was ready quickly, because an earlier device had prepared it."""
        return self.loaded is not None and self.loaded.was_prepared

    @property
    def was_outdated(self) -> bool:
        """Whether the graph came with a prepared form that could not be used here."""
        loaded = self.loaded
        return loaded is not None and loaded.packed.prepared is not None and not loaded.was_prepared

    @property
    def options(self) -> Options:
        """All options by name: what was chosen, and the defaults of the rest."""
        return self._options

    @property
    def priority(self) -> Priority:
        """How urgent its executions are."""
        level: Priority = self._options.priority
        return level

    @property
    def hvx_threads(self) -> int:
        """HVX threads that its executions ask for; 0 leaves it to the device."""
        return self._options.hvx_threads or 0

    def set_config(self, **options: Unpack[GraphArguments]) -> None:
        """Change options.

        While the graph is built, any can be changed; of a finalized graph the priority, the HVX threads, until an
        execution has started, and ``slc_alloc_enable``, which can be turned off and on again between executions.
        """
        self.life.require("set_config")
        self._of.life.require("use")
        wanted = {name: value for name, value in options.items() if value is not None}
        with error_context(graph=self.name):
            chosen = self._reconfigured(wanted)
        self._adopt_options(chosen)

    def _reconfigured(self, wanted: Mapping[str, object]) -> Options:
        """The options with the changes, to which the device has agreed."""
        context, state = self._of, self.life.state
        if state is State.BUILDING:
            others = [other.options for other in list(context.graphs.values()) if other is not self]
            return new_options(context, self.name, changed_draft(self._options, wanted), others)
        options = self._options.replace(**wanted)
        check_late(self._options, self.changed_options, options, wanted)
        if state is State.DEFERRED:
            check_threads(options, find_soc(context.device.soc))
        if state is State.FINALIZED and self.loaded is not None:
            # Threads first: whatever could refuse the priority afterwards would have refused the threads.
            if "hvx_threads" in wanted:
                self.loaded.set_threads(options.hvx_threads)
            if "priority" in wanted:
                self.loaded.set_priority(options.priority)
        return options

    def _adopt_options(self, options: Options) -> None:
        before, self._options, self.core = self._options, options, options.core
        if self.life.state is State.BUILDING:
            return
        self.changed_options |= {name for name in options if options[name] != before[name]}
        self._of.packer.forget()
        if self.loaded is not None and options != before:
            self.loaded.adopt_options(options)

    # Executing

    def execute(
        self,
        inputs: Values | None = None,
        outputs: Values | None = None,
        *,
        profile: Profile | None = None,
        signal: Signal | None = None,
        deadline_us: int | None = None,
    ) -> Outputs:
        """Run once and wait for the outputs, by name.

        Keys are names, tensor ids or Tensors. Values are arrays (copied) or registered memory (not copied).
        Goes through the same queue as ``execute_async``, with equal standing.
        """
        execution = self._submit(inputs, outputs, profile, signal, None, None, deadline_us, synchronous=True)
        return execution.result()

    def execute_async(
        self,
        inputs: Values | None = None,
        outputs: Values | None = None,
        *,
        profile: Profile | None = None,
        signal: Signal | None = None,
        notify: Notify | None = None,
        notify_param: object = None,
        deadline_us: int | None = None,
    ) -> Execution:
        """Queue one execution and return; blocks only while the context's queue is full.

        ``notify(notify_param, status)`` is called exactly once, on a thread of the backend, when an accepted
        execution is over; a call that is refused never notifies. One that an interrupt (Ctrl-C) cuts short holds
        nothing afterwards; if it was sent already, it is cancelled and notifies once. Arrays and registered memory
        of the call must be left alone until the execution is over. They are read when it starts, or shortly
        before, and only after everything that was queued earlier on this device has been written to them.
        ``deadline_us`` says when, counted from the call, it should be done; the ``edf`` policy goes by it, and it
        ends nothing.
        """
        if notify is not None:
            check_callable("notify", notify, "(param, status)")
        if profile is not None or signal is not None or deadline_us is not None:
            return self._submit(
                inputs, outputs, profile, signal, notify, notify_param, deadline_us, synchronous=False
            )
        # The same without what most calls have not.
        self._of.life.require("execute")
        self.life.require("execute")
        assert self.loaded is not None  # it is finalized
        callee = self.loaded.callee
        call = Call(callee, callee.bindings.arguments(inputs, outputs), self, notify, notify_param)
        return send(call, self._enqueue)

    def _submit(
        self,
        inputs: Values | None,
        outputs: Values | None,
        profile: Profile | None,
        signal: Signal | None,
        notify: Notify | None,
        notify_param: object,
        deadline_us: int | None,
        *,
        synchronous: bool,
    ) -> Execution:
        self._of.life.require("execute")
        self.life.require("execute")
        assert self.loaded is not None  # it is finalized
        callee = self.loaded.callee
        link = callee.link
        called_ns = link.now()
        # Most calls have neither; a check of None would only take time.
        if profile is not None:
            check_handle("profile", profile, Profile)
        if signal is not None:
            check_handle("signal", signal, Signal)
        call = Call(
            callee,
            callee.bindings.arguments(inputs, outputs),
            self,
            notify,
            notify_param,
            synchronous=synchronous,
            called_ns=called_ns,
            deadline_at=0 if deadline_us is None else deadline_from(called_ns, deadline_us),
            profile=None if profile is None else profile.sheet,
            signal=None if signal is None else signal.interrupt,
        )
        return send(call, self._enqueue)

    def _enqueue(self, call: Call) -> Execution:
        """Enqueue. A method, so that faults and the saver can come between."""
        return enqueue(call)

    def __repr__(self) -> str:
        return f"<Graph {self.name!r}, {self.life.state.value}>"


def order_of(graph: Graph, packed: PackedGraph, program: QnnProgram | None = None) -> GraphOrder:
    """The order to load a graph."""
    return GraphOrder(graph, packed, graph._adopt, program)


def compose(graph: Graph, source: IrGraph) -> None:
    """Take over a whole graph that was built and verified elsewhere (an importer, say)."""
    graph._compose(source)


def adopt_priority(graph: Graph, level: Priority) -> None:
    """Follow the context's new priority, to which the device has agreed."""
    graph._adopt_options(graph.options.replace(priority=level))
