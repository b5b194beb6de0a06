"""Words for clients: log handles, and the meaning of codes."""

from __future__ import annotations

import ctypes
import functools
import sys

from openhtp.abi import memory
from openhtp.capi import handles
from openhtp.capi.entries import answers
from openhtp.capi.handles import HandleEntry
from openhtp.capi.native_calls import natives
from openhtp.core import status as st
from openhtp.core.enumerations import LogLevel
from openhtp.core.errors import InvalidArgument
from openhtp.runtime.objects.log import Log

# Texts that clients have not given back.
_verbose: dict[int, ctypes.Array[ctypes.c_char]] = {}


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
    """Hand lines up to a level to a callback or, without one, to the error stream."""
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
    entry = handles.find(LogHeld, log)
    handles.remove(entry)
    entry.log.free()


@functools.cache
def _names(code: int) -> str:
    return " / ".join(dict.fromkeys(name for name, status in st.ALL.items() if status.code == code))


@functools.cache
def _message(code: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(_names(code).encode())


def _checked_code(handle: int) -> int:
    code = handle & 0xFFFF
    if not _names(code):
        raise InvalidArgument(f"error code {code} is unknown")
    return code


@answers("errorGetMessage")
def error_get_message(handle: int, out: int) -> None:
    """The name of a code."""
    handles.require_place(out, "message")
    memory.write_number(out, ctypes.addressof(_message(_checked_code(handle))))


@answers("errorGetVerboseMessage")
def error_get_verbose_message(handle: int, out: int) -> None:
    """The name of a code and where it comes from, to be freed by the client."""
    handles.require_place(out, "message")
    code = _checked_code(handle)
    text = ctypes.create_string_buffer(f"{_names(code)} ({code}); the log has the reason".encode())
    _verbose[ctypes.addressof(text)] = text
    memory.write_number(out, ctypes.addressof(text))


@answers("errorFreeVerboseMessage")
def error_free_verbose_message(message: int) -> None:
    """Take a verbose message back."""
    if _verbose.pop(message, None) is None:
        raise InvalidArgument(f"{message:#x} is no message of this library, or was freed")
