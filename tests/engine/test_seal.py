"""The key that prepared forms are sealed with: private, made once, never guessed at."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from openhtp.engine import seal


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "state" / "prepared.key"
    monkeypatch.setenv("OPENHTP_KEY_FILE", str(path))
    return path


def test_a_key_is_made_once_and_is_private(place: Path) -> None:
    key = seal.read_key()
    assert key is not None
    assert len(key) == seal.KEY_BYTES
    assert seal.read_key() == key == place.read_bytes()
    assert place.stat().st_mode & 0o777 == 0o600
    assert place.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_all_who_come_first_agree_on_one_key(place: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: seal.read_key(), range(64)))
    assert keys == {place.read_bytes()}
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_where_it_is_without_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENHTP_KEY_FILE")
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert seal.key_path() == Path("/somewhere/openhtp/prepared.key")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert seal.key_path() == Path("/home/someone/.local/state/openhtp/prepared.key")


def test_a_key_that_others_can_read_is_no_key(place: Path) -> None:
    seal.read_key()
    place.chmod(0o640)
    assert seal.read_key() is None


@pytest.mark.parametrize("content", [b"", b"short", bytes(33)])
def test_a_key_of_the_wrong_length_is_no_key(place: Path, content: bytes) -> None:
    seal.read_key()
    place.write_bytes(content)
    assert seal.read_key() is None


def test_a_link_or_a_pipe_is_no_key(place: Path, tmp_path: Path) -> None:
    seal.read_key()
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    assert seal.read_key() is None
    place.unlink()
    os.mkfifo(place, 0o600)
    assert seal.read_key() is None


def test_no_place_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("OPENHTP_KEY_FILE", str(tmp_path / "file" / "key"))
    assert seal.read_key() is None


def test_a_seal_holds_for_one_key_and_one_text() -> None:
    one, other = bytes(32), bytes(31) + b"\1"
    mark = seal.sealed(one, b"text")
    assert seal.is_own(one, b"text", mark)
    assert not seal.is_own(other, b"text", mark)
    assert not seal.is_own(one, b"texT", mark)
    assert not seal.is_own(one, b"text", mark[:-1])
    assert not seal.is_own(one, b"text", b"")


def test_the_fingerprint_follows_the_code_that_lowers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "__file__", str(tmp_path / "engine" / "seal.py"))
    files = ["ops/relu.py", "compiler/driver.py", "compiler/vtcm/place.py", "engine/native/sessions.c"]
    digests = [seal._lowering()]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        for text in ("one way", "another"):
            (tmp_path / file).write_text(text)
            digests.append(seal._lowering())
    assert len(set(digests)) == 1 + 2 * len(files)


@pytest.mark.parametrize("what", ["_lowering", "_processor"])
def test_the_fingerprint_has_all_it_depends_on(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = seal.fingerprint.__wrapped__()
    assert seal.fingerprint.__wrapped__() == before == seal.fingerprint()
    monkeypatch.setattr(seal, what, lambda: "another")
    assert seal.fingerprint.__wrapped__() != before
