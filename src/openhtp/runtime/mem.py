"""Registered memory: shared with the device once, then used by any number of executions without copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument
from openhtp.core.tensor import TensorSpec, batched
from openhtp.rpc.shm import SharedBuffer, align
from openhtp.runtime.lifecycle import Life, State
from openhtp.runtime.tensor import Tensor

if TYPE_CHECKING:
    from openhtp.runtime.context import Context


class Place(NamedTuple):
    """Where in which memory an array lies."""

    mem: Mem
    offset: int
    array: npt.NDArray[Any]


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
        name = tensor if isinstance(tensor, str) else tensor.name
        known = self._places.get(name)
        if known is not None and offset in (None, known.offset) and shape in (None, known.array.shape):
            return known.array
        shape, dtype = self._layout(tensor, batch, shape, dtype)
        start = align(self._end) if offset is None else offset
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if start < 0 or start % np.dtype(dtype).itemsize or start + nbytes > self.nbytes:
            raise InvalidArgument(
                f"tensor {name!r} needs {nbytes} bytes at offset {start} (a multiple of its element size), but"
                f" the memory has {self.nbytes}",
                st.QNN_MEM_ERROR_INVALID_SHAPE,
            )
        array = self._buffer.array(start, shape, dtype)
        self._end = max(self._end, start + nbytes)
        self._places[name] = place = Place(self, start, array)
        self.context._remember(place)
        return array

    def deregister(self) -> None:
        """Take it back from the device. Refused while an execution uses it; arrays stay readable."""
        self._life.require("free")
        self.context._deregister(self)

    free = deregister

    def _layout(
        self,
        tensor: str | Tensor | TensorSpec,
        batch: int,
        shape: tuple[int, ...] | None,
        dtype: npt.DTypeLike | None,
    ) -> tuple[tuple[int, ...], npt.DTypeLike]:
        if shape is not None and dtype is not None:
            return tuple(shape), dtype
        if isinstance(tensor, Tensor):
            spec = tensor.spec
        elif isinstance(tensor, TensorSpec):
            spec = tensor
        else:
            spec = self.context._find_spec(tensor)
        return shape if shape is not None else batched(spec.shape, batch), spec.dtype.numpy

    def _place_for(self, spec: TensorSpec, nbytes: int) -> int:
        """Offset at which this memory carries a tensor when the Mem itself was passed as its value."""
        known = self._places.get(spec.name)
        offset = known.offset if known is not None else 0
        if offset + nbytes > self.nbytes:
            raise InvalidArgument(
                f"memory of {self.nbytes} bytes is too short for tensor {spec}: it needs {nbytes} bytes at"
                f" offset {offset}",
                st.QNN_GRAPH_ERROR_INVALID_TENSOR,
            )
        return offset

    def _forget(self, state: State) -> None:
        self._life.become(state)
        self._buffer.close()

    def __repr__(self) -> str:
        return f"<Mem {self.number} of {self.nbytes} bytes, {self._life.state.value}>"
