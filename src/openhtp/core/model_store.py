"""The store of models that were prepared before. Each is a file, named by a key of all that it depends on.

Processes share a store: files appear whole or not at all. Without room, the models that were used least recently
go. A file of a store is read as if an enemy had written it. A damaged file, or one of another user, counts as
missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from blake3 import blake3

from openhtp.core.errors import BadModel, InvalidArgument, QnnError
from openhtp.core.files import open_file, read_file
from openhtp.core.latches import Latch
from openhtp.core.units import GIB, bytes_in_words
from openhtp.core.version import BUILD_ID, VERSION

log = logging.getLogger(__name__)

VARIABLE = "OPENHTP_CACHE"
DEFAULT_LIMIT = 4 * GIB
_OFF, _ON = ("off", "0"), ("on", "1", "")
_SUFFIX = ".model"
_LIMIT = "limit"
_MAGIC = b"OHTPMDL1"
_LENGTH_BYTES = 4
_MOST_HEADER = 1 << 20
_MOST_ENTRY = 64 * GIB
_MOST_LIMIT_DIGITS = 20
# How often a process that waits for the lock looks again. A closed model waits no longer than that.
_LOOK_AGAIN_S = 0.05
# A file that was begun so long ago and never got its name belongs to a killed process. Locks are made again.
_ABANDONED_S = 24 * 3600


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands before the data. ``sizes`` has the parts in order; ``digest`` is of their sizes and bytes."""

    key: str
    kind: str
    title: str
    sizes: dict[str, int]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """The facts about one file of a store; ``used_s`` is the time of the last use, in seconds since 1970."""

    path: Path
    kind: str
    title: str
    nbytes: int
    used_s: float


class ModelStore:
    """A folder of prepared models, with a limit to their size."""

    def __init__(self, folder: Path) -> None:
        _make_folder(folder)
        self.folder = folder

    def entry(self, kind: str, title: str, *depends_on: object) -> CacheEntry:
        """The entry of a model; ``depends_on`` is all that decides its content, beside our own code."""
        digest = blake3()
        for part in (kind, code_fingerprint(), *depends_on):
            digest.update(f"{part!r}\0".encode("utf-8", "backslashreplace"))
        return CacheEntry(self, kind, title, digest.hexdigest())

    # Looking

    def models(self) -> list[StoredModel]:
        """All models, the most recently used first. A file without a readable head is listed as unknown."""
        rows = []
        for path, about in self._files():
            header = _header_of(path)
            kind, title = ("unknown", path.name) if header is None else (header.kind, header.title)
            rows.append(
                StoredModel(path=path, kind=kind, title=title, nbytes=about.st_size, used_s=about.st_mtime)
            )
        return sorted(rows, key=lambda row: -row.used_s)

    @property
    def nbytes(self) -> int:
        """The size of all models."""
        return sum(about.st_size for _, about in self._files())

    @property
    def limit(self) -> int:
        """The size that all models may have together."""
        with contextlib.suppress(QnnError, ValueError):
            text = read_file(self.folder / _LIMIT, most=_MOST_LIMIT_DIGITS, what="a limit", error=BadModel)
            return max(0, int(text))
        return DEFAULT_LIMIT

    # Changing

    def set_limit(self, nbytes: int) -> None:
        """Choose the limit; models that are over it go at once."""
        _write_whole(self.folder / _LIMIT, str(nbytes).encode())
        self.trim()

    def clear(self) -> int:
        """Remove all models; returns how many bytes they had. The limit stays."""
        freed = sum(_removed(path, about.st_size) for path, about in self._files())
        for pattern in (".*.tmp", ".*.lock"):
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)
        return freed

    def trim(self) -> None:
        """Remove the least recently used models until the rest is within the limit."""
        files = sorted(self._files(), key=lambda file: file[1].st_mtime_ns)
        over = sum(about.st_size for _, about in files) - self.limit
        for path, about in files:
            if over <= 0:
                break
            over -= _removed(path, about.st_size)
        for path in (*self.folder.glob(".*.tmp"), *self.folder.glob(".*.lock")):
            with contextlib.suppress(OSError):
                if time.time() - path.lstat().st_mtime > _ABANDONED_S:
                    path.unlink(missing_ok=True)

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        files = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                about = path.lstat()
                if stat.S_ISREG(about.st_mode) and not path.name.startswith("."):
                    files.append((path, about))
        return files


