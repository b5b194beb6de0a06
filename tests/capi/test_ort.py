"""ONNX Runtime's QNN provider, unmodified, on our library. Nothing is left to the CPU."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from openhtp.testing import inject
from openhtp.tools.replay import Tolerance, replay
from tests.capi.conftest import ROOT
from tests.capi.ort_models import CASES, Case, feeds_of, float_model, quantized_model
from tests.capi.ort_sessions import on_cpu, session
from tests.waiting import PATIENCE_S

pytestmark = [
    pytest.mark.vendor,
    pytest.mark.skipif(importlib.util.find_spec("onnxruntime_qnn") is None, reason="needs onnxruntime-qnn"),
]
# The provider itself gives it to no HTP library: the vendor's is refused it as well.
REFUSED = {"ReduceProd"}
ADD = next(case for case in CASES if case.op == "Add")
CONV = next(case for case in CASES if case.op == "Conv")


@pytest.fixture(scope="session")
def library(lib_dir: Path) -> str:
    return str(lib_dir / "libQnnHtp.so")


@pytest.fixture
def add() -> onnx.ModelProto:
    return quantized_model(ADD, on_cpu)


def agree(model: onnx.ModelProto, got: list[np.ndarray], wanted: list[np.ndarray], steps: float = 1.001) -> None:
    scales = {
        one.name: float(onnx.numpy_helper.to_array(one)) for one in model.graph.initializer if one.name[-1] == "s"
    }
    for info, one, other in zip(model.graph.output, got, wanted, strict=True):
        if info.name == "y1" and one.dtype == np.int64:  # of TopK: equal values may stand in any order
            continue
        ends = [node for node in model.graph.node if node.output[0] == info.name]
        step = scales.get(ends[0].input[1], 1.0) if ends[0].op_type == "DequantizeLinear" else 0.0
        off = np.abs(one.astype(np.float64) - other.astype(np.float64))
        assert (off <= steps * step).mean() >= 0.999, f"{info.name}: {off.max() / (step or 1)} steps"


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.quantized and case.op not in REFUSED], ids=lambda c: c.name
)
def test_a_quantized_operator_is_within_one_step_of_the_cpu(case: Case, library: str) -> None:
    model = quantized_model(case, on_cpu)
    feeds = feeds_of(case, 1)
    agree(model, session(model, library).run(None, feeds), on_cpu(model, feeds))


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.floating and case.op not in REFUSED], ids=lambda c: c.name
)
def test_a_float_operator_is_within_half_precision_of_the_cpu(case: Case, library: str) -> None:
    model = float_model(case)
    feeds = feeds_of(case, 1)
    ort_session = session(model, library, {"soc_model": "57", "enable_htp_fp16_precision": "1"})
    for one, other in zip(ort_session.run(None, feeds), on_cpu(model, feeds), strict=True):
        allowed = 0.004 * max(1.0, float(np.abs(other.astype(np.float64)).max()))
        assert (np.abs(one.astype(np.float64) - other.astype(np.float64)) <= allowed).mean() >= 0.999


OPTIONS = [
    *[{"htp_performance_mode": mode} for mode in ("burst", "balanced", "default", "high_performance")],
    *[{"htp_performance_mode": mode} for mode in ("high_power_saver", "low_balanced", "low_power_saver")],
    *[{"htp_performance_mode": mode} for mode in ("power_saver", "sustained_high_performance")],
    *[{"qnn_context_priority": level} for level in ("low", "normal", "normal_high", "high")],
    *[{"htp_graph_finalization_optimization_mode": mode} for mode in "0123"],
    {"vtcm_mb": "4"},
    {"vtcm_mb": "100"},
    {"rpc_control_latency": "100"},
    {"soc_model": "57"},
    {"soc_model": "69", "enable_htp_fp16_precision": "1"},
    {"htp_arch": "75"},
    {"htp_arch": "68", "device_id": "0"},
    {"offload_graph_io_quantization": "0"},
    {"offload_graph_io_quantization": "1"},
    {"enable_htp_spill_fill_buffer": "1"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(f"{k}={v}" for k, v in o.items()))
def test_provider_options(options: dict[str, str], library: str, add: onnx.ModelProto) -> None:
    feeds = feeds_of(ADD, 1)
    if "offload_graph_io_quantization" in options and options["offload_graph_io_quantization"] == "1":
        pytest.skip("leaves the ends of the graph to the CPU, which is forbidden here")
    agree(add, session(add, library, options).run(None, feeds), on_cpu(add, feeds))


@pytest.mark.parametrize("embedded", ["0", "1"])
def test_contexts_are_dumped_and_loaded(embedded: str, library: str, tmp_path: Path) -> None:
    model = quantized_model(CONV, on_cpu)
    feeds = feeds_of(CONV, 1)
    path, dumped = str(tmp_path / "m.onnx"), str(tmp_path / "c.onnx")
    onnx.save(model, path)
    options = {"ep__context_enable": "1", "ep__context_file_path": dumped, "ep__context_embed_mode": embedded}
    direct = session(path, library, **options).run(None, feeds)
    assert any(file.suffix == ".bin" for file in tmp_path.iterdir()) == (embedded == "0")
    loaded = session(dumped, library).run(None, feeds)
    assert np.array_equal(loaded[0], direct[0])


@pytest.mark.parametrize("level", ["basic", "detailed", "optrace"])
def test_profiles_are_written(level: str, library: str, add: onnx.ModelProto, tmp_path: Path) -> None:
    file = tmp_path / "profile.csv"
    ort_session = session(add, library, {"profiling_level": level, "profiling_file_path": str(file)})
    ort_session.run(None, feeds_of(ADD, 1))
    del ort_session
    gc.collect()
    text = file.read_text()
    assert "EXECUTE" in text.upper()
    assert ("NODE" in text) == (level != "basic")


def test_run_options(library: str, add: onnx.ModelProto) -> None:
    from openhtp.engine.onnxruntime import onnxruntime as ort

    feeds = feeds_of(ADD, 1)
    ort_session = session(add, library)
    run = ort.RunOptions()
    run.add_run_config_entry("qnn.htp_perf_mode", "burst")
    run.add_run_config_entry("qnn.htp_perf_mode_post_run", "power_saver")
    agree(add, ort_session.run(None, feeds, run), on_cpu(add, feeds))


def test_a_workload_changes_between_runs(library: str, add: onnx.ModelProto) -> None:
    feeds = feeds_of(ADD, 1)
    wanted = on_cpu(add, feeds)
    ort_session = session(add, library)
    agree(add, ort_session.run(None, feeds), wanted)
    for word in ("Efficient", "Default"):
        ort_session.set_ep_dynamic_options({"ep.dynamic.workload_type": word})
        agree(add, ort_session.run(None, feeds), wanted)


@pytest.mark.parametrize("transport", ["inprocess", "rpc"])
def test_sessions_whose_own_threads_ran_are_destroyed(library: str, transport: str) -> None:
    """Their destructor joins those threads while it holds the interpreter's lock; once, it never returned."""
    program = textwrap.dedent(f"""
        import sys, threading
        sys.path.insert(0, {str(ROOT)!r})
        from openhtp.engine.onnxruntime import onnxruntime as ort
        from tests.capi.ort_models import CASES, feeds_of, quantized_model
        from tests.capi.ort_sessions import devices, on_cpu
        case = next(case for case in CASES if case.op == "Add")
        model, feeds = quantized_model(case, on_cpu).SerializeToString(), feeds_of(case, 1)
        for parallel in (False, True, False):
            options = ort.SessionOptions()
            options.log_severity_level = 4
            options.intra_op_num_threads = options.inter_op_num_threads = 3
            if parallel:
                options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
            options.add_provider_for_devices(devices(), {{"backend_path": {library!r}}})
            session = ort.InferenceSession(model, options)
            over = threading.Event()
            if parallel:
                session.run(None, feeds)
            else:
                session.run_async(None, feeds, lambda results, over, error: over.set(), over)
                assert over.wait({PATIENCE_S})
            del session
        print("all destroyed")
    """)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "OPENHTP_TRANSPORT": transport},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout == "all destroyed\n", done.stderr[-2000:]


