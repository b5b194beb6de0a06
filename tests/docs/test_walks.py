"""The walks of docs/architecture.md: every stop is there, and a walk that is really taken passes it."""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.waiting import PATIENCE_S

import openhtp as htp
from openhtp import llm
from openhtp.testing import hold, release

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
EXAMPLES = PAGE.parents[1] / "examples"
HEADING = re.compile(r"^### (?P<title>.+)$", re.MULTILINE)
STOP = re.compile(r"^\d+\. `(?P<name>[\w.]+)`", re.MULTILINE)
FEED = {"x": np.arange(-4, 4, dtype=np.float32).reshape(1, 8)}


def read_walks() -> dict[str, list[str]]:
    section = PAGE.read_text("utf-8").split("## Five walks", 1)[1].split("\n## ", 1)[0]
    titles = HEADING.findall(section)
    return dict(zip(titles, (STOP.findall(text) for text in HEADING.split(section)[2::2]), strict=True))


WALKS = read_walks()


def code_of(name: str) -> CodeType:
    """The code of a stop, which is named as Python names it, without the package."""
    found: Any = pkgutil.resolve_name(f"openhtp.{name}")
    if isinstance(found, type):
        found = found.__init__  # type: ignore[misc]
    if isinstance(found, property):
        found = found.fget
    code = inspect.unwrap(found).__code__
    assert isinstance(code, CodeType)
    return code


class Passed:
    """Notes which code runs, on this thread and on those that begin meanwhile."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            self.codes.add(frame.f_code)

    def __enter__(self) -> Passed:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)


def relu_model() -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def from_onnx_to_callback(tmp_path: Path) -> None:
    path = tmp_path / "relu.onnx"
    onnx.save(relu_model(), path)
    called = threading.Event()
    with htp.Backend() as backend:
        device = backend.create_device(soc="SM8650", transport="inprocess")
        graph = device.create_context().compose_graph(htp.onnx.load(path))
        graph.finalize()
        hold(device)  # an idle NPU would compute so short a graph at once, on this thread
        graph.execute_async(FEED, notify=lambda *_: called.set())
        release(device)
        assert called.wait(PATIENCE_S)


def from_binary_to_first_run(tmp_path: Path) -> None:
    with htp.Backend() as backend:
        device = backend.create_device(soc="SM8650", transport="inprocess")
        context = device.create_context()
        context.compose_graph(htp.onnx.load(relu_model())).finalize()
        binary = context.get_binary()
    with htp.Backend() as backend:
        device = backend.create_device(soc="SM8650", transport="inprocess")
        device.create_context_from_binary(binary).graphs["relu"].execute(FEED)


def from_scenario_to_page(tmp_path: Path) -> None:
    from openhtp.cli.main import app

    page = tmp_path / "starvation.html"
    app(["plan", str(EXAMPLES / "starvation.yaml"), "--timeline", str(page)], standalone_mode=False)
    assert page.stat().st_size


def one_token(tmp_path: Path) -> None:
    tiny = llm.Llama(layers=1, hidden=64, heads=2, kv_heads=1, head_dim=64, vocab=96, ffn=96, context=256)
    with htp.Backend() as backend:
        device = backend.create_device(soc="SM8650", transport="inprocess")
        with llm.Generator(llm.export(tiny, ar=(32, 1)), device) as generator:
            assert len(generator.complete([1, 2, 3], max_new=1)) == 1


def a_call_from_c(tmp_path: Path) -> None:
    from tests.capi.conftest import ROOT, build_script
    from tests.capi.raw_graph import RawGraph

    from openhtp.capi.client_calls import COPIED_TIMES
    from openhtp.core.dtype import DType
    from openhtp.core.opcall import OpCall
    from openhtp.core.tensor import TensorKind, TensorSpec
    from openhtp.vendor.backend import LibraryBackend
    from openhtp.vendor.context import LibraryContext
    from openhtp.vendor.library import load

    if not build_script().compile_libraries(ROOT, tmp_path):
        pytest.skip("there is no C compiler")
    backend = LibraryBackend(load(tmp_path / "libQnnHtp.so"))
    x = TensorSpec("x", (1, 8), DType.FLOAT_32, None, TensorKind.APP_WRITE)
    y = TensorSpec("y", (1, 8), DType.FLOAT_32, None, TensorKind.APP_READ)
    context = LibraryContext.create(backend.create_device(soc="SM8650"))
    graph = RawGraph(context, (x, y), [OpCall("Relu", "relu", (x,), (y,))])
    given = [graph.room("x", FEED["x"])], [graph.room("y", np.empty((1, 8), np.float32))]
    for _ in range(COPIED_TIMES + 2):
        assert graph.execute(*given) == 0
    backend.free()


TAKEN: dict[str, Callable[[Path], None]] = {
    "From an ONNX file to your callback": from_onnx_to_callback,
    "A call from C": a_call_from_c,
    "From a scenario to a page": from_scenario_to_page,
    "From a binary to the first run": from_binary_to_first_run,
    "One token": one_token,
}


def test_all_walks_are_taken() -> None:
    assert list(WALKS) == list(TAKEN)
    assert all(WALKS.values())


@pytest.mark.parametrize("title", TAKEN)
def test_a_walk_passes_its_stops(title: str, tmp_path: Path) -> None:
    stops = {name: code_of(name) for name in WALKS[title]}
    with Passed() as passed:
        TAKEN[title](tmp_path)
    missed = [name for name, code in stops.items() if code not in passed.codes]
    assert not missed, f"{title}: not passed: {missed}"
