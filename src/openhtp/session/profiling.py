"""Profiles of runs as rows of a CSV file, in the columns of the QNN provider; beside it a log for the viewer."""

from __future__ import annotations

import csv
import threading
import time
from pathlib import Path

from openhtp.report.profile_rows import COLUMNS, csv_rows
from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.profile_log import ProfileLog

# Runs that the log holds, from the first on: it is kept in memory until the session ends.
_MOST_LOGGED = 1000


class ProfileFile:
    """Appends the events of each run; rows of one run stay together. ``<name>_qnn.log`` is written at the end."""

    def __init__(self, path: str) -> None:
        self.path = path
        place = Path(path)
        self._lock = threading.Lock()
        self._file = place.open("w", newline="", encoding="utf-8")
        self._rows = csv.writer(self._file)
        self._rows.writerow(COLUMNS)
        self._log = ProfileLog(place.with_name(f"{place.stem}_qnn.log"), app="OnnxRuntime")
        self._logged = 0

    def add(self, profile: Profile) -> None:
        """Write one call's events."""
        stamp = time.time_ns() // 1000
        with self._lock:
            if self._file.closed:
                return
            self._rows.writerows(csv_rows(profile.events(), stamp))
            self._file.flush()
            if self._logged < _MOST_LOGGED:
                self._logged += 1
                self._log.add(profile)

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            self._file.close()
            self._log.close()