class CacheEntry:
    """The place of one prepared model in a store."""

    def __init__(self, store: ModelStore, kind: str, title: str, key: str) -> None:
        self._store = store
        self._kind, self._title, self._key = kind, title, key
        self.path = store.folder / f"{kind}-{key}{_SUFFIX}"
        self._lock = self.path.with_name(f".{self.path.name}.lock")

    def exists(self) -> bool:
        """Whether there is a file."""
        return self.path.is_file()

    def read(self) -> dict[str, bytes] | None:
        """Its parts by name; None if it is not there, damaged, or not what this user put there."""
        try:
            with open_file(self.path, most=_MOST_ENTRY, what="a prepared model", error=BadModel) as (fd, size):
                if os.fstat(fd).st_uid != os.getuid():
                    raise BadModel(f"{str(self.path)!r} belongs to another user")
                header, data = _verified(fd, size)
                if (header.key, header.kind) != (self._key, self._kind):
                    raise BadModel(f"{str(self.path)!r} holds another model")
                with contextlib.suppress(OSError):
                    os.utime(fd)  # it was used now
        except QnnError as error:
            if self.exists():
                log.info("what the cache has is not used: %s", error)
            return None
        parts, begin = {}, 0
        for name, nbytes in header.sizes.items():
            parts[name] = data[begin : begin + nbytes]
            begin += nbytes
        return parts

    def write(self, parts: Mapping[str, bytes]) -> bool:
        """Write the file: on the disk first, then under its name. The caller holds the lock.

        False if it is larger than the store may be. Others go if there is no room.
        """
        sizes = {name: len(data) for name, data in parts.items()}
        header = msgspec.json.encode(
            _Header(self._key, self._kind, self._title, sizes, _digest(sizes, parts.values()))
        )
        if len(header) + sum(sizes.values()) > self._store.limit:
            log.info(
                "%s is not kept: it has %s, more than the cache's limit of %s",
                self._title,
                bytes_in_words(sum(sizes.values())),
                bytes_in_words(self._store.limit),
            )
            return False
        for left in self.path.parent.glob(f".{self.path.name}.*.tmp"):
            left.unlink(missing_ok=True)  # of a process that was killed: nobody else writes under the lock
        length = len(header).to_bytes(_LENGTH_BYTES, "little")
        _write_whole(self.path, _MAGIC, length, header, *parts.values())
        self._store.trim()
        return True

    def offer(self, parts: Mapping[str, bytes]) -> bool:
        """Put it there unless another process is doing so; whether it was put."""
        fd = self._open_mark()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return self.write(parts)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def locked(self, over: Latch) -> Iterator[bool]:
        """Hold the lock of the process that makes the entry. False if ``over`` came before the lock.

        The system gives the lock back when its holder dies, in whatever way.
        """
        fd = self._open_mark()
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

    def _open_mark(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(self._lock, flags, 0o600)


# Which store


def user_store(tell: Callable[[str], object] = log.info) -> ModelStore | None:
    """The store of this user. None if it is off, or cannot be used: then ``tell`` gets one line.

    ``OPENHTP_CACHE`` is ``off``, or a folder to use instead of ``openhtp/models`` in the user's cache folder.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen.lower() in _OFF:
        return None
    folder = user_folder()
    try:
        store = ModelStore(folder)
        about = folder.stat()
        if about.st_uid != os.getuid():
            raise InvalidArgument(f"{str(folder)!r} belongs to another user")
        if about.st_mode & 0o077:
            folder.chmod(0o700)
    except (QnnError, OSError) as error:
        words = error.message if isinstance(error, QnnError) else str(error)
        tell(f"no cache, so everything is prepared anew each time: {words}")
        return None
    return store


def user_folder() -> Path:
    """Where the store of this user is."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen.lower() not in (*_ON, *_OFF):
        if not os.path.isabs(chosen):
            raise InvalidArgument(f"{VARIABLE} is {chosen!r}; expected off, on, or the absolute path of a folder")
        return Path(chosen)
    # As the specification of the folders says: a path that is not absolute counts as none.
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path(os.path.expanduser("~/.cache"))
    return base / "openhtp" / "models"


@functools.cache
def code_fingerprint() -> str:
    """A digest of all our code, so that nobody has to remember to raise a version."""
    digest = blake3(f"{VERSION} {BUILD_ID}".encode())
    package = Path(__file__).parents[1]
    for path in sorted(path for suffix in ("py", "toml", "so") for path in package.rglob(f"*.{suffix}")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


# Files


def _header_of(path: Path) -> _Header | None:
    try:
        with open_file(path, most=None, what="a prepared model", error=BadModel) as (fd, size):
            return _read_header(fd, size)[0]
    except QnnError:
        return None


def _verified(fd: int, size: int) -> tuple[_Header, bytes]:
    header, begin = _read_header(fd, size)
    sizes = list(header.sizes.values())
    if any(nbytes < 0 for nbytes in sizes) or begin + sum(sizes) != size:
        raise BadModel("the file of a prepared model is not as long as it says")
    pieces = []
    while piece := os.read(fd, 1 << 30):
        pieces.append(piece)
    data = b"".join(pieces)
    if len(data) != sum(sizes) or _digest(header.sizes, [data]) != header.digest:
        raise BadModel("the file of a prepared model is damaged")
    return header, data


def _read_header(fd: int, size: int) -> tuple[_Header, int]:
    begin = len(_MAGIC) + _LENGTH_BYTES
    start = os.read(fd, begin)
    length = int.from_bytes(start[len(_MAGIC) :], "little")
    if start[: len(_MAGIC)] != _MAGIC or not 0 < length <= min(_MOST_HEADER, size - begin):
        raise BadModel("this is no file of a prepared model")
    try:
        return msgspec.json.decode(os.read(fd, length), type=_Header), begin + length
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadModel(f"the head of a prepared model cannot be read: {error}") from error


def _digest(sizes: Mapping[str, int], pieces: Iterable[bytes]) -> str:
    digest = blake3(msgspec.json.encode(list(sizes.items())))
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _write_whole(path: Path, *pieces: bytes) -> None:
    """Private to this user, and under its name only when all of it is on the disk."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fresh.unlink(missing_ok=True)
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _removed(path: Path, nbytes: int) -> int:
    try:
        path.unlink()
    except OSError:
        return 0
    return nbytes


def _make_folder(folder: Path) -> None:
    """Make a folder for this user alone: what is in it is loaded without being compiled again."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
    except OSError as error:
        raise InvalidArgument(f"cache {str(folder)!r} cannot be made: {error.strerror}; give a folder") from error
    if not stat.S_ISDIR(about.st_mode) or not os.access(folder, os.W_OK):
        raise InvalidArgument(f"cache {str(folder)!r} is no folder that can be written; give another")
    if about.st_uid != os.getuid():
        log.warning("cache %s belongs to another user, who decides what is loaded from it", folder)
