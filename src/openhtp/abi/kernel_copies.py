"""How memory of this process is copied so that a wrong address is an answer, not the end of the process.

The kernel's own call (``process_vm_readv``) does it in one step. Containers may forbid it and emulators of other
processors may not know it; there the kernel writes the memory to a file in memory, and reads it back from there.
Either way it copies nothing that this process itself may not read, and to nothing that it may not write. Both are
called as the kernel's call is.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Process, local pieces and their count, remote pieces and their count, flags: bytes copied, below 0 for none.
CopyCall = Callable[[int, int, int, int, int, int], int]

_MOST_AT_ONCE = 1 << 20


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
    """The kernel's call if it copies a few bytes correctly here; otherwise files, which devices need anyway."""
    way = by_the_kernel()
    return way if works(way) else by_files()


def works(way: CopyWay) -> bool:
    """Whether a way can copy within this process."""
    source, target = ctypes.create_string_buffer(b"openhtp"), ctypes.create_string_buffer(8)
    ours, theirs = IoVec(ctypes.addressof(target), 8), IoVec(ctypes.addressof(source), 8)
    copied = way.readv(os.getpid(), ctypes.addressof(ours), 1, ctypes.addressof(theirs), 1, 0)
    if copied != 8 or target.raw != source.raw:
        return False
    source[0] = b"O"
    copied = way.writev(os.getpid(), ctypes.addressof(theirs), 1, ctypes.addressof(ours), 1, 0)
    return copied == 8 and target.raw == source.raw


def by_the_kernel() -> CopyWay:
    """The kernel's calls that copy between processes, here within one."""
    signature: list[Any] = [ctypes.c_int, *[ctypes.c_void_p, ctypes.c_ulong] * 2, ctypes.c_ulong]
    calls = []
    for library in (ctypes.PyDLL(None, use_errno=True), ctypes.CDLL(None, use_errno=True)):
        for call in (library.process_vm_readv, library.process_vm_writev):
            call.argtypes, call.restype = signature, ctypes.c_ssize_t
            calls.append(call)
    return CopyWay("process_vm_readv", *calls)


def by_files() -> CopyWay:
    """Copies by way of a file, where the kernel refuses its calls."""
    short, long = CopyFiles(ctypes.PyDLL(None)), CopyFiles(ctypes.CDLL(None))
    return CopyWay("files", short.readv, short.writev, long.readv, long.writev)


# Where the kernel finds addresses and sizes, and how many of them.
Listed = tuple[int, int]


def _pieces(listed: Listed) -> Any:
    return (IoVec * listed[1]).from_address(listed[0])


class CopyFiles:
    """Files in memory over which the kernel copies, one for each copy that is under way. One stays open."""

    def __init__(self, library: Any) -> None:
        signature = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64]
        self._read, self._write = library.pread, library.pwrite
        for call in (self._read, self._write):
            call.argtypes, call.restype = signature, ctypes.c_ssize_t
        self._idle: list[int] = []
        # A child and its parent would write to the same files.
        os.register_at_fork(after_in_child=self._close)

    def readv(self, _pid: int, local: int, local_count: int, remote: int, count: int, _flags: int) -> int:
        """Copy from each remote piece, one after the other, into the local one, or each into one of its size."""
        return self._each_piece((local, local_count), (remote, count), lambda ours, theirs: (theirs, ours))

    def writev(self, _pid: int, local: int, local_count: int, remote: int, count: int, _flags: int) -> int:
        """Copy from the local piece into each remote one, or from as many pieces of the same sizes."""
        return self._each_piece((local, local_count), (remote, count), lambda ours, theirs: (ours, theirs))

    def _each_piece(
        self, local: Listed, remote: Listed, from_and_to: Callable[[int, int], tuple[int, int]]
    ) -> int:
        """Copy piece by piece until one is not all there; the bytes that were copied, -1 for none."""
        ours, count, done = [int(piece.base or 0) for piece in _pieces(local)], remote[1], 0
        fd = self._idle.pop() if self._idle else os.memfd_create("openhtp-copies")
        try:
            for number, piece in enumerate(_pieces(remote)):
                here = ours[number] if len(ours) == count else ours[0] + done
                copied = self._copy(fd, *from_and_to(here, int(piece.base or 0)), piece.size)
                done += copied
                if copied < piece.size:
                    break
        finally:
            if self._idle:
                os.close(fd)
            else:
                self._idle.append(fd)
        if not done:
            ctypes.set_errno(errno.EFAULT)
        return done or -1

    def _copy(self, fd: int, source: int, target: int, size: int) -> int:
        """Copy a little at a time, so that the file stays small."""
        done = 0
        while done < size:
            written = self._write(fd, source + done, min(size - done, _MOST_AT_ONCE), 0)
            copied = self._read(fd, target + done, written, 0) if written > 0 else 0
            if copied <= 0:
                break
            done += copied
        return done

    def _close(self) -> None:
        while self._idle:
            os.close(self._idle.pop())
