"""Memory that somebody else pointed at: read and written by the kernel, so that a wrong address is an error.

Reading through a bad pointer would end the process. The kernel copies on our behalf and says so instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from array import array as numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openhtp.abi.kernel_copies import IoVec, choose_way
from openhtp.core.errors import InvalidArgument

# An address, and how many bytes are there.
Piece = tuple[int, int]

_PAGE = 4096
_MOST_TEXT = 1 << 16
_MOST_CODE = 256


_DELETED = " (deleted)"


# Short copies take less time than handing the interpreter over and back. During long ones others go on.
_way = choose_way()
_readv, _writev, _long_readv, _long_writev = _way.readv, _way.writev, _way.long_readv, _way.long_writev
LONG_BYTES = 1 << 20
# The kernel copies at most 2 GiB less a page at once.
_MOST_AT_ONCE = 1 << 30

_new_bytes: Any = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes, _new_bytes.restype = [ctypes.c_void_p, ctypes.c_ssize_t], ctypes.py_object
_new_view: Any = ctypes.pythonapi.PyMemoryView_FromMemory
_new_view.argtypes, _new_view.restype = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int], ctypes.py_object
_WRITABLE = 0x200


def read(address: int, size: int, what: str = "memory") -> bytes:
    """A copy of ``size`` bytes at ``address``."""
    if size >= LONG_BYTES:
        return read_long(address, size, what)
    buffer = ctypes.create_string_buffer(size)
    _copy(_readv, ctypes.addressof(buffer), address, size, what)
    return buffer.raw


def read_long(address: int, size: int, what: str) -> bytes:
    """Read into bytes that are neither cleared first nor copied again; nobody else has them yet."""
    check_readable(address, size, what)  # before so much room is made for nothing
    data: bytes = _new_bytes(None, size)
    _copy(_long_readv, _address(data), address, size, what)
    return data


def write(address: int, data: bytes, what: str = "memory") -> None:
    """Put bytes where somebody wants them."""
    _copy(_writev if len(data) < LONG_BYTES else _long_writev, _address(data), address, len(data), what)


def _address(data: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


def check_readable(address: int, size: int, what: str) -> None:
    """Refuse memory that does not begin and end in this process."""
    if not address:
        raise _null(what)
    if not PresenceProbe([(address, size)]).holds():
        raise _refusal(what, address, size)


def check_writable(address: int, size: int, what: str) -> None:
    """Refuse an address that cannot be written to, before anything is done whose result belongs there."""
    write(address, read(address, size, what), what)


def view(address: int, size: int) -> memoryview:
    """So many bytes as they lie there, which must be this process's and stay so."""
    seen: memoryview = _new_view(address, size, _WRITABLE)
    return seen


def write_number(address: int, value: int, size: int = 8) -> None:
    """Write an unsigned number of ``size`` bytes."""
    write(address, value.to_bytes(size, "little"))


_known_code: set[int] = set()


def _is_code(address: int) -> bool:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            span, rights = line.split(" ", 2)[:2]
            first, last = (int(end, 16) for end in span.split("-"))
            if first <= address < last:
                return "x" in rights
    return False


def check_code(address: int, what: str) -> None:
    """Refuse an address that cannot be a function's. Where there is no code there may be some the next time."""
    if address in _known_code:
        return
    if not _is_code(address):
        raise InvalidArgument(f"{what} is at {address:#x}, where there is no code")
    if len(_known_code) >= _MOST_CODE:
        _known_code.clear()
    _known_code.add(address)


def structure(kind: Any, address: int, what: str) -> Any:
    """A copy of the structure at an address."""
    return kind.from_buffer_copy(read(address, ctypes.sizeof(kind), what))


def array(kind: Any, count: int, address: int, what: str) -> Any:
    """A copy of ``count`` structures."""
    return (kind * count).from_buffer_copy(read(address, ctypes.sizeof(kind) * count, what))


def text(address: int | None, what: str = "a text", most: int = _MOST_TEXT) -> str:
    """The C string at an address, which must end somewhere; empty for NULL."""
    if not address:
        return ""
    read_bytes, start = b"", address
    while len(read_bytes) < most:
        chunk = read(start, min(_PAGE - start % _PAGE, 256), what)
        end = chunk.find(0)
        if end >= 0:
            return (read_bytes + chunk[:end]).decode("utf-8", "replace")
        read_bytes += chunk
        start += len(chunk)
    raise InvalidArgument(f"{what} does not end within {most} bytes")


