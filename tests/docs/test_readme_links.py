"""What the README points to exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert "docs/index.md" in targets
    assert [target for target in targets if not (ROOT / target.partition("#")[0]).exists()] == []


def test_what_is_not_tested_is_said_before_how_to_start() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert 0 < text.index("Not tested: a real Snapdragon") < text.index("## Start")
