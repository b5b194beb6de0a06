"""The environment of a device process: large pages for its memory, unless the user has chosen otherwise."""

from __future__ import annotations

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


def test_a_library_finds_its_parts_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/mine")
    monkeypatch.delenv("ADSP_LIBRARY_PATH", raising=False)
    found = device_process.environment("/opt/qnn/libQnnHtp.so")
    assert (found["LD_LIBRARY_PATH"], found["ADSP_LIBRARY_PATH"]) == ("/opt/qnn:/usr/mine", "/opt/qnn")
    assert device_process.environment()["LD_LIBRARY_PATH"] == "/usr/mine"
