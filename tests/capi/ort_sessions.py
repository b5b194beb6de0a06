"""Sessions of ONNX Runtime with its QNN provider on a given library."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

PROVIDER = "QNNExecutionProvider"


def devices() -> list[Any]:
    """What the provider offers; registered once per process."""
    import onnxruntime_qnn

    from openhtp.engine.onnxruntime import onnxruntime as ort

    if PROVIDER not in {device.ep_name for device in ort.get_ep_devices()}:
        ort.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
    return [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER][:1]


def session(
    model: onnx.ModelProto | str, library: str, options: dict[str, str] | None = None, **config: str
) -> Any:
    """A session that fails where the provider would leave something to the CPU."""
    from openhtp.engine.onnxruntime import onnxruntime as ort

    chosen = ort.SessionOptions()
    chosen.log_severity_level = 4
    chosen.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    for key, value in config.items():
        chosen.add_session_config_entry(key.replace("__", "."), value)
    chosen.add_provider_for_devices(devices(), {"backend_path": library, **(options or {})})
    source = model if isinstance(model, str) else model.SerializeToString()
    return ort.InferenceSession(source, sess_options=chosen)


def on_cpu(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What ONNX Runtime's own kernels make of it."""
    from openhtp.engine.onnxruntime import onnxruntime as ort

    chosen = ort.SessionOptions()
    chosen.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    made = ort.InferenceSession(model.SerializeToString(), chosen, providers=["CPUExecutionProvider"])
    return list(made.run(None, feeds))
