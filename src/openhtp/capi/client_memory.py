"""A binary in a client's memory, of which only those pieces are copied that are looked at."""

from __future__ import annotations

from openhtp.abi import memory
from openhtp.core.errors import InvalidArgument

_MOST_BYTES = 1 << 40


class ClientMemory:
    """A source of bytes. Each piece is a copy: a client that changes its memory meanwhile changes nothing here."""

    __slots__ = ("_address", "_what", "nbytes")

    def __init__(self, address: int, nbytes: int, what: str) -> None:
        """Refuses what does not begin and end in this process's memory."""
        check_extent(address, nbytes, what)
        self._address = address
        self._what = what
        self.nbytes = nbytes

    def read(self, begin: int, end: int, room: memoryview | None = None) -> memoryview:
        """A copy, made now."""
        return memoryview(memory.read(self._address + begin, end - begin, self._what))


def check_extent(address: int, nbytes: int, what: str) -> None:
    """Refuse memory that cannot be a client's, before any of it is read or room is made for it."""
    if not address or not 0 < nbytes <= _MOST_BYTES:
        raise InvalidArgument(f"{what} has {nbytes} bytes at {address:#x}; expected 1 to {_MOST_BYTES} somewhere")
    memory.check_readable(address, nbytes, what)
