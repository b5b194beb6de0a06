"""The table of trained networks is long enough, its page has every one, and a network that falls off is told."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from openhtp import zoo

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    location = importlib.util.spec_from_file_location("trained_networks", ROOT / "tools" / "trained_networks.py")
    assert location is not None
    assert location.loader is not None
    module = importlib.util.module_from_spec(location)
    sys.modules[location.name] = module  # dataclasses look their module up
    location.loader.exec_module(module)
    yield module
    del sys.modules[location.name]


def test_there_are_enough_and_the_page_has_them(tool: ModuleType) -> None:
    assert len(tool.NETWORKS) >= 25
    rows = re.findall(r"^\| ([^|]+) \| \S+ [\d.]+ \|", tool.PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == list(tool.NETWORKS)


def test_packages_are_pinned(tool: ModuleType) -> None:
    assert [n for n in tool.NETWORKS.values() if not re.fullmatch(r"[\w-]+==[\d.]+", n.package)] == []


@pytest.mark.parametrize(("float_db", "problem"), [(30, ""), (200, "200 are expected")])
def test_a_network_that_is_too_far_off_is_told(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, float_db: float, problem: str
) -> None:
    monkeypatch.setattr(tool, "fetch", lambda network: zoo.tiny_mlp())
    row = tool.measure(tool.Network("none==0", "none.onnx", float_db=float_db))
    assert problem in row.problem
    assert bool(row.problem) == bool(problem)
    assert row.htp_db is not None
    assert row.htp_db > 20
