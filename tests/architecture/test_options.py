"""No option is accepted without effect: its row says where that is seen, code reads it, and a test gives it."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from openhtp.options import TABLES, EffectPlace, Flag, Option, Table

ROOT = Path(__file__).parents[2]
_ROWS = [pytest.param(table, row, id=f"{table.owner}.{row.name}") for table in TABLES for row in table.rows]


@functools.cache
def words_of(folder: str, without: str) -> frozenset[str]:
    """All words in the Python files of a folder, but for those of a part of it."""
    paths = [path for path in (ROOT / folder).rglob("*.py") if without not in path.as_posix()]
    return frozenset(word for path in paths for word in re.findall(r"\w+", path.read_text(encoding="utf-8")))


def problem_of(table: Table, row: Option) -> str:
    """What is wrong with an option's word about its effect; empty if nothing is."""
    leads = bool(row.sets or row.same_as)
    if bool(row.seen) + bool(row.no_effect) + leads != 1:
        return "expected one of: where its effect is seen, why it has none, or the option that it leads to"
    names = {row.name, *row.aliases}
    if row.seen and not names & words_of("src/openhtp", "openhtp/options/"):
        return "no code reads it"
    if row.seen and not names & words_of("tests", "tests/options/"):
        return "no test gives it"
    return ""


@pytest.mark.parametrize(("table", "row"), _ROWS)
def test_an_option_has_an_effect_or_says_why_not(table: Table, row: Option) -> None:
    assert problem_of(table, row) == ""


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (Option(name="num_cores", kind=Flag(), about="Nothing."), "expected one of"),
        (
            Option(name="num_cores", kind=Flag(), about="Both.", seen=(EffectPlace.RESULTS,), no_effect="none"),
            "one of",
        ),
        (
            Option(name="unread" + "_option", kind=Flag(), about="Unread.", seen=(EffectPlace.ORDER,)),
            "no code reads it",
        ),
    ],
)
def test_an_option_without_effect_would_be_found(row: Option, words: str) -> None:
    assert words in problem_of(TABLES[0], row)
