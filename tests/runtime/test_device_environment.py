"""The environment of a device process: large pages for its memory, unless the user has chosen otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from openhtp.runtime.links import device_process


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.arena_max=2", "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
    ],
)
def test_large_pages_are_asked_for(given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if given is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", given)
    assert device_process.environment()["GLIBC_TUNABLES"] == expected


@pytest.fixture(autouse=True)
def _no_board(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_process, "_BOARD_FOLDERS", ())


def test_a_library_finds_its_parts_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/mine")
    monkeypatch.delenv("ADSP_LIBRARY_PATH", raising=False)
    found = device_process.environment("/opt/qnn/libQnnHtp.so")
    assert (found["LD_LIBRARY_PATH"], found["ADSP_LIBRARY_PATH"]) == ("/opt/qnn:/usr/mine", "/opt/qnn")
    assert device_process.environment()["LD_LIBRARY_PATH"] == "/usr/mine"


def test_the_dsp_finds_its_part_where_an_sdk_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel has it beside the library, an SDK in a folder for each architecture, a board elsewhere."""
    library = tmp_path / "lib" / "aarch64-oe-linux-gcc11.2" / "libQnnHtp.so"
    skeletons = [tmp_path / "lib" / f"hexagon-v{arch}" / "unsigned" for arch in (68, 73, 81)]
    board = tmp_path / "rfsa"
    for folder in (library.parent, *skeletons, board):
        folder.mkdir(parents=True)
    monkeypatch.setattr(device_process, "_BOARD_FOLDERS", (str(board), str(tmp_path / "missing")))
    monkeypatch.setenv("ADSP_LIBRARY_PATH", "/mine")
    variables = device_process.environment(str(library))
    expected = [str(library.parent), *map(str, skeletons), str(board), "/mine"]
    assert variables["ADSP_LIBRARY_PATH"].split(";") == expected
    assert variables["LD_LIBRARY_PATH"].split(":")[0] == str(library.parent)
