"""Sections that lie one behind the other are read at once, and are what they are by themselves."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from openhtp.core.errors import BadBinary
from openhtp.program.container import FileSection, SectionRecord, read_together
from openhtp.program.sources import FileSource, MemorySource

SIZES = (4096, 5000, 70, 3 << 20, 8192)


class Counted(FileSource):
    """Knows what was read of it."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.reads: list[tuple[int, int]] = []

    def read(self, begin: int, end: int, room: memoryview | None = None) -> memoryview:
        self.reads.append((begin, end))
        return super().read(begin, end, room)


def stored(folder: Path) -> tuple[Counted, list[FileSection], list[bytes]]:
    rng = np.random.default_rng(0)
    pieces = [rng.bytes(size) for size in SIZES]
    begins = [0]
    for size in SIZES:
        begins.append(-(-(begins[-1] + size) // 4096) * 4096)
    path = folder / "sections"
    path.write_bytes(b"".join(piece.ljust(end - begin, b"\0") for piece, begin, end in _places(pieces, begins)))
    file = Counted(os.open(path, os.O_RDONLY))
    sections = [
        FileSection(SectionRecord(len(piece), 0), file, begin, end)
        for piece, begin, end in _places(pieces, begins)
    ]
    return file, sections, pieces


def _places(pieces: list[bytes], begins: list[int]) -> list[tuple[bytes, int, int]]:
    return list(zip(pieces, begins, begins[1:], strict=False))


def test_neighbours_are_read_at_once_in_any_order(tmp_path: Path) -> None:
    file, sections, pieces = stored(tmp_path)
    wanted = [4, 0, 1, 3]
    contents = read_together([sections[number] for number in wanted])
    assert [bytes(data) for data in contents] == [pieces[number] for number in wanted]
    assert file.reads == [(sections[0].begin, sections[1].end), (sections[3].begin, sections[4].end)]


def test_nothing_is_read_of_nothing() -> None:
    assert read_together([]) == []


def test_sections_of_several_sources(tmp_path: Path) -> None:
    _, sections, pieces = stored(tmp_path)
    other = FileSection(SectionRecord(4, 0), MemorySource(b"data"), 0, 4)
    contents = read_together([sections[0], other, sections[1]])
    assert [bytes(data) for data in contents] == [pieces[0], b"data", pieces[1]]


def test_what_is_between_them_must_be_zero(tmp_path: Path) -> None:
    _, sections, _ = stored(tmp_path)
    path = tmp_path / "sections"
    damaged = bytearray(path.read_bytes())
    damaged[sections[1].end - 1] = 1
    path.write_bytes(damaged)
    with pytest.raises(BadBinary, match="padding and not zero"):
        read_together(sections)
