from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from openhtp.capi import client_calls

ROOT = Path(__file__).parents[2]


def build_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def lib_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our libraries, compiled from the sources as they are now."""
    folder = tmp_path_factory.mktemp("lib")
    if not build_script().compile_libraries(ROOT, folder):
        pytest.skip("there is no C compiler")
    return folder


@pytest.fixture(params=["bound", "copied"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How small data reach a graph: in place from the first call on, or first as copies."""
    monkeypatch.setattr(client_calls, "COPIED_TIMES", 0 if request.param == "bound" else 2)
    return str(request.param)
