"""The memory that a context shares with the device: registered, the runtime's own, and where arrays lie in it."""

from __future__ import annotations

import bisect
import contextlib
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from openhtp.core import status as st, tidying
from openhtp.core.errors import DeviceLost, InvalidArgument, InvalidHandle, QnnError, WrongState
from openhtp.core.locks import make_lock
from openhtp.core.tensor import TensorSpec
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import SharedBuffer
from openhtp.runtime.objects.lifecycle import State
from openhtp.runtime.objects.mem import Mem, Place

if TYPE_CHECKING:
    from openhtp.runtime.objects.context import Context


_address = operator.itemgetter(0)


class Memories:
    """All memory of one context. ``users_of`` counts the executions under way that a piece of it serves."""

    def __init__(self, context: Context, users_of: Callable[[Mem], int]) -> None:
        self._context = context
        self._users_of = users_of
        self._lock = make_lock("context")
        self._registered: dict[int, Mem] = {}
        self._own: list[SharedBuffer] = []
        # How the context ended, once it has.
        self._end: State | None = None
        # Arrays handed out by Mem.array, by id; they are kept alive by their Mem, so an id is never reused.
        self._views: dict[int, Place] = {}
        self._addresses: list[tuple[int, Mem]] = []

    def register(self, nbytes: int, fd: int | None = None) -> Mem:
        """Memory for the caller: ours, or the first ``nbytes`` of what the caller made."""
        buffer, number = SharedBuffer.sized(nbytes) if fd is None else SharedBuffer.of_client(fd, nbytes), 0
        try:
            if fd is not None:
                self._refuse_if_known(fd, buffer)
            number = self._ask_for(buffer)
            mem = Mem(self._context, buffer, number)
            with self._lock:
                self._refuse_if_over()
                self._registered[number] = mem
                # Replaced rather than changed: calls on other threads are looking through it.
                addresses = self._addresses.copy()
                bisect.insort(addresses, (buffer.address, mem), key=_address)
                self._addresses = addresses
        except BaseException:
            tidying.post((self._give_up, (number, buffer)))
            tidying.flush()
            raise
        return mem

    def allocate(self, nbytes: int) -> tuple[SharedBuffer, int]:
        """Memory of the runtime's own and its number; it goes with the context."""
        buffer, number = SharedBuffer.sized(nbytes), 0
        try:
            number = self._ask_for(buffer)
            with self._lock:
                self._refuse_if_over()
                self._own.append(buffer)
        except BaseException:
            tidying.post((self._give_up, (number, buffer)))
            tidying.flush()
            raise
        return buffer, number

    def deregister(self, mem: Mem, *, on_device: bool) -> None:
        """Take memory back from the device, unless an execution under way uses it."""
        try:
            if on_device:
                self._refuse_if_used(mem)
                self._context._link.request(ms.DeregisterMemory(memory=mem.number))
            self._forget(mem)
        except BaseException as error:
            if not isinstance(error, QnnError):
                tidying.post((self._deregister_again, (mem,)))
            raise

    def all(self) -> list[Mem]:
        """What callers have registered."""
        return list(self._registered.values())

    def remember(self, place: Place, instead_of: Place | None) -> None:
        """An array was handed out."""
        if instead_of is not None:
            self._views.pop(id(instead_of.array), None)  # still found by its address, if anybody holds it
        self._views[id(place.array)] = place

    def place_of(self, array: npt.NDArray[Any]) -> Place | None:
        """Where an array lies in registered memory, if all of it does and without gaps."""
        if not self._registered:
            return None
        flags = array.flags
        if not flags.c_contiguous or not flags.aligned:
            return None
        place = self._views.get(id(array))
        if place is not None and place.array is array:
            return place
        address = array.__array_interface__["data"][0]
        addresses = self._addresses
        index = bisect.bisect_right(addresses, address, key=_address) - 1
        if index < 0:
            return None
        start, mem = addresses[index]
        if address + array.nbytes > start + mem.nbytes:
            return None
        return Place(mem, address - start, array)

    def check_own(self, mem: Mem) -> None:
        """Refuse memory that is no longer usable, or of another context."""
        mem._life.require("use")
        if mem.context is not self._context:
            raise InvalidArgument(
                f"{mem!r} belongs to another context; register memory in the graph's own",
                st.QNN_GRAPH_ERROR_INVALID_TENSOR,
            )

    def place_for(self, mem: Mem, spec: TensorSpec, shape: tuple[int, ...]) -> Place:
        """Where memory carries a tensor when the Mem itself was passed as its value."""
        return mem._place_for(spec, shape)

    def release(self, state: State) -> None:
        """The context is over: give everything back."""
        with self._lock:
            self._end = state
            registered, own = self.all(), self._own
            self._registered, self._own, self._addresses, self._views = {}, [], [], {}
        for mem in registered:
            mem._forget(state)
        for buffer in own:
            buffer.close()

    def _ask_for(self, buffer: SharedBuffer) -> int:
        """The number of the memory on the device, which is asked before any of it is taken."""
        link = self._context._link
        message = ms.RegisterMemory(context=self._context._number, nbytes=buffer.nbytes)
        made = link.request(message, (buffer.fd,), lambda made: ms.DeregisterMemory(memory=made.value)).value
        try:
            buffer.take()
        except BaseException:
            tidying.post((link.tell, (ms.DeregisterMemory(memory=made),)))
            raise
        return made

    def _give_up(self, number: int, buffer: SharedBuffer) -> None:
        """Whoever asked for it was refused or interrupted and will not have it."""
        if number:
            self._context._link.tell(ms.DeregisterMemory(memory=number))
        with self._lock:
            self._registered.pop(number, None)
            self._addresses = [item for item in self._addresses if item[1].number != number]
            self._own = [item for item in self._own if item is not buffer]
        buffer.close()

    def _refuse_if_over(self) -> None:
        """Refuse what the device granted while the context went: nobody would ever give it back."""
        if self._end is State.LOST:
            raise DeviceLost("the device process went away while memory was shared with it")
        if self._end is not None:
            raise InvalidHandle(
                "the context was freed while memory was shared with the device",
                st.QNN_CONTEXT_ERROR_INVALID_HANDLE,
            )

    def _refuse_if_known(self, fd: int, buffer: SharedBuffer) -> None:
        for mem in self.all():
            if mem._buffer.fd >= 0 and mem._buffer.identity == buffer.identity:
                raise WrongState(
                    f"the memory of descriptor {fd} is registered already, as memory {mem.number}; use that",
                    st.QNN_MEM_ERROR_ALREADY_REGISTERED,
                )

    def _refuse_if_used(self, mem: Mem) -> None:
        users = self._users_of(mem)
        if users:
            raise WrongState(
                f"memory {mem.number} is in use by {users} execution(s) under way; wait for their end, or cancel"
                " them"
            )

    def _deregister_again(self, mem: Mem) -> None:
        with contextlib.suppress(InvalidHandle):  # done before the interrupt came
            self._context._link.request(ms.DeregisterMemory(memory=mem.number))
        self._forget(mem)

    def _forget(self, mem: Mem) -> None:
        with self._lock:
            self._registered.pop(mem.number, None)
            self._addresses = [item for item in self._addresses if item[1] is not mem]
            for place in mem._places.values():
                self._views.pop(id(place.array), None)
        self._context._forget_bindings()
        mem._forget(State.FREED)
