"""Every status is explained, and those that are raised say what to do."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from openhtp.core.status import ALL

TOOL = Path(__file__).parents[2] / "tools" / "gen_errors_doc.py"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    location = importlib.util.spec_from_file_location("gen_errors_doc", TOOL)
    assert location is not None
    assert location.loader is not None
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    return module


def test_every_status_has_words_and_no_word_is_about_another(generator: ModuleType) -> None:
    assert set(generator.explanations()) == set(ALL)
    for name, words in generator.explanations().items():
        assert all(text == "" or text.endswith(".") for text in words), name
        assert bool(words.cause) == bool(words.remedy), name


def test_those_that_are_raised_have_a_cause_and_the_others_none(generator: ModuleType) -> None:
    assert set(generator.uses()) == {name for name, words in generator.explanations().items() if words.cause}


def test_the_page_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
