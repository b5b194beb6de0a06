"""A context: graphs and memory that live and die together, behind one bounded execution queue."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Unpack

import numpy.typing as npt

from openhtp.core import status as st, tidying
from openhtp.core.checks import items_of, shown
from openhtp.core.enumerations import MemType
from openhtp.core.errors import (
    DeviceLost,
    InvalidArgument,
    InvalidHandle,
    NameClash,
    WrongState,
)
from openhtp.core.priority import Priority
from openhtp.core.quant import Encoding
from openhtp.core.tensor import TensorSpec
from openhtp.hw.catalog import find_soc
from openhtp.ir.graph import Graph as IrGraph
from openhtp.options import CONTEXT, GRAPH, OptionValues
from openhtp.program.binary import ContextBinary
from openhtp.program.sources import FileSource
from openhtp.rpc import messages as ms
from openhtp.runtime.binaries import adapters
from openhtp.runtime.binaries.load import free_context
from openhtp.runtime.binaries.restoring import finalize_deferred
from openhtp.runtime.binaries.save import Saver
from openhtp.runtime.calls.long_call import OF_CONTEXT, carrying
from openhtp.runtime.calls.queue import Places
from openhtp.runtime.instruments.instrument import hooked
from openhtp.runtime.objects.app import App
from openhtp.runtime.objects.argument_checks import (
    MAX_UNITS,
    MAX_VTCM_BYTES,
    check_bytes,
    check_count,
    check_handle,
    check_name,
)
from openhtp.runtime.objects.context_memory import Memories
from openhtp.runtime.objects.context_options import check_graph
from openhtp.runtime.objects.context_profile import freed
from openhtp.runtime.objects.graph import Graph
from openhtp.runtime.objects.lifecycle import Life, State
from openhtp.runtime.objects.mem import Mem
from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.tensor import Tensor

if TYPE_CHECKING:
    from openhtp.options._arguments import GraphArguments
    from openhtp.runtime.binaries.data_provider import External
    from openhtp.runtime.calls.long_call import Stop
    from openhtp.runtime.links.link import Link
    from openhtp.runtime.objects.device import Device
    from openhtp.runtime.objects.signal import Signal


@hooked(
    create_graph="graph_create",
    set_config="config_set",
    get_binary="binary_get",
    get_binary_section="section_get",
    apply_binary_section="section_apply",
    register_memory="memory_register",
    free="free",
)
class Context:
    """Made by ``Device.create_context`` or ``Device.create_context_from_binary``."""

    def __init__(self, device: Device, link: Link, chosen: OptionValues) -> None:
        self.device = device
        self.priority: Priority = Priority.NORMAL if chosen.priority is None else chosen.priority
        self._chosen = chosen
        self._link = link
        self._life = Life("context", "")
        self._places = Places(chosen.queue_depth)
        self._graphs: dict[str, Graph] = {}
        self._memory = Memories(self, self._users_of)
        self._tensor_ids = itertools.count(1)
        self._restored = False
        self._binary: ContextBinary | None = None  # of one that was made from a binary; graphs read it when needed
        self._external: External | None = None
        self._saver = Saver(self)
        self._number = 0

    def _open(self, message: ms.CreateContext, stop: Stop | None) -> None:
        made = self._link.request(message, undo=free_context, stop=stop)
        self._number = made.value

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
    def _extended_udma(self) -> bool:
        own: bool = self._chosen.use_extended_udma
        return own if self._binary is None else self._binary.info.extended_udma

    @property
    def is_usable(self) -> bool:
        """Whether it still is on its device: neither freed nor lost with it."""
        return self._life.state is State.LIVE

    @property
    def graphs(self) -> Mapping[str, Graph]:
        """Graphs by name."""
        return dict(self._graphs)

    def create_graph(self, name: str, **options: Unpack[GraphArguments]) -> Graph:
        """Start a graph. Its priority is the context's unless given; VTCM and HVX are the device's choice.

        ``core`` says on which NPU core it runs; graphs on different cores do not wait for each other. All
        options are in ``docs/options.md``.
        """
        self._life.require("use")
        if self._restored:
            raise WrongState(
                "a context made from a binary takes no new graphs; create another context",
                st.QNN_COMMON_ERROR_OPERATION_NOT_PERMITTED,
            )
        name = check_name(name, "graph")
        wanted = self.device._preset.graph(name, options)
        chosen = GRAPH.read(wanted, arch=find_soc(self.device.soc).arch, platform=self.device._platform)
        check_graph(self._chosen, name, chosen, [graph._options for graph in list(self._graphs.values())])
        graph = Graph(self, name, chosen)
        if self._graphs.setdefault(name, graph) is not graph:  # another thread was quicker
            raise NameClash(f"graph {name!r} already exists in this context", st.QNN_GRAPH_ERROR_INVALID_NAME)
        return graph

    def compose_graph(self, source: IrGraph, name: str | None = None, **options: Unpack[GraphArguments]) -> Graph:
        """Start a graph from an imported one (``openhtp.onnx.load``); it still has to be finalized.

        Options are those of ``create_graph``.
        """
        if not isinstance(source, IrGraph):
            raise InvalidArgument(
                f"source is a {type(source).__name__}; expected what openhtp.onnx.load returns",
                st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
            )
        graph = self.create_graph(source.name if name is None else name, **options)
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
        page_bytes: int | None = None,
        core: int = 0,
    ) -> App:
        """Introduce a client that is no graph and competes for VTCM and HVX of a core; see ``App.run_async``.

        ``page_bytes`` is the page it asks for; None: exactly ``vtcm_bytes``.
        """
        self._life.require("use")
        level = self.priority if priority is None else Priority.parse(priority)
        return App(
            self,
            check_name(name, "app"),
            priority=level,
            hmx=check_count("hmx", hmx, MAX_UNITS, least=0),
            hvx=check_count("hvx", hvx, MAX_UNITS, least=0),
            vtcm_bytes=check_count("vtcm_bytes", vtcm_bytes, MAX_VTCM_BYTES, least=0),
            page_bytes=None if page_bytes is None else check_count("page_bytes", page_bytes, MAX_VTCM_BYTES),
            core=check_count("core", core, MAX_UNITS, least=0),
        )

    def graph(self, name: str) -> Graph:
        """The graph with this name."""
        self._life.require("use")
        found = self._graphs.get(name) if isinstance(name, str) else None
        if found is None:
            names = ", ".join(map(repr, self._graphs)) or "none"
            raise InvalidArgument(
                f"graph {shown(name)} does not exist in this context; it has {names}",
                st.QNN_GRAPH_ERROR_GRAPH_DOES_NOT_EXIST,
            )
        return found

    def register_memory(
        self, nbytes: int | Tensor, *, fd: int | None = None, mem_type: MemType | str | int | None = None
    ) -> Mem:
        """Memory that client and device share: so many bytes, or as a tensor needs.

        Without ``fd`` it is allocated. With it, memory that you made is used where it lies: a dma-buf, or a memfd
        with MFD_ALLOW_SEALING, whose size is sealed here, as shrinking it would end the device's process. The
        descriptor stays yours and may be closed. ``mem_type`` is the API's word for what it is: ``ion`` or
        ``dma_buf``, which are handled alike.
        """
        self._life.require("use")
        size = check_bytes(nbytes.nbytes if isinstance(nbytes, Tensor) else nbytes)
        return self._memory.register(size, MemType.check_descriptor(fd, mem_type))

    def set_config(
        self,
        *,
        priority: Priority | str | int | None = None,
        queue_depth: int | None = None,
        dsp_memory_profiling_enabled: bool | None = None,
    ) -> None:
        """Change the priority of the context and of all its graphs, or whether its end tells the device's memory.

        The queue depth is fixed at creation: giving one here changes nothing, as the API has it.
        """
        self._life.require("use")
        chosen = self._chosen
        if dsp_memory_profiling_enabled is not None:
            wanted = CONTEXT.read({"dsp_memory_profiling_enabled": dsp_memory_profiling_enabled})
            chosen = chosen.replace(dsp_memory_profiling_enabled=wanted.dsp_memory_profiling_enabled)
        if priority is not None:
            level = Priority.parse(priority)
            self._link.request(ms.SetContextPriority(context=self._number, priority=int(level)))
            self.priority = level
            for graph in list(self._graphs.values()):
                graph._adopt_priority(level)
        self._chosen = chosen  # once nothing is refused any more

    def finalize(
        self,
        *,
        profile: Profile | None = None,
        signal: Signal | None = None,
        graphs: Iterable[Graph] | None = None,
    ) -> None:
        """Finalize these graphs, or all that are not yet: those that were built, and those left for later.

        What ``defer_graph_init`` left is loaded together. ``profile`` is told of the last.
        """
        self._life.require("use")
        wanted = list(self._graphs.values()) if graphs is None else self._own(graphs)
        deferred = [graph for graph in wanted if graph._life.state is State.DEFERRED]
        if deferred:
            finalize_deferred(deferred, profile, signal)
        for graph in wanted:
            if graph._life.state is State.BUILDING:
                graph.finalize(profile=profile, signal=signal)

    def _own(self, graphs: Iterable[Graph]) -> list[Graph]:
        given = items_of(graphs)
        if given is None or not all(isinstance(graph, Graph) and graph.context is self for graph in given):
            raise InvalidArgument(
                f"graphs is {shown(graphs)}; expected a list of graphs of this context",
                st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
            )
        return given

    def get_binary(self) -> bytes:
        """The context as bytes that ``Device.create_context_from_binary`` takes. All graphs must be finalized."""
        self._life.require("use")
        return self._saver.binary()

    def get_binary_size(self) -> int:
        """Bytes that ``get_binary`` returns. It makes the binary, and keeps it until that is called."""
        self._life.require("use")
        return self._saver.size()

    def get_binary_section(
        self,
        graph: str | Graph,
        tensors: Mapping[str, npt.ArrayLike] | None = None,
        *,
        encodings: Mapping[str, Encoding] | None = None,
        section: str = "updatable",
    ) -> bytes:
        """What may be exchanged of a graph as bytes that ``apply_binary_section`` takes: an adapter.

        It is what the graph holds now; ``tensors`` gives, by name, other data in the stored type for some static
        tensors, ``encodings`` other encodings. ``section`` is ``updatable``, both, or ``updatable_weights`` or
        ``updatable_quant_params``.
        """
        self._life.require("use")
        return adapters.get_section(self, graph, tensors, encodings, section)

    def apply_binary_section(
        self,
        graph: str | Graph,
        section: bytes | bytearray | memoryview,
        *,
        signal: Signal | None = None,
        profile: Profile | None = None,
    ) -> None:
        """Exchange data and encodings of a graph's updateable tensors for those of a section.

        Executions that were queued before keep the old ones, later ones have the new. Other data costs a copy;
        other encodings have the graph compiled again, while the old one still runs. The checksum is not looked at
        if the context was created with ``skip_validation_on_binary_section``. Whoever was interrupted, or out of
        time, applies a section again: the device may have been done with it, or not.
        """
        self._life.require("use")
        adapters.apply_section(self, graph, section, signal, profile)

    def free(self, *, profile: Profile | None = None) -> None:
        """Free the context, its graphs and memory. Pending executions end as QNN_GRAPH_ERROR_INVALID_CONTEXT.

        ``profile`` is told what it cost.
        """
        self._life.require("free")
        check_handle("profile", profile, Profile)
        if profile is None:
            self._free()
            return
        carrying(profile, None, "freeing a context", OF_CONTEXT, lambda fill, _: fill and fill(freed(self)))

    def _free(self) -> None:
        lost = self._life.state is State.LOST
        try:
            self._end(State.FREED)
            if not lost:
                with contextlib.suppress(DeviceLost, InvalidHandle):  # the device went first: nothing left to free
                    self._link.request(ms.FreeContext(context=self._number))
            self._release_memory(State.FREED)
        except BaseException:
            tidying.post((self._discard, ()))
            raise

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._life.state not in (State.FREED, State.FOREIGN):
            self.free()

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

    def _users_of(self, mem: Mem) -> int:
        """Calls that were accepted, are not over, and read or write the memory."""
        callees = [graph._callee for graph in list(self._graphs.values()) if graph._callee is not None]
        calls = [call for callee in callees for call in callee.calls_under_way()]
        return sum(any(mem is used for used, _, _ in call.arguments.registered.values()) for call in calls)

    def _deregister(self, mem: Mem) -> None:
        self._memory.deregister(mem, on_device=self._life.state is State.LIVE)

    def _forget_bindings(self) -> None:
        """What the graphs know about where tensors lie no longer holds."""
        for graph in list(self._graphs.values()):
            if graph._callee is not None:
                graph._callee.bindings.forget_memory()

    def _lose(self) -> None:
        """The device process went away: everything here is stale until the client builds it anew."""
        self._end(State.LOST)
        self._release_memory(State.LOST)

    def _end(self, state: State) -> None:
        self._life.end(state)
        self._saver.forget()
        if self._binary is not None and isinstance(self._binary.source, FileSource):
            self._binary.source.close()
        for graph in list(self._graphs.values()):
            graph._life.end(state)
        self._places.close(lambda: self._life.refusal("execute"))
        self.device._contexts.discard(self)

    def _release_memory(self, state: State) -> None:
        self._memory.release(state)
        if self._external is not None:
            if state is State.LOST:  # on the link's own thread, which must not wait for a callback
                self.device.backend._notifier.post(self._external.release)
            else:
                self._external.release()
        for graph in list(self._graphs.values()):
            if graph._callee is not None:
                graph._callee.bindings.close()

    def __repr__(self) -> str:
        return f"<Context of {len(self._graphs)} graphs, {self._life.state.value}>"
