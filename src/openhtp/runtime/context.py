"""A context: graphs and memory that live and die together, behind one bounded execution queue."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.errors import DeviceLost, InvalidArgument, InvalidHandle, NameClash, QnnError, WrongState
from openhtp.core.priority import Priority
from openhtp.core.tensor import TensorSpec
from openhtp.core.version import BUILD_ID
from openhtp.hw.catalog import find_soc
from openhtp.ir.graph import Graph as IrGraph
from openhtp.program.binary import BinaryInfo, ContextBinary, pack_graphs, read_binary
from openhtp.program.packed import PackedGraph
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import SharedBuffer
from openhtp.runtime import rescue
from openhtp.runtime.app import App
from openhtp.runtime.graph import Graph
from openhtp.runtime.lifecycle import Life, State
from openhtp.runtime.locks import make_lock
from openhtp.runtime.mem import Mem, Place
from openhtp.runtime.options import check_name, make_options
from openhtp.runtime.queue import Places
from openhtp.runtime.tensor import Tensor

if TYPE_CHECKING:
    from openhtp.runtime.device import Device
    from openhtp.runtime.link import Link

log = logging.getLogger(__name__)


class Context:
    """Made by ``Device.create_context`` or ``Device.create_context_from_binary``."""

    def __init__(self, device: Device, link: Link, *, queue_depth: int, priority: Priority) -> None:
        self.device = device
        self.priority = priority
        self._link = link
        self._life = Life("context", "")
        self._places = Places(queue_depth)
        self._graphs: dict[str, Graph] = {}
        self._memories: dict[int, Mem] = {}
        self._buffers: list[SharedBuffer] = []
        self._tensor_ids = itertools.count(1)
        self._restored = False
        self._lock = make_lock("context")
        # Arrays handed out by Mem.array, by id; they are kept alive by their Mem, so an id is never reused.
        self._views: dict[int, Place] = {}
        self._addresses: list[tuple[int, Mem]] = []
        self._number = 0

    def _open(self) -> None:
        message = ms.CreateContext(queue_depth=self.queue_depth, priority=int(self.priority))
        self._number = self._link.request(message, undo=lambda made: ms.FreeContext(context=made)).value

    def _discard(self) -> None:
        self._end(State.FREED)  # whoever made or freed it was interrupted; what was done already does no harm
        self._link.tell(ms.FreeContext(context=self._number))
        self._release_memory(State.FREED)

    @property
    def queue_depth(self) -> int:
        """Most executions that may be accepted and not yet completed."""
        return self._places.depth

    @property
    def pending(self) -> int:
        """Executions accepted and not yet completed."""
        return self._places.used

    @property
    def graphs(self) -> Mapping[str, Graph]:
        """Graphs by name."""
        return dict(self._graphs)

    def create_graph(
        self,
        name: str,
        *,
        priority: Priority | str | int | None = None,
        vtcm_mb: int | None = None,
        vtcm_bytes: int | None = None,
        hvx_threads: int | None = None,
        precision: str = "float16",
        core: int = 0,
    ) -> Graph:
        """Start a graph. Its priority is the context's unless given; VTCM and HVX are the device's choice.

        ``core`` says on which NPU core it runs; graphs on different cores do not wait for each other.
        """
        self._life.require("use")
        if self._restored:
            raise WrongState(
                "a context made from a binary takes no new graphs; create another context",
                st.QNN_COMMON_ERROR_OPERATION_NOT_PERMITTED,
            )
        if not isinstance(name, str) or not name:
            raise InvalidArgument(
                f"graph name {name!r}; expected a non-empty string", st.QNN_GRAPH_ERROR_INVALID_NAME
            )
        if name in self._graphs:
            raise NameClash(f"graph {name!r} already exists in this context", st.QNN_GRAPH_ERROR_INVALID_NAME)
        options = make_options(
            priority=self.priority if priority is None else priority,
            vtcm_mb=vtcm_mb,
            vtcm_bytes=vtcm_bytes,
            hvx_threads=hvx_threads,
            precision=precision,
        )
        cores = find_soc(self.device.soc).cores
        if isinstance(core, bool) or not isinstance(core, int) or not 0 <= core < cores:
            raise InvalidArgument(
                f"core {core!r}; {self.device.soc} has {cores}, counted from 0",
                st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
            )
        graph = self._graphs[name] = Graph(self, name, options, core)
        return graph

    def compose_graph(
        self,
        source: IrGraph,
        name: str | None = None,
        *,
        priority: Priority | str | int | None = None,
        vtcm_mb: int | None = None,
        vtcm_bytes: int | None = None,
        hvx_threads: int | None = None,
        precision: str = "float16",
    ) -> Graph:
        """Start a graph from an imported one (``openhtp.onnx.load``); it still has to be finalized."""
        graph = self.create_graph(
            source.name if name is None else name,
            priority=priority,
            vtcm_mb=vtcm_mb,
            vtcm_bytes=vtcm_bytes,
            hvx_threads=hvx_threads,
            precision=precision,
        )
        graph._compose(source)
        return graph

    def create_app(
        self,
        name: str,
        *,
        priority: Priority | str | int | None = None,
        hmx: int = 0,
        hvx: int = 1,
        vtcm_bytes: int = 1 << 20,
    ) -> App:
        """Introduce a client that is no graph and competes for VTCM and HVX; see ``App.run_async``."""
        self._life.require("use")
        level = self.priority if priority is None else Priority.parse(priority)
        return App(self, check_name(name, "graph"), priority=level, hmx=hmx, hvx=hvx, vtcm_bytes=vtcm_bytes)

    def graph(self, name: str) -> Graph:
        """The graph with this name."""
        self._life.require("use")
        found = self._graphs.get(name) if isinstance(name, str) else None
        if found is None:
            names = ", ".join(map(repr, self._graphs)) or "none"
            raise InvalidArgument(
                f"graph {name!r} does not exist in this context; it has {names}",
                st.QNN_GRAPH_ERROR_GRAPH_DOES_NOT_EXIST,
            )
        return found

    def register_memory(self, nbytes: int | Tensor) -> Mem:
        """Allocate memory that client and device share; give a size in bytes, or a tensor to fit."""
        self._life.require("use")
        size = nbytes.nbytes if isinstance(nbytes, Tensor) else nbytes
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidArgument(
                f"memory of {nbytes!r} bytes; expected a whole number above 0",
                st.QNN_MEM_ERROR_INVALID_ARGUMENT,
            )
        buffer = SharedBuffer.create(size)
        number = 0
        try:
            number = self._request_memory(buffer)
            mem = Mem(self, buffer, number)
            with self._lock:
                self._memories[number] = mem
                bisect.insort(self._addresses, (buffer.address, mem), key=lambda item: item[0])
        except BaseException:
            rescue.post((self._forget_memory, (number, buffer)))
            rescue.flush()
            raise
        return mem

    def _request_memory(self, buffer: SharedBuffer) -> int:
        message = ms.RegisterMemory(context=self._number)
        return self._link.request(message, (buffer.fd,), lambda made: ms.DeregisterMemory(memory=made)).value

    def _forget_memory(self, number: int, buffer: SharedBuffer) -> None:
        if number:  # whoever registered it was interrupted and will not have it
            self._link.tell(ms.DeregisterMemory(memory=number))
        with self._lock:
            self._memories.pop(number, None)
            self._addresses = [item for item in self._addresses if item[1].number != number]
        buffer.close()

    def set_config(self, *, priority: Priority | str | int | None = None, queue_depth: int | None = None) -> None:
        """Change the priority of the context and of all its graphs.

        The queue depth is fixed at creation: giving one here changes nothing, as the API has it.
        """
        self._life.require("use")
        if priority is None:
            return
        level = Priority.parse(priority)
        self._link.request(ms.SetContextPriority(context=self._number, priority=int(level)))
        self.priority = level
        for graph in list(self._graphs.values()):
            graph._adopt_priority(level)

    def get_binary(self) -> bytes:
        """The context as bytes that ``Device.create_context_from_binary`` takes. All graphs must be finalized."""
        self._life.require("use")
        if not self._graphs:
            raise WrongState("the context has no graphs to save", st.QNN_CONTEXT_ERROR_NOT_FINALIZED)
        for graph in self._graphs.values():
            graph._life.require("save")
        soc = find_soc(self.device.soc)
        ids = {
            graph.name: {tensor.name: tensor.id for tensor in (*graph.inputs, *graph.outputs)}
            for graph in self._graphs.values()
        }
        info = BinaryInfo(soc=soc.name, soc_model=soc.soc_model, arch=soc.arch, build_id=BUILD_ID, tensor_ids=ids)
        return b"".join(pack_graphs([_stored_form(graph) for graph in self._graphs.values()], info))

    def get_binary_size(self) -> int:
        """Bytes that ``get_binary`` returns."""
        return len(self.get_binary())

    def free(self) -> None:
        """Free the context, its graphs and memory. Pending executions end as QNN_GRAPH_ERROR_INVALID_CONTEXT."""
        self._life.require("free")
        lost = self._life.state is State.LOST
        try:
            self._end(State.FREED)
            if not lost:
                with contextlib.suppress(DeviceLost, InvalidHandle):  # the device went first: nothing left to free
                    self._link.request(ms.FreeContext(context=self._number))
            self._release_memory(State.FREED)
        except BaseException:
            rescue.post((self._discard, ()))
            raise

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._life.state not in (State.FREED, State.FOREIGN):
            self.free()

    # Restoring

    def _restore(self, binary: ContextBinary, enable_graphs: list[str] | None, priority: Priority | None) -> None:
        """Load the graphs of a binary; each keeps its own priority unless one is given for the context."""
        self._restored = True
        for name in binary.graph_names:
            packed = binary.packed(name)
            about = packed.info()
            options = about.options
            if priority is not None:
                options = dataclasses.replace(options, priority=priority)
            graph = self._graphs[name] = Graph(self, name, options)
            graph._builder = None
            ids = binary.info.tensor_ids.get(name, {})
            for spec in (*about.inputs, *about.outputs):
                # Ids are kept, so that tensors of whoever built the binary still fit.
                number = ids.get(spec.name) or self._next_tensor_id()
                graph._tensors[spec.name] = Tensor(number, spec, graph)
            if enable_graphs is not None and name not in enable_graphs:
                packed.program()  # nothing looks at its data later: say now if it is damaged
                graph._life.become(State.DISABLED)
                continue
            graph._load(packed)

    # What graphs, memory and the device need

    def _next_tensor_id(self) -> int:
        return next(self._tensor_ids)

    def _find_spec(self, name: str) -> TensorSpec:
        specs = {
            (tensor.shape, tensor.dtype): tensor.spec
            for graph in list(self._graphs.values())
            if (tensor := graph._tensors.get(name)) is not None
        }
        if len(specs) == 1:
            return next(iter(specs.values()))
        problem = "several graphs have it with different shapes" if specs else "no graph of this context has it"
        raise InvalidArgument(
            f"cannot tell the shape of tensor {name!r}: {problem}; pass the Tensor, or shape and dtype",
            st.QNN_MEM_ERROR_INVALID_SHAPE,
        )

    def _remember(self, place: Place) -> None:
        self._views[id(place.array)] = place

    def _place_of(self, array: npt.NDArray[Any]) -> Place | None:
        """Where an array lies in registered memory, if all of it does and without gaps."""
        if not self._memories:
            return None
        place = self._views.get(id(array))
        if place is not None and place.array is array:
            return place
        if not array.flags.c_contiguous:
            return None
        address = array.__array_interface__["data"][0]
        index = bisect.bisect_right(self._addresses, address, key=lambda item: item[0]) - 1
        if index < 0:
            return None
        start, mem = self._addresses[index]
        if address + array.nbytes > start + mem.nbytes:
            return None
        return Place(mem, address - start, array)

    def _register_buffer(self, buffer: SharedBuffer) -> int:
        """Register memory of the runtime's own, freed with the context."""
        number = self._request_memory(buffer)
        self._buffers.append(buffer)
        return number

    def _deregister(self, mem: Mem) -> None:
        try:
            if self._life.state is State.LIVE:
                self._link.request(ms.DeregisterMemory(memory=mem.number))
            self._forget(mem)
        except BaseException as error:
            if not isinstance(error, QnnError):
                rescue.post((self._deregister_again, (mem,)))
            raise

    def _deregister_again(self, mem: Mem) -> None:
        with contextlib.suppress(InvalidHandle):  # done before the interrupt came
            self._link.request(ms.DeregisterMemory(memory=mem.number))
        self._forget(mem)

    def _forget(self, mem: Mem) -> None:
        with self._lock:
            self._memories.pop(mem.number, None)
            self._addresses = [item for item in self._addresses if item[1] is not mem]
            for place in mem._places.values():
                self._views.pop(id(place.array), None)
        for graph in list(self._graphs.values()):
            if graph._bindings is not None:
                graph._bindings.forget_memory()
        mem._forget(State.FREED)

    def _lose(self) -> None:
        """The device process went away: everything here is stale until the client builds it anew."""
        self._end(State.LOST)
        self._release_memory(State.LOST)

    def _end(self, state: State) -> None:
        self._life.become(state)
        for graph in list(self._graphs.values()):
            graph._life.become(state)
        self._places.close(lambda: self._life._refusal("execute"))
        self.device._contexts.discard(self)

    def _release_memory(self, state: State) -> None:
        for mem in list(self._memories.values()):
            mem._forget(state)
        while self._buffers:
            self._buffers.pop().close()
        self._views.clear()

    def __repr__(self) -> str:
        return f"<Context of {len(self._graphs)} graphs, {self._life.state.value}>"


def _stored_form(graph: Graph) -> PackedGraph:
    """The graph as it came, if that was prepared, or with what the device makes of it."""
    packed = graph._packed
    assert packed is not None
    if graph.was_prepared:
        return packed
    try:
        data = graph.context._link.pack_graph(graph._number)
    except DeviceLost:
        raise
    except QnnError as error:
        log.warning("graph %r is stored without its prepared form: %s", graph.name, error)
        data = b""
    return read_binary(data).packed(graph.name) if data else packed
