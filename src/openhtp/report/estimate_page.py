"""An estimate as a page: chips side by side, charts of what takes most, every kernel in a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openhtp.report.page import CHARTS_AND_TABLES, filled_page, template_named


def estimate_to_html(document: dict[str, Any], title: str, notes: Sequence[str]) -> str:
    """Return the page for what ``openhtp estimate --json`` writes. ``notes`` say what the numbers hold for."""
    data = {**document, "title": title, "notes": list(notes)}
    return filled_page(template_named("estimate.html"), data, CHARTS_AND_TABLES)
