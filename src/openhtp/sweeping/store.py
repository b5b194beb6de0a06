"""Finished points on disk: one SQLite file in the store's folder.

Every batch of points that comes back from a worker is one transaction, in the file when it ends (write-ahead log,
synchronous FULL): whoever is killed, what was finished is there, and what is half written is not.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import msgspec

from openhtp.core.errors import ResourceError
from openhtp.sweeping.identity import identity
from openhtp.sweeping.store_file import FILE, StoreFile, WrongStore
from openhtp.sweeping.study import BadStudy, PointResult, Study, verify_whole

__all__ = ["FILE", "Store", "StoreError", "WrongStore", "open_store"]

_FORMAT = 1
_ABOUT = ("format", "openhtp", "fingerprint", "study")
_MOST_ABOUT = 100


class StoreError(ResourceError):
    """The store cannot be written; what is in it stays."""


class Store:
    """The points of one study. Only the driver opens it to write; any number may read."""

    def __init__(self, folder: Path | None, *, create: bool = True) -> None:
        self._where = "the store in memory" if folder is None else str(folder)
        with self._reading():
            self._file = StoreFile(folder, create=create)
        self._db = self._file.database

    @property
    def where(self) -> str:
        """How messages call it."""
        return self._where

    def claim(self, study: Study) -> None:
        """Make it the store of this study; refuse if it is another's, or of another OpenHTP."""
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
                self._db.executemany("INSERT INTO about VALUES (?, ?)", ours.items())
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
        with self._transaction():  # what is wanted of the points may have changed
            self._db.execute("UPDATE about SET value = ? WHERE name = 'study'", (ours["study"],))

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
            self._db.executemany("INSERT OR IGNORE INTO points VALUES (?, ?, ?, ?, ?)", lines)

    def forget_failed(self) -> int:
        """Drop the points that failed, so that they are measured again; returns how many."""
        with self._transaction():
            return self._db.execute("DELETE FROM points WHERE measured IS NULL").rowcount

    def numbers(self) -> set[int]:
        """Numbers of all finished points."""
        with self._reading(), self._file.bounded():
            return {number for (number,) in self._db.execute("SELECT number FROM points")}

    def find(self, key: str) -> PointResult | None:
        """A finished point by its setting."""
        with self._reading(), self._file.bounded():
            found = self._db.execute(
                "SELECT number, point, measured, error FROM points WHERE key = ?", (key,)
            ).fetchone()
            return None if found is None else _row(*found)

    def rows(self) -> list[PointResult]:
        """All finished points, in the study's order."""
        with self._reading(), self._file.bounded():
            lines = self._db.execute("SELECT number, point, measured, error FROM points ORDER BY number")
            return [_row(*line) for line in lines]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _about(self) -> dict[str, str]:
        with self._reading(), self._file.bounded():
            lines = self._db.execute("SELECT name, value FROM about LIMIT ?", (_MOST_ABOUT,)).fetchall()
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
        """All or nothing, and a clear word if nothing."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(
                f"{self._where} cannot be written: {error}. What was finished before is kept; make room and run"
                " the same command again"
            ) from error
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Whatever is wrong with what is read is told in one line."""
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            words = " ".join(str(error).split())
            raise WrongStore(f"{self._where} cannot be read: {words}; give another --store") from error


def _row(number: int, point: str, measured: str | None, error: str | None) -> PointResult:
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
    """A store that is there already, to look at.

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
