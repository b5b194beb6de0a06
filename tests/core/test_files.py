"""Files that a caller named: regular ones of bounded size, read without waiting."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from openhtp.core.errors import BadModel
from openhtp.core.files import read_file
from openhtp.rpc import rendezvous


def read(path: object, most: int = 100, **part: int) -> bytes:
    return read_file(path, most=most, what="a thing", error=BadModel, **part)  # type: ignore[arg-type]


def test_a_file_is_read_whole_or_in_part(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(range(100)))
    assert read(path) == bytes(range(100))
    assert read(path, offset=90, nbytes=5) == bytes(range(90, 95))
    assert read(path, offset=90) == bytes(range(90, 100))
    assert read(path, offset=99, nbytes=5) == b"c"
    empty = tmp_path / "empty"
    empty.touch()
    assert read(empty) == b""


def test_too_large_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BadModel, match=r"\(1099511627776 bytes\), too many for a thing; the limit is 100 B"):
        read(path)
    with pytest.raises(BadModel, match="too many for a thing"):
        read(path, offset=5, nbytes=101)
    assert read(path, offset=1 << 39, nbytes=4) == bytes(4)


def test_only_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as end:
        with rendezvous.address(tmp_path / "socket") as where:
            end.bind(where)
        for path, words in {
            tmp_path: "it is a folder; expected a regular file with a thing",
            tmp_path / "pipe": "it is a pipe; expected a regular",
            Path("/dev/zero"): "it is a device; expected a regular",
            Path("/dev/tty"): "cannot read '/dev/tty'",
            tmp_path / "socket": "cannot read .*socket",
            tmp_path / "none": "No such file or directory; expected a file with a thing",
            tmp_path / ("n" * 5000): "File name too long",
            "a\0b": "null",
            "\ud800x": "cannot read",
            Path("/proc/self/maps"): "holds more than the 0 bytes that it says",
        }.items():
            with pytest.raises(BadModel, match=words):
                read(path)


def test_descriptors_are_closed(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for path in (tmp_path, "/dev/zero", tmp_path / "none"):
        with pytest.raises(BadModel):
            read(path)
    assert os.listdir("/proc/self/fd") == before
