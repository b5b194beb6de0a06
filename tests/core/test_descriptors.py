"""Descriptors that an interrupt cannot lose."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from openhtp.core import files
from openhtp.core.errors import BadModel
from openhtp.core.files import Descriptor
from tests.hostile.interrupting import Interrupting, places_of
from tests.hostile.leaks import open_files


def _made() -> Descriptor:
    return Descriptor(os.memfd_create, "openhtp-test")


def test_it_is_closed_once() -> None:
    made = _made()
    number = made.number
    os.fstat(number)
    made.close()
    other = os.dup(0)  # which gets the same number
    try:
        made.close()
        assert made.number == -1
        os.fstat(other)
    finally:
        os.close(other)


def test_it_is_closed_when_it_is_dropped() -> None:
    number = _made().number
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_what_cannot_be_made_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        Descriptor(os.open, "/nowhere/at/all", os.O_RDONLY)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_interrupt_loses_it() -> None:
    """While it is made or closed, that is. Python itself swallows what comes while it drops an object."""
    kept: list[Descriptor] = []
    for place in range(1, places_of(lambda: kept.append(_made())) + 1):
        assert Interrupting(place, lambda: kept.append(_made())).happened
        made = _made()
        Interrupting(place, made.close)
        made.close()
        assert made.number == -1
    kept.clear()
    gc.collect()
    assert [name for name in open_files() if "openhtp-test" in name] == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_interrupt_leaves_a_file_open_that_is_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")

    def read() -> object:
        return files.read_file(file, most=100, what="a text", error=BadModel)

    read()
    before = open_files()
    for place in range(1, places_of(read) + 1):
        Interrupting(place, read)
        gc.collect()
        assert open_files() == before, place
