"""E2: the run option ``qnn.lora_config`` names adapters, and the run has their results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.adapters.test_adapters import FIRST, SECOND, SIZE, X, close, lora_graph, merged
from tests.waiting import PATIENCE_S

import openhtp as htp
from openhtp import zoo
from openhtp.engine.onnxruntime import onnxruntime as ort
from openhtp.frontend.model import ValueType
from openhtp.session.context_cache import write_context_model


def lora_config(path: Path | str) -> Any:
    options = ort.RunOptions()
    options.add_run_config_entry("qnn.lora_config", str(path))
    return options


@pytest.fixture
def folder(tmp_path: Path, context: htp.Context) -> Path:
    """A model whose graph takes adapters, two of them, and the file that names each."""
    graph = lora_graph(context)
    for name, data in (("first", FIRST), ("second", SECOND)):
        section = tmp_path / f"{name}.bin"
        section.write_bytes(context.get_binary_section(graph, data))
        (tmp_path / f"{name}.txt").write_text(f"g;{section}\n")
    kind = ValueType(np.dtype(np.float32), (1, SIZE))
    model = write_context_model("g", {"x": kind}, {"y": kind}, context.get_binary(), {})
    (tmp_path / "model.onnx").write_bytes(model)
    return tmp_path


@pytest.mark.parametrize("way", ["run", "run_async", "binding"])
def test_e2_a_run_has_the_adapter_that_it_names(folder: Path, context: htp.Context, way: str) -> None:
    with htp.InferenceSession(folder / "model.onnx") as session:

        def run(options: Any) -> np.ndarray:
            if way == "run":
                return session.run(None, {"x": X}, options)[0]
            if way == "run_async":
                return session.run_async(None, {"x": X}, run_options=options).result(PATIENCE_S)[0]
            binding = session.io_binding()
            binding.bind_cpu_input("x", X)
            binding.bind_output("y")
            session.run_with_iobinding(binding, options)
            return binding.copy_outputs_to_cpu()[0]

        base = run(None)
        for name, data in (("first", FIRST), ("second", SECOND), ("first", FIRST)):
            close(run(lora_config(folder / f"{name}.txt")), merged(context, data))
        close(run(None), merged(context, FIRST))  # which stays until another run names another
        assert not np.allclose(run(None), base)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "names no adapter"),
        ("g\n", "expected <graph>;<file>"),
        ("other;first.bin\n", "'other'.*has 'g'"),
        ("g;{folder}/nowhere.bin\n", "nowhere.bin"),
        ("g;{folder}/first.txt\n", "section"),
    ],
    ids=["empty", "no file", "unknown graph", "missing file", "no section"],
)
def test_e2_what_is_wrong_is_told_and_nothing_runs(folder: Path, text: str, told: str) -> None:
    config = folder / "config.txt"
    config.write_text(text.format(folder=folder))
    with htp.InferenceSession(folder / "model.onnx") as session:
        base = session.run(None, {"x": X})[0]
        with pytest.raises(htp.QnnError, match=told):
            session.run(None, {"x": X}, lora_config(config))
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], base)


def test_e2_a_config_that_is_not_there_is_told(folder: Path) -> None:
    with (
        htp.InferenceSession(folder / "model.onnx") as session,
        pytest.raises(htp.InvalidArgument, match="nowhere"),
    ):
        session.run(None, {"x": X}, lora_config(folder / "nowhere.txt"))


def test_e2_a_model_on_the_cpu_has_no_adapters(folder: Path) -> None:
    model = zoo.tiny_mlp()
    with (
        htp.InferenceSession(model, providers=["CPUExecutionProvider"]) as session,
        pytest.raises(htp.InvalidArgument, match="no graph on the HTP"),
    ):
        session.run(None, zoo.random_feeds(model)[0], lora_config(folder / "first.txt"))
