"""Where records go: into memory, or nowhere at no cost."""

from __future__ import annotations

from typing import Protocol

from openhtp.trace.records import Record


class Recorder(Protocol):
    """Takes records as they come."""

    @property
    def enabled(self) -> bool:
        """False lets callers skip the making of records."""

    def add(self, record: Record) -> None:
        """Keep one record."""


class MemoryRecorder:
    """Keeps all records in order."""

    enabled = True

    def __init__(self) -> None:
        self.records: list[Record] = []

    def add(self, record: Record) -> None:
        """Keep one record."""
        self.records.append(record)


class NullRecorder:
    """Keeps nothing."""

    enabled = False

    def add(self, record: Record) -> None:
        """Drop it."""
