"""The engine against plain ONNX Runtime on the same network. Needs a quiet machine: ``pytest -m bench``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import pytest
from engine_networks import mobilenet_v2

from openhtp.compiler.driver import compile_graph
from openhtp.engine.onnxruntime import onnxruntime as ort
from openhtp.engine.ort import OrtEngine

ROUNDS = 60


def is_quiet() -> bool:
    """Whether nobody took the core away for a while: timings taken otherwise say nothing."""
    last = begin = time.perf_counter()
    longest = 0.0
    while last - begin < 0.008:
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest < 0.0008


def seconds(function: Callable[[], None]) -> float:
    begin = time.perf_counter()
    for _ in range(3):
        function()
    return time.perf_counter() - begin


@pytest.mark.bench
def test_a_quantized_network_runs_as_fast_as_its_qdq_model() -> None:
    builder, model = mobilenet_v2()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    plain = ort.InferenceSession(model, options)
    loaded = OrtEngine(threads=1).load(compile_graph(builder.finish(), "SM8650"))
    x = np.random.default_rng(0).integers(0, 256, (1, 224, 224, 3)).astype(np.uint8)
    y = np.zeros((1, 1000), np.uint8)
    bound = loaded.bind({"x": x, "y": y})
    binding = plain.io_binding()
    binding.bind_cpu_input("x.q", np.ascontiguousarray(x.transpose(0, 3, 1, 2)))
    binding.bind_output("y.q", "cpu")

    def ours() -> None:
        for step in range(loaded.steps):
            bound.step(step)

    def theirs() -> None:
        plain.run_with_iobinding(binding)

    ours(), theirs()
    ratios: list[float] = []
    deadline = time.perf_counter() + 60
    while len(ratios) < ROUNDS and time.perf_counter() < deadline:
        pair = (ours, theirs) if len(ratios) % 2 else (theirs, ours)
        if is_quiet():
            taken = {function: seconds(function) for function in pair}
            if is_quiet():
                ratios.append(taken[theirs] / taken[ours])
    if len(ratios) < ROUNDS // 2:
        pytest.skip("the machine is too busy to time anything")
    assert statistics.median(ratios) >= 0.95
