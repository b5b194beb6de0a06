"""The store of prepared models: whole files only, bounded, and nothing in it is believed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from openhtp.core.errors import InvalidArgument
from openhtp.core.latches import Latch
from openhtp.core.model_store import CacheEntry, ModelStore, user_folder, user_store

PARTS = {"about.json": b"{}", "part.bin": bytes(range(256)) * 40}


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store")


def filled(store: ModelStore, *depends_on: object) -> CacheEntry:
    entry = store.entry("test", "a model", *depends_on)
    assert entry.offer(PARTS)
    return entry


def test_what_was_put_comes_back(store: ModelStore) -> None:
    entry = filled(store, "key")
    assert store.entry("test", "another title", "key").read() == PARTS
    assert store.entry("test", "a model", "other key").read() is None
    assert store.entry("other", "a model", "key").read() is None
    assert stat.S_IMODE(entry.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    (row,) = store.models()
    assert (row.kind, row.title, row.nbytes) == ("test", "a model", entry.path.stat().st_size)
    assert store.nbytes == row.nbytes


def test_every_changed_byte_and_every_length_is_noticed(store: ModelStore) -> None:
    """Reading never raises, and never gives anything but what was put there."""
    entry = filled(store, "key")
    whole = entry.path.read_bytes()
    for place in [*range(400), *range(400, len(whole), 97), len(whole) - 1]:
        entry.path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x15]) + whole[place + 1 :])
        assert entry.read() in (None, PARTS)  # the title alone may be changed
        entry.path.write_bytes(whole[:place])
        assert entry.read() is None
        store.models()
    entry.path.write_bytes(whole + b"x")
    assert entry.read() is None
    assert entry.offer(PARTS)
    assert entry.read() == PARTS


def test_files_that_are_none_of_ours(store: ModelStore, tmp_path: Path) -> None:
    entry, other = filled(store, "key"), filled(store, "other")
    other.path.write_bytes(entry.path.read_bytes())
    assert other.read() is None  # a good file, under another's name
    entry.path.unlink()
    os.mkfifo(entry.path)
    assert entry.read() is None
    entry.path.unlink()
    entry.path.mkdir()
    assert entry.read() is None
    (store.folder / "test-strange.model").write_bytes(b"OHTPMDL1" + b"\xff" * 100)
    assert "unknown" in [row.kind for row in store.models()]
    (store.folder / "limit").write_text("much")
    assert store.limit > 0


def test_what_was_used_least_lately_goes(store: ModelStore) -> None:
    entries = [filled(store, number) for number in range(4)]
    for age, entry in enumerate(entries):
        os.utime(entry.path, (1_000_000 + age, 1_000_000 + age))
    assert entries[0].read() == PARTS  # so it is the youngest now
    store.set_limit(2 * entries[0].path.stat().st_size)
    assert [entry.exists() for entry in entries] == [True, False, False, True]
    filled(store, "one more")
    assert [entry.exists() for entry in entries] == [True, False, False, False]
    store.set_limit(100)
    assert store.models() == []
    assert not store.entry("test", "too large", "key").offer(PARTS)
    assert ModelStore(store.folder).limit == 100
    assert list(store.folder.glob(".*.tmp")) == []


def test_clear_keeps_the_limit(store: ModelStore) -> None:
    store.set_limit(1 << 20)
    filled(store, 1)
    size = store.nbytes
    assert (store.clear(), store.nbytes, store.limit) == (size, 0, 1 << 20)
    assert [path.name for path in store.folder.iterdir()] == ["limit"]


def test_one_process_writes_at_a_time(store: ModelStore) -> None:
    entry = store.entry("test", "a model", "key")
    with entry.locked(Latch()) as mine:
        assert mine
        assert not store.entry("test", "a model", "key").offer(PARTS)
    assert entry.offer(PARTS)


def test_two_processes_at_once(store: ModelStore) -> None:
    """While both put and read, nobody ever sees a part of a file."""
    program = (
        "import sys; from pathlib import Path; from openhtp.core.model_store import ModelStore\n"
        "entry = ModelStore(Path(sys.argv[1])).entry('test', 'a model', 'key')\n"
        "for number in range(40):\n"
        "    entry.offer({'part': bytes([number]) * 50_000})\n"
        "    parts = entry.read()\n"
        "    assert parts is None or len(set(parts['part'])) == 1 and len(parts['part']) == 50_000\n"
    )
    command = [sys.executable, "-c", program, str(store.folder)]
    programs = [subprocess.Popen(command) for _ in range(2)]
    assert [program.wait(300) for program in programs] == [0, 0]
    assert len(store.models()) == 1
    assert store.entry("test", "a model", "key").read() is not None  # one of them was never refused


def test_the_users_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.delenv("OPENHTP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "openhtp" / "models").mkdir(parents=True, mode=0o755)
    store = user_store(told.append)
    assert store is not None
    assert store.folder == tmp_path / "openhtp" / "models"
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert user_folder() == tmp_path / "home/.cache/openhtp/models"
    monkeypatch.setenv("OPENHTP_CACHE", "off")
    assert user_store(told.append) is None
    assert told == []
    monkeypatch.setenv("OPENHTP_CACHE", "somewhere")
    with pytest.raises(InvalidArgument, match="expected off, on, or the absolute path"):
        user_store(told.append)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OPENHTP_CACHE", str(tmp_path / "file" / "models"))
    assert user_store(told.append) is None
    assert len(told) == 1
    assert "prepared anew each time" in told[0]
