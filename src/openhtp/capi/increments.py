"""A context binary piece by piece, for clients that have no room for all of it at once."""

from __future__ import annotations

import ctypes

from openhtp.abi import memory
from openhtp.capi import handles
from openhtp.capi.context import ContextHeld
from openhtp.capi.entries import answers
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument

_PIECE_BYTES = 16 << 20


class Increments:
    """How far a client is, and the pieces that it has not given back."""

    def __init__(self, blob: bytes) -> None:
        self._blob = blob
        self._start = ctypes.cast(ctypes.c_char_p(blob), ctypes.c_void_p).value or 0
        self._next = 0
        self._out: dict[int, int] = {}

    def take(self) -> tuple[int, int, int]:
        """Address, offset and size of the next piece; of size 0 at the end, after which it begins anew."""
        offset = self._next
        size = min(_PIECE_BYTES, len(self._blob) - offset)
        if not size:
            self._next = 0
            return 0, offset, 0
        self._next += size
        self._out[offset] = self._start + offset
        return self._out[offset], offset, size

    def give_back(self, address: int, offset: int) -> None:
        """A piece is no longer looked at."""
        if self._out.get(offset) != address:
            raise InvalidArgument(
                f"{address:#x} is no piece from byte {offset} that was given out, or was released",
                st.QNN_CONTEXT_ERROR_INCREMENT_INVALID_BUFFER,
            )
        del self._out[offset]

    @property
    def is_over(self) -> bool:
        """Whether nothing is under way."""
        return not self._next and not self._out


@answers("contextGetIncrementalBinary")
def context_get_incremental_binary(context: int, buffer: int, offset: int, size: int) -> None:
    """The next piece of the saved context; one of no bytes says that there are no more."""
    held = handles.find(ContextHeld, context)
    for place, what in ((buffer, "buffer"), (offset, "start offset"), (size, "written size")):
        handles.require_place(place, what)
    if held.increments is None:
        held.increments = Increments(held.saved())
    for place, value in zip((buffer, offset, size), held.increments.take(), strict=True):
        memory.write_number(place, value)
    _forget_if_over(held)


@answers("contextReleaseIncrementalBinary")
def context_release_incremental_binary(context: int, buffer: int, offset: int) -> None:
    """Give a piece back."""
    held = handles.find(ContextHeld, context)
    if held.increments is None:
        raise InvalidArgument(
            "no piece of this context's binary was given out", st.QNN_CONTEXT_ERROR_INCREMENT_INVALID_BUFFER
        )
    held.increments.give_back(buffer, offset)
    _forget_if_over(held)


def _forget_if_over(held: ContextHeld) -> None:
    if held.increments is not None and held.increments.is_over:
        held.increments = None
