"""Log handles."""

from __future__ import annotations

import sys

from openhtp.abi import memory
from openhtp.capi import handles
from openhtp.capi.entries import answers
from openhtp.capi.handles import HandleEntry
from openhtp.capi.native_calls import natives
from openhtp.core import status as st
from openhtp.core.enumerations import LogLevel
from openhtp.runtime.objects.log import Log


class LogHeld(HandleEntry):
    """A logger of the client's."""

    word, invalid = "log", st.QNN_LOG_ERROR_INVALID_HANDLE

    def __init__(self, callback: int, level: LogLevel) -> None:
        super().__init__()
        self.callback = callback
        self.log = Log(level, self._emit)

    def _emit(self, level: LogLevel, nanoseconds: int, text: str) -> None:
        if self.callback:
            natives[0].say(self.callback, int(level), nanoseconds, text)
        else:
            sys.stderr.write(f"openhtp {level.name}: {text}\n")


@answers("systemLogCreate")
@answers("logCreate")
def log_create(callback: int, level: int, out: int) -> None:
    """Hand lines up to a level to a callback; to the error stream without one."""
    handles.require_place(out, "log")
    if callback:
        memory.check_code(callback, "the log's callback")
    handles.give(out, LogHeld(callback, LogLevel.parse(level)))


@answers("systemLogSetLogLevel")
@answers("logSetLogLevel")
def log_set_log_level(log: int, level: int) -> None:
    """Change the level."""
    handles.find(LogHeld, log).log.set_log_level(LogLevel.parse(level))


@answers("systemLogFree")
@answers("logFree")
def log_free(log: int) -> None:
    """Stop handing lines on."""
    held = handles.find(LogHeld, log)
    handles.remove(held)
    held.log.free()
