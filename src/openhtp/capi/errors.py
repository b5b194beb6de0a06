"""What codes mean, in words."""

from __future__ import annotations

import ctypes
import functools

from openhtp.abi import memory
from openhtp.capi import handles
from openhtp.capi.entries import answers
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument

_verbose: dict[int, ctypes.Array[ctypes.c_char]] = {}


@functools.cache
def _names(code: int) -> str:
    return " / ".join(dict.fromkeys(name for name, status in st.ALL.items() if status.code == code))


@functools.cache
def _message(code: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(_names(code).encode())


def _known(handle: int) -> int:
    code = handle & 0xFFFF
    if not _names(code):
        raise InvalidArgument(f"error code {code} is unknown")
    return code


@answers("errorGetMessage")
def error_get_message(handle: int, out: int) -> None:
    """The name of a code."""
    handles.require_place(out, "message")
    memory.write_number(out, ctypes.addressof(_message(_known(handle))))


@answers("errorGetVerboseMessage")
def error_get_verbose_message(handle: int, out: int) -> None:
    """The name of a code and where it comes from, to be freed by the client."""
    handles.require_place(out, "message")
    code = _known(handle)
    text = ctypes.create_string_buffer(f"{_names(code)} ({code}); the log has the reason".encode())
    _verbose[ctypes.addressof(text)] = text
    memory.write_number(out, ctypes.addressof(text))


@answers("errorFreeVerboseMessage")
def error_free_verbose_message(message: int) -> None:
    """Give such a text back."""
    if _verbose.pop(message, None) is None:
        raise InvalidArgument(f"{message:#x} is no message of this library, or was freed")
