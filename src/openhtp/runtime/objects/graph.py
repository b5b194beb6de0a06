"""A graph: built from tensors and nodes, finalized once, then executed any number of times."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

import numpy.typing as npt

from openhtp.compiler.driver import CompileOptions, portable_program
from openhtp.core.dtype import DType
from openhtp.core.enumerations import DataFormat
from openhtp.core.errors import error_context
from openhtp.core.locks import make_lock
from openhtp.core.priority import Priority
from openhtp.core.quant import Encoding
from openhtp.core.tensor import TensorKind
from openhtp.ir.builder import GraphBuilder
from openhtp.ir.graph import Graph as IrGraph
from openhtp.options import OptionValues as Options
from openhtp.program.binary import BinaryInfo, pack_graphs
from openhtp.program.packed import PackedGraph, pack_program
from openhtp.program.qnn_program import QnnProgram
from openhtp.records.profile import Method
from openhtp.rpc import messages as ms
from openhtp.runtime.binaries.load import fresh, load_graphs
from openhtp.runtime.calls.arguments import Ports, Values
from openhtp.runtime.calls.bindings import Bindings
from openhtp.runtime.calls.call import Call
from openhtp.runtime.calls.callee import Callee
from openhtp.runtime.calls.execution import Execution, Notify, Outputs
from openhtp.runtime.calls.long_call import OF_GRAPH, Stop, carrying
from openhtp.runtime.calls.sending import enqueue, send
from openhtp.runtime.calls.sheet import Fill, Noted
from openhtp.runtime.instruments.instrument import hooked, news
from openhtp.runtime.links.served import serving
from openhtp.runtime.objects.argument_checks import (
    check_callable,
    check_handle,
    check_name,
    deadline_from,
    options_within,
)
from openhtp.runtime.objects.building import op_call, static_data, tensor_spec
from openhtp.runtime.objects.lifecycle import Life, State
from openhtp.runtime.objects.modelled import Modelled
from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.profile_events import finalize_events
from openhtp.runtime.objects.reconfiguring import reconfigured, tell_threads
from openhtp.runtime.objects.signal import Signal
from openhtp.runtime.objects.tensor import Tensor

if TYPE_CHECKING:
    from openhtp.options._arguments import GraphArguments
    from openhtp.runtime.objects.context import Context


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
    """Made by ``Context.create_graph`` or restored from a context binary."""

    def __init__(self, context: Context, name: str, options: Options) -> None:
        options = options_within(context, name, options)
        self.context = context
        self.name = name
        self.core: int = options.core
        self._life = Life("graph", name, State.BUILDING)
        self._options = options
        self._builder: GraphBuilder | None = GraphBuilder(name)
        self._tensors: dict[str, Tensor] = {}
        self._nodes = 0
        self._program: QnnProgram | None = None
        self._packed: PackedGraph | None = None
        # Data and encodings of updateable tensors that were applied last; none if the graph came with them.
        self._updates: dict[str, npt.NDArray[Any]] = {}
        self._encodings: dict[str, Encoding] = {}
        # Options that were changed after preparation had read them.
        self._changed: set[str] = set()
        # Whether it was restored from what an earlier device had prepared, and so was ready quickly.
        self.was_prepared = False
        self._number = 0
        self._callee: Callee | None = None
        self._build_lock = make_lock("building")

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
        ``sparse_elements`` makes the tensor sparse, with at most so many elements specified.
        ``data_format`` "hmx_weight_layout" is for the KV cache of a language model (``docs/llm.md``).
        """
        self._life.require("add_tensor")
        kind = kind if kind is not None else ("native" if data is None else "static")
        with error_context(graph=self.name):
            spec = tensor_spec(name, shape, dtype, quant, kind, dynamic, sparse_elements, data_format)
            held = static_data(spec, data)
        with self._build_lock:
            self._builder_for("add_tensor").add_tensor(spec, held)
            tensor = self._tensors[spec.name] = Tensor(self.context._next_tensor_id(), spec, self)
        return tensor

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
            builder = self._builder_for("add_node")
            op = check_name(op, "op")
            name = check_name(f"{op}_{self._nodes}" if name is None else name, "node")
            with error_context(graph=self.name, node=name):
                call = op_call(self, op, name, inputs, outputs, params, package)
            builder.add_node(call)
            self._nodes += 1

    def _builder_for(self, call: str) -> GraphBuilder:
        """What changes the graph: one thread at a time, which holds the lock, and not while it is finalized."""
        self._life.require(call)
        assert self._builder is not None
        return self._builder

    def _compose(self, graph: IrGraph) -> None:
        """Take over a whole graph that was built and verified elsewhere (an importer, say)."""
        assert self._builder is not None
        self._builder = GraphBuilder.resume(graph, name=self.name)
        for spec in graph.tensors.values():
            self._tensors[spec.name] = Tensor(self.context._next_tensor_id(), spec, self)
        self._nodes = len(graph.nodes)

    def create_subgraph(self, name: str) -> Graph:
        """A graph inside this one. It takes tensors and nodes but cannot be executed by itself."""
        self._life.require("add_node")
        sub = Graph(self.context, check_name(name, "graph"), self._options)
        sub._life.become(State.SUBGRAPH)
        return sub

    def finalize(self, *, profile: Profile | None = None, signal: Signal | None = None) -> None:
        """Compile the graph and load it on the device. Afterwards it can be executed and no longer changed.

        Of several threads that finalize it one does; the others wait and are told that it is finalized. If it
        fails, or ``signal`` ends it, the graph stays as it was and nothing of it is left on the device.
        """
        if self._life.state is State.DEFERRED:
            self.context.finalize(profile=profile, signal=signal, graphs=[self])
            return
        self._life.require("finalize")
        self.context._life.require("use")
        check_handle("profile", profile, Profile)
        check_handle("signal", signal, Signal)
        what = f"finalizing graph {self.name!r}"
        with self._build_lock:
            carrying(profile, signal, what, OF_GRAPH, functools.partial(self._finalize, profile))

    def _finalize(self, profile: Profile | None, fill: Fill | None, stop: Stop | None) -> None:
        compiling = functools.partial(_compiled, self._builder_for("finalize").finish(), self._options)
        with serving() as served:
            link = self.context._link
            begin = link.now()
            program, packed = compiling() if stop is None else stop.run(compiling)
            compiled = link.now()
            with error_context(graph=self.name):
                sending = fresh(pack_graphs([packed], BinaryInfo()))
            load_graphs(self.context, sending, [(self, packed)], stop)
            self._program = program
            self._builder = None
            if fill is not None and profile is not None:
                events = finalize_events(profile.level, begin, compiled, link.now(), served)
                fill(Noted(Method.FINALIZE, self.name, events))

    def _adopt_loaded(self, packed: PackedGraph, loaded: ms.LoadedGraph) -> None:
        """The device has made the graph ready: be executable."""
        info = packed.info()
        self._packed = packed
        self.was_prepared = loaded.prepared
        self._number = loaded.graph
        self.steps = loaded.steps
        self._callee = self._make_callee(Ports([*info.inputs, *info.outputs], len(info.inputs), self._tensors))
        self._life.finish("finalize", State.PREPARED if self.context._chosen.prepare_only else State.FINALIZED)
        if "hvx_threads" in self._changed:
            tell_threads(self, self._options)
        news.graph_loaded(self)

    def _make_callee(self, ports: Ports) -> Callee:
        context = self.context
        if ports.is_dynamic:
            self._whole_program()  # now rather than during the first execution
        return Callee(
            self.name,
            self._number,
            ports=ports,
            bindings=Bindings(context._memory, ports, lambda sizes: self._whole_program().infer_dims(sizes)),
            hvx_threads=self.hvx_threads,
            places=context._places,
            link=context._link,
            notifier=context.device.backend._notifier,
            modelled=self._make_modelled(),
        )

    def _make_modelled(self) -> Modelled | None:
        """What profiles tell about the chip; nothing where the vendor's library is the device."""
        device = self.context.device
        if device.backend._library is not None or self._packed is None:
            return None
        return Modelled(self._packed, self._program, self._options, device.soc, self.steps, self.core)

    def _whole_program(self) -> QnnProgram:
        if self._program is None:
            assert self._packed is not None
            self._program = self._packed.program()
        return self._program

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
        return self._life.state in (State.FINALIZED, State.PREPARED)

    @property
    def was_outdated(self) -> bool:
        """Whether it came with a prepared form that could not be used here."""
        return self._packed is not None and self._packed.prepared is not None and not self.was_prepared

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
        """Change options: any while the graph is built.

        Of a finalized one the priority and the HVX threads, which the device refuses once an execution has
        started, and ``slc_alloc_enable``, which can be turned off and on again between executions.
        """
        self._life.require("set_config")
        self.context._life.require("use")
        self._adopt_options(reconfigured(self, options))

    def _adopt_priority(self, level: Priority) -> None:
        """The context's priority was changed, and the device has agreed."""
        self._adopt_options(self._options.replace(priority=level))

    def _adopt_options(self, options: Options) -> None:
        before, self._options, self.core = self._options, options, options.core
        if self._life.state is State.BUILDING:
            return
        self._changed |= {name for name in options if options[name] != before[name]}
        self.context._saver.forget()
        if self._callee is not None and options != before:
            self._callee.hvx_threads, self._callee.modelled = self.hvx_threads, self._make_modelled()

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
        nothing afterwards; if it was sent already, it is cancelled and notifies once. Inputs given as arrays are
        copied before the call returns; registered memory must be left alone until the execution is over.
        ``deadline_us`` says when, counted from the call, it should be done; the ``edf`` policy goes by it, and it
        ends nothing.
        """
        if notify is not None:
            check_callable("notify", notify, "(param, status)")
        return self._submit(inputs, outputs, profile, signal, notify, notify_param, deadline_us, synchronous=False)

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
        self.context._life.require("execute")
        self._life.require("execute")
        callee = self._callee
        assert callee is not None  # it is finalized
        link = callee.link
        called_ns = link.now()
        check_handle("profile", profile, Profile)
        check_handle("signal", signal, Signal)
        call = Call(
            callee,
            callee.bindings.arguments(inputs, outputs),
            caller=self,
            called_ns=called_ns,
            deadline_at=0 if deadline_us is None else deadline_from(called_ns, deadline_us),
            profile=None if profile is None else profile._sheet,
            signal=None if signal is None else signal._interrupt,
            notify=notify,
            notify_param=notify_param,
            synchronous=synchronous,
        )
        return send(call, self._enqueue)

    def _enqueue(self, call: Call) -> Execution:
        """A method, so that faults and the saver can come between."""
        return enqueue(call)

    def __repr__(self) -> str:
        return f"<Graph {self.name!r}, {self._life.state.value}>"
