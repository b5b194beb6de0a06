"""Two sessions of ONNX Runtime's QNN provider on one NPU: what their priorities are worth.

A long network runs in the background, a short one is called again and again. Sessions of a process that name one
chip share one emulated NPU, so the short one waits; with ``qnn_context_priority`` it does not.

Needs the provider: pip install 'openhtp[vendor]'. Run it with ``python examples/ort_two_sessions.py``.
"""

import statistics
import threading
import time

import onnxruntime as ort
import onnxruntime_qnn

import openhtp
from openhtp import zoo

RUNS = 40


def session(model: bytes, priority: str) -> ort.InferenceSession:
    """A session on the emulated NPU."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    provider = {"backend_path": openhtp.backend_path(), "qnn_context_priority": priority}
    options.add_provider_for_devices(devices, provider)
    return ort.InferenceSession(model, options)


def run_beside(background: str, urgent: str) -> tuple[float, float]:
    """Median and worst time of the short network, in milliseconds, while the long one runs."""
    slow, quick = session(long_model, background), session(short_model, urgent)
    slow.run(None, long_feeds)
    quick.run(None, short_feeds)
    over = threading.Event()

    def keep_running() -> None:
        while not over.is_set():
            slow.run(None, long_feeds)

    thread = threading.Thread(target=keep_running)
    thread.start()
    times = []
    for _ in range(RUNS):
        time.sleep(0.01)
        begin = time.perf_counter()
        quick.run(None, short_feeds)
        times.append((time.perf_counter() - begin) * 1e3)
    over.set()
    thread.join()
    return statistics.median(times), max(times)


if "QNNExecutionProvider" not in {device.ep_name for device in ort.get_ep_devices()}:
    ort.register_execution_provider_library("QNNExecutionProvider", onnxruntime_qnn.get_library_path())
devices = [device for device in ort.get_ep_devices() if device.ep_name == "QNNExecutionProvider"][:1]
long_model = zoo.quantized(zoo.MODELS["resnet50"]())
short_model = zoo.quantized(zoo.MODELS["tiny_mlp"]())
long_feeds, short_feeds = zoo.random_feeds(long_model, 1)[0], zoo.random_feeds(short_model, 1)[0]

for background, urgent in (("normal", "normal"), ("low", "high")):
    median_ms, worst_ms = run_beside(background, urgent)
    words = f"background {background}, urgent {urgent}"
    print(f"{words:36} median {median_ms:7.2f} ms, worst {worst_ms:7.2f} ms")
