"""Subjects of measurements: a graph with memory of both kinds, and client work of a chosen length."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import openhtp as htp
from openhtp import zoo
from openhtp.engine.onnxruntime import onnxruntime

Arrays = dict[str, npt.NDArray[Any]]
NETWORKS = ("mobilenet_v2", "resnet50")


@dataclass(slots=True)
class MeasuredGraph:
    """A finalized graph and feeds for it, raw and registered. Registered ones come in as many as the depth."""

    name: str
    graph: htp.Graph
    raw: Arrays
    registered: list[tuple[Arrays, Arrays]] = field(default_factory=list)
    inference_ns: int = 0

    def feeds(self, memory: str, number: int) -> tuple[Arrays, Arrays | None]:
        """Inputs and outputs of the n-th call under way."""
        if memory == "raw":
            return self.raw, None
        inputs, outputs = self.registered[number % len(self.registered)]
        return inputs, outputs


def trivial_graph(context: htp.Context) -> htp.Graph:
    """The smallest graph: the float Relu that other runtimes get too (``queueing.compare_peers``)."""
    graph = context.create_graph("trivial")
    x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
    y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
    graph.add_node("Relu", inputs=[x], outputs=[y])
    graph.finalize()
    return graph


@cache
def quantized_network(name: str, weight: str = "u8") -> bytes:
    """A network of the zoo, 8 bits. Calibrating it takes seconds, and more than one measurement wants it."""
    return zoo.quantized(zoo.MODELS[name](), weight=weight)


def import_network(context: htp.Context, model: bytes, name: str, **options: Any) -> htp.Graph:
    """Build a graph from a model file's bytes."""
    from openhtp import onnx

    graph = context.compose_graph(onnx.load(model), name, **options)
    graph.finalize()
    return graph


def registered_arrays(graph: htp.Graph, values: Arrays) -> tuple[Arrays, Arrays]:
    """Inputs with these values and outputs, on registered memory of their own."""
    needed = sum(tensor.nbytes + 64 for tensor in (*graph.inputs, *graph.outputs))
    memory = graph.context.register_memory(needed)
    inputs = {tensor.name: memory.array(tensor) for tensor in graph.inputs}
    for name, array in inputs.items():
        array[:] = values[name]
    return inputs, {tensor.name: memory.array(tensor) for tensor in graph.outputs}


def plain_session(model: bytes, save_to: Path | None = None) -> Any:
    """ONNX Runtime alone, on one thread; ``save_to`` is an ``.ort`` file, for quick loading."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if save_to is not None:
        options.optimized_model_filepath = str(save_to)
        options.add_session_config_entry("session.save_model_format", "ORT")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def prepare(name: str, graph: htp.Graph, depth: int) -> MeasuredGraph:
    """Make feeds, register memory for ``depth`` calls at once, and warm up."""
    rng = np.random.default_rng(0)
    raw: Arrays = {}
    for tensor in graph.inputs:
        values = rng.normal(size=tensor.shape) * 40 + (128 if tensor.dtype.is_fixed_point else 0)
        raw[tensor.name] = np.clip(values, 0, 255).astype(tensor.dtype.numpy)
    subject = MeasuredGraph(name, graph, raw)
    for _ in range(depth):
        subject.registered.append(registered_arrays(graph, raw))
    for _ in range(3):
        graph.execute(raw)
    times = []
    for _ in range(9):
        begin = time.perf_counter_ns()
        graph.execute(*subject.feeds("registered", 0))
        times.append(time.perf_counter_ns() - begin)
    subject.inference_ns = int(statistics.median(times))
    return subject


def client_work(nanoseconds: int) -> Callable[[], None]:
    """Pure-Python work of about this length, which holds the interpreter lock as an application's would."""

    def spin(count: int) -> None:
        for _ in range(count):
            pass

    if nanoseconds <= 0:
        return lambda: None
    per_turn = []
    for _ in range(9):
        begin = time.perf_counter_ns()
        spin(20_000)
        per_turn.append((time.perf_counter_ns() - begin) / 20_000)
    count = max(1, int(nanoseconds / statistics.median(per_turn)))
    return lambda: spin(count)
