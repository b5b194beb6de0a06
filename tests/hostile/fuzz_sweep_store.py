"""Damaged stores of sweeps: bytes, pages, cells and words in them; an error of the tree each, or good points."""

from __future__ import annotations

import random
import shutil
import sqlite3
import tempfile
from pathlib import Path

import openhtp
from openhtp.cli.sweep import print_result
from openhtp.sweeping import load_results
from openhtp.sweeping.results import result_to_html
from openhtp.sweeping.store import FILE
from tests.hostile.leaks import Holdings
from tests.hostile.tally import Budget, Watch

SHORT = 400
"""Rounds of the short form."""

_STUDY = {
    "measure": "estimate",
    "axes": {"model": "zoo:tiny_mlp", "soc": ["SM8550", "SM8650"], "vtcm_mb": {"from": 1, "to": 8}},
    "constraints": ["latency_us <= 1e9"],
}
_CELLS = (
    None,
    b"",
    b"\xff" * 9,
    "",
    "{}",
    "[]",
    "null",
    "{",
    "[" * 5000,
    "1e999",
    0,
    -1,
    2**62,
    1.5,
    "\x1b[2J[/]",
)
_TEXTS = (
    ("SM8550", "[/]\\u001b[2J"),
    ('"', "'"),
    ("1", "1" + "0" * 400),
    ("1", "1e400"),
    ("<=", "?"),
    ("latency_us", "latency_uz"),
    ("vtcm_mb", "soc"),
    ("null", "{}"),
    (":", ":["),
)


def attack(rng: random.Random, budget: Budget, watch: Watch) -> None:
    """One damaged folder after the other is looked at, printed and gone on with."""
    with tempfile.TemporaryDirectory(prefix="hostile-store") as place:
        good = Path(place, "good")
        openhtp.sweep(_STUDY, store=good, workers=1)
        holdings = Holdings()
        while budget:
            folder = Path(shutil.copytree(good, Path(place, "damaged")))
            damage = rng.choice((_flip, _flip, _page, _cut, _cell, _cell, _text))
            seed = rng.randrange(1 << 40)
            damage(folder / FILE, random.Random(seed))
            title = f"{damage.__name__}({seed})"
            with watch.call(f"load_results({title})"):
                found = load_results(folder)
                print_result(found, 3)
                result_to_html(found)
                found.to_json()
            with watch.call(f"sweep(store={title})"):
                openhtp.sweep(_STUDY, store=folder, workers=1)
            shutil.rmtree(folder)
        holdings.check(watch)


def _flip(path: Path, rng: random.Random) -> None:
    """A few bytes anywhere, or in the first page, where the database is described."""
    data = bytearray(path.read_bytes())
    end = len(data) if rng.random() < 0.6 else min(len(data), 4096)
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        data[rng.randrange(end)] = rng.randrange(256)
    path.write_bytes(data)


def _page(path: Path, rng: random.Random) -> None:
    """One page in the place of another, so that pages lead in circles or are met twice."""
    data = bytearray(path.read_bytes())
    pages = len(data) // 4096
    source, target = rng.randrange(pages), rng.randrange(pages)
    data[target * 4096 : target * 4096 + 4096] = data[source * 4096 : source * 4096 + 4096]
    path.write_bytes(data)


def _cut(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])
    if rng.random() < 0.3:
        Path(f"{path}-wal").write_bytes(rng.randbytes(rng.randrange(10_000)))


def _cell(path: Path, rng: random.Random) -> None:
    """Any value in any column."""
    column, where = _place(rng)
    _run(path, f"UPDATE OR IGNORE {where[0]} SET {column} = ? WHERE {where[1]}", rng.choice(_CELLS))


def _text(path: Path, rng: random.Random) -> None:
    """Other words in what is JSON."""
    column, where = _place(rng)
    statement = f"UPDATE OR IGNORE {where[0]} SET {column} = replace({column}, ?, ?) WHERE {where[1]}"
    _run(path, statement, *rng.choice(_TEXTS))


def _place(rng: random.Random) -> tuple[str, tuple[str, str]]:
    """A column, its table, and which of its rows."""
    if rng.random() < 0.4:
        return "value", ("about", f"name = '{rng.choice(('format', 'openhtp', 'fingerprint', 'study', 'study'))}'")
    return rng.choice(("point", "measured", "error")), ("points", f"number % 3 <> {rng.randrange(4)}")


def _run(path: Path, statement: str, *values: object) -> None:
    database = sqlite3.connect(path)
    try:
        database.execute(statement, values)
        database.commit()
    finally:
        database.close()
