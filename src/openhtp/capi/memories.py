"""Registered memory: a client's shared buffers, known here by descriptor and used by the device where they lie."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Any

from openhtp.abi import memory
from openhtp.abi.structs import struct
from openhtp.capi import handles
from openhtp.capi.context import ContextHeld
from openhtp.capi.entries import answers
from openhtp.capi.handles import HandleEntry
from openhtp.core import status as st
from openhtp.core.dtype import DType
from openhtp.core.enumerations import MemType
from openhtp.core.errors import InvalidArgument, QnnError, WrongState
from openhtp.core.tensor import MAX_RANK
from openhtp.rpc import messages as ms
from openhtp.runtime.objects.mem import Mem

_SHARED_BUFFER = 1
# QNN_HTP_MEM_WEIGHTS_BUFFER and QNN_HTP_MEM_SHARED_SPILLFILL_BUFFER.
_LENT_BUFFERS = {2: ms.WEIGHTS_BUFFER, 3: ms.SPILL_FILL_BUFFER}
_MOST = 1 << 16


class SharedArea:
    """Memory of one descriptor, registered once however many tensors lie in it."""

    def __init__(self, mem: Mem, key: tuple[int, int]) -> None:
        self.key = key
        self.users = 0
        self.mem = mem
        self.address = int(mem.bytes.ctypes.data)


class MemHeld(HandleEntry):
    """A tensor's place in registered memory."""

    word, invalid = "memory", st.QNN_MEM_ERROR_INVALID_HANDLE

    def __init__(self, context: ContextHeld, area: SharedArea, offset: int, nbytes: int) -> None:
        super().__init__(context)
        self.context = context
        self.area = area
        self.offset = offset
        self.nbytes = nbytes
        area.users += 1

    @property
    def place(self) -> tuple[int, int]:
        """Address and size."""
        return self.area.address + self.offset, self.nbytes

    def free(self) -> None:
        """Give back the tensor's place and, with the last place, the memory."""
        if self.area.users == 1:
            self.area.mem.deregister()
            self.context.areas.pop(self.area.key, None)
        self.area.users -= 1
        handles.remove(self)
        for child in list(self.context.children.values()):
            child.memory_changed()


def _bad(message: str) -> InvalidArgument:
    return InvalidArgument(message, st.QNN_MEM_ERROR_INVALID_SHAPE)


def _bytes_of(descriptor: Any) -> int:
    """The bytes of a tensor of the described shape."""
    if descriptor.num_dims > MAX_RANK:
        raise _bad(f"memory for a tensor of rank {descriptor.num_dims}; expected at most {MAX_RANK}")
    dims = (
        memory.array(ctypes.c_uint32, descriptor.num_dims, descriptor.dims or 0, "the memory's dimensions")
        if descriptor.num_dims
        else ()
    )
    nbytes = DType.parse(descriptor.data_type).itemsize
    for size in dims:
        nbytes *= size
    if not nbytes:
        raise _bad("memory of no bytes")
    return nbytes


def _described(context: ContextHeld, descriptor: Any) -> MemHeld:
    if descriptor.mem_type == MemType.CUSTOM:
        return _custom(context, descriptor)
    nbytes = _bytes_of(descriptor)
    if descriptor.mem_type == MemType.ION:
        return MemHeld(context, _whole(context, descriptor.of.fd, nbytes), 0, nbytes)
    if descriptor.mem_type == MemType.DMA_BUF:
        return MemHeld(context, _whole(context, descriptor.of.dma.fd, nbytes), 0, nbytes)
    raise QnnError(f"memory type {descriptor.mem_type} is unknown", st.QNN_MEM_ERROR_UNSUPPORTED_MEMTYPE)


