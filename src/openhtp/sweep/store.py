"""Finished points on disk: one SQLite file in the store's folder.

Every batch of points that comes back from a worker is one transaction, in the file when it ends (write-ahead log,
synchronous FULL): whoever is killed, what was finished is there, and what is half written is not.
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from openhtp.core.errors import ResourceError, UsageError
from openhtp.sweep.identity import identity
from openhtp.sweep.study import BadStudy, Point, Row, Study

FILE = "sweep.sqlite"
_FORMAT = 1
_TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS points (
    number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, point TEXT NOT NULL, measured TEXT, error TEXT);
"""


class StoreError(ResourceError):
    """The store cannot be written; what is in it stays."""


class WrongStore(UsageError):
    """The store holds something else."""


class Store:
    """The points of one study. Only the driver opens it to write; any number may read."""

    def __init__(self, folder: Path | None, *, create: bool = True) -> None:
        self._where = "the store in memory" if folder is None else str(folder)
        try:
            if folder is not None and create:
                folder.mkdir(parents=True, exist_ok=True)
            elif folder is not None and not (folder / FILE).is_file():
                raise WrongStore(f"{folder} is no store of a sweep: it has no {FILE}")
            self._lock = _locked(folder) if folder is not None and create else None
            self._db = sqlite3.connect(":memory:" if folder is None else folder / FILE, isolation_level=None)
            if create:
                # Only who writes says how: changing the mode beside another does not wait, it fails.
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_TABLES)
        except sqlite3.DatabaseError as error:
            raise self._failure(error) from error

    @property
    def where(self) -> str:
        """How messages call it."""
        return self._where

    def claim(self, study: Study) -> None:
        """Make it the store of this study; refuse if it is another's, or of another OpenHTP."""
        about = self._about()
        ours = {
            "format": str(_FORMAT),
            "openhtp": identity(),
            "fingerprint": study.fingerprint,
            "study": msgspec.json.encode(study).decode(),
        }
        if not about:
            with self._transaction():
                self._db.executemany("INSERT INTO about VALUES (?, ?)", ours.items())
            return
        self._verify_format(about)
        if about["fingerprint"] != ours["fingerprint"]:
            other = self.study()
            raise WrongStore(
                f"{self._where} holds another study, {other.name!r} ({self.count():,} points): this one differs in"
                f" {_difference(other, study)}. Give another --store, or go on with the study as it was"
            )
        if about["openhtp"] != ours["openhtp"]:
            raise WrongStore(
                f"{self._where} was begun by OpenHTP {about['openhtp']}, this is {ours['openhtp']}: their results"
                " are not mixed. Go on with that one, or give another --store"
            )
        with self._transaction():  # what is wanted of the points may have changed
            self._db.execute("UPDATE about SET value = ? WHERE name = 'study'", (ours["study"],))

    def study(self) -> Study:
        """The study whose store this is."""
        about = self._about()
        if not about:
            raise WrongStore(f"{self._where} holds no study yet")
        self._verify_format(about)
        return msgspec.json.decode(about["study"], type=Study)

    def made_by(self) -> str:
        """The OpenHTP that measured its points."""
        return self._about()["openhtp"]

    def add(self, rows: Iterable[Row]) -> None:
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
            self._db.executemany("INSERT OR IGNORE INTO points VALUES (?, ?, ?, ?, ?)", lines)

    def forget_failed(self) -> int:
        """Drop the points that failed, so that they are measured again; returns how many."""
        with self._transaction():
            return self._db.execute("DELETE FROM points WHERE measured IS NULL").rowcount

    def numbers(self) -> set[int]:
        """Numbers of all finished points."""
        return {number for (number,) in self._db.execute("SELECT number FROM points")}

    def count(self) -> int:
        """How many points are finished."""
        count: int = self._db.execute("SELECT count(*) FROM points").fetchone()[0]
        return count

    def find(self, key: str) -> Row | None:
        """A finished point by its setting."""
        found = self._db.execute(
            "SELECT number, point, measured, error FROM points WHERE key = ?", (key,)
        ).fetchone()
        return None if found is None else _row(*found)

    def rows(self) -> Iterator[Row]:
        """All finished points, in the study's order."""
        for found in self._db.execute("SELECT number, point, measured, error FROM points ORDER BY number"):
            yield _row(*found)

    def close(self) -> None:
        """Close the file."""
        self._db.close()
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _about(self) -> dict[str, str]:
        return dict(self._db.execute("SELECT name, value FROM about").fetchall())

    def _verify_format(self, about: dict[str, str]) -> None:
        if about.get("format") != str(_FORMAT):
            raise WrongStore(f"{self._where} has format {about.get('format')}; this OpenHTP reads {_FORMAT}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, and a clear word if nothing."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._failure(error) from error
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _failure(self, error: sqlite3.Error) -> StoreError | WrongStore:
        if isinstance(error, sqlite3.OperationalError):
            return StoreError(
                f"{self._where} cannot be written: {error}. What was finished before is kept; make room and run"
                " the same command again"
            )
        return WrongStore(f"{self._where} cannot be read: {error}")


def _locked(folder: Path) -> IO[bytes]:
    """The mark of the one driver that writes; it goes with the process, however that ends."""
    lock = (folder / "lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise WrongStore(f"another sweep is writing to {folder}; wait for it, or give another --store") from error
    return lock


def _row(number: int, point: str, measured: str | None, error: str | None) -> Row:
    values = msgspec.json.decode(measured) if measured is not None else None
    return Row(Point(number, msgspec.json.decode(point)), values, error)


def _difference(other: Study, study: Study) -> str:
    """The parts in which two studies differ."""
    parts = [
        name
        for name in ("measure", "axes", "search", "objectives", "constraints", "files")
        if getattr(other, name) != getattr(study, name)
    ]
    return ", ".join(parts)


def open_store(folder: Path) -> Store:
    """A store that is there already, to look at.

    Raises:
        WrongStore: the folder holds none.
        BadStudy: the study in it cannot be read.
    """
    store = Store(folder, create=False)
    try:
        store.study()
    except msgspec.MsgspecError as error:
        raise BadStudy(f"{folder}: the study in it cannot be read: {error}") from error
    return store
