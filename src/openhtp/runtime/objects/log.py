"""Log handles: a level and, if wanted, a callback; messages come from Python's ``logging`` under ``openhtp``."""

from __future__ import annotations

import logging
from collections.abc import Callable

from openhtp.core.enumerations import LogLevel
from openhtp.core.foreign_text import printable
from openhtp.core.locks import make_lock
from openhtp.core.threads import finish
from openhtp.runtime.objects.lifecycle import Life, State

_PYTHON_LEVEL = {
    LogLevel.ERROR: logging.ERROR,
    LogLevel.WARN: logging.WARNING,
    LogLevel.INFO: logging.INFO,
    LogLevel.VERBOSE: logging.INFO - 5,
    LogLevel.DEBUG: logging.DEBUG,
}

_logger = logging.getLogger("openhtp")
_lock = make_lock("logs")
# Logs that want messages, and the level that the program had set before the first of them.
_live: list[Log] = []
_own_level: list[int] = [logging.NOTSET]


class Log(logging.Handler):
    """Hands messages up to a level to ``callback(level, timestamp_ns, text)``."""

    def __init__(self, level: LogLevel, callback: Callable[[LogLevel, int, str], object]) -> None:
        super().__init__(_PYTHON_LEVEL[level])
        self.log_level = level
        self._callback = callback
        self._life = Life("log", "")
        # Not on this thread: an interrupt would leave the lock of a logger taken.
        finish(self._join, name="openhtp-log", discard=lambda _: self._leave())

    def set_log_level(self, level: LogLevel | str | int) -> None:
        """Change the level."""
        self._life.require("use")
        self.log_level = LogLevel.parse(level)
        with _lock:
            self.setLevel(_PYTHON_LEVEL[self.log_level])
            _settle()

    def emit(self, record: logging.LogRecord) -> None:
        """Called by ``logging``."""
        level = min((lv for lv in LogLevel if _PYTHON_LEVEL[lv] <= record.levelno), default=LogLevel.DEBUG)
        try:
            self._callback(level, int(record.created * 1e9), printable(record.getMessage()))
        except Exception:
            self.handleError(record)

    def free(self) -> None:
        """Stop handing messages on."""
        self._life.require("free")
        finish(self._leave, name="openhtp-log")

    def _join(self) -> None:
        with _lock:
            if not _live:
                _own_level[:] = [_logger.level]
            _live.append(self)
            _settle()
        _logger.addHandler(self)

    def _leave(self) -> None:
        """Twice does nothing."""
        _logger.removeHandler(self)
        with _lock:
            if self in _live:
                _live.remove(self)
            _settle()
        self._life.end(State.FREED)


def _settle() -> None:
    """Set the level so that messages for any log pass, and those that the program itself wants."""
    (own,) = _own_level
    _logger.setLevel(own)
    if _live:
        _logger.setLevel(min(_logger.getEffectiveLevel(), *(log.level for log in _live)))
