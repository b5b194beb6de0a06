"""A context binary as a client sends it: by descriptor."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Sequence

from openhtp.core.errors import InvalidArgument
from openhtp.program.sources import BinarySource, FileSource, MemorySource
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import SharedBuffer, is_unchangeable


class Scattered:
    """A binary of which some pieces lie in buffers of the client's, and are used there.

    What is in them the client could still change, and would then have other weights.
    """

    def __init__(self, rest: BinarySource, pieces: Sequence[tuple[int, int, memoryview]]) -> None:
        self.rest = rest
        self.nbytes = rest.nbytes
        self._pieces = pieces

    def read(self, begin: int, end: int, room: memoryview | None = None) -> memoryview:
        """A view of a buffer, or what the rest of the binary has there."""
        for first, last, view in self._pieces:
            if first <= begin and end <= last:
                return view[begin - first : end - first]
        return self.rest.read(begin, end, room)


class BinaryFile:
    """Memory that nobody can write any more is mapped. Anything else might change, and is read piece by piece.

    Mapping a file that a client can cut would leave the life of this process to that client.
    """

    def __init__(self, fd: int) -> None:
        """Take over a descriptor. Raises InvalidArgument unless there is a file or memory behind it."""
        self.source: BinarySource
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode) or not about.st_size:
                raise InvalidArgument("the descriptor is neither shared memory nor a regular file with a binary")
            if is_unchangeable(fd):
                self.source = MemorySource(memoryview(mmap.mmap(fd, about.st_size, access=mmap.ACCESS_READ)))
                os.close(fd)
            else:
                self.source = FileSource(fd)
        except BaseException:
            os.close(fd)
            raise

    def overlay(
        self, pieces: Sequence[ms.ExternalPiece], descriptors: list[int], *, may_shrink: bool = False
    ) -> None:
        """Take these pieces from buffers of the client's. Takes the descriptors of those that can be used."""
        views: list[tuple[int, int, memoryview]] = []
        for piece in pieces:
            if not 0 <= piece.begin < piece.end <= self.source.nbytes or piece.offset < 0:
                raise InvalidArgument(f"a buffer for bytes {piece.begin}..{piece.end} of a binary")
            size = piece.offset + piece.end - piece.begin
            buffer = SharedBuffer.attach(descriptors.pop(0), size, may_shrink=may_shrink)
            views.append((piece.begin, piece.end, buffer.view[piece.offset : size].toreadonly()))
            buffer.close()
        if views:
            self.source = Scattered(self.source, views)

    def close(self) -> None:
        """Let it go. What was read stays, and so does what is mapped while anybody uses it."""
        source = self.source.rest if isinstance(self.source, Scattered) else self.source
        if isinstance(source, FileSource):
            source.close()
        self.source = MemorySource(b"")
