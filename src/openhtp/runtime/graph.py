"""A graph: built from tensors and nodes, finalized once, then executed any number of times."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from openhtp.compiler.driver import CompileOptions, portable_program
from openhtp.core import status as st
from openhtp.core.dtype import DType
from openhtp.core.errors import OutOfMemory, UnsupportedFeature, error_context
from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.priority import Priority
from openhtp.core.quant import Encoding
from openhtp.core.tensor import TensorKind
from openhtp.core.units import bytes_in_words
from openhtp.ir.builder import GraphBuilder
from openhtp.ir.graph import Graph as IrGraph
from openhtp.program.binary import BinaryInfo, pack_graphs
from openhtp.program.options import GraphOptions
from openhtp.program.packed import PackedGraph, pack_program
from openhtp.program.qnn_program import QnnProgram
from openhtp.rpc import frames
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import SharedBuffer
from openhtp.runtime import rescue, watching
from openhtp.runtime.building import op_call, static_data, tensor_spec
from openhtp.runtime.calls.arguments import Ports, Values
from openhtp.runtime.calls.bindings import Bindings
from openhtp.runtime.calls.call import Call
from openhtp.runtime.calls.execution import Execution, Notify, Outputs
from openhtp.runtime.lifecycle import Life, State
from openhtp.runtime.locks import make_lock
from openhtp.runtime.options import check_callable, check_handle, check_name, deadline_from
from openhtp.runtime.profile import Profile, ProfileEvent
from openhtp.runtime.signal import Signal
from openhtp.runtime.tensor import Tensor

if TYPE_CHECKING:
    from openhtp.runtime.context import Context


class Graph:
    """Made by ``Context.create_graph`` or restored from a context binary."""

    def __init__(self, context: Context, name: str, options: GraphOptions, core: int = 0) -> None:
        self.context = context
        self.name = name
        self.core = core
        self._life = Life("graph", name, State.BUILDING)
        self._options = options
        self._builder: GraphBuilder | None = GraphBuilder(name)
        self._tensors: dict[str, Tensor] = {}
        self._nodes = 0
        self._program: QnnProgram | None = None
        self._packed: PackedGraph | None = None
        # Whether it was restored from what an earlier device had prepared, and so was ready quickly.
        self.was_prepared = False
        self._number = 0
        self._ports = Ports([], 0, {})
        self._bindings: Bindings | None = None
        self._build_lock = make_lock("building")
        self._lock = make_lock("graph")
        self._under_way: dict[bool, set[Call]] = {True: set(), False: set()}  # by ``synchronous``
        self._parent: Graph | None = None

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
    ) -> Tensor:
        """Register a tensor.

        ``kind`` is ``app_write`` (input), ``app_read`` (output), ``native`` (between nodes; the default),
        ``static`` (constant; the default when ``data`` is given) or one of the optional kinds. ``data`` is in the
        stored type: integers for fixed point. ``dynamic`` marks dimensions that an execution may lower;
        ``sparse_elements`` makes the tensor sparse, with at most so many elements specified.
        """
        self._life.require("add_tensor")
        kind = kind if kind is not None else ("native" if data is None else "static")
        with error_context(graph=self.name):
            spec = tensor_spec(name, shape, dtype, quant, kind, dynamic, sparse_elements)
            held = static_data(spec, data)
        with self._building("add_tensor") as builder:
            builder.add_tensor(spec, held)
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
        with self._building("add_node") as builder:
            op = check_name(op, "op")
            name = check_name(f"{op}_{self._nodes}" if name is None else name, "node")
            with error_context(graph=self.name, node=name):
                call = op_call(self, op, name, inputs, outputs, params, package)
            builder.add_node(call)
            self._nodes += 1

    @contextlib.contextmanager
    def _building(self, call: str) -> Iterator[GraphBuilder]:
        """Change the graph: one thread at a time, and not while it is being finalized."""
        with self._build_lock:
            self._life.require(call)
            assert self._builder is not None
            yield self._builder

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
        sub._parent = self
        sub._life.become(State.SUBGRAPH)
        return sub

    def finalize(self, *, profile: Profile | None = None, signal: Signal | None = None) -> None:
        """Compile the graph and load it on the device. Afterwards it can be executed and no longer changed.

        Of several threads that finalize it one does; the others wait and are told that it is finalized. If it
        fails, the graph stays as it was.
        """
        self._life.require("finalize")
        self.context._life.require("use")
        check_handle("profile", profile, Profile)
        if signal is not None:
            raise UnsupportedFeature(
                "finalize cannot be signalled; pass the signal to execute or execute_async",
                st.QNN_GRAPH_ERROR_UNSUPPORTED_FEATURE,
            )
        filling = contextlib.nullcontext() if profile is None else profile._filling()
        with self._building("finalize") as builder, filling as fill:
            link = self.context._link
            begin = link.now()
            program = portable_program(builder.finish(), CompileOptions(graph=self._options))
            self._program = program
            self._load(pack_program(program)[0])
            self._builder = None
            if fill is not None:
                fill(ProfileEvent(300, "QNN (finalize) time", (link.now() - begin) // 1000, "us"))

    def _load(self, packed: PackedGraph) -> None:
        """Send the graph to the device and become executable."""
        info = packed.info()
        parts = pack_graphs([packed], BinaryInfo())
        nbytes = sum(memoryview(part).nbytes for part in parts)
        if nbytes > SESSION_LIMIT_BYTES:
            raise OutOfMemory(
                f"graph {self.name!r} takes {bytes_in_words(nbytes)}; a session holds at most"
                f" {bytes_in_words(SESSION_LIMIT_BYTES)}",
                st.QNN_CONTEXT_ERROR_MEM_ALLOC,
            )
        buffer = SharedBuffer.holding(parts)
        try:
            with error_context(graph=self.name):
                reply = self.context._link.request(
                    ms.LoadGraph(
                        context=self.context._number,
                        nbytes=buffer.nbytes,
                        priority=int(self._options.priority),
                        core=self.core,
                    ),
                    (buffer.fd,),
                )
        finally:
            buffer.close()
        self._packed = packed
        self.was_prepared = bool(reply.info.get("prepared"))
        self._number = reply.value
        self.steps = reply.steps
        self._ports = Ports([*info.inputs, *info.outputs], len(info.inputs), self._tensors)
        self._bindings = Bindings(self.context, self._ports, lambda sizes: self._whole_program().infer_dims(sizes))
        if self._ports.is_dynamic:
            self._whole_program()  # now rather than during the first execution
        self._life.become(State.FINALIZED)
        watching.watcher.graph_loaded(self)

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
        return self._life.state is State.FINALIZED

    @property
    def priority(self) -> Priority:
        """How urgent its executions are."""
        return self._options.priority

    @property
    def hvx_threads(self) -> int:
        """HVX threads that its executions ask for; 0 leaves it to the device."""
        return self._options.hvx_threads or 0

    def set_config(self, *, priority: Priority | str | int) -> None:
        """Change the priority; refused by the device once an execution has started."""
        self._life.require("set_config")
        self.context._life.require("use")
        level = Priority.parse(priority)
        if self._life.state is State.FINALIZED:
            request = ms.SetPriority(graph=self._number, priority=int(level))
            with error_context(graph=self.name):
                self.context._link.request(request)
        self._adopt_priority(level)

    def _adopt_priority(self, level: Priority) -> None:
        """The context's priority was changed, and the device has agreed."""
        self._options = dataclasses.replace(self._options, priority=level)

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
        execution is over; a call that raises here never notifies. Inputs given as arrays are copied before the
        call returns; registered memory must be left alone until the execution is over. ``deadline_us`` says
        when, counted from the call, it should be done; the ``edf`` policy goes by it, and it ends nothing.
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
        context = self.context
        context._life.require("execute")
        self._life.require("execute")
        link = context._link
        called_ns = link.now()
        if not synchronous and not link.supports_async:
            raise UnsupportedFeature(
                "execute_async needs the device in its own process: create it with transport='rpc'",
                st.QNN_GRAPH_ERROR_UNSUPPORTED_FEATURE,
            )
        check_handle("profile", profile, Profile)
        check_handle("signal", signal, Signal)
        assert self._bindings is not None
        arguments = self._bindings.arguments(inputs, outputs)
        call = Call(
            self,
            arguments,
            link=link,
            notifier=context.device.backend._notifier,
            called_ns=called_ns,
            deadline_at=0 if deadline_us is None else deadline_from(called_ns, deadline_us),
            profile=profile,
            signal=signal,
            notify=notify,
            notify_param=notify_param,
            synchronous=synchronous,
        )
        try:
            return self._enqueue(call)
        except BaseException:
            rescue.post((call.settle, ()))  # a call that raises holds nothing, also if this is an interrupt
            rescue.flush()
            raise

    def _enqueue(self, call: Call) -> Execution:
        """Take handles, a place and memory for a checked call, then send it."""
        link, profile = call.link, call.profile
        timeout_at = call.hold_handles()
        packed = call.hold_memory()
        execution = Execution(link.next_job(), call)
        arguments = call.arguments
        head = frames.EXECUTE_HEAD.pack(
            frames.EXECUTE,
            frames.FLAG_DIMS if arguments.dims else 0,
            arguments.count,
            self._number,
            arguments.batch,
            0 if profile is None else profile.level,
            execution.job,
            timeout_at,
            call.deadline_at,
        )
        if profile is not None:
            call.sent_ns = link.now()
        send = link.run if call.synchronous else link.submit
        send(execution, head + packed, call.sent)
        return execution

    # What a call needs of its graph

    def _begin_call(self, call: Call) -> None:
        """Note an execution under way; the two ways of executing one graph exclude each other."""
        synchronous = call.synchronous
        with self._lock:
            if self._under_way[not synchronous]:
                other = "asynchronous" if synchronous else "synchronous"
                raise UnsupportedFeature(
                    f"graph {self.name!r} has {other} executions under way; executing one graph both ways at the"
                    " same time is not supported",
                    st.QNN_GRAPH_ERROR_UNSUPPORTED_FEATURE,
                )
            self._under_way[synchronous].add(call)

    def _end_call(self, call: Call) -> None:
        self._under_way[call.synchronous].discard(call)

    def _calls_under_way(self) -> set[Call]:
        return self._under_way[True] | self._under_way[False]

    def __repr__(self) -> str:
        return f"<Graph {self.name!r}, {self._life.state.value}>"