def test_shared_memory_of_the_provider(lib_dir: Path, library: str, tmp_path: Path) -> None:
    """In a process of its own, as it needs our libcdsprpc.so on the loader's path."""
    program = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        from tests.capi.ort_models import CASES, feeds_of, quantized_model
        from tests.capi.ort_sessions import on_cpu, session
        case = next(case for case in CASES if case.op == "Add")
        model = quantized_model(case, on_cpu)
        made = session(model, {library!r}, {{"enable_htp_shared_memory_allocator": "1"}})
        got = made.run(None, feeds_of(case, 1))
        assert abs(got[0] - on_cpu(model, feeds_of(case, 1))[0]).max() < 0.1
    """)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(lib_dir / "rpcmem")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture
def own_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OPENHTP_TRANSPORT", "rpc")
    yield
    gc.collect()


@pytest.mark.usefixtures("own_process")
def test_a_lost_device_is_an_engine_error_and_a_new_session_works(library: str, add: onnx.ModelProto) -> None:
    feeds = feeds_of(ADD, 1)
    ort_session = session(add, library)
    ort_session.run(None, feeds)
    for pid in _device_processes():
        os.kill(pid, signal.SIGKILL)
    ort_session.disable_fallback()
    with pytest.raises(Exception, match=r"ENGINE_ERROR|DEVICE_RESET"):
        ort_session.run(None, feeds)
    again = session(add, library)
    agree(add, again.run(None, feeds), on_cpu(add, feeds))


def test_an_injected_restart_is_an_engine_error_and_a_new_session_works(
    library: str, add: onnx.ModelProto
) -> None:
    feeds = feeds_of(ADD, 1)
    with inject("ssr@graphExecute:2") as plan:
        ort_session = session(add, library)
        ort_session.disable_fallback()
        wanted = ort_session.run(None, feeds)
        with pytest.raises(Exception, match=r"ENGINE_ERROR|DEVICE_RESET"):
            ort_session.run(None, feeds)
        again = session(add, library).run(None, feeds)
    assert [one.tolist() for one in again] == [one.tolist() for one in wanted]
    assert [met.call for met in plan.met] == [2]


def test_the_saver_records_what_the_provider_calls(lib_dir: Path, tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        from tests.capi.ort_models import CASES, feeds_of, quantized_model
        from tests.capi.ort_sessions import on_cpu, session
        case = next(case for case in CASES if case.op == "Add")
        made = session(
            quantized_model(case, on_cpu),
            {str(lib_dir / "libQnnHtp.so")!r},
            {{"qnn_saver_path": {str(lib_dir / "libQnnSaver.so")!r}}},
        )
        made.run(None, feeds_of(case, 1))
    """)
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    outcome = replay(tmp_path / "saver_output", None, Tolerance(), lambda *_: None)
    assert outcome.holds
    assert outcome.executions == 1
    assert "graphFinalize" in (tmp_path / "saver_output/saver_output.jsonl").read_text()


def _device_processes() -> list[int]:
    """Those that all clients of this process share."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(b"npu-of-%d-" % os.getpid()) for word in words):
            found.append(int(entry.name))
    return found


def test_the_bench_compares_with_the_vendor_s_library(tmp_path: Path) -> None:
    from openhtp.bench import provider

    *_, result = provider.run(
        operations=("u8", "qdq", "float"), networks=(), rounds=1, samples=5, long_network="small_cnn"
    )
    assert isinstance(result, provider.ProviderResult)
    assert [row.model for row in result.rows] == [f"one operation, {kind}" for kind in provider.OPERATIONS]
    assert all(row.openhtp_us > 0 and row.ratio is not None for row in result.rows)
    assert [row.p99_share_all > 0 for row in result.urgent] == [True] * 2
    assert result.long_ms > 0


def test_threads_create_run_and_destroy_sessions(library: str, add: onnx.ModelProto) -> None:
    feeds, errors = feeds_of(ADD, 1), []
    wanted = on_cpu(add, feeds)

    def work() -> None:
        try:
            for _ in range(3):
                ort_session = session(add, library)
                for _ in range(5):
                    agree(add, ort_session.run(None, feeds), wanted)
                del ort_session
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
