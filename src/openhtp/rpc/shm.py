"""Shared memory by descriptor. A buffer has no name in any file system, so nothing can be left behind.

The size is sealed: neither side can shrink a buffer under the other, which would otherwise be a SIGBUS in a
process that did nothing wrong. Memory that a client made itself is sealed when it is shared, or refused; that of a
dma-buf never changes its size.

A board offers memory that its DSP can map: from its FastRPC library, or a heap of its kernel (``find_heap``).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import stat
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, OutOfMemory
from openhtp.core.files import Descriptor
from openhtp.core.units import bytes_in_words

# Numbers of fcntl(2); older Python versions do not name them all.
_F_ADD_SEALS = 1033
_F_GET_SEALS = 1034
_SEAL_SEAL = 1
_SEAL_SHRINK = 2
_SEAL_GROW = 4
_SEAL_WRITE = 8
_FIXED_SIZE = _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW
_FIXED = _FIXED_SIZE | _SEAL_WRITE

# What the system calls memory of a dma-buf; no ioctl tells.
_DMA_BUF = ("/dmabuf:", "anon_inode:dmabuf")

ALIGNMENT = 64

# The kernel has waited for its pages by itself before it says that they are busy.
_SEAL_TRIES = 3
_CAN_SHRINK = (
    "the size of this memory cannot be sealed, and the device serves several programs: who cut it short would end"
    " it for all. Expected a dma-buf, or a memfd made with MFD_ALLOW_SEALING"
)
_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT, errno.EMFILE, errno.ENFILE)

RPC_LIBRARY = "libcdsprpc.so"
# Names of the heap for memory of any kind: Qualcomm's kernels, and all others.
DMA_HEAPS = ("/dev/dma_heap/qcom,system", "/dev/dma_heap/system")
_SYSTEM_HEAP, _DEFAULT_FLAGS = 25, 1
# DMA_HEAP_IOCTL_ALLOC: length, descriptor (out), its flags, flags of the heap.
_ALLOCATE = 0xC0184800
_REQUEST = struct.Struct("=QIIQ")


def align(nbytes: int) -> int:
    """Round up to where the next tensor of a buffer may start."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class SharedBuffer:
    """A mapped piece of memory and the descriptor that shares it."""

    __slots__ = ("_descriptor", "_map", "address", "nbytes")

    def __init__(self, descriptor: Descriptor, nbytes: int) -> None:
        self._descriptor = descriptor
        self.nbytes = nbytes
        self._map: mmap.mmap | None = mmap.mmap(self.fd, nbytes)
        self.address = int(np.frombuffer(self._map, np.uint8).__array_interface__["data"][0])

    @property
    def fd(self) -> int:
        """The descriptor; -1 when the memory was given back."""
        return self._descriptor.number

    @classmethod
    def create(cls, nbytes: int) -> SharedBuffer:
        """Take memory now, all of it: later there is nobody to tell that it ran out."""
        buffer = cls.sized(nbytes)
        try:
            buffer.take()
        except BaseException:
            buffer.close()
            raise
        return buffer

    @classmethod
    def sized(cls, nbytes: int) -> SharedBuffer:
        """A buffer of which nothing is taken yet, to be shown to the device first; ``take`` then takes it."""
        if nbytes <= 0:
            raise InvalidArgument(f"shared memory of {nbytes} bytes; expected at least 1")
        memory = _memory_file("openhtp", nbytes)
        try:
            os.ftruncate(memory.number, nbytes)
            fcntl.fcntl(memory.number, _F_ADD_SEALS, _FIXED_SIZE)
            return cls(memory, nbytes)
        except OSError as error:
            memory.close()
            if error.errno in _NO_ROOM:
                raise _no_room(nbytes, error) from error
            raise

    @classmethod
    def for_device(cls, nbytes: int, heap: DspHeap | None) -> SharedBuffer:
        """A buffer to be shown to a device: of a heap whose memory a DSP can map, or as ``sized`` makes it."""
        number = None if heap is None else heap.allocate(nbytes)
        return cls.sized(nbytes) if number is None else cls(Descriptor(int, number), nbytes)

    def take(self) -> None:
        """Take the memory itself, which ``sized`` left for later; a dma-buf is there from the beginning."""
        if _is_dma_buf(self.fd):
            return
        try:
            os.posix_fallocate(self.fd, 0, self.nbytes)
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise _no_room(self.nbytes, error) from error
            raise

    @classmethod
    def holding(cls, parts: Sequence[bytes | memoryview]) -> SharedBuffer:
        """Memory that is exactly filled by these pieces."""
        buffer = cls.create(sum(memoryview(part).nbytes for part in parts))
        buffer.write(parts)
        return buffer

    @classmethod
    def attach(cls, fd: int, nbytes: int = 0, *, may_shrink: bool = False) -> SharedBuffer:
        """Map a descriptor that another process sent, or its first ``nbytes``; takes ownership of it.

        Raises InvalidArgument unless it is memory of a sealed size. With ``may_shrink`` any memory will do:
        cutting it short ends the process that maps it.
        """
        own = Descriptor(int, fd)
        size = _lasting_size(fd) or (may_shrink and _memory_size(fd))
        if not 0 <= nbytes <= size or not size:
            unsealed = _memory_size(fd) >= max(1, nbytes)
            own.close()
            raise InvalidArgument(
                _CAN_SHRINK if unsealed else "the descriptor is not shared memory of a sealed size",
                st.QNN_MEM_ERROR_INVALID_ARGUMENT,
            )
        try:
            return cls(own, nbytes or size)
        except (OSError, OverflowError, ValueError) as error:
            own.close()
            raise _no_room(nbytes or size, error) from error

    @classmethod
    def of_client(cls, fd: int, nbytes: int) -> SharedBuffer:
        """Share the first ``nbytes`` of memory that the client made, by a descriptor of our own.

        The size of a memfd is sealed where it can be. Raises InvalidArgument for what is no memory.
        """
        try:
            copy = Descriptor(fcntl.fcntl, fd, fcntl.F_DUPFD_CLOEXEC, 0)
        except (OSError, OverflowError) as error:
            raise InvalidArgument(
                f"descriptor {fd} cannot be used: {error}", st.QNN_MEM_ERROR_INVALID_ARGUMENT
            ) from error
        own = copy.number
        try:
            is_regular = stat.S_ISREG(os.fstat(own).st_mode)
            if is_regular and not _is_dma_buf(own):
                _check_size(fd, os.fstat(own).st_size, nbytes)  # before anything is done about it
            _seal(own, fd)
            _check_size(fd, _lasting_size(own) or _memory_size(own), nbytes)
            return cls(copy, nbytes)
        except (OSError, ValueError) as error:
            copy.close()
            raise InvalidArgument(
                f"descriptor {fd} cannot be mapped for reading and writing: {error}", st.QNN_MEM_ERROR_MAPPING
            ) from error
        except BaseException:
            copy.close()
            raise

    @property
    def identity(self) -> tuple[int, int]:
        """Equal for descriptors of the same memory."""
        about = os.fstat(self.fd)
        return about.st_dev, about.st_ino

    @property
    def view(self) -> memoryview:
        """The bytes."""
        return memoryview(self._open_map())

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Fill the memory from its start. Quicker than through the mapping, which meets every page anew."""
        offset = 0
        for part in parts:
            offset = write_at(self.fd, offset, memoryview(part))

    def array(self, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array on the bytes from ``offset``; it keeps the mapping alive."""
        return np.ndarray(shape, dtype, buffer=self._open_map(), offset=offset)

    def _open_map(self) -> mmap.mmap:
        if self._map is None:
            raise InvalidArgument("the shared memory was given back")
        return self._map

    def close(self) -> None:
        """Give the memory back. Arrays still in use keep it mapped until they are gone."""
        self._descriptor.close()
        # Not unmapped here: numpy arrays do not count as exports, so closing the map would pull it from under
        # them. Each array holds the map; the last to go unmaps it.
        self._map = None


