"""Registered memory: shared with the device once, then used by any number of executions without copies.

``Mem`` is one piece, as users hold it; ``ContextMemory`` has all of a context.
"""

from __future__ import annotations

import bisect
import contextlib
import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st, tidying
from openhtp.core.checks import shown, type_in_words, whole_number
from openhtp.core.errors import DeviceLost, InvalidArgument, InvalidHandle, QnnError, WrongState
from openhtp.core.locks import make_lock
from openhtp.core.tensor import TensorSpec, batched
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import SharedBuffer, align
from openhtp.runtime.instruments.instrument import hooked
from openhtp.runtime.objects.argument_checks import MAX_BATCH, check_count, check_shape
from openhtp.runtime.objects.lifecycle import Life, State
from openhtp.runtime.objects.tensor import Tensor

if TYPE_CHECKING:
    from openhtp.runtime.objects.context import Context
    from openhtp.runtime.objects.open_context import OpenContext

_address = operator.itemgetter(0)


class ArrayPlace(NamedTuple):
    """The place of an array: a memory, and an offset in it."""

    mem: Mem
    offset: int
    array: npt.NDArray[Any]


@hooked(deregister="free", free="free")
class Mem:
    """A piece of memory that client and device both see.

    For one tensor, register its size and use ``mem.array("name")``; for several tensors in one buffer, register
    the sum and call ``array`` for each: they are laid out one after the other, 64 bytes aligned, or at the
    offset you give. Pass the Mem or the array as an input or output value.
    """

    def __init__(self, context: OpenContext, buffer: SharedBuffer, number: int, use: str = "") -> None:
        self.context = context.handle
        self.number = number
        # The device's data there, if the memory is not for tensors.
        self.use = use
        self._of = context
        self._buffer = buffer
        self._life = Life("mem", str(number))
        self._places: dict[str, ArrayPlace] = {}
        self._end = 0
        # Whether the Mem itself was a call's value: then graphs know which tensor it carries where.
        self._stands_for_tensors = False

    @property
    def nbytes(self) -> int:
        """Size."""
        return self._buffer.nbytes

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """All of it, as bytes."""
        self._life.require("use")
        return self._buffer.array(0, (self.nbytes,), np.uint8)

    def array(
        self,
        tensor: str | Tensor | TensorSpec,
        *,
        offset: int | None = None,
        batch: int = 1,
        shape: tuple[int, ...] | None = None,
        dtype: npt.DTypeLike | None = None,
    ) -> npt.NDArray[Any]:
        """The array that carries a tensor. The same call gives the same array.

        A name is looked up in the context's graphs; give the Tensor itself if several graphs use the name for
        different shapes, or ``shape`` and ``dtype`` for a name that no graph has yet.
        """
        self._life.require("use")
        self._require_tensors()
        if offset is not None:
            offset = check_count("offset", offset, self.nbytes, least=0, status=st.QNN_MEM_ERROR_INVALID_ARGUMENT)
        name = tensor if isinstance(tensor, str) else getattr(tensor, "name", "")
        known = self._places.get(name)
        if known is not None and offset in (None, known.offset):
            plain = shape is None and dtype is None and whole_number(batch) == 1
            if isinstance(tensor, str) and plain:
                return known.array
            if (known.array.shape, known.array.dtype) == self._layout(tensor, batch, shape, dtype):
                return known.array
        shape, kind = self._layout(tensor, batch, shape, dtype)
        start = align(self._end) if offset is None else offset
        nbytes = math.prod(shape) * kind.itemsize
        if start % kind.itemsize or start + nbytes > self.nbytes:
            raise InvalidArgument(
                f"tensor {name!r} needs {shown(nbytes)} bytes at offset {start} (a multiple of its element size);"
                f" the memory has {self.nbytes}",
                st.QNN_MEM_ERROR_INVALID_SHAPE,
            )
        array = self._buffer.array(start, shape, kind)
        self._end = max(self._end, start + nbytes)
        self._places[name] = place = ArrayPlace(self, start, array)
        self._of.memory.remember(place, instead_of=known)
        if self._stands_for_tensors:
            self._of.forget_bindings()
        return array

    @property
    def in_use(self) -> bool:
        """Whether an execution under way uses it."""
        return self._life.state is State.LIVE and self._of.users_of(self) > 0

    def _require_tensors(self) -> None:
        if self.use:
            raise InvalidArgument(
                f"{self!r} is the {self.use} of its context; register other memory for tensors",
                st.QNN_MEM_ERROR_INVALID_ARGUMENT,
            )

    def share_with(self, context: Context) -> Mem:
        """Register the same memory in another context as well; each registration has to be taken back."""
        self._life.require("use")
        self._require_tensors()
        if not isinstance(context, type(self.context)):
            raise InvalidArgument(
                f"context is {type_in_words(context)}; expected the context that is to have the memory, too",
                st.QNN_MEM_ERROR_INVALID_ARGUMENT,
            )
        return context.register_memory(self.nbytes, fd=self._buffer.fd)

    def deregister(self) -> None:
        """Take it back from the device; arrays stay readable.

        Raises WrongState (QNN_COMMON_ERROR_OPERATION_NOT_PERMITTED) while an execution under way uses it.
        """
        self._life.require("free")
        self._of.memory.deregister(self)

    free = deregister

    def _layout(
        self,
        tensor: str | Tensor | TensorSpec,
        batch: int,
        shape: tuple[int, ...] | None,
        dtype: npt.DTypeLike | None,
    ) -> tuple[tuple[int, ...], np.dtype[Any]]:
        if not isinstance(tensor, str | Tensor | TensorSpec):
            raise InvalidArgument(
                f"tensor is {shown(tensor)}; expected a name, a Tensor or a TensorSpec",
                st.QNN_MEM_ERROR_INVALID_ARGUMENT,
            )
        batch = check_count("batch", batch, MAX_BATCH, status=st.QNN_MEM_ERROR_INVALID_ARGUMENT)
        sizes = None if shape is None else check_shape("the array", shape, st.QNN_MEM_ERROR_INVALID_SHAPE)
        if sizes is not None and min(sizes, default=0) < 0:
            raise InvalidArgument(
                f"shape of the array is {list(sizes)}; expected no size below 0", st.QNN_MEM_ERROR_INVALID_SHAPE
            )
        kind = None if dtype is None else _element_type(dtype)
        if sizes is not None and kind is not None:
            return sizes, kind
        if isinstance(tensor, str):
            spec = self._of.find_spec(tensor)
        else:
            spec = tensor.spec if isinstance(tensor, Tensor) else tensor
        full = batched(spec.shape, batch)
        return full if sizes is None else sizes, spec.dtype.numpy if kind is None else kind

    def _place_for(self, spec: TensorSpec, shape: tuple[int, ...]) -> ArrayPlace:
        """Where this memory carries a tensor when the Mem itself was passed as its value."""
        self._stands_for_tensors = True
        known = self._places.get(spec.name)
        offset = known.offset if known is not None else 0
        nbytes = math.prod(shape) * spec.dtype.itemsize
        if offset % spec.dtype.itemsize or offset + nbytes > self.nbytes:
            raise InvalidArgument(
                f"memory of {self.nbytes} bytes is too short for tensor {spec}: it needs {nbytes} bytes at"
                f" offset {offset}",
                st.QNN_GRAPH_ERROR_INVALID_TENSOR,
            )
        return ArrayPlace(self, offset, self._buffer.array(offset, shape, spec.dtype.numpy))

    def _forget(self, state: State) -> None:
        self._life.end(state)
        self._places.clear()  # arrays that somebody still has keep the memory mapped
        self._buffer.close()

    def __repr__(self) -> str:
        use = f", {self.use}" if self.use else ""
        return f"<Mem {self.number} of {self.nbytes} bytes{use}, {self._life.state.value}>"


