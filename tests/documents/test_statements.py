"""The statements are complete: each has its fields, a verdict, a test that exists, and a note where one is due."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.running import Outcomes, report
from tests.documents.table import ROOT, Page, Statement, exists, pages

PAGES = pages()
STATEMENTS = [(page, each) for page in PAGES for each in page.statement]
# May only fall: whoever makes a statement hold lowers it.
MOST_OPEN = 0
LONGEST = 200


def faults(page: Page, statement: Statement) -> list[str]:
    """What is wrong with a statement, in words."""
    wrong = []
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", statement.id):
        wrong.append("the id is not made of lower-case words with hyphens")
    if not statement.section or not statement.says.endswith("."):
        wrong.append("a section and a sentence with a full stop are needed")
    if len(statement.says) > LONGEST:
        wrong.append(f"the sentence has {len(statement.says)} characters and may have {LONGEST}")
    if not statement.tests and statement.verdict not in ("open", "does not apply"):
        wrong.append("no test shows it")
    if not statement.note and statement.verdict not in ("same", "ours"):
        wrong.append(f"the verdict {statement.verdict!r} needs a note")
    if statement.verdict == "ours" and page.name != "ours":
        wrong.append("what is ours belongs into ours.toml")
    wrong += [f"there is no test {test}" for test in statement.tests if not exists(test)]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_every_statement_is_complete(page: Page) -> None:
    told = [f"{each.id}: {fault}" for each in page.statement for fault in faults(page, each)]
    assert not told, "\n".join(told)


def test_every_id_is_there_once() -> None:
    ids = [each.id for _, each in STATEMENTS]
    assert sorted(set(ids)) == sorted(ids), sorted({name for name in ids if ids.count(name) > 1})


def test_statements_that_do_not_hold_become_fewer() -> None:
    assert sum(each.verdict == "open" for _, each in STATEMENTS) <= MOST_OPEN


def test_the_page_is_what_its_tool_writes() -> None:
    command = [sys.executable, str(ROOT / "tools" / "gen_fidelity.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


GOOD = Statement(
    id="a-b",
    section="S",
    says="It is.",
    verdict="same",
    tests=["tests/documents/test_statements.py::test_faults_are_found"],
)
PAGE = Page(title="T", document="D", statement=[GOOD], name="page")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, ""),
        ({"id": "A b"}, "the id is not"),
        ({"says": "It is"}, "a sentence with a full stop"),
        ({"says": "x" * LONGEST + "."}, "may have"),
        ({"tests": []}, "no test shows it"),
        ({"tests": ["tests/documents/test_statements.py::test_that_was_deleted"]}, "there is no test"),
        ({"verdict": "open", "tests": []}, "needs a note"),
        ({"verdict": "open", "tests": [], "note": "Missing."}, ""),
        ({"verdict": "ours"}, "ours.toml"),
    ],
)
def test_faults_are_found(changes: dict[str, object], fault: str) -> None:
    fields = {name: getattr(GOOD, name) for name in GOOD.__struct_fields__} | changes
    told = faults(PAGE, Statement(**fields))
    assert fault in "; ".join(told)
    assert bool(told) == bool(fault)


@pytest.mark.parametrize(
    "text", ["title = 1", "[[statement]]\nid = 'a'", "title='T'\ndocument='D'\nstatement=[{id='a'}]", "]"]
)
def test_a_file_of_another_form_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.toml").write_text(text)
    with pytest.raises(ValueError, match=r"odd\.toml"):
        pages(tmp_path)


def test_counts_are_of_statements_and_of_tests() -> None:
    outcomes = Outcomes()
    for name, result in [("t.py::test_a[1]", "passed"), ("t.py::test_a[2]", "failed"), ("t.py::test_b", "passed")]:
        outcomes.note(name, result)
    both = Statement(
        id="b",
        section="S",
        says="Both.",
        verdict="modelled",
        tests=["t.py::test_a", "t.py::test_b", "t.py::test_c"],
    )
    text = report([Page(title="Two", document="D", statement=[both], name="two")], outcomes)
    assert re.search(r"Two +0 +1 +0 +0 +0 +1 +1 +1", text), text
    assert outcomes.failed == {"t.py::test_a"}
