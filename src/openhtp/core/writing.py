"""Writing files that a caller named: all of it or nothing, and in words if it cannot be done.

A process that has the old file open, as a device with a context binary, keeps it; one that opens the path sees the
old or the new file. A terminal or a pipe is written to as it is; a pipe needs a reader.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from pathlib import Path

from openhtp.core.files import Descriptor

_PATIENCE_S = 5.0
# Why there can be no new file in a folder where an old one may well be written to.
_NOTHING_NEW = (errno.EACCES, errno.EPERM, errno.EROFS)


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file. An OSError says in words what is wrong; what was there before is then left as it was."""
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
    until = time.monotonic() + _PATIENCE_S
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
