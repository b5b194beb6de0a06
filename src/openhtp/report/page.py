"""Pages that need nothing else: a template, its data and the libraries that draw it, all in one file.

Charts are drawn by Apache ECharts (Apache-2.0), tables by Tabulator (MIT). Both lie beside the templates as they
were released and are put into the page.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openhtp.core.foreign_text import printable, to_json

_FOLDER = Path(__file__).with_name("templates")
_PLACES = {
    "echarts.min.js": "/*ECHARTS*/",
    "tabulator.min.js": "/*TABULATOR*/",
    "tabulator_simple.min.css": "/*TABULATOR_STYLE*/",
    # Ours: how pages of cards, charts and tables look, by day and by night.
    "sheet_page.css": "/*SHEET_STYLE*/",
}
CHARTS = ("echarts.min.js",)
CHARTS_AND_TABLES = tuple(_PLACES)


def filled_page(template: str, data: dict[str, Any], libraries: Sequence[str] = ()) -> str:
    """The template (its text) with data and libraries in their places."""
    # A name may contain "</script>"; JSON allows the escape, HTML never sees the bracket.
    text = to_json(data).decode().replace("<", "\\u003c")
    page = template.replace("/*DATA*/null", text, 1)
    for library in libraries:
        page = page.replace(_PLACES[library], _FOLDER.joinpath(library).read_text(encoding="utf-8"), 1)
    return page


def template_named(name: str) -> str:
    """The text of a template of this package."""
    return _FOLDER.joinpath(name).read_text(encoding="utf-8")


# An estimate as a page: chips side by side, charts of what takes most, every kernel in a table.


def estimate_to_html(document: dict[str, Any], title: str, notes: Sequence[str]) -> str:
    """Return the page for what ``openhtp estimate --json`` writes. ``notes`` say what the numbers hold for."""
    data = {**document, "title": title, "notes": list(notes)}
    return filled_page(template_named("estimate.html"), data, CHARTS_AND_TABLES)


# Foreign text in SVG and HTML: nothing in it is an element, and all of it is a character that XML has.


def escaped(text: str) -> str:
    """The text as it may stand in an element or an attribute."""
    return html.escape(printable(text))
