"""Warnings that a process gives once: one line is enough, and a loop does not fill the log."""

from __future__ import annotations

import logging

told: set[tuple[str, ...]] = set()
"""The keys of the warnings that this process has given."""


def is_told(key: tuple[str, ...]) -> bool:
    """Whether something was logged under this key; it spares a caller the time to make the words."""
    return key in told


def warn_once(log: logging.Logger, key: tuple[str, ...], words: str, level: int = logging.WARNING) -> None:
    """Log a warning, or a line of another level, unless one under this key was logged before."""
    if key not in told:
        told.add(key)
        log.log(level, "%s (told once)", words)
