"""The library's log lines: into Python's logging, and into the message of the call that failed."""

from __future__ import annotations

import ctypes
import logging
import re
import sys
from typing import Any

from openhtp.abi.tables import LogCallback
from openhtp.core.enumerations import LogLevel

logger = logging.getLogger("openhtp.vendor.qnn")

# Lower than the library says: it logs warnings and even errors for calls that succeed, a dozen for each
# finalize. The lines that explain a failure are in the exception.
_LEVELS: dict[int, int] = {LogLevel.ERROR: logging.INFO}
# The library puts its own level in front of the text.
_TAG = re.compile(r"^<[A-Z]>\s*")
# ... and the compiler a source file, which says nothing to anyone else.
_SOURCE = re.compile(r"^\S+\.cc:\d+:+\s*(ERROR:)?")
_LINE_BYTES = 2048
# The first lines of a failure name its cause; what follows are its consequences, layer by layer.
_REMEMBERED = 4


class LogSink:
    """Receives the library's log callback, which may come on any of its threads."""

    def __init__(self) -> None:
        # The library keeps the address of this callback: a sink must live as long as the log handle.
        self.callback = LogCallback(self._receive)
        self._errors: list[str] = []
        self._format = _vsnprintf()

    def take_errors(self) -> list[str]:
        """The first error lines since the last call of this method, each once."""
        lines, self._errors = self._errors, []
        return lines

    def _receive(self, template: bytes | None, level: int, _time: int, arguments: int | None) -> None:
        # Nothing may be raised into C.
        try:
            text = self._text(template or b"", arguments)
            cause = _SOURCE.sub("", text)
            if level == LogLevel.ERROR and len(self._errors) < _REMEMBERED and cause not in self._errors:
                self._errors.append(cause)
            logger.log(_LEVELS.get(level, logging.DEBUG), "%s", text)
        except Exception:
            logger.debug("a log line of the vendor library could not be read", exc_info=True)

    def _text(self, template: bytes, arguments: int | None) -> str:
        if self._format is None:
            line = template
        else:
            buffer = ctypes.create_string_buffer(_LINE_BYTES)
            self._format(buffer, _LINE_BYTES, template, arguments)
            line = buffer.value
        return _TAG.sub("", line.decode("utf-8", "replace").strip())


def _vsnprintf() -> Any | None:
    """C's own formatter, the only thing that can read a va_list; None where its calling form is not known."""
    if not sys.platform.startswith("linux"):
        return None
    function = ctypes.CDLL(None).vsnprintf
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function
