"""Scripts for ONNX Runtime run as they are: errors are caught, lists are fed, names are found."""

from __future__ import annotations

import gc
import importlib
import json
import pickle
import threading
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.waiting import PATIENCE_S

import openhtp.ort as ort
from openhtp import zoo
from openhtp.core.errors import Aborted, BadModel, InvalidArgument, QnnError, UnsupportedFeature
from openhtp.engine.onnxruntime import onnxruntime, part

state = part("capi.onnxruntime_pybind11_state")
QNN, CPU = "QNNExecutionProvider", "CPUExecutionProvider"
X = np.arange(64, dtype=np.float32).reshape(1, 64) / 64


@pytest.fixture(scope="module")
def model() -> bytes:
    return zoo.tiny_mlp()


@pytest.fixture(scope="module", params=[QNN, CPU])
def session(request, model):
    with ort.InferenceSession(model, providers=[request.param]) as session:
        yield session


def terminated():
    options = ort.RunOptions()
    options.terminate = True
    return options


MAKING = {
    "no file": (lambda: ("/nowhere/model.onnx",), state.NoSuchFile, BadModel),
    "no protobuf": (lambda: (b"garbage",), state.InvalidProtobuf, BadModel),
    "cut": (lambda: (zoo.tiny_mlp()[:1000],), state.InvalidProtobuf, BadModel),
    "options": (lambda: (zoo.tiny_mlp(), 5), TypeError, InvalidArgument),
}
RUNNING = {
    "missing": (lambda s: s.run(None, {}), ValueError),
    "not the name": (lambda s: s.run(None, {"other": X}), ValueError),
    "no such output": (lambda s: s.run(["other"], {"input": X}), state.InvalidArgument),
    "one too many": (lambda s: s.run(None, {"input": X, "other": X}), state.InvalidArgument),
    "rank": (lambda s: s.run(None, {"input": X[0]}), state.InvalidArgument),
    "shape": (lambda s: s.run(None, {"input": X[:, :7]}), state.InvalidArgument),
    "type": (lambda s: s.run(None, {"input": X.astype(np.float64)}), state.InvalidArgument),
    "ragged": (lambda s: s.run(None, {"input": [[1.0], [1.0, 2.0]]}), RuntimeError),
    "terminated": (lambda s: s.run(None, {"input": X}, terminated()), state.Fail),
    "run options": (lambda s: s.run(None, {"input": X}, 5), TypeError),
}


@pytest.mark.parametrize("case", MAKING)
def test_making_a_session_raises_what_onnx_runtime_raises(case):
    arguments, theirs, ours = MAKING[case]
    with pytest.raises(theirs):
        onnxruntime.InferenceSession(*arguments())
    with pytest.raises(theirs) as caught:
        ort.InferenceSession(*arguments())
    assert isinstance(caught.value, ours)


@pytest.mark.parametrize("case", RUNNING)
def test_a_run_raises_what_onnx_runtime_raises(case, session, model):
    run, theirs = RUNNING[case]
    with pytest.raises(theirs):
        run(onnxruntime.InferenceSession(model))
    with pytest.raises(theirs):
        run(session)


def test_errors_on_the_htp_are_ours_as_well_and_survive_pickling(model):
    with ort.InferenceSession(model) as session:
        with pytest.raises(InvalidArgument) as caught:
            session.run(None, {})
        with pytest.raises(Aborted):
            session.run(None, {"input": X}, terminated())
    error = caught.value
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is type(error)
    assert isinstance(copied, ValueError)
    assert (str(copied), copied.code) == (str(error), error.code)


def test_an_unknown_provider_is_named_as_onnx_runtime_names_it(model):
    with ort.InferenceSession(model, providers=[CPU]) as session:
        with pytest.raises(RuntimeError, match="Unknown Provider Type: InvalidProvider"):
            session.set_providers(["InvalidProvider"])
        assert session.get_providers() == [CPU]


def test_a_provider_that_is_not_here_is_left_out_with_a_warning(model, caplog):
    with ort.InferenceSession(model, providers=["CUDAExecutionProvider", CPU]) as session:
        assert session.get_providers() == [CPU]
    assert "CUDAExecutionProvider is not available here" in caplog.text


def test_bindings_and_values_raise_so_too(session):
    binding = session.io_binding()
    with pytest.raises(state.InvalidArgument):
        binding.bind_cpu_input("other", X)
    with pytest.raises(TypeError):
        ort.OrtValue.ortvalue_from_numpy([1.0])


