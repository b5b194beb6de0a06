"""Files are written whole or not at all, and what cannot be written is said in words."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from openhtp.core import files
from openhtp.core.files import write_file


def test_who_has_the_old_file_open_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_file(path, b"old")
    path.chmod(0o640)
    with path.open("rb") as reader:
        write_file(path, b"new and longer")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new and longer"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write_file(tmp_path / "pipe", b"x")
    reader.join()
    assert read == [b"x"]


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PATIENCE_S", 0.0)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"cannot write '.*pipe': nobody reads from it"):
        write_file(tmp_path / "pipe", b"x")


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("none/x", FileNotFoundError, "there is no folder .*none'; make it first"),
        (".", IsADirectoryError, "it is a folder; name a file in it"),
        ("file/x", NotADirectoryError, "Not a directory"),
        ("n" * 300, OSError, "File name too long"),
    ],
)
def test_what_cannot_be_written_is_said_in_words(
    tmp_path: Path, name: str, kind: type[OSError], words: str
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(kind, match=f"cannot write '.*': {words}"):
        write_file(tmp_path / name, b"x")
    assert os.listdir(tmp_path) == ["file"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.bin"
    write_file(path, b"old")

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left on device; make room"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_a_folder_that_takes_no_new_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old one can be written where it is."""
    path = tmp_path / "a.bin"
    write_file(path, b"old")

    def refuse(*args: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        write_file(path, b"new")
        with pytest.raises(PermissionError, match="choose a place where you may write"):
            write_file(tmp_path / "b.bin", b"new")
    assert path.read_bytes() == b"new"
