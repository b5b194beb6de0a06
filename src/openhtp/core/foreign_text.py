"""Text that others chose, as it may be shown: names in models, scenarios and binaries, and of other clients.

A terminal obeys escape sequences, a line break forges a line, an override of direction turns words around, and
XML has no place for control characters at all. All of these are shown as JSON would write them (``\\u001b``), so
text that is JSON already stays what it is. Code that shows text (``cli/_terminal.py``, ``report/page.py``,
handlers of logs) calls ``printable``; nothing else has to think of it.
"""

from __future__ import annotations

import json
import logging
import unicodedata
from typing import Any

import msgspec


def printable(text: str, *, keep: str = "") -> str:
    """The text in one line of characters that are seen; those in ``keep`` stay as they are."""
    if text.isprintable():
        return text
    return "".join(letter if letter in keep or _is_seen(letter) else json.dumps(letter)[1:-1] for letter in text)


def _is_seen(letter: str) -> bool:
    # Spaces of other widths are not printable to Python; they do nothing to a terminal.
    return letter.isprintable() or unicodedata.category(letter) == "Zs"


def to_json(value: Any) -> bytes:
    """The value as JSON, whatever text is in it: a lone surrogate (of a file's odd name) becomes an escape."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()


class PrintableFormatter(logging.Formatter):
    """Log lines as they may go to a terminal. Only a traceback has line breaks."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's own name)
        """Called by ``format`` with the finished message."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802 (logging's own name)
        """Called by ``format`` if the record has an exception."""
        return printable(super().formatException(ei), keep="\n")  # type: ignore[arg-type]
