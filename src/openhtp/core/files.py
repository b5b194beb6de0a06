"""Files that a caller named: read if regular and of bounded size, written as a whole. Descriptors have an owner.

A path may lead to a device that never ends (``/dev/zero``), a pipe that nobody writes to, or a folder. All code
that reads a path of a caller's goes through here; a test looks for code that does not.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from os import close
from pathlib import Path

from openhtp.core.errors import QnnError
from openhtp.core.units import bytes_in_words


class Descriptor:
    """Owns a descriptor from the first moment to the last, whatever interrupts come in between."""

    __slots__ = ("_held",)

    def __init__(self, make: Callable[..., int], *arguments: object) -> None:
        """``make(*arguments)`` opens it, and is a function in C."""
        self._held: list[int] = []
        # One call into C: the descriptor is in the list before an interrupt can come.
        self._held.extend(map(make, *([argument] for argument in arguments)))

    @property
    def number(self) -> int:
        """The descriptor itself; -1 when it is closed."""
        return self._held[0] if self._held else -1

    def close(self) -> None:
        """Close it. Again does nothing."""
        try:
            # One call takes it out of the list and closes it, so a second close cannot hit another's descriptor.
            deque(map(close, iter(self._held.pop, None)), maxlen=0)
        except (AttributeError, IndexError):  # it was closed before, or its making was interrupted
            return

    __del__ = close


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}
# The kernel gives at most 2 GiB at once; this much is asked for in one go.
_CHUNK = 1 << 30
_DIGESTED = 1 << 20


def read_file(
    path: str | os.PathLike[str],
    *,
    most: int,
    what: str,
    error: type[QnnError],
    offset: int = 0,
    nbytes: int | None = None,
) -> bytes:
    """All bytes of a regular file, or the ``nbytes`` from ``offset`` on (fewer if it ends before).

    Args:
        path: the file.
        most: refuse to read more than this.
        what: what the file should be, for the message: ``"an ONNX model"``.
        error: class of the refusal.
        offset: first byte to read.
        nbytes: how many to read; None for all up to the end.
    """
    with open_file(path, most=most if nbytes is None else None, what=what, error=error) as (fd, size):
        wanted = max(0, size - offset) if nbytes is None else nbytes
        if wanted > most:
            raise error(_too_large(Path(path), wanted, most, what))
        os.lseek(fd, offset, os.SEEK_SET)
        data = _read_bytes(fd, wanted)
        # The size is that of the moment of opening; files of /proc, for example, report none at all.
        if nbytes is None and os.read(fd, 1):
            raise error(
                f"{str(path)!r} holds more than the {len(data)} bytes that it says; expected {what} at rest"
            )
        return data


def digest_of(path: str | os.PathLike[str], *, what: str, error: type[QnnError]) -> str:
    """SHA-256 of a regular file of any size, in hexadecimal digits."""
    digest = hashlib.sha256()
    with open_file(path, most=None, what=what, error=error) as (fd, _):
        while part := os.read(fd, _DIGESTED):
            digest.update(part)
    return digest.hexdigest()


@contextlib.contextmanager
def open_file(
    path: str | os.PathLike[str], *, most: int | None, what: str, error: type[QnnError]
) -> Iterator[tuple[int, int]]:
    """Descriptor and size of a regular file of at most ``most`` bytes. An OSError within becomes ``error`` too."""
    file = Path(path)
    expected = f"expected a file with {what}"
    try:
        # Not blocking: opening a pipe would wait for its writer.
        opened = Descriptor(os.open, str(file), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as problem:
        raise error(f"cannot read {str(file)!r}: {problem.strerror}; {expected}") from problem
    except ValueError as problem:  # a name that no file can have
        raise error(f"cannot read {str(file)[:80]!r}: {problem}; {expected}") from problem
    try:
        about = os.fstat(opened.number)
        if not stat.S_ISREG(about.st_mode):
            kind = kind_in_words(about.st_mode)
            raise error(f"cannot read {str(file)!r}: it is {kind}; expected a regular file with {what}")
        if most is not None and about.st_size > most:
            raise error(_too_large(file, about.st_size, most, what))
        yield opened.number, about.st_size
    except OSError as problem:
        raise error(f"cannot read {str(file)!r}: {problem.strerror}; {expected}") from problem
    finally:
        opened.close()


def kind_in_words(mode: int) -> str:
    """The kind of something that is no regular file."""
    return _KINDS.get(stat.S_IFMT(mode), "no regular file")


def _read_bytes(fd: int, nbytes: int) -> bytes:
    parts: list[bytes] = []
    while nbytes and (part := os.read(fd, min(nbytes, _CHUNK))):
        parts.append(part)
        nbytes -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(path: Path, size: int, most: int, what: str) -> str:
    nbytes, limit = bytes_in_words(size), bytes_in_words(most)
    return f"{str(path)!r} has {nbytes} ({size} bytes), too many for {what}; the limit is {limit}"


# Writing: all of a file or nothing, and an error in words if it cannot be done.
#
# A process that has the old file open, as a device with a context binary, keeps it; one that opens the path sees
# the old or the new file. A terminal or a pipe is written to as it is; a pipe needs a reader.


PATIENCE_S = 5.0
# Errors of a folder that takes no new file, while an old file in it may be written to.
_NOTHING_NEW = (errno.EACCES, errno.EPERM, errno.EROFS)


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file. An OSError says in words what is wrong; an older file is then left as it was."""
    try:
        _write(Path(os.path.realpath(path)), data)
    except OSError as error:
        raise type(error)(f"cannot write {str(path)!r}: {_reason(Path(path), error)}") from error


def _write(path: Path, data: bytes) -> None:
    mode = _mode_of(path)
    if mode is not None and not stat.S_ISREG(mode):
        with open(_opened(path), "wb") as stream:
            stream.write(data)
        return
    if mode is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    part = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        try:
            opened = Descriptor(os.open, part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if mode is None or error.errno not in _NOTHING_NEW:
                raise
            path.write_bytes(data)
            return
        with contextlib.closing(opened), open(opened.number, "wb", closefd=False) as file:
            if mode is not None:
                os.fchmod(opened.number, stat.S_IMODE(mode))
            file.write(data)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def _opened(path: Path) -> int:
    """A descriptor of something that is no regular file. The reader of a pipe may be about to open it."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > until:
                raise OSError(errno.ENXIO, "nobody reads from it") from error
            time.sleep(0.01)
            continue
        os.set_blocking(fd, True)
        return fd


def _mode_of(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _reason(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and not path.parent.exists():
        return f"there is no folder {str(path.parent)!r}; make it first"
    if isinstance(error, IsADirectoryError):
        return "it is a folder; name a file in it"
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return f"{error.strerror}; choose a place where you may write"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.strerror}; make room, or choose another place"
    return error.strerror or str(error)
