"""A binary in a client's memory: looked at there, copied once, or read from the file that is mapped there."""

from __future__ import annotations

import ctypes
import errno

from openhtp.abi import memory
from openhtp.abi.memory import mapped_file
from openhtp.core.errors import InvalidArgument
from openhtp.program.sources import BinarySource, FileSource
from openhtp.runtime.binaries.opening import Check, copied

_MOST_BYTES = 1 << 40


class ClientMemory:
    """A source of bytes.

    Each piece is a copy, so a client that changes its memory meanwhile changes nothing here.
    """

    __slots__ = ("_address", "_what", "nbytes")

    def __init__(self, address: int, nbytes: int, what: str) -> None:
        """Refuse memory that does not begin and end in this process."""
        check_extent(address, nbytes, what)
        self._address = address
        self._what = what
        self.nbytes = nbytes

    def read(self, begin: int, end: int, room: memoryview | None = None) -> memoryview:
        """A copy, made now."""
        return memoryview(memory.read(self._address + begin, end - begin, self._what))


class ClientBinary:
    """A binary from which a context is made.

    A mapped file that the client keeps is read from the file whenever it is needed: no copy stays here, and pages
    that the client gives back to the system stay given back. The kernel copies any other binary once, to where the
    device uses it.
    """

    def __init__(self, address: int, nbytes: int, *, is_kept: bool) -> None:
        check_extent(address, nbytes, "the binary")
        self._address = address
        self.nbytes = nbytes
        self._is_kept = is_kept
        self.source: BinarySource | None = None
        self.is_mapped = False

    def lent_source(self, check: Check) -> BinarySource:
        """The file, or a copy; the same every time."""
        if self.source is not None:
            return self.source
        fd = mapped_file(self._address, self.nbytes) if self._is_kept else None
        self.is_mapped = fd is not None
        self.source = self._copy(check) if fd is None else FileSource(fd)
        return self.source

    def _copy(self, check: Check) -> FileSource:
        def piece(begin: int, end: int) -> memoryview:
            # Only the kernel reads this memory; it reports an address that is wrong.
            return memoryview((ctypes.c_char * (end - begin)).from_address(self._address + begin)).cast("B")

        try:
            return copied(self.nbytes, piece, check)
        except OSError as error:
            if error.errno != errno.EFAULT:
                raise
            raise InvalidArgument(
                f"the binary: {self.nbytes} bytes at {self._address:#x} are not all this process's memory"
            ) from error


def check_extent(address: int, nbytes: int, what: str) -> None:
    """Refuse memory that cannot be a client's, before any of it is read or room is made for it."""
    if not address or not 0 < nbytes <= _MOST_BYTES:
        raise InvalidArgument(f"{what} has {nbytes} bytes at {address:#x}; expected 1 to {_MOST_BYTES} somewhere")
    memory.check_readable(address, nbytes, what)
