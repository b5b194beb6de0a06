"""Sync against async on the same graph: by queue depth, kind of memory and work of the client."""

from __future__ import annotations

import math
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np
from onnx import TensorProto, helper

import openhtp as htp
from openhtp.bench.quiet import BenchProgress, Measurement, QuietGate, QuietResult, median
from openhtp.bench.subjects import (
    MeasuredGraph,
    client_work,
    import_network,
    plain_session,
    prepare,
    quantized_network,
    trivial_graph,
)
from openhtp.config import BackendConfig
from openhtp.core import interpreter
from openhtp.engine.onnxruntime import onnxruntime

_PIECE_SECONDS = 0.25
MEMORIES = ("raw", "registered")


class AsyncRow(msgspec.Struct, frozen=True):
    """One comparison. Rates are inferences per second; ``client_work`` is in inference times."""

    network: str
    client_work: float
    memory: str
    depth: int
    sync_ips: float
    async_ips: float
    ratio: float


class AsyncResult(QuietResult, kw_only=True):
    """Everything ``openhtp bench async`` measured. All times are of the wall clock."""

    rows: list[AsyncRow] = msgspec.field(default_factory=list)
    submit_us_p50: float = 0.0
    roundtrip_us_p50: float = 0.0
    efficiency_vs_ort: float = 0.0
    cold_start_s: float = 0.0
    trivial_us: dict[str, float] = msgspec.field(default_factory=dict)
    inference_ms: dict[str, float] = msgspec.field(default_factory=dict)


# depth, network, fractions of client work
_PLAN: dict[str, tuple[tuple[int, ...], tuple[float, ...]]] = {
    "trivial": ((1, 2, 10, 50, 300), (0.0,)),
    "small_cnn": ((2, 10), (0.0, 0.5, 1.0)),
    "mobilenet_v2": ((2, 10), (0.0, 0.5, 1.0)),
}


def trivial_piece(device: htp.Device) -> Callable[[], float]:
    """Microseconds per inference of the trivial graph at depth 50 with registered memory, for comparisons."""
    subject = _subject(device, "trivial", None)
    return lambda: 1e6 / _async_ips(subject, "registered", lambda: None, 4000, 50)


def run(
    *, rounds: int = 5, networks: tuple[str, ...] = tuple(_PLAN), config: BackendConfig | None = None
) -> Iterator[BenchProgress | AsyncResult]:
    """Measure; yields progress, and the result last."""
    result = AsyncResult()
    groups = [(name, work) for name in networks for work in _PLAN[name][1]]
    total = len(groups) + 3
    with htp.Backend() as backend:
        device = backend.create_device(config=config)
        quiet = QuietGate()
        subjects: dict[str, MeasuredGraph] = {}
        models: dict[str, bytes] = {}
        for done, (name, work) in enumerate(groups):
            yield BenchProgress(f"{name}, client work {work:g}x", done, total)
            if name not in subjects:
                if name != "trivial":
                    models[name] = quantized_network(name)
                subjects[name] = _subject(device, name, models.get(name))
                result.inference_ms[name] = subjects[name].inference_ns / 1e6
            result.rows += _compare(subjects[name], work, quiet, rounds)
        yield BenchProgress("submit and round trip", len(groups), total)
        if "trivial" in subjects:
            result.submit_us_p50 = _submit_us(subjects["trivial"], quiet, rounds)
            result.roundtrip_us_p50 = _roundtrip_us(subjects["trivial"], quiet, rounds)
            result.trivial_us["openhtp, depth 50, registered"] = _trivial_us(result.rows)
        yield BenchProgress("plain ONNX Runtime", len(groups) + 1, total)
        if "mobilenet_v2" in subjects:
            result.efficiency_vs_ort = _efficiency(subjects["mobilenet_v2"], models["mobilenet_v2"], quiet, rounds)
        yield BenchProgress("cold start", len(groups) + 2, total)
        result.cold_start_s = _cold_start()
        quiet.tell(result)
    yield result


def _subject(device: htp.Device, name: str, model: bytes | None) -> MeasuredGraph:
    depths = _PLAN[name][0]
    context = device.create_context(queue_depth=max(depths))
    graph = trivial_graph(context) if model is None else import_network(context, model, name)
    return prepare(name, graph, max(depths))


def _compare(subject: MeasuredGraph, work: float, quiet: QuietGate, rounds: int) -> list[AsyncRow]:
    """Interleave all variants of one group, so that a slow minute hits them alike."""
    busy = client_work(int(subject.inference_ns * work))
    per_call_ns = max(subject.inference_ns * (1 + work), 20_000)
    calls = max(20, min(4000, int(_PIECE_SECONDS * 1e9 / per_call_ns)))
    depths = _PLAN[subject.name][0]
    rates: dict[tuple[str, int], list[Measurement[float]]] = {}
    for _ in range(rounds):
        for memory in MEMORIES:
            sample = quiet.measure(partial(_sync_ips, subject, memory, busy, calls))
            rates.setdefault((memory, 0), []).append(sample)
            for depth in depths:
                rate = quiet.measure(partial(_async_ips, subject, memory, busy, calls, depth))
                rates.setdefault((memory, depth), []).append(rate)
    rows = []
    for memory in MEMORIES:
        sync = median(rates[memory, 0])
        for depth in depths:
            asynchronous = median(rates[memory, depth])
            rows.append(AsyncRow(subject.name, work, memory, depth, sync, asynchronous, asynchronous / sync))
    return rows