def test_lists_are_inputs_and_get_the_type_of_the_model(session, model):
    expected = session.run(None, {"input": X})[0]
    assert np.array_equal(session.run(None, {"input": X.tolist()})[0], expected)
    whole = session.run(None, {"input": [[1] * 64]})[0]
    assert np.array_equal(whole, session.run(None, {"input": np.ones((1, 64), np.float32)})[0])
    assert np.array_equal(session.run_async(None, {"input": X.tolist()}).result(PATIENCE_S)[0], expected)


@pytest.fixture
def scaled(tmp_path) -> Path:
    """y = x * w, with w beside the file."""
    weight = numpy_helper.from_array(np.full((1, 4), 2, np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        "scaled",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [weight],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "scaled.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="scaled.bin", size_threshold=0)
    return path


ONES = np.ones((1, 4), np.float32)


@pytest.mark.parametrize("provider", [QNN, CPU])
def test_an_added_initializer_takes_the_place_of_the_models(scaled, provider):
    options = ort.SessionOptions()
    options.add_initializer("w", ort.OrtValue.ortvalue_from_numpy(np.full((1, 4), 3, np.float32)))
    with ort.InferenceSession(scaled, options, providers=[provider]) as session:
        assert session.run(None, {"x": ONES})[0].tolist() == [[3, 3, 3, 3]]


@pytest.mark.parametrize("provider", [QNN, CPU])
def test_external_data_comes_from_values_or_from_files_in_memory(scaled, provider):
    (scaled.parent / "scaled.bin").unlink()
    options = ort.SessionOptions()
    options.add_external_initializers(["w"], [ort.OrtValue.ortvalue_from_numpy(np.full((1, 4), 5, np.float32))])
    with ort.InferenceSession(scaled, options, providers=[provider]) as session:
        assert session.run(None, {"x": ONES})[0].tolist() == [[5, 5, 5, 5]]
    options = ort.SessionOptions()
    content = np.full((1, 4), 7, np.float32).tobytes()
    options.add_external_initializers_from_files_in_memory(["scaled.bin"], [content], [len(content)])
    with ort.InferenceSession(scaled, options, providers=[provider]) as session:
        assert session.run(None, {"x": ONES})[0].tolist() == [[7, 7, 7, 7]]


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("v", np.ones((1, 4), np.float32), "no initializer 'v'"),
        ("w", np.ones((2, 4), np.float32), r"is float32\[2, 4\]; the model has float\[1, 4\]"),
        ("w", np.ones((1, 4), np.int64), r"is int64\[1, 4\]"),
    ],
)
def test_an_initializer_that_does_not_fit_is_refused(scaled, name, array, words):
    options = ort.SessionOptions()
    options.add_initializer(name, ort.OrtValue.ortvalue_from_numpy(array))
    with pytest.raises(InvalidArgument, match=words):
        ort.InferenceSession(scaled, options)


def test_inputs_live_until_the_callback_has_returned(session):
    entered, dropped, called = threading.Event(), threading.Event(), threading.Event()
    alive = []

    def callback(results, data, error):
        entered.set()
        dropped.wait(PATIENCE_S)
        alive.append(ref() is not None)
        called.set()

    array = X.copy()
    ref = weakref.ref(array)
    session.run_async(None, {"input": array}, callback)
    del array
    assert entered.wait(PATIENCE_S)
    gc.collect()
    dropped.set()
    assert called.wait(PATIENCE_S)
    assert alive == [True]
    session.run_async(None, {"input": X}).result(PATIENCE_S)  # what was called back before is over then
    gc.collect()
    assert ref() is None


def test_values_go_through_dlpack_without_a_copy():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for source in (array, array.__dlpack__(), ort.OrtValue.ortvalue_from_numpy(array)):
        value = ort.OrtValue.from_dlpack(source)
        assert value.data_ptr() == array.ctypes.data
        assert value.shape() == [2, 3]
    assert ort.OrtValue.ortvalue_from_numpy(array).__dlpack_device__() == (1, 0)
    assert np.from_dlpack(ort.OrtValue.ortvalue_from_numpy(array)).ctypes.data == array.ctypes.data
    with pytest.raises(TypeError):
        ort.OrtValue.from_dlpack(5)


