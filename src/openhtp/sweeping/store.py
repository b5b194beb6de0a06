"""Finished points on disk: one SQLite file in the store's folder, which may be damaged or hostile.

Every batch of points that comes back from a worker is one transaction, in the file when it ends (write-ahead log,
synchronous FULL). Whichever process is killed, finished points are there, and half-written ones are not.

A database may hold more than tables: views and triggers that compute forever, pages that lead in circles, links to
files of others. So the folder must hold a regular file, the database must hold our two tables and nothing else in
pages that SQLite finds whole, and a query ends after as much work as its bytes can be worth.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path

import msgspec

from openhtp.core.errors import ResourceError, UsageError
from openhtp.core.files import Descriptor, kind_in_words
from openhtp.core.units import MIB
from openhtp.sweeping.engine import Closeable, identity
from openhtp.sweeping.study import BadStudy, PointResult, Study, verify_whole

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
    """The database of a store, and the mark of its writer. ``folder`` None keeps it in memory."""

    def __init__(self, folder: Path | None, *, create: bool) -> None:
        self._lock: Descriptor | None = None
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
        """The connection for queries and writing."""
        assert self._connection is not None
        return self._connection

    def close(self) -> None:
        """Close the file, and let others write."""
        if self._connection is not None:
            self._connection.close()
        if self._lock is not None:
            self._lock.close()

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
            # Only the writer sets the mode: changing it beside another process does not wait, it fails.
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
    """Check that the store is ours and whole, or empty."""
    theirs, ours = _schema_of(database), _own_schema()
    if theirs and theirs != ours:
        strange = ", ".join(sorted(f"the {kind} {name!r}" for kind, name, _ in theirs - ours)[:3])
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
    """The tables that a store of ours holds."""
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


def _locked(folder: Path) -> Descriptor:
    """The mark of the one driver that writes; it goes with the process, however that ends."""
    path = folder / LOCK
    _size_of(path)
    # No link is followed, nothing is waited for or cut: the file may have become something else since.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        lock = Descriptor(os.open, path, flags, 0o666)
    except OSError as error:
        raise WrongStore(f"{path} cannot be written: {error.strerror}; give another --store") from error
    try:
        _require_regular(path, os.fstat(lock.number).st_mode)
        fcntl.flock(lock.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise WrongStore(f"another sweep is writing to {folder}; wait for it, or give another --store") from error
    except BaseException:
        lock.close()
        raise
    return lock


__all__ = ["FILE", "Store", "StoreError", "WrongStore", "open_store"]

_FORMAT = 1
_ABOUT = ("format", "openhtp", "fingerprint", "study")
_MOST_ABOUT = 100


class StoreError(ResourceError):
    """The store cannot be written; what is in it stays."""


class Store(Closeable):
    """The points of one study. Only the driver opens it to write; any number may read."""

    def __init__(self, folder: Path | None, *, create: bool = True) -> None:
        self._where = "the store in memory" if folder is None else str(folder)
        with self._reading():
            self._file = StoreFile(folder, create=create)
        self.database = self._file.database

    @property
    def where(self) -> str:
        """The store's name in messages."""
        return self._where

    def claim(self, study: Study) -> None:
        """Make this the store of a study; refuse if it belongs to another study, or to another OpenHTP."""
        about = self._about()
        try:
            text = msgspec.json.encode(study).decode()
            ours = {"format": str(_FORMAT), "openhtp": identity(), "fingerprint": study.fingerprint, "study": text}
        except UnicodeEncodeError as error:
            raise BadStudy(
                f"{error.object!r} is no text that can be stored; rename the file or the study"
            ) from error
        if not about:
            with self._transaction():
                self.database.executemany("INSERT INTO about VALUES (?, ?)", ours.items())
            return
        self._verify_format(about)
        if about["fingerprint"] != ours["fingerprint"]:
            other = self.study()
            count = len(self.numbers())
            raise WrongStore(
                f"{self._where} holds another study, {other.name!r} ({count:,} points): this one differs in"
                f" {_difference(other, study)}. Give another --store, or go on with the study as it was"
            )
        if about["openhtp"] != ours["openhtp"]:
            raise WrongStore(
                f"{self._where} was begun by OpenHTP {about['openhtp']}, this is {ours['openhtp']}: their results"
                " are not mixed. Go on with that one, or give another --store"
            )
        with self._transaction():  # objectives may have changed
            self.database.execute("UPDATE about SET value = ? WHERE name = 'study'", (ours["study"],))

    def study(self) -> Study:
        """The study whose store this is."""
        about = self._about()
        if not about:
            raise WrongStore(f"{self._where} holds no study yet")
        self._verify_format(about)
        try:
            study = msgspec.json.decode(about["study"], type=Study)
            verify_whole(study)
        except (BadStudy, msgspec.MsgspecError, RecursionError) as error:
            words = error.message if isinstance(error, BadStudy) else error
            raise BadStudy(f"{self._where}: the study in it cannot be read: {words}") from error
        return study

    def made_by(self) -> str:
        """The OpenHTP that measured its points."""
        return self._about()["openhtp"]

    def add(self, rows: Iterable[PointResult]) -> None:
        """Keep finished points; when this returns, they are on disk."""
        encode = msgspec.json.encode
        lines = [
            (
                row.point.number,
                row.point.key,
                encode(row.point.values).decode(),
                None if row.measured is None else encode(row.measured).decode(),
                row.error,
            )
            for row in rows
        ]
        with self._transaction():
            self.database.executemany("INSERT OR IGNORE INTO points VALUES (?, ?, ?, ?, ?)", lines)

    def forget_failed(self) -> int:
        """Drop the points that failed, so that they are measured again; returns how many."""
        with self._transaction():
            return self.database.execute("DELETE FROM points WHERE measured IS NULL").rowcount

    def numbers(self) -> set[int]:
        """Numbers of all finished points."""
        with self._reading(), self._file.bounded():
            return {number for (number,) in self.database.execute("SELECT number FROM points")}

    def find(self, key: str) -> PointResult | None:
        """A finished point by its setting."""
        with self._reading(), self._file.bounded():
            row = self.database.execute(
                "SELECT number, point, measured, error FROM points WHERE key = ?", (key,)
            ).fetchone()
            return None if row is None else _stored_result(*row)

    def rows(self) -> list[PointResult]:
        """All finished points, in the study's order."""
        with self._reading(), self._file.bounded():
            lines = self.database.execute("SELECT number, point, measured, error FROM points ORDER BY number")
            return [_stored_result(*line) for line in lines]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _about(self) -> dict[str, str]:
        with self._reading(), self._file.bounded():
            lines = self.database.execute("SELECT name, value FROM about LIMIT ?", (_MOST_ABOUT,)).fetchall()
        about = dict(lines)
        missing = [name for name in _ABOUT if not isinstance(about.get(name), str)] if about else []
        if missing:
            raise WrongStore(f"{self._where} is damaged: it does not say its {' and '.join(missing)}")
        return about

    def _verify_format(self, about: dict[str, str]) -> None:
        if about.get("format") != str(_FORMAT):
            raise WrongStore(f"{self._where} has format {about.get('format')}; this OpenHTP reads {_FORMAT}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Write all or nothing; if nothing, say so clearly."""
        try:
            self.database.execute("BEGIN IMMEDIATE")
            yield
            self.database.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(
                f"{self._where} cannot be written: {error}. What was finished before is kept; make room and run"
                " the same command again"
            ) from error
        finally:
            if self.database.in_transaction:
                self.database.execute("ROLLBACK")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Any problem with the file becomes an error of one line."""
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            words = " ".join(str(error).split())
            raise WrongStore(f"{self._where} cannot be read: {words}; give another --store") from error


def _stored_result(number: int, point: str, measured: str | None, error: str | None) -> PointResult:
    """A point from its columns, which may hold anything."""
    values = None if measured is None else msgspec.json.decode(measured)
    return msgspec.convert([[number, msgspec.json.decode(point)], values, error], PointResult)


def _difference(other: Study, study: Study) -> str:
    """The parts in which two studies differ."""
    parts = [
        name
        for name in ("measure", "axes", "search", "objectives", "constraints", "files")
        if getattr(other, name) != getattr(study, name)
    ]
    return ", ".join(parts)


def open_store(folder: Path) -> Store:
    """Open an existing store, to look at.

    Raises:
        WrongStore: the folder holds none.
        BadStudy: the study in it cannot be read.
    """
    store = Store(folder, create=False)
    try:
        store.study()
    except BaseException:
        store.close()
        raise
    return store
