from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.capi.conftest import ROOT, build_script

from openhtp.engine import native, sessions
from openhtp.engine.native import Native


@pytest.fixture(scope="session")
def sessions_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C side of the engine, compiled from its source as it is now."""
    folder = tmp_path_factory.mktemp("sessions")
    if not build_script().compile_sessions(ROOT, folder):
        pytest.skip("there is no C compiler")
    return folder


@pytest.fixture
def side(sessions_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Native]:
    """Sessions are made by the C side."""
    monkeypatch.setattr(native, "FOLDER", sessions_folder)
    monkeypatch.delenv(native.SWITCH, raising=False)
    native.native.cache_clear()
    found = native.native()
    assert found is not None
    yield found
    native.native.cache_clear()


@pytest.fixture
def package_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sessions are made by the runtime's Python package."""
    monkeypatch.setenv(native.SWITCH, "0")
    native.native.cache_clear()
    assert native.native() is None
    yield
    native.native.cache_clear()


@pytest.fixture(params=["blocked", "plain"])
def image_order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the runtime keeps images: in blocks, for which processors other than ARM have kernels, or plainly."""
    if request.param == "plain":
        monkeypatch.setattr(sessions, "_HARMFUL", (*sessions._HARMFUL, "NchwcTransformer"))
    return str(request.param)