def _is_dma_buf(fd: int) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(_DMA_BUF)
    except OSError:
        return False


def _lasting_size(fd: int) -> int:
    """Size of memory that no process can shrink; 0 for any other descriptor."""
    try:
        if _is_dma_buf(fd):
            return os.lseek(fd, 0, os.SEEK_END)
        return os.fstat(fd).st_size if fcntl.fcntl(fd, _F_GET_SEALS) & _SEAL_SHRINK else 0
    except OSError:
        return 0


def _memory_size(fd: int) -> int:
    """Size of shared memory as it is now; 0 for files on disks and any other descriptor."""
    try:
        fcntl.fcntl(fd, _F_GET_SEALS)
        return os.fstat(fd).st_size
    except OSError:
        return 0


def _check_size(fd: int, size: int, nbytes: int) -> None:
    if nbytes > size:
        raise InvalidArgument(
            f"descriptor {fd} has {bytes_in_words(size)}; {bytes_in_words(nbytes)} are asked for",
            st.QNN_MEM_ERROR_INVALID_ARGUMENT,
        )


def _seal(own: int, fd: int) -> None:
    """See to it that the size of a client's memory lasts, if it can be had."""
    if _is_dma_buf(own) or _lasting_size(own):
        return
    try:
        fcntl.fcntl(own, _F_ADD_SEALS, _SEAL_SHRINK)
    except OSError as error:
        # Made without MFD_ALLOW_SEALING, or by shm_open: the device decides whether it takes that.
        if error.errno != errno.EPERM:
            raise InvalidArgument(
                f"descriptor {fd} is no shared memory; expected a dma-buf, a memfd or what shm_open gives",
                st.QNN_MEM_ERROR_UNSUPPORTED_MEMTYPE,
            ) from error


