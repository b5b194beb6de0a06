"""The messages between a chat and the process that Genie runs in."""

from __future__ import annotations

from typing import Any

import msgspec

from openhtp.core import errors
from openhtp.core.errors import ExecutionError, QnnError
from openhtp.genie.calls import LogDepth
from openhtp.genie.dialog import Answer

# Calls that are heard while another one runs: end the query; end everything.
STOP, END = "stop", "end"


class HostOpening(msgspec.Struct, frozen=True, kw_only=True):
    """The first message: what to load, and what else is to happen in that process."""

    library: str
    config: str
    depth: LogDepth
    profiled: bool
    soc: str
    trace: str | None = None
    scenario: str | None = None


class HostCall(msgspec.Struct, frozen=True):
    """One call of a dialog's method, or ``STOP`` or ``END``."""

    method: str
    arguments: list[Any] = []
    number: int = 0


class HostWord(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the process: a piece of text, a line of a log, and at the end of a call its result or error.

    ``number`` is the call's; the opening has 0.
    """

    number: int = 0
    piece: str | None = None
    line: tuple[int, str] | None = None
    answer: Answer | None = None
    content: dict[str, Any] | None = None
    error: tuple[str, str] | None = None
    is_last: bool = False


def error_words(error: Exception) -> tuple[str, str]:
    """An error's class and message."""
    return type(error).__name__, error.message if isinstance(error, QnnError) else repr(error)


def error_from(words: tuple[str, str]) -> QnnError:
    """An error from the words of another process."""
    kind = getattr(errors, words[0], ExecutionError)
    return kind(words[1]) if isinstance(kind, type) and issubclass(kind, QnnError) else ExecutionError(words[1])
