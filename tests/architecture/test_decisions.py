"""Decisions have one form, and their index tells the truth about them."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))
NEVER_TAKEN = {"012", "013", "014", "016", "019", "020"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem[:3])
def test_a_decision_has_context_choice_and_cost(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.match(rf"# {page.stem[:3]}: [A-Z]", text), "the heading is the number and a title"
    for part in ("Context", "Choice", "Cost"):
        assert text.count(f"\n**{part}.** ") == 1, f"one paragraph begins with **{part}.**"


def test_the_index_lists_every_decision() -> None:
    listed = re.findall(
        r"^\| (\d{3}) \| \[(.+)\]\((.+)\) \|$", (FOLDER / "index.md").read_text("utf-8"), re.MULTILINE
    )
    assert listed == [(page.stem[:3], page.read_text("utf-8").split("\n")[0][7:], page.name) for page in PAGES]


def test_gaps_between_numbers_are_explained() -> None:
    numbers = {page.stem[:3] for page in PAGES}
    assert {f"{n:03d}" for n in range(1, int(max(numbers)) + 1)} - numbers == NEVER_TAKEN
    index = (FOLDER / "index.md").read_text("utf-8")
    assert all(number in index for number in NEVER_TAKEN)
