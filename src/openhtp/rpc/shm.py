"""Shared memory by descriptor. A buffer has no name in any file system, so nothing can be left behind.

The size is sealed: neither side can shrink a buffer under the other, which would otherwise be a SIGBUS in a
process that did nothing wrong.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, OutOfMemory
from openhtp.core.units import bytes_in_words

# Numbers of fcntl(2); older Python versions do not name them all.
_F_ADD_SEALS = 1033
_F_GET_SEALS = 1034
_SEAL_SEAL = 1
_SEAL_SHRINK = 2
_SEAL_GROW = 4
_FIXED_SIZE = _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW

ALIGNMENT = 64

_NO_ROOM = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


def align(nbytes: int) -> int:
    """Round up to where the next tensor of a buffer may start."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class SharedBuffer:
    """A mapped piece of memory and the descriptor that shares it."""

    __slots__ = ("_map", "address", "fd", "nbytes")

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self._map: mmap.mmap | None = mmap.mmap(fd, nbytes)
        self.address = int(np.frombuffer(self._map, np.uint8).__array_interface__["data"][0])

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
        """A buffer of which nothing is taken yet, to be shown to whoever grants memory; ``take`` then takes it."""
        if nbytes <= 0:
            raise InvalidArgument(f"shared memory of {nbytes} bytes; expected at least 1")
        try:
            fd = os.memfd_create("openhtp", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            if error.errno is None:
                raise  # not the system's but a signal handler's
            raise _no_room(nbytes, error) from error
        try:
            os.ftruncate(fd, nbytes)
            fcntl.fcntl(fd, _F_ADD_SEALS, _FIXED_SIZE)
            return cls(fd, nbytes)
        except OSError as error:
            os.close(fd)
            if error.errno in _NO_ROOM:
                raise _no_room(nbytes, error) from error
            raise

    def take(self) -> None:
        """Take the memory itself, which ``sized`` left for later."""
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
    def attach(cls, fd: int) -> SharedBuffer:
        """Map a descriptor that another process sent; takes ownership of it.

        Raises InvalidArgument unless it is memory of a sealed, fixed size.
        """
        try:
            seals = fcntl.fcntl(fd, _F_GET_SEALS)
            nbytes = os.fstat(fd).st_size
        except OSError:
            seals = nbytes = 0
        if seals & _FIXED_SIZE != _FIXED_SIZE or nbytes <= 0:
            os.close(fd)
            raise InvalidArgument("the descriptor is not shared memory of a sealed size")
        try:
            return cls(fd, nbytes)
        except (OSError, OverflowError, ValueError) as error:
            os.close(fd)
            raise _no_room(nbytes, error) from error

    @property
    def view(self) -> memoryview:
        """The bytes."""
        return memoryview(self._open_map())

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        """Fill the memory from its start. Quicker than through the mapping, which meets every page anew."""
        offset = 0
        for part in parts:
            left = memoryview(part)
            while left.nbytes:
                done = os.pwrite(self.fd, left, offset)
                offset += done
                left = left[done:]

    def array(self, offset: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array on the bytes from ``offset``; it keeps the mapping alive."""
        return np.ndarray(shape, dtype, buffer=self._open_map(), offset=offset)

    def _open_map(self) -> mmap.mmap:
        if self._map is None:
            raise InvalidArgument("the shared memory was given back")
        return self._map

    def close(self) -> None:
        """Give the memory back. Arrays still in use keep it mapped until they are gone."""
        if self.fd < 0:
            return
        fd, self.fd = self.fd, -1  # first: who is interrupted and comes again must not close another's
        os.close(fd)
        # Not unmapped here: numpy arrays do not count as exports, so closing the map would pull it from under
        # them. Each array holds the map; the last to go unmaps it.
        self._map = None


def _no_room(nbytes: int, error: Exception) -> OutOfMemory:
    return OutOfMemory(
        f"no room for {bytes_in_words(nbytes)} of shared memory ({getattr(error, 'strerror', error)});"
        " free registered memory or contexts, or raise the limit",
        st.QNN_COMMON_ERROR_MEM_ALLOC,
    )
