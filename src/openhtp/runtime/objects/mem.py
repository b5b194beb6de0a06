"""Registered memory: shared with the device once, then used by any number of executions without copies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.checks import shown, whole_number
from openhtp.core.errors import InvalidArgument
from openhtp.core.tensor import TensorSpec, batched
from openhtp.rpc.shm import SharedBuffer, align
from openhtp.runtime.instruments.instrument import hooked
from openhtp.runtime.objects.argument_checks import MAX_BATCH, check_count, check_shape
from openhtp.runtime.objects.lifecycle import Life, State
from openhtp.runtime.objects.tensor import Tensor

if TYPE_CHECKING:
    from openhtp.runtime.objects.context import Context


class Place(NamedTuple):
    """Where in which memory an array lies."""

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

    def __init__(self, context: Context, buffer: SharedBuffer, number: int) -> None:
        self.context = context
        self.number = number
        self._buffer = buffer
        self._life = Life("mem", str(number))
        self._places: dict[str, Place] = {}
        self._end = 0
        # Whether it was itself a call's value: where it carries which tensor is then known to the graphs.
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
        self._places[name] = place = Place(self, start, array)
        self.context._memory.remember(place, instead_of=known)
        if self._stands_for_tensors:
            self.context._forget_bindings()
        return array

    @property
    def in_use(self) -> bool:
        """Whether an execution under way uses it."""
        return self._life.state is State.LIVE and self.context._users_of(self) > 0

    def share_with(self, context: Context) -> Mem:
        """The same memory, registered in another context as well; each has to be deregistered."""
        self._life.require("use")
        if not isinstance(context, type(self.context)):
            raise InvalidArgument(
                f"context is a {type(context).__name__}; expected the context that is to have the memory, too",
                st.QNN_MEM_ERROR_INVALID_ARGUMENT,
            )
        return context.register_memory(self.nbytes, fd=self._buffer.fd)

    def deregister(self) -> None:
        """Take it back from the device; arrays stay readable.

        Raises WrongState (QNN_COMMON_ERROR_OPERATION_NOT_PERMITTED) while an execution under way uses it.
        """
        self._life.require("free")
        self.context._deregister(self)

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
        given = None if shape is None else check_shape("the array", shape, st.QNN_MEM_ERROR_INVALID_SHAPE)
        if given is not None and min(given, default=0) < 0:
            raise InvalidArgument(
                f"shape of the array is {list(given)}; expected no size below 0", st.QNN_MEM_ERROR_INVALID_SHAPE
            )
        kind = None if dtype is None else _element_type(dtype)
        if given is not None and kind is not None:
            return given, kind
        if isinstance(tensor, str):
            spec = self.context._find_spec(tensor)
        else:
            spec = tensor.spec if isinstance(tensor, Tensor) else tensor
        full = batched(spec.shape, batch)
        return full if given is None else given, spec.dtype.numpy if kind is None else kind

    def _place_for(self, spec: TensorSpec, shape: tuple[int, ...]) -> Place:
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
        return Place(self, offset, self._buffer.array(offset, shape, spec.dtype.numpy))

    def _forget(self, state: State) -> None:
        self._life.end(state)
        self._places.clear()  # arrays keep the memory mapped; only those that somebody still holds may
        self._buffer.close()

    def __repr__(self) -> str:
        return f"<Mem {self.number} of {self.nbytes} bytes, {self._life.state.value}>"


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