class ContextMemory:
    """The memory that a context shares with the device: the caller's, the runtime's, and where arrays lie."""

    def __init__(self, context: OpenContext) -> None:
        self._context = context
        self._lock = make_lock("context")
        self._registered: dict[int, Mem] = {}
        self._own: list[SharedBuffer] = []
        # How the context ended, once it has.
        self._end: State | None = None
        # Arrays handed out by Mem.array, by id; they are kept alive by their Mem, so an id is never reused.
        self._views: dict[int, ArrayPlace] = {}
        self._addresses: list[tuple[int, Mem]] = []

    def register(self, nbytes: int, fd: int | None = None, use: str = "") -> Mem:
        """Memory for the caller: ours, or the first ``nbytes`` of the caller's own. ``use``: not for tensors."""
        buffer, number = self._new(nbytes) if fd is None else SharedBuffer.of_client(fd, nbytes), 0
        try:
            if fd is not None:
                self._refuse_if_known(fd, buffer)
            if use and self._context.places.used:
                raise WrongState(f"executions of the context are under way; wait for their end to give it a {use}")
            number = self.ask_for(buffer, use)
            mem = Mem(self._context, buffer, number, use)
            with self._lock:
                self._refuse_if_over()
                self._registered[number] = mem
                if use:
                    return mem  # no tensor is looked for there
                # Replaced rather than changed, because calls on other threads search it.
                addresses = self._addresses.copy()
                bisect.insort(addresses, (buffer.address, mem), key=_address)
                self._addresses = addresses
        except BaseException:
            tidying.post((self._give_up, (number, buffer)))
            tidying.flush()
            raise
        return mem

    def allocate(self, nbytes: int) -> tuple[SharedBuffer, int]:
        """Memory for the data of executions, and its number; it ends with the context."""
        buffer, number = self._new(nbytes), 0
        try:
            number = self.ask_for(buffer)
            with self._lock:
                self._refuse_if_over()
                self._own.append(buffer)
        except BaseException as error:
            tidying.post((self._give_up, (number, buffer)))
            tidying.flush()
            if isinstance(error, InvalidHandle) and self._context.life.state is State.FREED:
                # Freed meanwhile: an execution is refused as it would have been a moment later.
                raise self._context.life.refusal("execute") from error
            raise
        return buffer, number

    def deregister(self, mem: Mem) -> None:
        """Take memory back from the device, unless an execution under way uses it."""
        try:
            if self._context.life.state is State.LIVE:
                self._refuse_if_used(mem)
                self._context.link.request(ms.DeregisterMemory(memory=mem.number))
            self._forget(mem)
        except BaseException as error:
            if not isinstance(error, QnnError):
                tidying.post((self._deregister_again, (mem,)))
            raise

    def all(self) -> list[Mem]:
        """What callers have registered."""
        return list(self._registered.values())

    def remember(self, place: ArrayPlace, instead_of: ArrayPlace | None) -> None:
        """Remember an array that was handed out."""
        if instead_of is not None:
            self._views.pop(id(instead_of.array), None)  # an array that somebody still has is found by its address
        self._views[id(place.array)] = place

    def place_of(self, array: npt.NDArray[Any]) -> ArrayPlace | None:
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
        return ArrayPlace(mem, address - start, array)

    def check_own(self, mem: Mem) -> None:
        """Refuse memory that is no longer usable, or of another context."""
        mem._life.require("use")
        mem._require_tensors()
        if mem.context is not self._context.handle:
            raise InvalidArgument(
                f"{mem!r} belongs to another context; register memory in the graph's own",
                st.QNN_GRAPH_ERROR_INVALID_TENSOR,
            )

    def place_for(self, mem: Mem, spec: TensorSpec, shape: tuple[int, ...]) -> ArrayPlace:
        """Where memory carries a tensor when the Mem itself was passed as its value."""
        return mem._place_for(spec, shape)

    def release(self, state: State) -> None:
        """Give everything back, because the context has ended."""
        with self._lock:
            self._end = state
            registered, own = self.all(), self._own
            self._registered, self._own, self._addresses, self._views = {}, [], [], {}
        for mem in registered:
            mem._forget(state)
        for buffer in own:
            buffer.close()

    def leave_to_parent(self) -> None:
        """Leave the memory to the parent, in the child of a fork."""
        for mem in self.all():
            mem._life.end(State.FOREIGN)

    def _new(self, nbytes: int) -> SharedBuffer:
        return SharedBuffer.for_device(nbytes, self._context.device.heap)

    def ask_for(self, buffer: SharedBuffer, use: str = "") -> int:
        """Ask the device for memory before any of it is allocated; returns its number there."""
        link = self._context.link
        message = ms.RegisterMemory(context=self._context.number, nbytes=buffer.nbytes, use=use)
        number = link.request(message, (buffer.fd,), lambda answer: ms.DeregisterMemory(memory=answer.value)).value
        try:
            buffer.take()
        except BaseException:
            tidying.post((link.tell, (ms.DeregisterMemory(memory=number),)))
            raise
        return number

    def _give_up(self, number: int, buffer: SharedBuffer) -> None:
        """Give memory back whose caller was refused or interrupted."""
        if number:
            self._context.link.tell(ms.DeregisterMemory(memory=number))
        with self._lock:
            self._registered.pop(number, None)
            self._addresses = [item for item in self._addresses if item[1].number != number]
            self._own = [item for item in self._own if item is not buffer]
        buffer.close()

    def _refuse_if_over(self) -> None:
        """Refuse memory that the device granted while the context ended: nobody would give it back."""
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
        users = self._context.users_of(mem)
        if users:
            raise WrongState(
                f"memory {mem.number} is in use by {users} execution(s) under way; wait for their end, or cancel"
                " them"
            )

    def _deregister_again(self, mem: Mem) -> None:
        with contextlib.suppress(InvalidHandle):  # done before the interrupt came
            self._context.link.request(ms.DeregisterMemory(memory=mem.number))
        self._forget(mem)

    def _forget(self, mem: Mem) -> None:
        with self._lock:
            self._registered.pop(mem.number, None)
            self._addresses = [item for item in self._addresses if item[1] is not mem]
            for place in mem._places.values():
                self._views.pop(id(place.array), None)
        self._context.forget_bindings()
        mem._forget(State.FREED)


def _element_type(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """A type whose elements can lie in shared memory: of some size, and no references to Python's objects."""
    try:
        kind = np.dtype(dtype)
    except Exception:  # numpy has many ways to refuse, and looks at whatever it is given
        kind = np.dtype(object)
    if kind.hasobject or kind.itemsize == 0:
        raise InvalidArgument(
            f"dtype is {shown(dtype)}; expected a numpy type with elements of a fixed size",
            st.QNN_MEM_ERROR_INVALID_ARGUMENT,
        )
    return kind
