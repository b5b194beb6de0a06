"""Genie's C functions, declared by ourselves, and the meaning of their answers.

A status below 0 is an error, one above 0 a remark. Genie says why in its log, so the lines of a call are kept and
go into the error.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

from openhtp.core import status as st
from openhtp.core.errors import ExecutionError, FormatError, InvalidArgument, QnnError, UnsupportedFeature

TextCallback = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int32, ctypes.c_void_p)
TokenCallback = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_uint32), ctypes.c_uint32, ctypes.c_int32, ctypes.c_void_p
)
AllocateCallback = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p))
_LogCallback = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint64, ctypes.c_void_p
)

_LINE_BYTES = 4096
# The first lines name the cause of a failure.
_LINES_KEPT = 6
_ABORTED = 1
_CONTEXT_FULL = 4

# The meaning of a status, as seen in calls that were tried; the log has the details.
_MEANINGS = {
    -1: "failed",
    -2: "refused an argument",
    -3: "had no memory",
    -4: "refused the configuration",
    -5: "got a wrong handle",
    -6: "the query failed",
    -7: "the configuration is no JSON",
    -8: "the configuration has a key or a type that Genie does not know, or lacks one that Genie needs",
    -9: "the configuration has a value that Genie does not take",
    -10: "writing failed",
    -11: "got no handle",
    -12: "the adapter could not be applied",
    -13: "parameters could not be set",
}
_CONFIGURATION = (-4, -7, -8, -9)


class LogDepth(IntEnum):
    """How much Genie logs."""

    ERROR = 1
    WARN = 2
    INFO = 3
    VERBOSE = 4


class AnswerEnd(IntEnum):
    """How a query ended."""

    COMPLETE = 0
    ABORTED = _ABORTED
    CONTEXT_FULL = _CONTEXT_FULL


class GenieLibrary:
    """A loaded ``libGenie.so``: its functions by name, and the log of all calls."""

    def __init__(self, path: Path, depth: LogDepth, tell: Callable[[int, str], None]) -> None:
        try:
            self._handle = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            raise FormatError(f"{str(path)!r} cannot be loaded: {error}") from error
        self._tell = tell
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._format = ctypes.CDLL(None).vsnprintf
        self._format.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
        # Genie calls it from its own threads, for as long as the log lives.
        self._hear = _LogCallback(self._heard)
        self.log = self.make("GenieLog_create", None, self._hear, ctypes.c_int32(depth))

    @property
    def version(self) -> str:
        """The version of Genie's interface."""
        words = ("Major", "Minor", "Patch")
        return ".".join(str(self._function(f"Genie_getApi{word}Version")()) for word in words)

    def _function(self, name: str) -> Any:
        function = getattr(self._handle, name, None)
        if function is None:
            raise UnsupportedFeature(f"this libGenie.so has no {name}; expected that of QAIRT 2.51 or later")
        function.restype = ctypes.c_int32
        return function

    def call(self, name: str, *arguments: Any) -> int:
        """Call a function; returns 0, or the number of a remark. An error has the lines of Genie's log."""
        self._lines.clear()
        status = int(self._function(name)(*arguments))
        if status < 0:
            meaning = _MEANINGS.get(status, "failed")
            lines = "; ".join(dict.fromkeys(self._lines))
            kind: type[QnnError] = InvalidArgument if status in (-2, *_CONFIGURATION) else ExecutionError
            raise kind(
                f"{name} answered {status} ({meaning})" + (f": {lines}" if lines else ""),
                st.QNN_COMMON_ERROR_GENERAL,
            )
        return status

    def make(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """Call a function that makes something; its place is the last argument."""
        handle = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle

    def _heard(self, log: int, form: int, level: int, stamp: int, arguments: int) -> None:
        buffer = ctypes.create_string_buffer(_LINE_BYTES)
        self._format(buffer, _LINE_BYTES, form, arguments)
        line = buffer.value.decode("utf-8", "replace").strip()
        if level == LogDepth.ERROR:
            self._lines.append(line)
        self._tell(level, line)
