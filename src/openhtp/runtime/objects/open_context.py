"""A context on its device, as its graphs, memory, apps and binaries see it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from openhtp.core import status as st
from openhtp.core.enumerations import Priority
from openhtp.core.errors import InvalidArgument
from openhtp.core.tensor import TensorSpec
from openhtp.options import OptionValues
from openhtp.program.sources import FileSource
from openhtp.rpc import messages as ms
from openhtp.runtime.binaries.save import ContextPacker
from openhtp.runtime.calls.queue import Places
from openhtp.runtime.objects.lifecycle import Life, State
from openhtp.runtime.objects.mem import ContextMemory, Mem

if TYPE_CHECKING:
    from openhtp.program.binary import ContextBinary
    from openhtp.runtime.binaries.data_provider import ClientBuffers
    from openhtp.runtime.calls.long_call import CallStop
    from openhtp.runtime.links.link import Link
    from openhtp.runtime.objects.context import Context
    from openhtp.runtime.objects.device import Device
    from openhtp.runtime.objects.graph import Graph


class OpenContext:
    """The part of a ``Context`` that its graphs, memory and apps share.

    ``number`` is its number on the device, ``binary`` its source, ``client_buffers`` are the client's buffers with
    parts of the binary. ``forget`` makes the device object forget the context.
    """

    def __init__(
        self,
        handle: Context,
        device: Device,
        link: Link,
        options: OptionValues,
        *,
        binary: ContextBinary | None = None,
        client_buffers: ClientBuffers | None = None,
        forget: Callable[[], None],
    ) -> None:
        self.handle = handle
        self.device = device
        self.link = link
        self.options = options
        self.priority: Priority = Priority.NORMAL if options.priority is None else options.priority
        self.binary = binary  # graphs read it when needed
        self.client_buffers = client_buffers
        self.number = 0
        self.life = Life("context", "")
        self.places = Places(options.queue_depth)
        self.list_number = 0  # of the list whose contexts share buffers in turn
        self.graphs: dict[str, Graph] = {}
        self.memory = ContextMemory(self)
        self.packer = ContextPacker(self)
        self._forget = forget
        self._tensor_ids = itertools.count(1)

    def make_on_device(self, message: ms.CreateContext, stop: CallStop | None) -> None:
        """Have the device open the context, without graphs."""
        self.number = self.link.request(message, undo=free_context, stop=stop).value

    # For graphs and memory

    def next_tensor_id(self) -> int:
        """An id that no other tensor of the context has."""
        return next(self._tensor_ids)

    def find_spec(self, name: str) -> TensorSpec:
        """The tensor of this name in any graph."""
        specs = {
            (tensor.shape, tensor.dtype): tensor.spec
            for graph in list(self.graphs.values())
            if (tensor := graph.tensors.get(name)) is not None
        }
        if len(specs) == 1:
            return next(iter(specs.values()))
        problem = "several graphs have it with different shapes" if specs else "no graph of this context has it"
        raise InvalidArgument(
            f"cannot tell the shape of tensor {name!r}: {problem}; pass the Tensor, or shape and dtype",
            st.QNN_MEM_ERROR_INVALID_SHAPE,
        )

    def users_of(self, mem: Mem) -> int:
        """Calls that were accepted, are not over, and read or write the memory."""
        loaded = [graph.loaded for graph in list(self.graphs.values()) if graph.loaded is not None]
        calls = [call for graph in loaded for call in graph.callee.calls_under_way()]
        if mem.use:
            return len(calls)
        return sum(any(mem is used for used, _, _ in call.arguments.registered.values()) for call in calls)

    def forget_bindings(self) -> None:
        """Have graphs forget where tensors lie."""
        for graph in list(self.graphs.values()):
            if graph.loaded is not None:
                graph.loaded.callee.bindings.forget_memory()

    # Its end

    def end(self, state: State) -> None:
        """Refuse all later calls."""
        self.life.end(state)
        self.packer.forget()
        if self.binary is not None and isinstance(self.binary.source, FileSource):
            self.binary.source.close()
        for graph in list(self.graphs.values()):
            graph.life.end(state)
        self.places.close(lambda: self.life.refusal("execute"))
        if state is State.FREED:
            self.link.data_order.end_all(
                self.places, st.QNN_GRAPH_ERROR_INVALID_CONTEXT, "waited for data when its context was freed"
            )
        self._forget()

    def await_ends(self, running: Collection[int]) -> None:
        """Wait until no queued execution reads or writes plain memory of its caller. The device has ended them.

        It may still compute those that are ``running``; only a device in this process does that on their arrays.
        """
        link = self.link
        for graph in list(self.graphs.values()):
            if graph.loaded is not None:
                for call in graph.loaded.callee.calls_queued():
                    execution = call.execution
                    if execution is not None and link.awaits(execution, running):
                        link.wait_for(execution, None)

    def release_memory(self, state: State) -> None:
        """Give back the memory that the context shared with the device."""
        self.memory.release(state)
        if self.client_buffers is not None:
            if state is State.LOST:  # on the link's own thread, which must not wait for a callback
                self.device.backend.notifier.post(self.client_buffers.release)
            else:
                self.client_buffers.release()
        for graph in list(self.graphs.values()):
            if graph.loaded is not None:
                graph.loaded.callee.bindings.close()

    def discard(self) -> None:
        """Free the context after an interrupt of its making or freeing; what was freed already does no harm."""
        self.end(State.FREED)
        self.link.tell(ms.FreeContext(context=self.number))
        self.release_memory(State.FREED)

    def lose(self) -> None:
        """Become stale, because the device process went away; the client has to build everything anew."""
        self.end(State.LOST)
        self.release_memory(State.LOST)

    def leave_to_parent(self) -> None:
        """Leave the context to the parent, in the child of a fork."""
        self.life.end(State.FOREIGN)
        for graph in list(self.graphs.values()):
            graph.life.end(State.FOREIGN)
        self.memory.leave_to_parent()


def free_context(reply: ms.Reply) -> ms.FreeContext:
    """The request that undoes the making of a context."""
    return ms.FreeContext(context=reply.value)
