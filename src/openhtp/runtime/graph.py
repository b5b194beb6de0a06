"""A graph: built from tensors and nodes, finalized once, then executed any number of times."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from openhtp.compiler.driver import CompileOptions, portable_program
from openhtp.core import status as st
from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument, InvalidHandle, UnsupportedFeature, error_context
from openhtp.core.opcall import OpCall
from openhtp.core.priority import Priority
from openhtp.core.quant import Encoding
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ir.builder import GraphBuilder
from openhtp.ir.graph import Graph as IrGraph
from openhtp.program.binary import BinaryInfo, pack_graphs
from openhtp.program.options import GraphOptions
from openhtp.program.packed import PackedGraph, pack_program
from openhtp.program.qnn_program import QnnProgram
from openhtp.rpc import frames
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import SharedBuffer
from openhtp.runtime.arguments import Ports, Values
from openhtp.runtime.bindings import Bindings
from openhtp.runtime.call import Call
from openhtp.runtime.execution import Execution, Notify, Outputs
from openhtp.runtime.lifecycle import Life, State
from openhtp.runtime.options import check_count, check_handle, check_name, check_shape
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
        self._lock = threading.Lock()
        self._under_way = {True: 0, False: 0}  # executions by ``synchronous``
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
        assert self._builder is not None
        with error_context(graph=self.name):
            spec = TensorSpec(
                check_name(name, "tensor"),
                check_shape(name, shape),
                DType.parse(dtype),
                quant,
                TensorKind.parse(kind if kind is not None else ("native" if data is None else "static")),
                tuple(bool(flag) for flag in dynamic),
                None if sparse_elements is None else check_count("sparse_elements", sparse_elements, 1 << 40),
            )
        held = None if data is None else np.asarray(data, None if hasattr(data, "dtype") else spec.dtype.numpy)
        self._builder.add_tensor(spec, held)
        tensor = Tensor(self.context._next_tensor_id(), spec, self)
        self._tensors[name] = tensor
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
        self._life.require("add_node")
        assert self._builder is not None
        if isinstance(inputs, (str, Tensor)) or isinstance(outputs, (str, Tensor)):
            raise InvalidArgument(
                f"inputs and outputs of node {name or op!r} must be lists of tensors",
                st.QNN_GRAPH_ERROR_INVALID_OP_CONFIG,
            )
        name = name if name is not None else f"{op}_{self._nodes}"
        with error_context(graph=self.name, node=name):
            specs_in = tuple(None if item is None else self._spec(item) for item in inputs)
            specs_out = tuple(self._spec(item) for item in outputs)
            if package != "qti.aisw":
                raise UnsupportedFeature(
                    f"op package {package!r} is not registered; expected 'qti.aisw'",
                    st.QNN_BACKEND_ERROR_OP_PACKAGE_NOT_FOUND,
                )
        self._builder.add_node(OpCall(op, name, specs_in, specs_out, dict(params or {}), package))
        self._nodes += 1

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
        """Compile the graph and load it on the device. Afterwards it can be executed and no longer changed."""
        self._life.require("finalize")
        self.context._life.require("use")
        assert self._builder is not None
        if signal is not None:
            raise UnsupportedFeature(
                "finalize cannot be signalled; pass the signal to execute or execute_async",
                st.QNN_GRAPH_ERROR_UNSUPPORTED_FEATURE,
            )
        if profile is not None:
            profile._life.require("use")
        link = self.context._link
        begin = link.now()
        self._program = portable_program(self._builder.finish(), CompileOptions(graph=self._options))
        self._load(pack_program(self._program)[0])
        self._builder = None
        if profile is not None:
            profile._fill_once(ProfileEvent(300, "QNN (finalize) time", (link.now() - begin) // 1000, "us"))

    def _load(self, packed: PackedGraph) -> None:
        """Send the graph to the device and become executable."""
        info = packed.info()
        buffer = SharedBuffer.holding(pack_graphs([packed], BinaryInfo()))
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
        return [tensor for tensor in self._tensors.values() if tensor.kind.is_input]

    @property
    def outputs(self) -> list[Tensor]:
        """Tensors that an execution returns."""
        return [tensor for tensor in self._tensors.values() if tensor.kind.is_output]

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
    ) -> Outputs:
        """Run once and wait for the outputs, by name.

        Keys are names, tensor ids or Tensors. Values are arrays (copied) or registered memory (not copied).
        Goes through the same queue as ``execute_async``, with equal standing.
        """
        execution = self._submit(inputs, outputs, profile, signal, None, None, synchronous=True)
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
    ) -> Execution:
        """Queue one execution and return; blocks only while the context's queue is full.

        ``notify(notify_param, status)`` is called exactly once, on a thread of the backend, when an accepted
        execution is over; a call that raises here never notifies. Inputs given as arrays are copied before the
        call returns; registered memory must be left alone until the execution is over.
        """
        if notify is not None and not callable(notify):
            raise InvalidArgument(
                f"notify is a {type(notify).__name__}; expected a function of (param, status)",
                st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
            )
        return self._submit(inputs, outputs, profile, signal, notify, notify_param, synchronous=False)

    def _submit(
        self,
        inputs: Values | None,
        outputs: Values | None,
        profile: Profile | None,
        signal: Signal | None,
        notify: Notify | None,
        notify_param: object,
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
            profile=profile,
            signal=signal,
            notify=notify,
            notify_param=notify_param,
            synchronous=synchronous,
        )
        try:
            return self._enqueue(call)
        except BaseException:
            call.finish(None)
            raise

    def _enqueue(self, call: Call) -> Execution:
        """Take handles, a place and memory for a checked call, then send it."""
        link, profile = call.link, call.profile
        deadline_ns = call.hold_handles()
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
            deadline_ns,
        )
        if profile is not None:
            call.sent_ns = link.now()
        send = link.run if call.synchronous else link.submit
        send(execution, head + packed, call.sent)
        return execution

    # What a call needs of its graph

    def _count_call(self, synchronous: bool, change: int) -> None:
        """Keep count of executions under way; the two ways of executing one graph exclude each other."""
        with self._lock:
            if change > 0 and self._under_way[not synchronous]:
                other = "asynchronous" if synchronous else "synchronous"
                raise UnsupportedFeature(
                    f"graph {self.name!r} has {other} executions under way; executing one graph both ways at the"
                    " same time is not supported",
                    st.QNN_GRAPH_ERROR_UNSUPPORTED_FEATURE,
                )
            self._under_way[synchronous] += change

    def _spec(self, item: Tensor | str) -> TensorSpec:
        if isinstance(item, Tensor):
            if item.graph is not self:
                raise InvalidHandle(
                    f"tensor {item.name!r} belongs to graph {item.graph.name!r}",
                    st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
                )
            return item.spec
        tensor = self._tensors.get(item) if isinstance(item, str) else None
        if tensor is None:
            raise InvalidArgument(
                f"tensor {item!r} is not in this graph; add it first", st.QNN_GRAPH_ERROR_INVALID_OP_CONFIG
            )
        return tensor.spec

    def __repr__(self) -> str:
        return f"<Graph {self.name!r}, {self._life.state.value}>"
