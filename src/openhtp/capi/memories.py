"""Registered memory: a client's shared buffers, known here by descriptor."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os

from openhtp.abi import memory
from openhtp.abi.structs import struct
from openhtp.capi import handles
from openhtp.capi.context import ContextHeld
from openhtp.capi.entries import answers
from openhtp.capi.handles import Held
from openhtp.core import status as st
from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.tensor import MAX_RANK

_ION, _CUSTOM, _DMA_BUF = 1, 2, 3
_SHARED_BUFFER = 1
_MOST = 1 << 16
_MOST_SIDE = (1 << 32) - 1


class MemHeld(Held):
    """A piece of shared memory, mapped here."""

    word, invalid = "memory", st.QNN_MEM_ERROR_INVALID_HANDLE

    def __init__(self, context: ContextHeld, fd: int, offset: int, nbytes: int) -> None:
        super().__init__(context)
        self.nbytes = nbytes
        try:
            size = os.fstat(fd).st_size
            if offset + nbytes > size:
                raise _bad(f"descriptor {fd} has {size} bytes; expected {nbytes} at offset {offset}")
            self._map = mmap.mmap(fd, offset + nbytes)
        except (OSError, ValueError) as error:
            raise QnnError(f"descriptor {fd} cannot be mapped: {error}", st.QNN_MEM_ERROR_MAPPING) from error
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + offset

    @property
    def place(self) -> tuple[int, int]:
        """Address and size."""
        return self._start, self.nbytes

    def moved(self, _: object) -> None:
        """The context goes on elsewhere; the memory stays where it is."""


def _bad(message: str) -> InvalidArgument:
    return InvalidArgument(message, st.QNN_MEM_ERROR_INVALID_SHAPE)


def _described(context: ContextHeld, given: object) -> MemHeld:
    descriptor: object = given
    count = descriptor.num_dims  # type: ignore[attr-defined]
    if count > MAX_RANK:
        raise _bad(f"memory for a tensor of rank {count}; expected at most {MAX_RANK}")
    dims = memory.array(ctypes.c_uint32, count, descriptor.dims or 0, "the memory's dimensions") if count else ()  # type: ignore[attr-defined]
    nbytes = DType.parse(descriptor.data_type).itemsize  # type: ignore[attr-defined]
    for size in dims:
        nbytes *= size
    if not nbytes:
        raise _bad("memory of no bytes")
    kind = descriptor.mem_type  # type: ignore[attr-defined]
    body = descriptor.of  # type: ignore[attr-defined]
    if kind == _ION:
        return MemHeld(context, body.fd, 0, nbytes)
    if kind == _DMA_BUF:
        return MemHeld(context, body.dma.fd, 0, nbytes)
    if kind == _CUSTOM:
        custom = memory.structure(struct("HtpMemory"), body.custom or 0, "the memory's custom description")
        if custom.kind != _SHARED_BUFFER:
            raise QnnError(
                f"memory of HTP kind {custom.kind}; expected a shared buffer (1)",
                st.QNN_MEM_ERROR_UNSUPPORTED_MEMTYPE,
            )
        return MemHeld(context, custom.of.place.fd, custom.of.place.offset, nbytes)
    raise QnnError(f"memory type {kind} is unknown", st.QNN_MEM_ERROR_UNSUPPORTED_MEMTYPE)


@answers("memRegister")
def mem_register(context: int, descriptors: int, count: int, out: int) -> None:
    """Register some pieces of memory, all or none."""
    held = handles.find(ContextHeld, context)
    if not 0 < count <= _MOST:
        raise InvalidArgument(f"{count} pieces of memory; expected 1 to {_MOST}")
    handles.require_place(out, "memory handles", 8 * count)
    given = memory.array(struct("MemoryDescriptor"), count, descriptors, "the memory's descriptions")
    made = [_described(held, one) for one in given]
    for number, mem in enumerate(made):
        memory.write_number(out + 8 * number, handles.add(mem))


@answers("memDeRegister")
def mem_de_register(mems: int, count: int) -> None:
    """Take some pieces of memory back, all or none."""
    if not 0 < count <= _MOST:
        raise InvalidArgument(f"{count} pieces of memory; expected 1 to {_MOST}")
    given = memory.array(ctypes.c_uint64, count, mems, "the memory handles")
    found = [handles.find(MemHeld, handle) for handle in given]
    for mem in found:
        with contextlib.suppress(KeyError):
            handles.remove(mem)
