"""A context binary as a client sends it: by descriptor."""

from __future__ import annotations

import mmap
import os
import stat

from openhtp.core.errors import InvalidArgument
from openhtp.program.sources import File, Memory, Source
from openhtp.rpc.shm import is_unchangeable


class BinaryFile:
    """Memory that nobody can write any more is mapped. Anything else might change, and is read piece by piece.

    Mapping a file that a client can cut would leave the life of this process to that client.
    """

    def __init__(self, fd: int) -> None:
        """Take over a descriptor. Raises InvalidArgument unless there is a file or memory behind it."""
        self.source: Source
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode) or not about.st_size:
                raise InvalidArgument("the descriptor is neither shared memory nor a regular file with a binary")
            if is_unchangeable(fd):
                self.source = Memory(memoryview(mmap.mmap(fd, about.st_size, access=mmap.ACCESS_READ)))
                os.close(fd)
            else:
                self.source = File(fd)
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Let it go. What was read stays, and so does what is mapped while anybody uses it."""
        if isinstance(self.source, File):
            self.source.close()
        else:
            self.source = Memory(b"")