def pointers(address: int | None, what: str, most: int = 1024) -> list[int]:
    """The addresses of a list that NULL ends; none for NULL."""
    items: list[int] = []
    if not address:
        return items
    while len(items) < most:
        (item,) = array(ctypes.c_void_p, 1, address + 8 * len(items), what)
        if not item:
            return items
        items.append(item)
    raise InvalidArgument(f"{what} does not end with NULL within {most} entries")


class _Copying:
    """Pieces of memory that are copied together, again and again, into a buffer of ours.

    What the kernel takes is made of arrays of numbers, in a fraction of the time that structures take.
    """

    __slots__ = ("_call", "_held", "_here", "_size", "_spans")

    def __init__(self, pieces: list[Piece], size: int) -> None:
        """``size`` is that of all of them."""
        self._size = size
        self._spans = numbers("Q", [number for piece in pieces for number in piece])
        self._held = bytearray(size or 1)
        self._here = numbers("Q", (ctypes.addressof(ctypes.c_char.from_buffer(self._held)), size))
        self._call = (os.getpid(), self._here.buffer_info()[0], 1, self._spans.buffer_info()[0], len(pieces), 0)

    def places(self) -> list[Piece]:
        """The pieces, as (address, size)."""
        return [*zip(self._spans[::2], self._spans[1::2], strict=True)]


