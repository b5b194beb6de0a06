"""A store's files, opened as if somebody else had put them there: nothing but ours is read, and nothing runs.

A database may hold more than tables: views and triggers that compute forever, pages that lead in circles, links to
files of others. So what lies in the folder must be a regular file; the database must hold our two tables and
nothing else, in pages that SQLite finds whole; and a query ends after so much work as its bytes can be worth.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

from openhtp.core.errors import UsageError
from openhtp.core.files import kind_in_words
from openhtp.core.units import MIB

FILE = "sweep.sqlite"
LOCK = "lock"
_BESIDE = ("", "-wal", "-shm", "-journal")
_TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS points (
    number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, point TEXT NOT NULL, measured TEXT, error TEXT);
"""
_MOST_TEXT = 64 * MIB
_MOST_OBJECTS = 100
_LOOK_EVERY = 100_000
"""Instructions of SQLite's between two looks at how many there were."""
_LEAST_WORK = 50_000_000
_WORK_OF_A_BYTE = 4
"""Instructions: reading and checking points of the usual size takes about one for each ten bytes."""


class WrongStore(UsageError):
    """The store holds something else, or is damaged."""


class StoreFile:
    """The database of a store, and the mark of the one who writes to it. ``folder`` None keeps it in memory."""

    def __init__(self, folder: Path | None, *, create: bool) -> None:
        self._lock: int | None = None
        self._connection: sqlite3.Connection | None = None
        self._size = 0
        try:
            if folder is None:
                self._connection = sqlite3.connect(":memory:", isolation_level=None)
                self._connection.executescript(_TABLES)
            else:
                self._open(folder, create)
        except BaseException:
            self.close()
            raise

    @property
    def database(self) -> sqlite3.Connection:
        """What is asked and written."""
        assert self._connection is not None
        return self._connection

    def close(self) -> None:
        """Close the file, and let others write."""
        if self._connection is not None:
            self._connection.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self, folder: Path, create: bool) -> None:
        if create:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise WrongStore(f"{folder} cannot be a store: {error.strerror}; give another --store") from error
        elif not os.path.lexists(folder / FILE):
            raise WrongStore(f"{folder} is no store of a sweep: it has no {FILE}")
        self._size = sum(_size_of(folder / f"{FILE}{ending}") for ending in _BESIDE)
        if create:
            self._lock = _locked(folder)
        self._connection = sqlite3.connect(folder / FILE, isolation_level=None)
        database = self._connection
        database.execute("PRAGMA trusted_schema=off")
        database.execute("PRAGMA cell_size_check=on")
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_TEXT)
        with self.bounded():
            _verify(database, folder / FILE)
        if create:
            # Only who writes says how: changing the mode beside another does not wait, it fails.
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=FULL")
            database.executescript(_TABLES)
        else:
            database.execute("PRAGMA query_only=on")

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Within it, queries are interrupted after as much work as the file's bytes can be worth."""
        looks = itertools.count()
        most = (_LEAST_WORK + _WORK_OF_A_BYTE * self._size) // _LOOK_EVERY
        self.database.set_progress_handler(lambda: next(looks) > most, _LOOK_EVERY)
        try:
            yield
        finally:
            self.database.set_progress_handler(None, 0)


def _verify(database: sqlite3.Connection, path: Path) -> None:
    """That it is ours, and whole; or that there is nothing in it yet."""
    found, ours = _schema_of(database), _own_schema()
    if found and found != ours:
        strange = ", ".join(sorted(f"the {kind} {name!r}" for kind, name, _ in found - ours)[:3])
        raise WrongStore(
            f"{path} is no store of a sweep: it holds {strange or 'a part of one'}; give another --store"
        )
    verdict = database.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != ("ok",):
        words = "nothing can be read" if verdict is None else " ".join(str(verdict[0]).split())
        raise WrongStore(f"{path} is damaged: {words[:200]}; give another --store, or a copy of this one")


def _schema_of(database: sqlite3.Connection) -> frozenset[tuple[str, str, str | None]]:
    rows = database.execute("SELECT type, name, sql FROM sqlite_schema LIMIT ?", (_MOST_OBJECTS,))
    return frozenset(rows.fetchall())


@cache
def _own_schema() -> frozenset[tuple[str, str, str | None]]:
    """What a store of ours holds."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(_TABLES)
        return _schema_of(database)


def _size_of(path: Path) -> int:
    """The size of a regular file, links not followed; 0 if there is none."""
    try:
        about = path.lstat()
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise WrongStore(f"{path} cannot be read: {error.strerror}; give another --store") from error
    _require_regular(path, about.st_mode)
    return about.st_size


def _require_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = kind_in_words(mode)
        raise WrongStore(f"{path} is {kind}; a store has regular files only, so give another --store")


def _locked(folder: Path) -> int:
    """The mark of the one driver that writes; it goes with the process, however that ends."""
    path = folder / LOCK
    _size_of(path)
    # Neither followed, nor waited for, nor cut: it may have become something else since.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        lock = os.open(path, flags, 0o666)
    except OSError as error:
        raise WrongStore(f"{path} cannot be written: {error.strerror}; give another --store") from error
    try:
        _require_regular(path, os.fstat(lock).st_mode)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise WrongStore(f"another sweep is writing to {folder}; wait for it, or give another --store") from error
    except BaseException:
        os.close(lock)
        raise
    return lock
