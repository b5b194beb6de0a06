"""Text that others chose, as it may be shown: names in models, scenarios and binaries, and of other clients.

A terminal obeys escape sequences, a line break forges a line, an override of direction turns words around, and
XML has no place for control characters at all. All of these are shown as JSON would write them (``\\u001b``), so
text that is JSON already stays what it is. Code that shows text (``cli/_terminal.py``, ``report/page.py``,
handlers of logs) calls ``printable``; no other code needs to.
"""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from typing import Any

import msgspec

# Characters that JSON leaves alone and a terminal obeys: the second set of controls, overrides of direction, and
# the line breaks that only Unicode has.
_OBEYED = re.compile(rb"\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]|\xe2\x81[\xa6-\xa9]")


def printable(text: str, *, keep: str = "") -> str:
    """The text in one line of characters that are seen; those in ``keep`` stay as they are."""
    if text.isprintable():
        return text
    return "".join(letter if letter in keep or _is_seen(letter) else json.dumps(letter)[1:-1] for letter in text)


def _is_seen(letter: str) -> bool:
    # Spaces of other widths are not printable to Python; they do nothing to a terminal.
    return letter.isprintable() or unicodedata.category(letter) == "Zs"


def to_json(value: Any) -> bytes:
    """The value as JSON that may be shown, whatever text is in it.

    A lone surrogate (of a file's odd name) becomes an escape, as do characters that a terminal obeys.
    """
    try:
        text = msgspec.json.encode(value)
        return text if text.isascii() else _OBEYED.sub(_escaped, text)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()


def _escaped(letter: re.Match[bytes]) -> bytes:
    return rb"\u%04x" % ord(letter[0].decode())


class PrintableFormatter(logging.Formatter):
    """Log lines as they may go to a terminal. Only a traceback has line breaks."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's own name)
        """Called by ``format`` with the finished message."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802 (logging's own name)
        """Called by ``format`` if the record has an exception."""
        return printable(super().formatException(ei), keep="\n")  # type: ignore[arg-type]
