"""The build script notes which Python an editable installation belongs to."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

from tests.capi.conftest import ROOT, build_script


def test_a_python_that_was_moved_is_noted_where_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own settings name the folder it was built for, which may be gone or closed to this user."""
    moved = tmp_path / "moved"
    (moved / "lib").mkdir(parents=True)
    library = moved / "lib" / "libpython9.so.1.0"
    library.touch()
    built_for = {"LIBDIR": str(tmp_path / "gone"), "INSTSONAME": library.name}
    known = sysconfig.get_config_var
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: built_for.get(name) or known(name))
    monkeypatch.setattr(sys, "base_prefix", str(moved))

    build_script().note_python(tmp_path)

    assert f"libpython={library}" in (tmp_path / "python.cfg").read_text(encoding="utf-8").splitlines()


def test_a_static_python_has_no_library_to_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libpython9.a").touch()
    built_for = {"LIBDIR": str(tmp_path / "lib"), "INSTSONAME": "libpython9.a"}
    known = sysconfig.get_config_var
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: built_for.get(name) or known(name))

    build_script().note_python(tmp_path)

    assert "libpython=" not in (tmp_path / "python.cfg").read_text(encoding="utf-8")


def test_libraries_of_an_earlier_version_are_removed(tmp_path: Path) -> None:
    """In an editable installation they would lie beside the present ones."""
    script = build_script()
    if script.compiler() is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "libcdsprpc.so").touch()
    script.compile_libraries(ROOT, tmp_path)
    libraries = [path.name for path in tmp_path.rglob("*.so")]
    assert len(libraries) == len(set(libraries))