class PresenceProbe(_Copying):
    """Looks again and again whether the same pieces of memory are still there, at the cost of one call."""

    __slots__ = ("_written",)

    def __init__(self, read: Sequence[Piece], written: Sequence[Piece] = ()) -> None:
        """The first and last byte of each (address, size), as far as they are on pages of their own."""
        places: dict[int, Piece] = {}
        for pieces in (written, read):
            for address, size in pieces:
                if size:
                    places.setdefault(address // _PAGE, (address, 1))
                    places.setdefault((address + size - 1) // _PAGE, (address + size - 1, 1))
            if pieces is written:
                self._written = len(places)
        super().__init__(list(places.values()), len(places))

    def places_beside(self, pieces: Sequence[Piece]) -> list[Piece]:
        """The bytes that are looked at, as (address, size), but for pages that reading ``pieces`` touches."""
        touched = {end // _PAGE for address, size in pieces if size for end in (address, address + size - 1)}
        return [piece for piece in self.places() if piece[0] // _PAGE not in touched]

    def holds(self) -> bool:
        """Whether every byte can be read."""
        return not self._size or _readv(*self._call) == self._size

    def can_be_written(self) -> bool:
        """Whether every byte of the pieces to be written can be. To be asked after they were read."""
        pid, local, _, spans, _, _ = self._call
        return not self._written or _writev(pid, local, 1, spans, self._written, 0) == self._written


class BatchedReader(_Copying):
    """Pieces of memory that are read together, again and again, at the cost of one call."""

    __slots__ = ()

    def __init__(self, pieces: Sequence[Piece]) -> None:
        filled = [piece for piece in pieces if piece[1]]
        super().__init__(filled, sum([size for _, size in filled]))

    def begins_with(self, expected: bytes) -> bool:
        """Whether all of it is there, and still begins so."""
        return _readv(*self._call) == self._size and self._held.startswith(expected)

    def read(self, what: str) -> bytes:
        """What is there now."""
        if not self._size:
            return b""
        done = _readv(*self._call)
        if done != self._size:
            raise _refusal(what, *self._missing(done))
        return bytes(self._held)

    def aim(self, addresses: Sequence[int]) -> None:
        """Look at pieces of the same sizes elsewhere from now on. For one thread at a time."""
        self._spans[::2] = numbers("Q", addresses)

    def _missing(self, done: int) -> Piece:
        """The first piece that does not end within the ``done`` bytes that were copied."""
        for address, size in self.places():
            if done < size:
                return address, size
            done -= size
        return 0, self._size


class ScatteredCopy:
    """Copies between buffers of ours and pieces of memory of the same sizes, at the cost of one call."""

    __slots__ = ("_call", "_here", "_kept", "_size", "_spans")

    def __init__(self, buffers: Sequence[Any]) -> None:
        """``buffers`` can be written to, and are not empty."""
        owned = [ctypes.c_char.from_buffer(buffer) for buffer in buffers]
        sizes = [memoryview(buffer).nbytes for buffer in buffers]
        self._kept = owned
        self._size = sum(sizes)
        spans = [(ctypes.addressof(owner), size) for owner, size in zip(owned, sizes, strict=True)]
        self._here = numbers("Q", [number for span in spans for number in span])
        self._spans = numbers("Q", [number for size in sizes for number in (0, size)])
        count = len(sizes)
        self._call = (os.getpid(), self._here.buffer_info()[0], count, self._spans.buffer_info()[0], count, 0)

    def aim(self, addresses: Sequence[int]) -> None:
        """Where the pieces are from now on. For one thread at a time."""
        self._spans[::2] = numbers("Q", addresses)

    def read(self) -> bool:
        """Copy the pieces into the buffers; whether all of them are there."""
        return _readv(*self._call) == self._size

    def write(self) -> bool:
        """Copy the buffers to the pieces; whether all of them could be written."""
        return _writev(*self._call) == self._size


def _copy(call: Any, ours: int, theirs: int, size: int, what: str) -> None:
    if not size:
        return
    if not theirs:
        raise _null(what)
    local, remote = IoVec(), IoVec()
    done = 0
    while done < size:
        local.base, remote.base = ours + done, theirs + done
        local.size = remote.size = min(size - done, _MOST_AT_ONCE)
        copied = call(os.getpid(), ctypes.addressof(local), 1, ctypes.addressof(remote), 1, 0)
        if copied <= 0:
            raise _refusal(what, theirs, size)
        done += copied


def _null(what: str) -> InvalidArgument:
    return InvalidArgument(f"{what} is NULL")


def _refusal(what: str, address: int, size: int) -> InvalidArgument:
    return InvalidArgument(f"{what}: {size} bytes at {address:#x} are not this process's memory")


@dataclass(frozen=True, slots=True)
class MappedPiece:
    """One mapping of a file. ``copied_bytes`` is how much of it was written to by this process, for itself."""

    first: int
    last: int
    offset: int
    device: int
    inode: int
    path: str
    copied_bytes: int


def mapped_file(address: int, nbytes: int) -> int | None:
    """A descriptor of the file that lies there as it is, from its first to its last byte; None if none does."""
    with contextlib.suppress(OSError, ValueError):
        mappings = _mappings(address, address + nbytes)
        if _is_whole(mappings, address, nbytes):
            return _opened(mappings[0], nbytes)
    return None


def _is_whole(mappings: list[MappedPiece], address: int, nbytes: int) -> bool:
    """Whether they are one file without gaps, and as it is in the file."""
    reached = address
    for one in mappings:
        same = (one.device, one.inode) == (mappings[0].device, mappings[0].inode)
        if not one.inode or not same or one.copied_bytes or one.first > reached:
            return False
        if one.offset + reached - one.first != reached - address:
            return False
        reached = one.last
    return bool(mappings) and reached >= address + nbytes


def _opened(one: MappedPiece, nbytes: int) -> int | None:
    """By its path, which may be another file's by now."""
    if one.path.endswith(_DELETED):
        return None
    fd = os.open(one.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    about = os.fstat(fd)
    if stat.S_ISREG(about.st_mode) and (about.st_dev, about.st_ino, about.st_size) == (
        one.device,
        one.inode,
        nbytes,
    ):
        return fd
    os.close(fd)
    return None


def _mappings(first: int, last: int) -> list[MappedPiece]:
    """What lies between two addresses, in order."""
    mappings: list[MappedPiece] = []
    head: list[str] | None = None
    with open("/proc/self/smaps", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            word = line.split(None, 1)[0]
            if not word.endswith(":"):
                head = _head(line, first, last)
                if head is None and mappings:
                    break
            elif head is not None and word == "Anonymous:":
                mappings.append(_mapping(head, int(line.split()[1]) * 1024))
    return mappings


def _head(line: str, first: int, last: int) -> list[str] | None:
    """The parts of a mapping's first line if it lies there."""
    parts = line.rstrip("\n").split(None, 5)
    begin, end = (int(part, 16) for part in parts[0].split("-"))
    return parts if begin < last and end > first else None


def _mapping(parts: list[str], copied_bytes: int) -> MappedPiece:
    begin, end = (int(part, 16) for part in parts[0].split("-"))
    major, minor = (int(part, 16) for part in parts[3].split(":"))
    path = parts[5] if len(parts) > 5 else ""
    return MappedPiece(begin, end, int(parts[2], 16), os.makedev(major, minor), int(parts[4]), path, copied_bytes)
