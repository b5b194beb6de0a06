"""A pytest plug-in for ExecuTorch's own tests: says each result at once, leaves tests out, and stands in for zoos.

Model zoos that only whole-model tests use are replaced where they are not installed. Nothing of ExecuTorch is
changed. Of torch one function is: each program looks up the same thousand operators a hundred times, which is a
quarter of the time of the whole suite; they are looked up again when there are others.
"""

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from unittest.mock import MagicMock

RESULTS = "CLIENTS_RESULTS"
CHOSEN = "CLIENTS_CHOSEN"
_ZOOS = ("torchvision", "torchaudio", "timm", "torchsr", "piq")


class _Zoo(MagicMock):
    __path__: ClassVar[list[str]] = []


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the zoos that nobody installed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """A package for each."""
        is_zoo = name.split(".")[0] in _ZOOS
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_zoo else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Something that has every name."""
        made: Any = _Zoo(name=spec.name)
        made.__spec__, made.__name__, made.__version__ = spec, spec.name, "0"
        return made  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


sys.meta_path.append(_Finder())


def pytest_configure(config: Any) -> None:
    """Save time: see above. What collection made is never garbage either."""
    from torch import _C
    from torch._export import utils

    look_up, known = utils._materialize_cpp_cia_ops, []

    def look_up_new() -> None:
        names = _C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
        if names != known:
            look_up()
            known[:] = names

    utils._materialize_cpp_cia_ops = look_up_new


def name_of(node: str) -> str:
    """A test without the file that it is in."""
    return node.split("::", 1)[-1]


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Run only what was chosen, in that order."""
    if not os.environ.get(CHOSEN):
        return
    order = {name: place for place, name in enumerate(json.loads(Path(os.environ[CHOSEN]).read_text()))}
    left_out = [item for item in items if name_of(item.nodeid) not in order]
    config.hook.pytest_deselected(items=left_out)
    items[:] = sorted(
        (item for item in items if name_of(item.nodeid) in order), key=lambda item: order[name_of(item.nodeid)]
    )


def pytest_runtest_logreport(report: Any) -> None:
    """One line for each test and subtest."""
    if report.when != "call" and report.outcome == "passed":
        return
    line = {
        "test": name_of(report.nodeid),
        "outcome": "xfailed" if hasattr(report, "wasxfail") and report.outcome == "skipped" else report.outcome,
        "part": str(report.context.msg or report.context.kwargs) if hasattr(report, "context") else "",
        "why": str(report.longrepr or "")[-4000:] if report.outcome == "failed" else "",
        "output": "".join(text for _, text in report.sections)[-2000:] if report.outcome == "failed" else "",
    }
    with open(os.environ[RESULTS], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def pytest_collection_finish(session: Any) -> None:
    """The names of all tests, for whoever chooses."""
    if session.config.option.collectonly:
        names = [name_of(item.nodeid) for item in session.items]
        Path(os.environ[RESULTS]).write_text(json.dumps(names), encoding="utf-8")
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
