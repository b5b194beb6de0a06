"""A context: graphs and memory that live and die together, behind one bounded execution queue."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Unpack, cast

import numpy.typing as npt

from openhtp.core import status as st, tidying
from openhtp.core.checks import items_of, shown, type_in_words
from openhtp.core.enumerations import MemType, Priority
from openhtp.core.errors import (
    DeviceLost,
    InvalidArgument,
    InvalidHandle,
    NameClash,
    WrongState,
)
from openhtp.core.quant import Encoding
from openhtp.hw.catalog import find_soc
from openhtp.ir.graph import Graph as IrGraph
from openhtp.options import CONTEXT, OptionValues
from openhtp.records.profile import Method
from openhtp.rpc import messages as ms
from openhtp.runtime.binaries import adapters
from openhtp.runtime.binaries.load import StoredContext, finalize_deferred
from openhtp.runtime.calls.long_call import OF_CONTEXT, carrying
from openhtp.runtime.calls.sheet import Fill, NotedCall
from openhtp.runtime.instruments.instrument import hooked
from openhtp.runtime.links.link import serving
from openhtp.runtime.objects.app import App
from openhtp.runtime.objects.argument_checks import (
    MAX_UNITS,
    MAX_VTCM_BYTES,
    check_bytes,
    check_count,
    check_handle,
    check_name,
)
from openhtp.runtime.objects.chosen_options import new_options
from openhtp.runtime.objects.graph import Graph, adopt_priority, compose
from openhtp.runtime.objects.lifecycle import State
from openhtp.runtime.objects.mem import Mem
from openhtp.runtime.objects.open_context import OpenContext
from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.profile_events import free_events, held_bytes
from openhtp.runtime.objects.tensor import Tensor

if TYPE_CHECKING:
    from openhtp.options._arguments import GraphArguments
    from openhtp.runtime.calls.long_call import CallStop
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

    def __init__(
        self,
        device: Device,
        link: Link,
        options: OptionValues,
        neighbours: set[Context],
        source: StoredContext | None = None,
    ) -> None:
        """``neighbours`` are the device's contexts, which this one joins; ``source`` has its first graphs."""
        self.device = device
        self.opened = OpenContext(
            self,
            device,
            link,
            options,
            binary=None if source is None else source.binary,
            client_buffers=None if source is None else source.client_buffers,
            forget=functools.partial(neighbours.discard, self),
        )
        self._life = self.opened.life
        self._neighbours = neighbours

    @property
    def queue_depth(self) -> int:
        """The largest number of executions that are accepted and not yet completed."""
        return self.opened.places.depth

    @property
    def pending(self) -> int:
        """Executions accepted and not yet completed."""
        return self.opened.places.used

    @property
    def priority(self) -> Priority:
        """The priority of graphs without one of their own."""
        return self.opened.priority

    @property
    def is_usable(self) -> bool:
        """Whether the context is still on its device: neither freed nor lost."""
        return self._life.state is State.LIVE

    @property
    def graphs(self) -> Mapping[str, Graph]:
        """Graphs by name."""
        return dict(self.opened.graphs)

    def create_graph(self, name: str, **options: Unpack[GraphArguments]) -> Graph:
        """Start a graph. Its priority is the context's unless given; VTCM and HVX are the device's choice.

        ``core`` says on which NPU core it runs; graphs on different cores do not wait for each other. All
        options are in ``docs/options.md``.
        """
        self._life.require("use")
        if self.opened.binary is not None:
            raise WrongState(
                "a context made from a binary takes no new graphs; create another context",
                st.QNN_COMMON_ERROR_OPERATION_NOT_PERMITTED,
            )
        name = check_name(name, "graph")
        graphs = self.opened.graphs
        others = [graph.options for graph in list(graphs.values())]
        wanted = self.device.extensions.graph(name, options, find_soc(self.device.soc))
        chosen = new_options(self.opened, name, wanted, others)
        graph = Graph(self.opened, name, chosen)
        if graphs.setdefault(name, graph) is not graph:  # another thread was quicker
            raise NameClash(f"graph {name!r} already exists in this context", st.QNN_GRAPH_ERROR_INVALID_NAME)
        return graph

    def compose_graph(self, source: IrGraph, name: str | None = None, **options: Unpack[GraphArguments]) -> Graph:
        """Start a graph from an imported one (``openhtp.onnx.load``); it still has to be finalized.

        Options are those of ``create_graph``.
        """
        if not isinstance(source, IrGraph):
            raise InvalidArgument(
                f"source is {type_in_words(source)}; expected a graph from openhtp.onnx.load",
                st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
            )
        graph = self.create_graph(source.name if name is None else name, **options)
        compose(graph, source)
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
            self.opened,
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
        graph = self.opened.graphs.get(name) if isinstance(name, str) else None
        if graph is None:
            names = ", ".join(map(repr, self.opened.graphs)) or "none"
            raise InvalidArgument(
                f"graph {shown(name)} does not exist in this context; it has {names}",
                st.QNN_GRAPH_ERROR_GRAPH_DOES_NOT_EXIST,
            )
        return graph

    def register_memory(
        self,
        nbytes: int | Tensor,
        *,
        fd: int | None = None,
        mem_type: MemType | str | int | None = None,
        use: str | None = None,
    ) -> Mem:
        """Memory that client and device share: ``nbytes``, or as many bytes as a tensor needs.

        Without ``fd`` the memory is allocated. With ``fd``, memory that you made is used where it lies: a dma-buf,
        or a memfd with MFD_ALLOW_SEALING, whose size is sealed here, as shrinking it would end the device's
        process. The descriptor stays yours and may be closed. ``mem_type`` is the API's word for its kind: ``ion``
        or ``dma_buf``, which are handled alike.

        ``use`` gives a context that switches graphs a buffer of yours for its data: ``weights_buffer`` or
        ``spill_fill_buffer``, instead of the options of these names. It counts as your memory. Register it, and
        deregister it, while no execution of the context is under way; freeing the context ends its use, too.
        """
        self._life.require("use")
        size = check_bytes(nbytes.nbytes if isinstance(nbytes, Tensor) else nbytes)
        if use is not None and not (isinstance(use, str) and use in ms.BUFFER_USES):
            raise InvalidArgument(
                f"use is {shown(use)}; expected one of {', '.join(ms.BUFFER_USES)}, or None for tensors",
                st.QNN_MEM_ERROR_INVALID_ARGUMENT,
            )
        return self.opened.memory.register(size, MemType.check_descriptor(fd, mem_type), use or "")

    def set_config(
        self,
        *,
        priority: Priority | str | int | None = None,
        queue_depth: int | None = None,
        dsp_memory_profiling_enabled: bool | None = None,
    ) -> None:
        """Change the priority of the context and of all its graphs, or whether its end reports the memory.

        The queue depth is fixed at creation: giving one here changes nothing, as the API has it.
        """
        self._life.require("use")
        opened = self.opened
        chosen = opened.options
        if dsp_memory_profiling_enabled is not None:
            wanted = CONTEXT.read(
                {"dsp_memory_profiling_enabled": dsp_memory_profiling_enabled}, platform=opened.device.platform
            )
            chosen = chosen.replace(dsp_memory_profiling_enabled=wanted.dsp_memory_profiling_enabled)
        if priority is not None:
            level = Priority.parse(priority)
            opened.link.request(ms.SetContextPriority(context=opened.number, priority=int(level)))
            opened.priority = level
            for graph in list(opened.graphs.values()):
                adopt_priority(graph, level)
        opened.options = chosen  # once nothing is refused any more

    def finalize(
        self,
        *,
        profile: Profile | None = None,
        signal: Signal | None = None,
        graphs: Iterable[Graph] | None = None,
    ) -> None:
        """Finalize these graphs, or all that are not finalized yet.

        Graphs that ``defer_graph_init`` left for later are loaded together. ``profile`` has the events of the last
        graph.
        """
        self._life.require("use")
        wanted = list(self.opened.graphs.values()) if graphs is None else self._own(graphs)
        deferred = [graph for graph in wanted if graph.life.state is State.DEFERRED]
        if deferred:
            finalize_deferred(self.opened, deferred, profile, signal)
        for graph in wanted:
            if graph.life.state is State.BUILDING:
                graph.finalize(profile=profile, signal=signal)

    def _own(self, graphs: Iterable[Graph]) -> list[Graph]:
        items = items_of(graphs)
        if items is None or not all(isinstance(graph, Graph) and graph.context is self for graph in items):
            raise InvalidArgument(
                f"graphs is {shown(graphs)}; expected a list of graphs of this context",
                st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
            )
        return items

    def get_binary(self) -> bytes:
        """The context as bytes that ``Device.create_context_from_binary`` takes. All graphs must be finalized."""
        self._life.require("use")
        return self.opened.packer.binary()

    def get_binary_size(self) -> int:
        """The number of bytes that ``get_binary`` returns; the binary is made here, and kept for that call."""
        self._life.require("use")
        return self.opened.packer.size()

    def get_binary_section(
        self,
        graph: str | Graph,
        tensors: Mapping[str, npt.ArrayLike] | None = None,
        *,
        encodings: Mapping[str, Encoding] | None = None,
        section: str = "updatable",
    ) -> bytes:
        """The updateable data of a graph as bytes that ``apply_binary_section`` takes: an adapter.

        It is the data that the graph has now; ``tensors`` gives, by name, other data in the stored type for some
        static tensors, ``encodings`` other encodings. ``section`` is ``updatable``, both, or ``updatable_weights``
        or ``updatable_quant_params``.
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

        Executions that were queued before keep the old data, later ones use the new. Other data costs a copy; for
        other encodings the graph is compiled again, while the old one still runs. The checksum is not looked at if
        the context was created with ``skip_validation_on_binary_section``. After an interrupt or a timeout, apply
        the section again: the device may or may not have applied it.
        """
        self._life.require("use")
        adapters.apply_section(self, graph, section, signal, profile)

    def free(self, *, profile: Profile | None = None) -> None:
        """Free the context, its graphs and memory. Pending executions end as QNN_GRAPH_ERROR_INVALID_CONTEXT.

        When this returns, none of them reads or writes plain memory of the client; notifications may follow.
        ``profile`` has what it cost.
        """
        self._life.require("free")
        check_handle("profile", profile, Profile)
        if profile is None:
            self._free()
            return

        def free(fill: Fill | None, _: CallStop | None) -> None:
            if fill is not None:
                fill(self._profiled_free())

        carrying(profile, None, "freeing a context", OF_CONTEXT, free)

    def _profiled_free(self) -> NotedCall:
        """Free the context. Only the last context reports the device's memory, as documented."""
        link, tells_heap = self.opened.link, self.opened.options.dsp_memory_profiling_enabled
        begin = link.now()
        with serving() as served:
            self._free()
        end = link.now()
        last = not any(other.is_usable for other in list(self._neighbours))
        heap = held_bytes(self.device.info()) if tells_heap and last else None
        return NotedCall(Method.DEINIT, "", free_events((begin, begin, end), served, heap))

    def _free(self) -> None:
        opened, lost = self.opened, self._life.state is State.LOST
        try:
            opened.end(State.FREED)
            if not lost:
                with contextlib.suppress(DeviceLost, InvalidHandle):  # the device went first: nothing left to free
                    reply = opened.link.request(ms.FreeContext(context=opened.number))
                    opened.await_ends(cast("list[int]", reply.info.get("running", [])))
            opened.release_memory(State.FREED)
        except BaseException:
            tidying.post((opened.discard, ()))
            raise

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._life.state not in (State.FREED, State.FOREIGN):
            self.free()

    def __repr__(self) -> str:
        return f"<Context of {len(self.opened.graphs)} graphs, {self._life.state.value}>"
