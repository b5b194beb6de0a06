"""Sources of a context binary's bytes: memory that cannot change, or a file that can.

Memory is used where it lies. Anybody may change or truncate a file at any time, so files are never mapped: pieces
are read into memory of our own, checked there, and used there. So the checked bytes are the used ones, and a file
that is truncated while it is read causes an error instead of killing the process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np

from openhtp.core.errors import BadBinary
from openhtp.core.units import bytes_in_words

# Pieces from this size on get pages of their own, which go back to the system when they are no longer used.
# Large pages, where the system has them, are hundreds of times fewer.
_OWN_PAGES = 1 << 20
_LARGE_PAGE = 2 << 20
# Enough for a part of most networks, and for as many threads as usually read at once.
_ROOM_BYTES = 4 << 20
_MOST_ROOMS = 2
# The kernel gives at most 2 GiB at once.
_CHUNK = 1 << 30


@runtime_checkable
class BinarySource(Protocol):
    """The bytes of one binary."""

    @property
    def nbytes(self) -> int:
        """Their number."""

    def read(self, begin: int, end: int, room: memoryview | None = None) -> memoryview:
        """These bytes, which do not change any more. Raises BadBinary if they cannot be read.

        If they must be copied, they are copied into ``room``, provided that it is large enough.
        """


class MemorySource:
    """Bytes in memory that nobody changes."""

    __slots__ = ("_view",)

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._view = memoryview(data).cast("B").toreadonly()

    @property
    def nbytes(self) -> int:
        """Size of the memory."""
        return self._view.nbytes

    def read(self, begin: int, end: int, room: memoryview | None = None) -> memoryview:
        """A view; nothing is copied."""
        return self._view[begin:end]


def _room(nbytes: int) -> memoryview:
    """Memory to read into; it is not cleared first, as a bytearray would be."""
    if nbytes < _OWN_PAGES:
        return np.empty(nbytes, np.uint8).data
    pages = mmap.mmap(-1, -(-nbytes // _LARGE_PAGE) * _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without large pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(pages)[:nbytes]


class ReadBuffers:
    """Memory to read into, used again and again: the system need not find and clear pages for each piece.

    A few rooms are kept for as long as the process lives.
    """

    def __init__(self) -> None:
        self._free: list[memoryview] = []

    @contextlib.contextmanager
    def room(self, nbytes: int) -> Iterator[memoryview | None]:
        """A buffer for this many bytes while the context is open; None if no kept buffer is large enough."""
        if nbytes > _ROOM_BYTES:
            yield None
            return
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = _room(_ROOM_BYTES)
        try:
            yield buffer
        finally:
            if len(self._free) < _MOST_ROOMS:
                self._free.append(buffer)


class FileSource:
    """A regular file, by its descriptor, which is this object's own."""

    __slots__ = ("_fd", "nbytes")

    def __init__(self, fd: int) -> None:
        """Take over a descriptor. The file's present size counts."""
        self._fd = fd
        self.nbytes = os.fstat(fd).st_size

    def read(self, begin: int, end: int, room: memoryview | None = None) -> memoryview:
        """A copy, read from the file now."""
        wanted = end - begin
        buffer = _room(wanted) if room is None or wanted > room.nbytes else room[:wanted]
        done = 0
        while done < wanted:
            try:
                count = os.preadv(self._fd, [buffer[done : done + _CHUNK]], begin + done)
            except OSError as error:
                raise BadBinary(f"the binary cannot be read at byte {begin + done}: {error.strerror}") from error
            if not count:
                raise BadBinary(
                    f"the binary ends at byte {begin + done}; it had {bytes_in_words(self.nbytes)}"
                    f" ({self.nbytes} bytes) when it was opened: do not change a file that is in use, and make it"
                    " again from its model"
                )
            done += count
        return buffer.toreadonly()

    def fileno(self) -> int:
        """The descriptor, to be passed on while this object lives."""
        return self._fd

    def close(self) -> None:
        """Let the file go."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __del__(self) -> None:
        self.close()
