"""Calls that only C can make: loggers with a va_list, clients without the interpreter's lock, the stub's end."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

natives: list[NativeCalls] = []
"""One per library that was loaded, the first of them first."""


class NativeCalls:
    """Functions of one copy of the stub, by address."""

    def __init__(self, say: int, shut: int, power: int, delivery: int, *, owns_python: bool) -> None:
        """``owns_python``: the stub started the interpreter, and nobody else's objects are in it."""
        self.owns_python = owns_python
        self._say: Any = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char_p
        )(say)
        self.shut: Any = ctypes.CFUNCTYPE(None)(shut)
        self.power_entries = power
        self.delivery = DeliveryCalls(delivery)

    def say(self, callback: int, level: int, nanoseconds: int, text: str) -> None:
        """Hand a line to a client's logger."""
        self._say(callback, level, nanoseconds, text.encode("utf-8", "replace"))


class DeliveryCalls:
    """The functions of ``native/delivery.h``, by the address of their table; ``deliver`` lets others go on."""

    def __init__(self, table: int) -> None:
        word, number = ctypes.c_void_p, ctypes.c_uint64
        make, free, put, deliver, await_returns, drop = (number * 6).from_address(table)
        self.make: Any = ctypes.PYFUNCTYPE(word)(make)
        self.free: Any = ctypes.PYFUNCTYPE(None, word)(free)
        self.put: Any = ctypes.PYFUNCTYPE(number, word, word, word, number, ctypes.c_int)(put)
        self.deliver: Any = ctypes.CFUNCTYPE(ctypes.c_int, word)(deliver)
        self.await_returns: Any = ctypes.PYFUNCTYPE(number, word, number)(await_returns)
        self.drop: Any = ctypes.PYFUNCTYPE(number, word)(drop)


class _Where(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def library_at(address: int) -> Path:
    """The library whose code lies at an address."""
    where = _Where()
    ask: Any = ctypes.CDLL(None).dladdr
    ask.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return Path((where.file or b"").decode(errors="replace")) if ask(address, ctypes.addressof(where)) else Path()
