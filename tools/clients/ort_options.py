"""ONNX Runtime's QNN provider, of whatever release is installed, on our library: its options one by one.

``python ort_options.py [NAME ...]``: each check in a process of its own, since some are about how that ends.
Nothing may be left to the CPU, and results are within two steps of the CPU's.
"""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from openhtp import backend_path
from openhtp.engine.onnxruntime import onnxruntime as ort

PROVIDER = "QNNExecutionProvider"
STEP = 8 / 255
SHAPE = (1, 3, 16, 16)
CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Note a check by its name."""
    CHECKS[function.__name__] = function
    return function


def model(file: str, seed: int = 0) -> str:
    """A quantized convolution with a bias, in a file."""
    random = np.random.default_rng(seed)
    weights, bias = random.normal(0, 0.3, (8, 3, 3, 3)), random.normal(0, 0.5, 8)
    scale = np.abs(weights).max() / 127
    stored = np.clip(np.rint(weights / scale) + 128, 0, 255).astype(np.uint8)
    numbers = {
        "x": (np.float32(4 / 255), np.uint8(128), None),
        "w": (np.float32(scale), np.uint8(128), stored),
        "b": (np.float32(4 / 255 * scale), np.int32(0), np.rint(bias / (4 / 255 * scale)).astype(np.int32)),
        "y": (np.float32(STEP), np.uint8(128), None),
    }
    nodes, constants = [], []
    for name, (one, zero, data) in numbers.items():
        constants += [numpy_helper.from_array(one, f"{name}_s"), numpy_helper.from_array(zero, f"{name}_z")]
        if data is not None:
            constants.append(numpy_helper.from_array(data, f"{name}_q"))
    nodes.append(helper.make_node("QuantizeLinear", ["x", "x_s", "x_z"], ["x_q"]))
    nodes += [
        helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], [f"{name}_r"])
        for name in "xwb"
    ]
    nodes.append(helper.make_node("Conv", ["x_r", "w_r", "b_r"], ["h"], pads=[1, 1, 1, 1]))
    nodes.append(helper.make_node("QuantizeLinear", ["h", "y_s", "y_z"], ["y_q"]))
    nodes.append(helper.make_node("DequantizeLinear", ["y_q", "y_s", "y_z"], ["y"]))
    ends = [
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 8, 16, 16))],
    ]
    graph = helper.make_graph(nodes, "g", *ends, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
    return file


FEEDS = {"x": np.random.default_rng(3).uniform(-2, 2, SHAPE).astype(np.float32)}


def session(file: str, options: dict[str, str] | None = None, **config: str) -> Any:
    """A session that fails where something would be left to the CPU."""
    chosen = ort.SessionOptions()
    chosen.log_severity_level = 3
    chosen.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    for key, value in config.items():
        chosen.add_session_config_entry(key.replace("__", "."), value)
    devices = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER]
    chosen.add_provider_for_devices(devices[:1], {"backend_path": backend_path(), **(options or {})})
    return ort.InferenceSession(file, sess_options=chosen)


def run(made: Any, reference: str = "m.onnx", options: Any = None) -> np.ndarray:
    """Run and compare with the CPU."""
    (got,) = made.run(None, FEEDS, options)
    (wanted,) = ort.InferenceSession(reference, providers=["CPUExecutionProvider"]).run(None, FEEDS)
    off = float(np.abs(got - wanted).max()) / STEP
    assert off <= 2.01, f"{off:.1f} steps from the CPU"
    return np.asarray(got)


@check
def plain() -> None:
    """No options at all."""
    run(session(model("m.onnx")))


@check
def contexts() -> None:
    """Dumped and loaded, inside the model and beside it."""
    direct = run(session(model("m.onnx")))
    for embedded in "01":
        config = {"ep__context_enable": "1", "ep__context_embed_mode": embedded}
        session("m.onnx", ep__context_file_path=f"c{embedded}.onnx", **config)
        assert (run(session(f"c{embedded}.onnx")) == direct).all()


@check
def shared_contexts() -> None:
    """Two models in one binary."""
    for number in range(2):
        config = {"ep__context_enable": "1", "ep__context_embed_mode": "0", "ep__share_ep_contexts": "1"}
        if number:
            config["ep__stop_share_ep_contexts"] = "1"
        file = model(f"m{number}.onnx", number)
        session(file, {"enable_htp_weight_sharing": "1"}, ep__context_file_path=f"s{number}.onnx", **config)
    assert len(list(Path().glob("*.bin"))) == 1


@check
def performance_modes() -> None:
    """Votes by name, for a session and for a run."""
    model("m.onnx")
    for mode in ("burst", "balanced", "high_performance", "power_saver", "low_power_saver", "default"):
        run(session("m.onnx", {"htp_performance_mode": mode}))
    options = ort.RunOptions()
    options.add_run_config_entry("qnn.htp_perf_mode", "burst")
    options.add_run_config_entry("qnn.htp_perf_mode_post_run", "power_saver")
    options.add_run_config_entry("qnn.rpc_control_latency", "100")
    run(session("m.onnx"), options=options)


@check
def profiles() -> None:
    """Files with events."""
    model("m.onnx")
    for level in ("basic", "detailed", "optrace"):
        run(session("m.onnx", {"profiling_level": level, "profiling_file_path": f"p_{level}.csv"}))
        assert any(file.stat().st_size for file in Path().glob(f"p_{level}*"))


@check
def graph_options() -> None:
    """What is compiled for, and how."""
    model("m.onnx")
    run(session("m.onnx", {"vtcm_mb": "4", "htp_graph_finalization_optimization_mode": "3", "soc_model": "57"}))
    run(session("m.onnx", {"qnn_context_priority": "high"}))
    run(session("m.onnx", {"enable_htp_fp16_precision": "1", "soc_model": "57"}))
    run(session("m.onnx", {"htp_arch": "73"}))


@check
def workload() -> None:
    """A priority that is changed later."""
    made = session(model("m.onnx"))
    made.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})
    run(made)


@check
def threads() -> None:
    """Sessions that come and go on four threads, and one session on eight."""
    shared, problems = session(model("m.onnx")), []

    def work(own: bool) -> None:
        try:
            for _ in range(3):
                made = session("m.onnx") if own else shared
                for _ in range(5):
                    run(made)
        except Exception as error:
            problems.append(error)

    started = [threading.Thread(target=work, args=(number < 4,)) for number in range(12)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert not problems, problems[0]


@check
def alive_at_exit() -> None:
    """A session that nobody frees."""
    builtins.kept = session(model("m.onnx"))  # type: ignore[attr-defined]
    run(builtins.kept)  # type: ignore[attr-defined]


@check
def found_by_name() -> None:
    """The library by its name alone, through the loader's path."""
    made = session(model("m.onnx"), {"backend_path": "libQnnHtp.so"})
    run(made)
    assert backend_path() in Path("/proc/self/maps").read_text()


def main() -> int:
    """Run the checks, each in a process and a folder of its own."""
    import importlib.metadata

    if len(sys.argv) == 3 and sys.argv[1] == "--child":
        import onnxruntime_qnn

        ort.register_execution_provider_library(PROVIDER, onnxruntime_qnn.get_library_path())
        CHECKS[sys.argv[2]]()
        print("checked", flush=True)
        return 0
    failed = []
    for name in sys.argv[1:] or CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "LD_LIBRARY_PATH": str(Path(backend_path()).parent)}
            command = [sys.executable, str(Path(__file__).absolute()), "--child", name]
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
            )
        if done.returncode or "checked" not in done.stdout:
            failed.append(name)
            print(f"{name}: ended with {done.returncode}: {done.stderr.strip()[-500:]}", file=sys.stderr)
    releases = [f"{name} {importlib.metadata.version(name)}" for name in ("onnxruntime-qnn", "onnxruntime")]
    print(f"{len(CHECKS) - len(failed)} of {len(CHECKS)} checks of {', '.join(releases)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
