"""Foreign text in SVG and HTML: nothing in it is an element, and all of it is a character that XML has."""

from __future__ import annotations

import html

from openhtp.core.foreign_text import printable


def escaped(text: str) -> str:
    """The text as it may stand in an element or an attribute."""
    return html.escape(printable(text))
