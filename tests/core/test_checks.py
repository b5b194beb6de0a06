"""Values as messages show them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import openhtp
from openhtp.core.checks import shown, type_in_words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1, "an int"),
        ("x", "a str"),
        (None, "a NoneType"),
        (object(), "an object"),
        (np.zeros(2), "an ndarray"),
        (np.int64(1), "an int64"),
        (np.uint8(1), "a uint8"),
    ],
)
def test_types_have_their_article(value: object, words: str) -> None:
    assert type_in_words(value) == words


def test_what_has_no_representation_is_shown_by_its_type() -> None:
    assert shown(10**5000) == "an int"
    assert shown("x" * 300) == f"'{'x' * 199}... (str)"


def test_no_message_puts_its_own_article_before_a_type() -> None:
    """``a {type(x).__name__}`` says "a object"."""
    folder = Path(openhtp.__path__[0])
    bare = re.compile(r"\ban? \{type\(\w+\)\.__name__\}")
    assert [str(path) for path in folder.rglob("*.py") if bare.search(path.read_text(encoding="utf-8"))] == []