def unchangeable(nbytes: int, pieces: Iterable[tuple[int, bytes | memoryview]]) -> Descriptor:
    """Memory that holds these pieces, by their places, and zeros; nobody can write it any more.

    Only the pieces take room. Now and then the kernel is at the pages itself (it moves or reclaims them) and
    cannot promise that: the memory stays as it is then, and its receiver reads it as it reads files.
    """
    memory = _memory_file("openhtp-binary", nbytes)
    try:
        os.ftruncate(memory.number, nbytes)
        for offset, content in pieces:
            write_at(memory.number, offset, memoryview(content))
        _fix(memory.number)
    except OSError as error:
        memory.close()
        if error.errno in _NO_ROOM:
            raise _no_room(nbytes, error) from error
        raise
    return memory


def unchangeable_whole(parts: Sequence[bytes | memoryview]) -> Descriptor:
    """Unchangeable memory of parts that lie one after the other."""
    ends = list(itertools.accumulate(len(part) for part in parts))
    return unchangeable(ends[-1], zip([0, *ends], parts, strict=False))


def _fix(fd: int) -> None:
    for _ in range(_SEAL_TRIES):
        try:
            fcntl.fcntl(fd, _F_ADD_SEALS, _FIXED)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        else:
            return


def is_unchangeable(fd: int) -> bool:
    """Whether a descriptor is of memory whose bytes nobody can ever change again."""
    try:
        return fcntl.fcntl(fd, _F_GET_SEALS) & _FIXED == _FIXED
    except OSError:  # a file, which has no seals
        return False


def write_at(fd: int, offset: int, left: memoryview) -> int:
    """Write all of it; returns where it ends."""
    while left.nbytes:
        done = os.pwrite(fd, left, offset)
        offset += done
        left = left[done:]
    return offset


def _memory_file(name: str, nbytes: int) -> Descriptor:
    """An empty file in memory; ``nbytes`` is what it is wanted for."""
    try:
        return Descriptor(os.memfd_create, name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        if error.errno is None:
            raise  # not the system's but a signal handler's
        raise _no_room(nbytes, error) from error


def _no_room(nbytes: int, error: Exception) -> OutOfMemory:
    return OutOfMemory(
        f"no room for {bytes_in_words(nbytes)} of shared memory ({getattr(error, 'strerror', error)});"
        " free registered memory or contexts, or raise the limit",
        st.QNN_COMMON_ERROR_MEM_ALLOC,
    )


class DspHeap(Protocol):
    """A source of memory."""

    @property
    def name(self) -> str:
        """Where it is."""

    def allocate(self, nbytes: int) -> int | None:
        """A descriptor of new memory, the caller's to close; None if there is none left."""


class RpcmemHeap:
    """Memory of the board's FastRPC library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Raises AttributeError if the library has no such functions."""
        self.name = f"rpcmem of {RPC_LIBRARY}"
        self._library = library  # the functions are its
        self._allocate = library.rpcmem_alloc
        self._allocate.argtypes = [ctypes.c_int, ctypes.c_uint32, ctypes.c_int]
        self._allocate.restype = ctypes.c_void_p
        self._free = library.rpcmem_free
        self._free.argtypes, self._free.restype = [ctypes.c_void_p], None
        self._descriptor_of = library.rpcmem_to_fd
        self._descriptor_of.argtypes, self._descriptor_of.restype = [ctypes.c_void_p], ctypes.c_int

    def allocate(self, nbytes: int) -> int | None:
        """The memory outlives the library's own hold on it: the descriptor keeps it."""
        if nbytes >= 1 << 31:
            return None
        address = self._allocate(_SYSTEM_HEAP, _DEFAULT_FLAGS, nbytes)
        if not address:
            return None
        try:
            number = self._descriptor_of(address)
            return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 0) if number >= 0 else None
        finally:
            self._free(address)


class DmaHeap:
    """Memory of one of the kernel's DMA-BUF heaps."""

    def __init__(self, path: str, ioctl: Callable[[int, int, bytearray], object] = fcntl.ioctl) -> None:
        self.name = path
        self._ioctl = ioctl

    def allocate(self, nbytes: int) -> int | None:
        """One DMA-BUF."""
        request = bytearray(_REQUEST.pack(nbytes, 0, os.O_RDWR | os.O_CLOEXEC, 0))
        heap = os.open(self.name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._ioctl(heap, _ALLOCATE, request)
        except OSError:
            return None
        finally:
            os.close(heap)
        return int(_REQUEST.unpack(request)[1])


def find_heap(library: str = RPC_LIBRARY, heaps: Sequence[str] = DMA_HEAPS) -> DspHeap | None:
    """The heap of this machine whose memory a DSP can map; None without one, or without the right to use it."""
    try:
        return RpcmemHeap(ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_LOCAL))
    except (OSError, AttributeError):
        return next((DmaHeap(path) for path in heaps if os.access(path, os.R_OK)), None)
