"""Profiles of runs as rows of a CSV file, in the columns of the QNN provider."""

from __future__ import annotations

import csv
import threading
import time
from pathlib import Path

from openhtp.runtime.profile import Profile, ProfileEvent

_COLUMNS = (
    "Msg Timestamp",
    "Message",
    "Time",
    "Unit of Measurement",
    "Timing Source",
    "Event Level",
    "Event Identifier",
)
_UNITS = {"us": "US", "count": "COUNT", "cycles": "CYCLES"}


class ProfileFile:
    """Appends the events of each run; rows of one run stay together."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file = Path(path).open("w", newline="", encoding="utf-8")  # noqa: SIM115 - closed by close()
        self._rows = csv.writer(self._file)
        self._rows.writerow(_COLUMNS)

    def add(self, profile: Profile, message: str) -> None:
        """Write one call's events."""
        stamp = time.time_ns() // 1000
        with self._lock:
            if not self._file.closed:
                self._write(profile.events(), stamp, message, "ROOT")
                self._file.flush()

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            self._file.close()

    def _write(self, events: tuple[ProfileEvent, ...], stamp: int, message: str, level: str) -> None:
        for event in events:
            unit = _UNITS.get(event.unit, event.unit.upper())
            self._rows.writerow([stamp, message, event.value, unit, "BACKEND", level, event.name])
            self._write(event.events, stamp, message, "SUB-EVENT")
