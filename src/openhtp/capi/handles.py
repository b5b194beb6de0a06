"""Handles: the numbers that clients hold, and the entries behind them. A number is never given twice."""

from __future__ import annotations

import itertools
from typing import Any, TypeVar

from openhtp.abi import memory
from openhtp.capi.entries import bad_handle, null
from openhtp.core.status import Status

_T = TypeVar("_T", bound="HandleEntry")
# A handle looks like an address and is none, so that a client that follows it fails at once.
_numbers = itertools.count(0x0C70_0000_0010, 0x10)
_entries: dict[int, HandleEntry] = {}


class HandleEntry:
    """The entry behind a handle. Handles that belong to it end with it."""

    word: str
    invalid: Status

    def __init__(self, parent: HandleEntry | None = None) -> None:
        self.handle = 0
        self.parent = parent
        self.children: dict[int, HandleEntry] = {}
        # C structures and texts that the client was shown: they live as long as this.
        self.keep: list[Any] = []

    def memory_changed(self) -> None:
        """Forget addresses in registered memory that was given back."""


def add(entry: HandleEntry) -> int:
    """Give it a handle."""
    entry.handle = next(_numbers)
    _entries[entry.handle] = entry
    if entry.parent is not None:
        entry.parent.children[entry.handle] = entry
    return entry.handle


def find(kind: type[_T], handle: int, invalid: Status | None = None) -> _T:
    """The entry behind a handle, which must be of this kind; ``invalid`` is the code if it is not."""
    entry = _entries.get(handle)
    if type(entry) is not kind:
        raise bad_handle(kind.word, invalid or kind.invalid, handle)
    return entry


def find_or_none(kind: type[_T], handle: int) -> _T | None:
    """The entry behind a handle; None for NULL."""
    return find(kind, handle) if handle else None


def remove(entry: HandleEntry) -> None:
    """Forget an entry and everything that belongs to it."""
    for child in list(entry.children.values()):
        remove(child)
    _entries.pop(entry.handle, None)
    if entry.parent is not None:
        entry.parent.children.pop(entry.handle, None)


def of_kind(kind: type[_T]) -> list[_T]:
    """All entries of a kind."""
    return [entry for entry in list(_entries.values()) if type(entry) is kind]


def require_place(address: int, what: str, size: int = 8) -> None:
    """The address where a result goes must be writable before anything is done."""
    if not address:
        raise null(what)
    memory.check_writable(address, size, what)


def give(address: int, entry: HandleEntry) -> None:
    """Make a handle and put it where the client wants it."""
    memory.write_number(address, add(entry))
