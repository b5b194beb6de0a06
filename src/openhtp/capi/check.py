"""Proof that a QNN client works with our library: ONNX Runtime's QNN provider runs a small model on it."""

from __future__ import annotations

import importlib.metadata
import statistics
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from openhtp.capi.identity import backend_path
from openhtp.core.errors import UnsupportedFeature
from openhtp.engine.onnxruntime import onnxruntime as ort

PROVIDER = "QNNExecutionProvider"
_PACKAGE = "onnxruntime-qnn"
_SHAPE = (1, 8, 16, 16)
_RUNS = 200
_registering = threading.Lock()


@dataclass(frozen=True, slots=True)
class ProviderProof:
    """The findings. ``median_us`` is measured."""

    client: str
    backend: str
    create_ms: float
    median_us: float
    elements: int
    differing: int
    widest: int


def _quantized_add() -> onnx.ModelProto:
    """Two dequantized inputs, added, quantized again: one operation for the NPU."""
    nodes = [
        helper.make_node("DequantizeLinear", [name, "scale", "zero"], [f"{name}_real"]) for name in ("a", "b")
    ]
    nodes.append(helper.make_node("Add", ["a_real", "b_real"], ["sum"]))
    nodes.append(helper.make_node("QuantizeLinear", ["sum", "wide", "zero"], ["o"]))
    constants = [
        numpy_helper.from_array(np.float32(0.02), "scale"),
        numpy_helper.from_array(np.float32(0.04), "wide"),
        numpy_helper.from_array(np.uint8(128), "zero"),
    ]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.UINT8, _SHAPE) for name in names] for names in ("ab", "o")
    ]
    graph = helper.make_graph(nodes, "proof", *ends, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def provider_session(model: bytes | str, library: str, options: Mapping[str, str] | None = None) -> Any:
    """A session of ONNX Runtime's QNN provider on a library; fails if any node would run on the CPU."""
    try:
        import onnxruntime_qnn
    except ImportError as error:
        raise UnsupportedFeature(
            f"the package {_PACKAGE} is not installed: `pip install {_PACKAGE}` brings ONNX Runtime's QNN provider"
        ) from error
    with _registering:
        if PROVIDER not in {device.ep_name for device in ort.get_ep_devices()}:
            ort.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]
    chosen = ort.SessionOptions()
    chosen.log_severity_level = 3
    chosen.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    chosen.add_provider_for_devices(devices[:1], {"backend_path": library, **(options or {})})
    return ort.InferenceSession(model, sess_options=chosen)


def prove() -> ProviderProof:
    """Run the model with the provider on our library and with ONNX Runtime's own kernels, and compare."""
    library = backend_path()
    model = _quantized_add().SerializeToString()
    begin = time.perf_counter()
    session = provider_session(model, library)
    created = time.perf_counter() - begin
    random = np.random.default_rng(1)
    feeds = {name: random.integers(0, 256, _SHAPE, np.uint8) for name in "ab"}
    (outputs,) = session.run(None, feeds)
    (expected,) = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    times = []
    for _ in range(_RUNS):
        start = time.perf_counter_ns()
        session.run(None, feeds)
        times.append(time.perf_counter_ns() - start)
    off = np.abs(outputs.astype(int) - expected.astype(int))
    return ProviderProof(
        client=f"{_PACKAGE} {importlib.metadata.version(_PACKAGE)}, onnxruntime {ort.__version__}",
        backend=library,
        create_ms=created * 1e3,
        median_us=statistics.median(times) / 1e3,
        elements=int(off.size),
        differing=int((off > 0).sum()),
        widest=int(off.max()),
    )
