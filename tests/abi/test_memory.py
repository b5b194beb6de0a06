"""Memory that somebody else pointed at."""

from __future__ import annotations

import ctypes
import mmap
import random
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
    window = memory.BatchedReader([(pages, 16), (pages + PAGE, 24)])
    with pytest.raises(InvalidArgument, match=f"the pieces: 24 bytes at {pages + PAGE:#x}"):
        window.read("the pieces")
    assert not window.begins_with(b"")


def test_each_page_is_looked_at_once(pages: int) -> None:
    probe = memory.PresenceProbe([(pages, 8), (pages + 8, 8), (pages + 16, PAGE)])
    assert len(probe.places_beside(())) == 2
    assert [place // PAGE for place, _ in probe.places_beside([(pages + 100, 1)])] == [pages // PAGE + 1]
    assert probe.holds()
    _libc.mprotect(pages + PAGE, PAGE, 0)
    assert not probe.holds()


def test_long_copies_are_made_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MOST_AT_ONCE", 5000)
    source = random.Random(1).randbytes(memory.LONG_BYTES + 12_345)
    target = bytearray(len(source))
    place = ctypes.addressof(ctypes.c_char.from_buffer(target))
    memory.write(place, source)
    assert target == source
    assert memory.read(place, len(source)) == source


@pytest.mark.parametrize("end", [True, False])
def test_a_long_copy_of_memory_that_is_partly_missing_is_refused(end: bool) -> None:
    memory_size = 2 * memory.LONG_BYTES
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _libc.mmap(None, memory_size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    _libc.mprotect(address + (memory_size - PAGE if end else memory.LONG_BYTES), PAGE, 0)
    with pytest.raises(InvalidArgument, match=f"some data: {memory_size} bytes at {address:#x} are not"):
        memory.read(address, memory_size, "some data")
    with pytest.raises(InvalidArgument, match="some data is NULL"):
        memory.read(0, memory_size, "some data")
    _libc.munmap(address, memory_size)
