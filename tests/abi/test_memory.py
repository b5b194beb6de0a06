"""Memory that somebody else pointed at."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from typing import Any

import pytest

from openhtp.abi import memory
from openhtp.core.errors import InvalidArgument

PAGE = 4096
_libc: Any = ctypes.CDLL(None)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@pytest.fixture
def pages() -> Iterator[int]:
    """The address of two pages."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _libc.mmap(None, 2 * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    yield address
    _libc.munmap(address, 2 * PAGE)


def test_code_may_come_to_where_there_was_none(pages: int) -> None:
    with pytest.raises(InvalidArgument, match="no code"):
        memory.check_code(pages, "a function")
    assert _libc.mprotect(pages, PAGE, mmap.PROT_READ | mmap.PROT_EXEC) == 0
    memory.check_code(pages, "a function")


def test_a_refusal_names_the_piece_that_is_missing(pages: int) -> None:
    _libc.mprotect(pages + PAGE, PAGE, 0)
    window = memory.Window([(pages, 16), (pages + PAGE, 24)])
    with pytest.raises(InvalidArgument, match=f"the pieces: 24 bytes at {pages + PAGE:#x}"):
        window.read("the pieces")
    assert not window.begins_with(b"")


def test_each_page_is_looked_at_once(pages: int) -> None:
    probe = memory.Probe([(pages, 8), (pages + 8, 8), (pages + 16, PAGE)])
    assert len(probe.places_beside(())) == 2
    assert [place // PAGE for place, _ in probe.places_beside([(pages + 100, 1)])] == [pages // PAGE + 1]
    assert probe.holds()
    _libc.mprotect(pages + PAGE, PAGE, 0)
    assert not probe.holds()
