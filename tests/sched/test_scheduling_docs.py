from __future__ import annotations

from pathlib import Path

from openhtp.core.enumerations import Priority
from openhtp.sched.jobs import LEGAL, JobState

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "scheduling.md").read_text(encoding="utf-8")


def test_the_documented_states_are_those_of_the_table():
    rows = [
        f"{state.name:<8} -> {', '.join(following.name for following in sorted(LEGAL[state])) or '(end)'}"
        for state in JobState
    ]
    assert "\n".join(rows) in PAGE


def test_the_documented_priorities_are_those_of_the_code():
    for level in Priority:
        assert f"0x{level.thread_priority:X}" in PAGE


def test_pictures_exist():
    for name in ("timeline.png", "timeline-two-pds.png"):
        assert f"images/{name}" in PAGE
        assert (DOCS / "images" / name).stat().st_size > 10_000
