"""A store's folder that somebody else has filled: one line of error, in little time, and nothing changed by it."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import openhtp
from openhtp.sweeping import WrongStore, load_results, load_study
from openhtp.sweeping.store import FILE, Store
from tests.sweeping.studies import estimates
from tests.waiting import PATIENCE_S

COMMAND = Path(sys.executable).parent / "openhtp"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with all its points."""
    folder = tmp_path_factory.mktemp("good")
    openhtp.sweep(estimates(), store=folder / "store", workers=1)
    return folder / "store"


@pytest.fixture
def store(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "store"))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and not path.is_symlink()}


def refused(folder: Path) -> list[str]:
    """What looking at a store, and going on with it, are answered; both must be refused."""
    messages = []
    for attempt in (lambda: load_results(folder), lambda: openhtp.sweep(estimates(), store=folder, workers=1)):
        with pytest.raises(openhtp.QnnError) as caught:
            attempt()
        messages.append(str(caught.value))
        assert not isinstance(caught.value, openhtp.InternalError)
        assert "\n" not in messages[-1]
        assert str(folder) in messages[-1]
    return messages


def as_link(path: Path) -> Iterator[None]:
    other = path.parent.parent / f"other-{path.name}"
    if path.exists():
        path.rename(other)
    else:
        other.write_bytes(b"precious")
    path.symlink_to(other)
    before = other.read_bytes()
    yield
    assert other.read_bytes() == before


def as_pipe(path: Path) -> Iterator[None]:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    yield


def as_folder(path: Path) -> Iterator[None]:
    path.unlink(missing_ok=True)
    path.mkdir()
    yield


def as_socket(path: Path) -> Iterator[None]:
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
    yield


@pytest.mark.parametrize("what", [as_link, as_pipe, as_folder, as_socket])
@pytest.mark.parametrize("name", [FILE, f"{FILE}-wal", f"{FILE}-shm", f"{FILE}-journal"])
def test_what_is_no_regular_file_is_not_opened(
    store: Path, name: str, what: Callable[[Path], Iterator[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store.parent)
    for _ in what(Path("store") / name):
        refused(Path("store"))


@pytest.mark.parametrize("what", [as_link, as_pipe, as_folder, as_socket])
def test_a_lock_that_is_something_else(
    store: Path, what: Callable[[Path], Iterator[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store.parent)
    for _ in what(Path("store/lock")):
        with pytest.raises(WrongStore, match="regular"):
            openhtp.sweep(estimates(), store="store", workers=1)
        assert len(load_results("store").rows) == 27, "who only looks needs no lock"


def test_a_lock_is_never_cut(store: Path) -> None:
    (store / "lock").write_bytes(b"whose is this?")
    openhtp.sweep(estimates(), store=store, workers=1)
    assert (store / "lock").read_bytes() == b"whose is this?"


SCHEMAS = {
    "an endless view": f"DROP TABLE points; CREATE VIEW points AS {ENDLESS} i AS number, '' AS key,"
    " '{}' AS point, NULL AS measured, NULL AS error FROM n;",
    "an endless about": f"DROP TABLE about; CREATE VIEW about AS {ENDLESS} i AS name, i AS value FROM n;",
    "a trigger": "CREATE TRIGGER t AFTER UPDATE ON about BEGIN DELETE FROM points; END;",
    "another table": "CREATE TABLE more (x);",
    "no points": "DROP TABLE points;",
    "a computed column": "DROP TABLE points; CREATE TABLE points (number INTEGER PRIMARY KEY, key TEXT,"
    " point TEXT, measured TEXT GENERATED ALWAYS AS (zeroblob(1000000000)), error TEXT);",
    "other columns": "DROP TABLE points; CREATE TABLE points (number);",
    "an index": "CREATE INDEX i ON points (point);",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_database_with_more_than_our_tables(store: Path, name: str) -> None:
    alter(store, SCHEMAS[name])
    before = content(store)
    for message in refused(store):
        assert "no store of a sweep" in message
    assert content(store) == before


def alter(store: Path, script: str, *values: object) -> None:
    database = sqlite3.connect(store / FILE)
    if values:
        database.execute(script, values)
    else:
        database.executescript(script)
    database.commit()
    database.execute("PRAGMA journal_mode=DELETE")
    database.close()


ROWS = {
    "no openhtp": ("DELETE FROM about WHERE name = ?", "openhtp"),
    "no fingerprint": ("DELETE FROM about WHERE name = ?", "fingerprint"),
    "no study": ("DELETE FROM about WHERE name = ?", "study"),
    "no format": ("DELETE FROM about WHERE name = ?", "format"),
    "a format that is no text": ("UPDATE about SET value = ? WHERE name = 'format'", b"\xff"),
    "a study that is no study": ("UPDATE about SET value = ? WHERE name = 'study'", "[]"),
    "a study too deep": ("UPDATE about SET value = ? WHERE name = 'study'", "[" * 100_000),
    "a study that is no text": ("UPDATE about SET value = ? WHERE name = 'study'", b"\xff\xfe"),
}
POINTS = {
    "a point that is no JSON": ("UPDATE points SET point = ?", "{"),
    "a point that is a list": ("UPDATE points SET point = ?", "[]"),
    "a point without axes": ("UPDATE points SET point = ?", "{}"),
    "a point of bytes": ("UPDATE points SET point = ?", b"\xff"),
    "values that are lists": ("UPDATE points SET point = replace(point, '\"SM8450\"', ?)", "[1]"),
    "a number too large": ("UPDATE points SET measured = ?", '{"latency_us": 1' + "0" * 400 + "}"),
    "a number of 5000 digits": ("UPDATE points SET measured = ?", '{"latency_us": ' + "7" * 5000 + "}"),
    "nothing measured": ("UPDATE points SET measured = ?", "{}"),
    "words measured": ("UPDATE points SET measured = ?", '{"latency_us": "x", "energy_class": 1}'),
    "measured bytes": ("UPDATE points SET measured = ?", b"\x00\xff"),
    "an error of bytes": ("UPDATE points SET error = ?", b"\x00\xff"),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_a_store_says_of_itself(store: Path, name: str) -> None:
    alter(store, *ROWS[name])
    if "study" in name and "text" not in name and name != "no study":
        with pytest.raises(openhtp.QnnError, match="the study in it cannot be read"):
            load_results(store)
        # Who has the study goes on: what it is for is told by its fingerprint, and written anew.
        assert len(openhtp.sweep(estimates(), store=store, workers=1).rows) == 27
    else:
        refused(store)


@pytest.mark.parametrize("name", POINTS)
def test_points_that_are_none(store: Path, name: str) -> None:
    alter(store, *POINTS[name])
    refused(store)


def test_a_relation_that_is_none(store: Path) -> None:
    study = load_study(estimates(constraints=["latency_us <= 1e9"]))
    with Store(store) as kept:
        kept.claim(study)
    alter(store, "UPDATE about SET value = replace(value, '\"<=\"', ?) WHERE name = 'study'", '"import"')
    with pytest.raises(openhtp.QnnError, match="expected one of <="):
        load_results(store)


def test_a_command_says_it_in_one_line(store: Path) -> None:
    alter(store, SCHEMAS["an endless view"])
    done = subprocess.run(
        [COMMAND, "sweep", "show", store], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1, done.stderr