def test_a_sparse_tensor_is_held_and_given_back():
    device = ort.OrtDevice.make("cpu", 0)
    sparse = ort.SparseTensor.sparse_coo_from_numpy(
        [3, 3], np.array([1.0, 2.0], np.float32), np.array([1, 5], np.int64), device
    )
    value = ort.OrtValue.ort_value_from_sparse_tensor(sparse)
    assert value.is_sparse_tensor()
    assert not value.is_tensor()
    assert (value.shape(), value.data_type()) == ([3, 3], "sparse_tensor(float)")
    assert value.as_sparse_tensor().values().tolist() == [1, 2]
    with pytest.raises(state.InvalidArgument):
        value.numpy()
    with pytest.raises(QnnError):
        ort.OrtValue.ortvalue_from_numpy(ONES).as_sparse_tensor()


def test_devices_say_that_the_npu_is_emulated():
    npu, cpu = ort.get_ep_devices()
    assert (npu.ep_name, npu.device.type, npu.ep_metadata) == (
        QNN,
        ort.OrtHardwareDeviceType.NPU,
        {"emulated": "1"},
    )
    assert (cpu.ep_name, cpu.device.type) == (CPU, ort.OrtHardwareDeviceType.CPU)


@pytest.mark.parametrize(
    "name", ["_pybind_state", "onnxruntime_pybind11_state", "onnxruntime_inference_collection"]
)
def test_names_of_capi_are_there(name):
    ours = importlib.import_module(f"openhtp.ort.capi.{name}")
    theirs = part(f"capi.{name}")
    assert [each for each in dir(theirs) if not hasattr(ours, each)] == []
    assert set(dir(theirs)) <= set(dir(ours))
    if name == "onnxruntime_inference_collection":
        assert ours.InferenceSession is ort.InferenceSession


def test_what_runs_where_is_told_in_onnx_runtimes_words(model):
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    with ort.InferenceSession(model, options) as session:
        (subgraph,) = session.get_provider_graph_assignment_info()
        assert subgraph.ep_name == QNN
        assert {node.op_type for node in subgraph.get_nodes()} >= {"Gemm"}
    with ort.InferenceSession(model) as session, pytest.raises(state.Fail, match="must be set to"):
        session.get_provider_graph_assignment_info()


def test_vectors_of_values_can_be_run_and_bound(model):
    vector_class = state.OrtValueVector
    with ort.InferenceSession(model) as session:
        expected = session.run(None, {"input": X})[0]
        feeds, fetches = vector_class(), vector_class()
        feeds.push_back(ort.OrtValue.ortvalue_from_numpy(X)._ortvalue)
        session.run_with_ortvaluevector(ort.RunOptions(), ["input"], feeds, ["output"], fetches)
        assert np.array_equal(fetches[0].numpy(), expected)
        binding = session.io_binding()
        binding.bind_cpu_input("input", X)
        binding.bind_output("output")
        session.run_with_iobinding(binding)
        assert np.array_equal(binding.get_outputs_as_ortvaluevector()[0].numpy(), expected)


def test_the_optimized_model_is_written_for_the_htp_as_well(model, tmp_path):
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    with ort.InferenceSession(model, options) as session:
        assert session.get_providers()[0] == QNN
    assert onnx.load(tmp_path / "optimized.onnx").graph.node


def test_a_profile_has_one_event_in_each_line(model, tmp_path):
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "p")
    with ort.InferenceSession(model, options) as session:
        session.run(None, {"input": X})
        lines = Path(session.end_profiling()).read_text().splitlines()
    assert (lines[0], lines[-1]) == ("[", "]")
    assert all(json.loads(line.rstrip(","))["ph"] == "X" for line in lines[1:-1])


def test_an_adapter_of_onnx_runtimes_is_refused_on_the_htp(model, tmp_path):
    adapter_format = ort.AdapterFormat()
    adapter_format.set_parameters({"w": onnxruntime.OrtValue.ortvalue_from_numpy(ONES)})
    path = tmp_path / "a.onnx_adapter"
    adapter_format.export_adapter(str(path))
    adapter = ort.LoraAdapter()
    adapter.Load(str(path))
    options = ort.RunOptions()
    options.add_active_adapter(adapter)
    with ort.InferenceSession(model) as session, pytest.raises(UnsupportedFeature, match="adapters by qnn"):
        session.run(None, {"input": X}, options)


def test_a_constant_without_elements_goes_to_the_cpu():
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("MatMul", ["h", "b"], ["y"])],
        "empty",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [
            numpy_helper.from_array(np.ones((4, 0), np.float32), "a"),
            numpy_helper.from_array(np.ones((0, 4), np.float32), "b"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with ort.InferenceSession(proto.SerializeToString()) as session:
        assert not session.run(None, {"x": np.ones((2, 4), np.float32)})[0].any()
