"""Files that are mapped into this process, found by the address of their bytes."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass

_DELETED = " (deleted)"


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
        found = _mappings(address, address + nbytes)
        if _is_whole(found, address, nbytes):
            return _opened(found[0], nbytes)
    return None


def _is_whole(found: list[MappedPiece], address: int, nbytes: int) -> bool:
    """Whether they are one file without gaps, and as it is in the file."""
    place = address
    for one in found:
        same = (one.device, one.inode) == (found[0].device, found[0].inode)
        if not one.inode or not same or one.copied_bytes or one.first > place:
            return False
        if one.offset + place - one.first != place - address:
            return False
        place = one.last
    return bool(found) and place >= address + nbytes


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
    found: list[MappedPiece] = []
    head: list[str] | None = None
    with open("/proc/self/smaps", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            word = line.split(None, 1)[0]
            if not word.endswith(":"):
                head = _head(line, first, last)
                if head is None and found:
                    break
            elif head is not None and word == "Anonymous:":
                found.append(_mapping(head, int(line.split()[1]) * 1024))
    return found


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
