"""Findings that are not errors: what a check or the compiler wants to say about a place."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.Enum):
    """How much a finding matters."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding: how bad, where, and what in words."""

    severity: Severity
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.severity.value}: {self.where}: {self.message}"