def _sync_ips(subject: MeasuredGraph, memory: str, busy: Callable[[], None], calls: int) -> float:
    execute, feeds = subject.graph.execute, subject.feeds
    begin = time.perf_counter_ns()
    for _ in range(calls):
        busy()
        execute(*feeds(memory, 0))
    return calls * 1e9 / (time.perf_counter_ns() - begin)


def _async_ips(subject: MeasuredGraph, memory: str, busy: Callable[[], None], calls: int, depth: int) -> float:
    """Queue without waiting, never more than ``depth`` at once, and wait for the last at the end."""
    submit, feeds = subject.graph.execute_async, subject.feeds
    under_way: list[htp.Execution] = []
    begin = time.perf_counter_ns()
    for number in range(calls):
        busy()
        if number >= depth:
            under_way[number - depth].result()
        under_way.append(submit(*feeds(memory, number % depth)))
    for execution in under_way[-depth:]:
        execution.result()
    return calls * 1e9 / (time.perf_counter_ns() - begin)


def _submit_us(subject: MeasuredGraph, quiet: QuietGate, rounds: int) -> float:
    def piece() -> float:
        times = []
        for _ in range(20):
            executions = []
            for number in range(50):
                inputs, outputs = subject.feeds("registered", number)
                begin = time.perf_counter_ns()
                executions.append(subject.graph.execute_async(inputs, outputs))
                times.append(time.perf_counter_ns() - begin)
            for execution in executions:
                execution.result()
        return statistics.median(times) / 1e3

    return median([quiet.measure(piece) for _ in range(rounds)])


def _roundtrip_us(subject: MeasuredGraph, quiet: QuietGate, rounds: int) -> float:
    def piece() -> float:
        times = []
        for _ in range(1000):
            begin = time.perf_counter_ns()
            subject.graph.execute(*subject.feeds("registered", 0))
            times.append(time.perf_counter_ns() - begin)
        return statistics.median(times) / 1e3

    return median([quiet.measure(piece) for _ in range(rounds)])


def _trivial_us(rows: list[AsyncRow]) -> float:
    for row in rows:
        if (row.network, row.memory, row.depth) == ("trivial", "registered", 50):
            return 1e6 / row.async_ips
    return 0.0


def _efficiency(subject: MeasuredGraph, model: bytes, quiet: QuietGate, rounds: int) -> float:
    """Our inferences per second, asynchronous at depth 10, over plain ONNX Runtime's on the same file."""
    session = plain_session(model)
    feeds: dict[str, Any] = {}
    for item in session.get_inputs():
        values = next(array for array in subject.raw.values() if array.size == math.prod(item.shape))
        feeds[item.name] = values.astype(_NUMPY_OF[item.type]).reshape(item.shape)
    calls = max(20, int(_PIECE_SECONDS * 1e9 / subject.inference_ns))

    def plain() -> float:
        begin = time.perf_counter_ns()
        for _ in range(calls):
            session.run(None, feeds)
        return calls * 1e9 / (time.perf_counter_ns() - begin)

    plain()
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(quiet.measure(lambda: _async_ips(subject, "registered", lambda: None, calls, 10)))
        theirs.append(quiet.measure(plain))
    return median(ours) / median(theirs)


_NUMPY_OF = {"tensor(float)": "float32", "tensor(uint8)": "uint8", "tensor(uint16)": "uint16"}


_COLD = """
import time
begin = time.perf_counter()
import openhtp as htp, numpy as np
graph = htp.Backend().create_device().create_context().create_graph("g")
x = graph.add_tensor("x", (1, 32, 32, 8), "float32", kind="app_write")
y = graph.add_tensor("y", (1, 32, 32, 8), "float32", kind="app_read")
graph.add_node("Relu", inputs=[x], outputs=[y])
graph.finalize()
graph.execute({"x": np.zeros((1, 32, 32, 8), np.float32)})
print(time.perf_counter() - begin)
"""


def _cold_start() -> float:
    """From ``import openhtp`` to the first result, in a fresh interpreter."""
    times = []
    for _ in range(3):
        done = subprocess.run(
            interpreter.command("-c", _COLD),
            env=interpreter.environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        times.append(float(done.stdout))
    return statistics.median(times)


# The same trivial model on other asynchronous runtimes, for ``openhtp bench async --peers``.


_CALLS = 2000
_DEPTH = 50


def _trivial_model() -> bytes:
    node = helper.make_node("Relu", ["x"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8])
    graph = helper.make_graph([node], "trivial", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    data: bytes = model.SerializeToString()
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


def compare_peers(ours: Callable[[], float], rounds: int = 5) -> dict[str, float | None]:
    """Microseconds per inference of the trivial model, all measured in turns; None where a peer is missing."""
    contenders: dict[str, Callable[[], float] | None] = {
        "openhtp, depth 50, registered": ours,
        "onnxruntime run_async, 50 under way": _onnxruntime(),
        "OpenVINO AsyncInferQueue, 50 jobs": _openvino(),
    }
    quiet = QuietGate()
    times: dict[str, list[Measurement[float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, piece in contenders.items():
            if piece is not None:
                times[name].append(quiet.measure(piece))
    return {name: median(samples) if samples else None for name, samples in times.items()}
