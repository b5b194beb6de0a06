"""Log handles: a level and, if wanted, a callback; messages come from Python's ``logging`` under ``openhtp``."""

from __future__ import annotations

import logging
from collections.abc import Callable

from openhtp.core.levels import LogLevel
from openhtp.runtime.lifecycle import Life, State

_PYTHON_LEVEL = {
    LogLevel.ERROR: logging.ERROR,
    LogLevel.WARN: logging.WARNING,
    LogLevel.INFO: logging.INFO,
    LogLevel.VERBOSE: logging.INFO - 5,
    LogLevel.DEBUG: logging.DEBUG,
}


class Log(logging.Handler):
    """Hands messages up to a level to ``callback(level, timestamp_ns, text)``."""

    def __init__(self, level: LogLevel, callback: Callable[[LogLevel, int, str], object]) -> None:
        super().__init__(_PYTHON_LEVEL[level])
        self.log_level = level
        self._callback = callback
        self._life = Life("log", "")
        self._logger = logging.getLogger("openhtp")
        self._logger.addHandler(self)
        if self._logger.level == logging.NOTSET or self._logger.level > self.level:
            self._logger.setLevel(self.level)

    def set_log_level(self, level: LogLevel | str | int) -> None:
        """Change the level."""
        self._life.require("use")
        self.log_level = LogLevel.parse(level)
        self.setLevel(_PYTHON_LEVEL[self.log_level])
        self._logger.setLevel(min(self._logger.level, self.level))

    def emit(self, record: logging.LogRecord) -> None:
        """Called by ``logging``."""
        level = min((lv for lv in LogLevel if _PYTHON_LEVEL[lv] <= record.levelno), default=LogLevel.DEBUG)
        try:
            self._callback(level, int(record.created * 1e9), record.getMessage())
        except Exception:
            self.handleError(record)

    def free(self) -> None:
        """Stop handing messages on."""
        self._life.require("free")
        self._logger.removeHandler(self)
        self._life.end(State.FREED)
