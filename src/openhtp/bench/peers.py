"""The same trivial model on other asynchronous runtimes, for the comparison in ``openhtp bench async --peers``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from openhtp.bench.quiet import Measurement, Quiet, median
from openhtp.engine.onnxruntime import onnxruntime

_CALLS = 2000
_DEPTH = 50


def _trivial_model() -> bytes:
    node = helper.make_node("Relu", ["x"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])
    graph = helper.make_graph([node], "trivial", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data: bytes = model.SerializeToString()
    onnx.checker.check_model(model)
    return data


def _onnxruntime() -> Callable[[], float]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2  # run_async needs a thread beside the caller's
    session = onnxruntime.InferenceSession(_trivial_model(), options, providers=["CPUExecutionProvider"])
    feeds = {"x": np.zeros((1, 8), np.float32)}
    places = threading.Semaphore(_DEPTH)

    def done(result: object, user_data: object, error: str) -> None:
        places.release()

    def piece() -> float:
        begin = time.perf_counter_ns()
        for _ in range(_CALLS):
            places.acquire()
            session.run_async(None, feeds, done, None)
        for _ in range(_DEPTH):
            places.acquire()
        took = time.perf_counter_ns() - begin
        for _ in range(_DEPTH):
            places.release()
        return took / _CALLS / 1e3

    return piece


def _openvino() -> Callable[[], float] | None:
    try:
        import openvino
    except ImportError:
        return None
    core = openvino.Core()
    model = core.compile_model(core.read_model(_trivial_model()), "CPU", {"NUM_STREAMS": "1"})
    jobs: Any = openvino.AsyncInferQueue(model, _DEPTH)
    jobs.set_callback(lambda request, data: None)
    feeds = {0: np.zeros((1, 8), np.float32)}

    def piece() -> float:
        begin = time.perf_counter_ns()
        for _ in range(_CALLS):
            jobs.start_async(feeds)
        jobs.wait_all()
        return (time.perf_counter_ns() - begin) / _CALLS / 1e3

    return piece


def compare(ours: Callable[[], float], rounds: int = 5) -> dict[str, float | None]:
    """Microseconds per inference of the trivial model, all measured in turns; None where a peer is missing."""
    contenders: dict[str, Callable[[], float] | None] = {
        "openhtp, depth 50, registered": ours,
        "onnxruntime run_async, 50 under way": _onnxruntime(),
        "OpenVINO AsyncInferQueue, 50 jobs": _openvino(),
    }
    quiet = Quiet()
    times: dict[str, list[Measurement[float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, piece in contenders.items():
            if piece is not None:
                times[name].append(quiet.measure(piece))
    return {name: median(found) if found else None for name, found in times.items()}
