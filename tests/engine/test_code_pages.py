"""Code that was needed to load a graph is given back, and is there again when it is used."""

from __future__ import annotations

import io

import numpy as np
import pytest
from onnx import TensorProto, helper

from openhtp.engine import code_pages
from openhtp.engine.code_pages import give_back_code, unchanged_pages
from openhtp.engine.onnxruntime import onnxruntime

RUNTIME = "onnxruntime_pybind11_state"


def needs_counts() -> None:
    """Skip where the system does not count what is in memory, as emulators of other processors."""
    with open("/proc/self/smaps", encoding="utf-8") as spans:
        if not any(line.startswith("Rss:") and int(line.split()[1]) for line in spans):
            pytest.skip("this system says that nothing of this process is in memory")


def resident_kib() -> int:
    """How much of the runtime's code is in memory."""
    found, counts = 0, False
    with open("/proc/self/smaps", encoding="utf-8") as spans:
        for line in spans:
            name, value = line.split()[:2]
            if not name.endswith(":"):
                counts = RUNTIME in line and "r-xp" in value
            elif name == "Rss:" and counts:
                found += int(value)
    return found


def doubled() -> float:
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return float(session.run(None, {"x": np.array([21], np.float32)})[0][0])


def test_code_is_given_back_and_comes_again() -> None:
    needs_counts()
    assert doubled() == 42
    before = resident_kib()
    give_back_code()
    assert resident_kib() < before
    assert doubled() == 42


def test_only_pages_that_nobody_writes_are_given_back() -> None:
    needs_counts()
    given_back = unchanged_pages()
    assert given_back
    with open("/proc/self/maps", encoding="utf-8") as maps:
        rights = {int(line.split("-")[0], 16): line.split()[1] for line in maps}
    assert all(rights[begin] in ("r-xp", "r--p") for begin, _ in given_back)


def test_nothing_is_given_back_where_the_system_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that the loader wrote to would be lost: they, too, are called unchanged there."""
    with open("/proc/self/smaps", encoding="utf-8") as spans:
        lines = [f"{line.split()[0]} 0 kB\n" if line.endswith(" kB\n") else line for line in spans]
    monkeypatch.setattr(code_pages, "open", lambda *_, **__: io.StringIO("".join(lines)), raising=False)
    assert unchanged_pages() == []
