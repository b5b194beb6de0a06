"""``openhtp.ort`` in the place of ONNX Runtime: the same names, values and bindings, without copies."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import openhtp as htp
import openhtp.ort as ort
from openhtp import zoo
from openhtp.session.values import feeds_of, targets_of
from openhtp.testing import hold, release

ROOT = Path(__file__).parents[2]
QNN, CPU = "QNNExecutionProvider", "CPUExecutionProvider"


@pytest.fixture(scope="module")
def model() -> bytes:
    return zoo.quantized(zoo.small_cnn(32))


@pytest.fixture(scope="module")
def feeds(model: bytes) -> dict[str, np.ndarray]:
    return zoo.random_feeds(model)[0]


@pytest.fixture
def session(model: bytes) -> Iterator[ort.InferenceSession]:
    with ort.InferenceSession(model) as session:
        yield session


def _lies_in_registered_memory(session: ort.InferenceSession, address: int) -> bool:
    spans = [(mem._buffer.address, mem.nbytes) for mem in session.executable.context.opened.memory.all()]
    return any(start <= address < start + nbytes for start, nbytes in spans)


def test_names_are_there() -> None:
    for name in ort.__all__:
        assert getattr(ort, name) is not None
    assert ort.get_available_providers() == [QNN, CPU]
    assert ort.InferenceSession is htp.InferenceSession
    assert htp.ort is ort
    assert ort.__version__ == ort.get_version_string()


def test_bound_run_reads_and_writes_registered_memory(session, feeds) -> None:
    wanted = session.run(None, feeds)[0]
    value = ort.OrtValue.ortvalue_from_shape_and_type([1, 3, 32, 32], np.float32, "npu", 0)
    binding = session.io_binding()
    binding.bind_ortvalue_input("input", value)
    binding.bind_output("output", "npu")
    value.update_inplace(feeds["input"])
    session.run_with_iobinding(binding)
    (output,) = binding.get_outputs()
    assert (value.device_name(), output.device_name()) == ("npu", "npu")
    assert _lies_in_registered_memory(session, value.data_ptr())
    assert _lies_in_registered_memory(session, output.data_ptr())
    assert np.array_equal(output.numpy(), wanted)
    address = output.data_ptr()
    value.update_inplace(np.zeros_like(feeds["input"]))
    session.run_with_iobinding(binding)
    assert binding.get_outputs()[0].data_ptr() == address
    assert not np.array_equal(output.numpy(), wanted)
    # The runtime's own slots, into which arrays are copied, were made by the plain run; the bound ones need none.
    bindings = session.executable.graph.loaded.callee.bindings
    targets = session.executable.in_place(targets_of(binding, session.executable))
    assert bindings.arguments(feeds_of(binding), targets).raw_count == 0


def test_addresses_and_arrays_can_be_bound(session, feeds) -> None:
    wanted = session.run(None, feeds)[0]
    array, result = feeds["input"].copy(), np.zeros_like(wanted)
    binding = session.io_binding()
    binding.bind_cpu_input("input", array)
    binding.bind_output("output", "cpu", 0, np.float32, list(result.shape), result.ctypes.data)
    session.run_with_iobinding(binding)
    assert np.array_equal(result, wanted)
    assert np.array_equal(binding.copy_outputs_to_cpu()[0], wanted)
    array[:] = 0
    session.run_with_iobinding(binding)
    assert not np.array_equal(result, wanted)
    binding.clear_binding_inputs()
    with pytest.raises(htp.InvalidArgument, match="missing"):
        session.run_with_iobinding(binding)


def test_value_on_the_callers_array_stays_there(session, feeds) -> None:
    array = feeds["input"].copy()
    value = ort.OrtValue.ortvalue_from_numpy(array)
    binding = session.io_binding()
    binding.bind_ortvalue_input("input", value)
    assert value.data_ptr() == array.ctypes.data
    assert (value.data_type(), value.element_type(), value.shape()) == ("tensor(float)", 1, [1, 3, 32, 32])
    seen = ort.OrtValue.ortvalue_from_shape_and_type([1, 3, 32, 32], 1)
    address = seen.data_ptr()
    binding.bind_ortvalue_input("input", seen)
    assert seen.data_ptr() == address


def test_values_go_in_and_come_out(session, feeds) -> None:
    given = {"input": ort.OrtValue.ortvalue_from_numpy(feeds["input"])}
    (found,) = session.run_with_ort_values(["output"], given)
    assert np.array_equal(found.numpy(), session.run(None, feeds)[0])
    assert np.array_equal(session.run(None, given)[0], found.numpy())


def test_memory_of_values_is_given_back(session) -> None:
    before = len(session.executable.context.opened.memory.all())
    for _ in range(20):
        value = session.create_ortvalue_from_shape_and_type([1, 1000], np.float32)
        assert value.device_name() == "npu"
        del value
    from openhtp.core import tidying

    tidying.flush()
    assert len(session.executable.context.opened.memory.all()) <= before + 1


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        (lambda b: b.bind_cpu_input("nope", np.zeros(1)), "no input is called 'nope'"),
        (lambda b: b.bind_output("nope"), "no output is called 'nope'"),
        (lambda b: b.bind_output("output", "cuda"), "'cpu' or 'npu'"),
        (lambda b: b.bind_output("output", "cpu", 3), "one device"),
        (lambda b: b.bind_output("output", "cpu", 0, buffer_ptr=7), "element_type and shape"),
        (lambda b: b.bind_input("input", "cpu", 0, np.float32, [1], None), "address"),
        (lambda b: b.bind_ortvalue_input("input", np.zeros(1)), "OrtValue"),
    ],
)
def test_wrong_bindings_are_refused_in_words(session, bind, message) -> None:
    with pytest.raises(htp.InvalidArgument, match=message):
        bind(session.io_binding())


def test_output_of_another_shape_is_refused(session, feeds) -> None:
    binding = session.io_binding()
    binding.bind_cpu_input("input", feeds["input"])
    binding.bind_ortvalue_output("output", ort.OrtValue.ortvalue_from_shape_and_type([7], np.float32))
    with pytest.raises(htp.InvalidArgument, match=r"float32\[7\]; the model gives"):
        session.run_with_iobinding(binding)
    with pytest.raises(htp.InvalidArgument, match="this session"):
        session.run_with_iobinding(object())


def test_unknown_argument_is_an_error(model) -> None:
    with pytest.raises(TypeError, match="new_argument"):
        ort.InferenceSession(model, new_argument=1)


def test_session_joins_a_named_device(model, feeds) -> None:
    name = "test-ort-session"
    with htp.Backend() as backend:
        device = backend.create_device(name=name)
        with ort.InferenceSession(model, device_name=name) as session:
            session.run(None, feeds)
            assert session.executable.device.pid == device.pid


def test_providers_can_be_changed(session, model, feeds) -> None:
    on_htp = session.run(None, feeds)[0]
    session.set_providers([CPU])
    assert session.get_providers() == [CPU]
    exact = session.run(None, feeds)[0]
    with pytest.raises(htp.InvalidArgument, match="vtcm_mb"):
        session.set_providers([QNN], [{"vtcm_mb": "-1"}])
    assert session.get_providers() == [CPU]
    session.set_providers([QNN], [{"qnn_context_priority": "high"}])
    assert session.get_provider_options()[QNN]["qnn_context_priority"] == "high"
    assert np.array_equal(session.run(None, feeds)[0], on_htp)
    assert np.abs(exact - on_htp).max() < 0.1 * np.abs(exact).max()


def test_binding_works_on_the_cpu_too(model, feeds) -> None:
    with ort.InferenceSession(model, providers=[CPU]) as session:
        binding = session.io_binding()
        binding.bind_cpu_input("input", feeds["input"])
        binding.bind_output("output")
        session.run_with_iobinding(binding)
        assert np.array_equal(binding.copy_outputs_to_cpu()[0], session.run(None, feeds)[0])


def test_profile_is_a_list_of_events_with_op_names(model, feeds, tmp_path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "prof")
    with ort.InferenceSession(model, options) as session:
        session.run(None, feeds)
        session.run_async(None, feeds).result()
        assert session.get_profiling_start_time_ns() > 0
        path = Path(session.end_profiling())
    assert path.parent == tmp_path
    assert path.name.startswith("prof_")
    events = json.loads(path.read_text())
    for event in events:
        assert set(event) == {"cat", "pid", "tid", "dur", "ts", "ph", "name", "args"}
    assert "session_initialization" in [event["name"] for event in events]
    assert [event["name"] for event in events].count("model_run") >= 1
    nodes = [event for event in events if event["cat"] == "Node"]
    assert all(event["name"].endswith("_kernel_time") for event in nodes)
    assert any("Conv2d" in event["args"]["op_name"] for event in nodes)
    assert nodes[0]["args"]["provider"] == QNN


def test_full_queue_does_not_stop_the_event_loop(model, feeds) -> None:
    with ort.InferenceSession(model, queue_depth=2) as session:
        device = session.executable.device
        wanted = session.run(None, feeds)[0]

        async def main() -> list[list[np.ndarray]]:
            hold(device)
            array = feeds["input"].copy()
            runs = [session.run_async(None, {"input": array}) for _ in range(6)]
            array[:] = 0  # what was given has been copied
            assert "waiting" in repr(runs[-1])
            unwanted = session.run_async(None, feeds)
            assert unwanted.cancel()
            release(device)
            results = [await run for run in runs]
            with pytest.raises(htp.Aborted):
                await unwanted
            assert unwanted.cancelled()
            return results

        for (result,) in asyncio.run(main()):
            assert np.array_equal(result, wanted)


def test_terminated_run_options_refuse_a_run(session, feeds) -> None:
    options = ort.RunOptions()
    session.run(None, feeds, options)
    options.terminate = True
    with pytest.raises(htp.Aborted, match="terminate"):
        session.run(None, feeds, options)
    with pytest.raises(htp.InvalidArgument, match="run_options"):
        session.run(None, feeds, {"terminate": True})


def test_script_written_for_onnxruntime_runs_with_the_import_changed() -> None:
    script = ROOT / "examples/ort_classifier.py"
    ours = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ours.returncode == 0, ours.stderr
    code = script.read_text().replace("import openhtp.ort as ort", "import onnxruntime as ort")
    assert code != script.read_text()
    theirs = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert theirs.returncode == 0, theirs.stderr
    assert [line.split()[:2] for line in ours.stdout.splitlines()][:1] == [
        line.split()[:2] for line in theirs.stdout.splitlines()
    ][:1]


def test_a_tensor_that_is_too_large_is_refused_in_words() -> None:
    made = ort.OrtValue.ortvalue_from_shape_and_type
    with pytest.raises(htp.OutOfMemory, match=r"shape \[7696581394432\] and type uint8 needs 7168 GiB"):
        made([7 << 40], np.uint8)
    with pytest.raises(htp.InvalidArgument, match=r"shape is .*too big"):
        made([1 << 62, 1 << 62], np.float32)
