"""How memory of this process is copied so that a wrong address is an answer, not the end of the process.

The kernel's own call (``process_vm_readv``) does it in one step. Containers may forbid it and emulators of other
processors may not know it, so there are two more ways: ``/proc/self/mem``, where the kernel copies as well, and
plain copies of memory that the process's map has. The last way still ends the process if the memory is of a file
that is shorter, or if another thread unmaps it between the look at the map and the copy. All
three are called as the kernel's call is.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

# Process, local pieces and their count, remote pieces and their count, flags: bytes copied, below 0 for none.
CopyCall = Callable[[int, int, int, int, int, int], int]


class IoVec(ctypes.Structure):
    """A piece of memory, as the kernel takes it."""

    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]


@dataclass(frozen=True, slots=True)
class CopyWay:
    """One way to copy: short copies keep the interpreter's lock, during long ones other threads go on."""

    name: str
    readv: CopyCall
    writev: CopyCall
    long_readv: CopyCall
    long_writev: CopyCall


def choose_way() -> CopyWay:
    """The first way that copies a few bytes correctly here."""
    for way in (_by_the_kernel(), *_by_memory_file()):
        if _works(way):
            return way
    return _by_map()


def _works(way: CopyWay) -> bool:
    source, target = ctypes.create_string_buffer(b"openhtp"), ctypes.create_string_buffer(8)
    ours, theirs = IoVec(ctypes.addressof(target), 8), IoVec(ctypes.addressof(source), 8)
    copied = way.readv(os.getpid(), ctypes.addressof(ours), 1, ctypes.addressof(theirs), 1, 0)
    if copied != 8 or target.raw != source.raw:
        return False
    source[0] = b"O"
    copied = way.writev(os.getpid(), ctypes.addressof(theirs), 1, ctypes.addressof(ours), 1, 0)
    return copied == 8 and target.raw == source.raw


def _by_the_kernel() -> CopyWay:
    signature: list[Any] = [ctypes.c_int, *[ctypes.c_void_p, ctypes.c_ulong] * 2, ctypes.c_ulong]
    calls = []
    for library in (ctypes.PyDLL(None, use_errno=True), ctypes.CDLL(None, use_errno=True)):
        for call in (library.process_vm_readv, library.process_vm_writev):
            call.argtypes, call.restype = signature, ctypes.c_ssize_t
            calls.append(call)
    return CopyWay("process_vm_readv", *calls)


def _by_memory_file() -> Iterator[CopyWay]:
    """Nothing where the file cannot be opened."""
    with contextlib.suppress(OSError):
        short, long = MemoryFile(ctypes.PyDLL(None)), MemoryFile(ctypes.CDLL(None))
        yield CopyWay("/proc/self/mem", short.readv, short.writev, long.readv, long.writev)


def _by_map() -> CopyWay:
    return CopyWay("/proc/self/maps", map_readv, map_writev, map_readv, map_writev)


class MemoryFile:
    """This process's memory as a file, which the kernel reads and writes at any address."""

    def __init__(self, library: Any) -> None:
        signature = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64]
        self._read, self._write = library.pread, library.pwrite
        for call in (self._read, self._write):
            call.argtypes, call.restype = signature, ctypes.c_ssize_t
        self._fd = -1
        self._open()
        # An open file stays with the memory of the process that opened it, a child has another.
        os.register_at_fork(after_in_child=self._open)

    def _open(self) -> None:
        inherited, self._fd = self._fd, os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        if inherited >= 0:
            os.close(inherited)

    def readv(self, _pid: int, local: int, _local_count: int, remote: int, count: int, _flags: int) -> int:
        """Copy from each remote piece, one after the other, into the local one."""
        return _each_piece(
            local, remote, count, lambda ours, theirs, size: self._read(self._fd, ours, size, theirs)
        )

    def writev(self, _pid: int, local: int, _local_count: int, remote: int, count: int, _flags: int) -> int:
        """Copy into each remote piece.

        The file can write to memory that is read-only, so the map is asked first.
        """

        def write(ours: int, theirs: int, size: int) -> int:
            size = _mapped_bytes(theirs, size, "w")
            return int(self._write(self._fd, ours, size, theirs)) if size else -1

        return _each_piece(local, remote, count, write)


def map_readv(_pid: int, local: int, _local_count: int, remote: int, count: int, _flags: int) -> int:
    """Plain copies of what the map says can be read."""
    return _each_piece(local, remote, count, lambda ours, theirs, size: _move(ours, theirs, theirs, size, "r"))


def map_writev(_pid: int, local: int, _local_count: int, remote: int, count: int, _flags: int) -> int:
    """Plain copies to where the map says one can write."""
    return _each_piece(local, remote, count, lambda ours, theirs, size: _move(theirs, ours, theirs, size, "w"))


def _move(target: int, source: int, theirs: int, size: int, right: str) -> int:
    size = _mapped_bytes(theirs, size, right)
    if size:
        ctypes.memmove(target, source, size)
    return size or -1


def _each_piece(local: int, remote: int, count: int, copy: Callable[[int, int, int], int]) -> int:
    """Copy piece by piece until one is not all there; the bytes that were copied, -1 for none."""
    ours, done = int(IoVec.from_address(local).base or 0), 0
    for piece in (IoVec * count).from_address(remote):
        copied = int(copy(ours + done, int(piece.base or 0), piece.size))
        done += max(0, copied)
        if copied < piece.size:
            break
    if not done:
        ctypes.set_errno(errno.EFAULT)
    return done or -1


def _mapped_bytes(address: int, size: int, right: str) -> int:
    """How many bytes from an address on are mapped without a gap, with the right to read (r) or to write (w)."""
    reached = address
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as mappings:
        for line in mappings:
            span, rights = line.split(" ", 2)[:2]
            first, last = (int(end, 16) for end in span.split("-"))
            if first <= reached < last:
                if right not in rights:
                    break
                reached = last
            elif first > reached:
                break
    return min(reached - address, size)