def _custom(context: ContextHeld, descriptor: Any) -> MemHeld:
    """A tensor's place in a shared buffer, or a buffer for the data of a context that switches graphs."""
    custom = memory.structure(struct("HtpMemory"), descriptor.of.custom or 0, "the memory's custom description")
    placement = custom.of.place
    if custom.kind == _SHARED_BUFFER:
        nbytes = _bytes_of(descriptor)
        return MemHeld(
            context, _shared(context, placement.fd, placement.offset + nbytes), placement.offset, nbytes
        )
    use = _LENT_BUFFERS.get(custom.kind)
    if use is None:
        known = ", ".join(f"{name} ({kind})" for kind, name in _LENT_BUFFERS.items())
        raise QnnError(
            f"memory of HTP kind {custom.kind}; expected a shared buffer ({_SHARED_BUFFER}), {known}",
            st.QNN_MEM_ERROR_UNSUPPORTED_MEMTYPE,
        )
    if placement.offset:
        raise InvalidArgument(f"a {use} at offset {placement.offset} of its descriptor; expected 0")
    size = _size(placement.fd)
    if not 0 < custom.size <= size:
        raise _bad(f"descriptor {placement.fd} has {size} bytes; a {use} of {custom.size} was described")
    return MemHeld(context, _whole(context, placement.fd, custom.size, use), 0, custom.size)


def _identity(fd: int) -> tuple[int, int]:
    try:
        status = os.fstat(fd)
    except (OSError, OverflowError) as error:
        raise InvalidArgument(f"descriptor {fd} cannot be used: {error}") from error
    return status.st_dev, status.st_ino


def _whole(context: ContextHeld, fd: int, nbytes: int, use: str | None = None) -> SharedArea:
    """Memory for one tensor alone, or for another use; a second registration is refused."""
    key = _identity(fd)
    area = SharedArea(context.context.register_memory(nbytes, fd=fd, use=use), key)
    context.areas[key] = area
    return area


def _shared(context: ContextHeld, fd: int, end: int) -> SharedArea:
    """A buffer in which several tensors lie, each at its offset."""
    key = _identity(fd)
    area = context.areas.get(key)
    if area is None:
        size = _size(fd)
        if end > size:
            raise _bad(f"descriptor {fd} has {size} bytes; a tensor in it ends at {end}")
        area = context.areas[key] = SharedArea(context.context.register_memory(size, fd=fd), key)
    if end > area.mem.nbytes:
        raise _bad(f"descriptor {fd} was registered with {area.mem.nbytes} bytes; a tensor in it ends at {end}")
    return area


def _size(fd: int) -> int:
    """The size of a descriptor; a dma-buf reports it only when one seeks to its end."""
    _identity(fd)
    nbytes = os.fstat(fd).st_size
    if nbytes:
        return nbytes
    with contextlib.suppress(OSError):
        return os.lseek(fd, 0, os.SEEK_END)
    return 0


@answers("memRegister")
def mem_register(context: int, descriptors: int, count: int, out: int) -> None:
    """Register some pieces of memory, all or none."""
    entry = handles.find(ContextHeld, context)
    if not 0 < count <= _MOST:
        raise InvalidArgument(f"{count} pieces of memory; expected 1 to {_MOST}")
    handles.require_place(out, "memory handles", 8 * count)
    described = memory.array(struct("MemoryDescriptor"), count, descriptors, "the memory's descriptions")
    registered: list[MemHeld] = []
    try:
        for one in described:
            registered.append(_described(entry, one))
            handles.add(registered[-1])
    except BaseException:
        for mem in registered:
            mem.free()
        raise
    for number, mem in enumerate(registered):
        memory.write_number(out + 8 * number, mem.handle)


@answers("memDeRegister")
def mem_de_register(mems: int, count: int) -> None:
    """Take some pieces of memory back; none of them if one is in use."""
    if not 0 < count <= _MOST:
        raise InvalidArgument(f"{count} pieces of memory; expected 1 to {_MOST}")
    numbers = list(dict.fromkeys(memory.array(ctypes.c_uint64, count, mems, "the memory handles")))
    entries = [handles.find(MemHeld, handle) for handle in numbers]
    for mem in entries:
        if mem.area.mem.in_use:
            raise WrongState(f"memory {mem.handle:#x} is in use by an execution under way; wait for its end")
    for mem in entries:
        mem.free()
