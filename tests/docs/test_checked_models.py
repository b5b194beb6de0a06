"""The page of models that nobody chose has the models that its tool runs, with the results that it expects."""

from __future__ import annotations

import re
from pathlib import Path

from checked_models import _WORDS, MODELS

PAGE = Path(__file__).parents[2] / "docs" / "checked-models.md"


def test_every_model_has_its_row() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| [^|]* \| ([^|]+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    verdicts = dict(rows[1:])
    assert verdicts == {name: _WORDS[model.status] for name, model in MODELS.items()}
    assert len(verdicts) >= 30
