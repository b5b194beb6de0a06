"""What to make of exceptions that nobody expected: words for the client, and nothing that keeps memory alive."""

from __future__ import annotations

from typing import TypeVar

from openhtp.core.errors import InternalError

_E = TypeVar("_E", bound=Exception)


def in_words(error: BaseException) -> str:
    """An exception as text, even if it cannot say what it is."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


def unexpected(what: str, error: BaseException) -> InternalError:
    """The error that a client is told when something of ours broke while working for it."""
    reason = f"{type(error).__name__}: {in_words(error)}"
    return InternalError(
        f"{what} failed unexpectedly ({reason}); this is a bug of openhtp, and the device logged it"
    )


def bare(error: _E) -> _E:
    """The same exception without the frames it came through, whose variables may be whole models."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error
