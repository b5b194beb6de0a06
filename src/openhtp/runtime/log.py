"""Log handles: a level and, if wanted, a callback; messages come from Python's ``logging`` under ``openhtp``."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable

from openhtp.core import status as st
from openhtp.core.checks import shown, whole_number
from openhtp.core.errors import InvalidArgument
from openhtp.runtime.lifecycle import Life, State


class LogLevel(enum.IntEnum):
    """The API's levels."""

    ERROR = 1
    WARN = 2
    INFO = 3
    VERBOSE = 4
    DEBUG = 5

    @classmethod
    def parse(cls, value: LogLevel | str | int) -> LogLevel:
        """Accept a member, its name in any case, or its number."""
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        number = whole_number(value)
        if number is not None and number in cls._value2member_map_:
            return cls(number)
        names = ", ".join(level.name.lower() for level in cls)
        raise InvalidArgument(
            f"log level {shown(value)}; expected one of {names}", st.QNN_LOG_ERROR_INVALID_ARGUMENT
        )


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
        self._life.become(State.FREED)
