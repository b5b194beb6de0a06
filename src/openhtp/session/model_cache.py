"""A folder of compiled models that processes share: files appear whole or not at all, and one makes each."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from openhtp.core.errors import BadModel, InvalidArgument
from openhtp.core.files import digest_of
from openhtp.core.latches import Latch
from openhtp.core.version import BUILD_ID, VERSION
from openhtp.frontend.external_files import external_files

log = logging.getLogger(__name__)

# How often one who waits for the lock looks again; a closed model need not wait longer than that.
_LOOK_AGAIN_S = 0.05
_SUFFIX = "_ctx.onnx"


class CacheEntry:
    """The place of one model, for one chip and one way to compile it."""

    def __init__(self, folder: Path, source: Path, *settings: object) -> None:
        """``settings`` are whatever else decides what the compiled model is."""
        _make_folder(folder)
        key = hashlib.sha256()
        for part in (digest_of(source, what="an ONNX model", error=BadModel), VERSION, BUILD_ID, *settings):
            key.update(f"{part!r}\0".encode())
        for path in external_files(source):
            # Too large to be read each time; who changes them in place and keeps size and time is not helped.
            about = path.stat()
            key.update(f"{path.name}\0{about.st_size}\0{about.st_mtime_ns}\0".encode())
        self.path = folder / f"{source.stem}-{key.hexdigest()[:20]}{_SUFFIX}"
        self._lock = self.path.with_name(f".{self.path.name}.lock")

    def exists(self) -> bool:
        """Whether somebody has put it there."""
        return self.path.is_file()

    def store(self, data: bytes) -> None:
        """Put it there: on the disk first, then under its name. Only under the lock."""
        fresh = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        for left in self.path.parent.glob(f".{self.path.name}.*.tmp"):
            left.unlink(missing_ok=True)  # of a process that was killed: nobody else writes under the lock
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self.path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise

    def discard(self) -> None:
        """Remove what turned out not to be usable."""
        self.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self, over: Latch) -> Iterator[bool]:
        """Be the one who makes it; waits for another who does. False if it was ``over`` first.

        The system gives the lock back when its holder dies, in whatever way.
        """
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not over.is_open:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    over.wait(_LOOK_AGAIN_S)
                    continue
                yield True
                return
            yield False
        finally:
            os.close(fd)


def _make_folder(folder: Path) -> None:
    """Of this user alone: what is in it is loaded without being compiled again."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
    except OSError as error:
        raise InvalidArgument(f"cache {str(folder)!r} cannot be made: {error}; give a folder") from error
    if not stat.S_ISDIR(about.st_mode) or not os.access(folder, os.W_OK):
        raise InvalidArgument(f"cache {str(folder)!r} is no folder that can be written; give another")
    if about.st_uid != os.getuid():
        log.warning("cache %s belongs to another user, who decides what is loaded from it", folder)
