"""Files from anywhere: every damaged one is refused with an error of ours, quickly and in little memory."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings, strategies as some
from import_cases import model_of, node
from mutations import damaged, good_models
from onnx import ModelProto, TensorProto, helper, numpy_helper

import openhtp as htp
from openhtp.onnx import load


@pytest.fixture(scope="module")
def models() -> list[bytes]:
    return good_models()


def _survives(data: bytes) -> None:
    problem: Exception | None = None
    try:
        load(data)
    except htp.QnnError as error:
        problem = error
    assert not isinstance(problem, htp.InternalError)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=some.integers(0, 1 << 40), which=some.integers(0, 3))
def test_damaged_file_is_refused_or_still_good(models: list[bytes], seed: int, which: int) -> None:
    _survives(damaged(models[which], seed))


@settings(max_examples=60, deadline=None)
@given(some.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(htp.QnnError):
        load(data)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_thousand_damaged_files_in_one_gigabyte() -> None:
    """In a process of its own with a gigabyte more than it starts with: running out would kill it."""
    done = subprocess.run([sys.executable, __file__, "10000"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[0] == "10000"


@pytest.mark.parametrize("which", range(4))
def test_every_prefix_of_a_file_is_refused(models: list[bytes], which: int) -> None:
    # What follows the first opset in a file may be missing: notes and further opsets.
    proto = ModelProto.FromString(models[which])
    del proto.metadata_props[:], proto.opset_import[1:]
    whole = proto.SerializeToString()
    load(whole)
    for length in range(0, len(whole), max(1, len(whole) // 2000)):
        with pytest.raises(htp.QnnError) as caught:
            load(whole[:length])
        assert not isinstance(caught.value, htp.InternalError), length


def test_cycle_is_named() -> None:
    nodes = [node("Add", "x b", "a", name="first"), node("Relu", "a", "b", name="second")]
    with pytest.raises(htp.BadModel, match=r"cyclic.*(first|second)"):
        load(model_of(nodes, {"x": [2]}, ["b"]))


def test_nodes_in_any_order_are_sorted() -> None:
    nodes = [node("Relu", "a", "y"), node("Neg", "x", "a")]
    assert [call.op for call in load(model_of(nodes, {"x": [2]}, ["y"])).nodes] == ["ElementWiseNeg", "Relu"]


def test_undefined_and_doubly_defined_values_are_named() -> None:
    with pytest.raises(htp.BadModel, match="'nothing'"):
        load(model_of([node("Relu", "nothing", "y")], {"x": [2]}, ["y"]))
    with pytest.raises(htp.BadModel, match="'y' is defined twice"):
        load(model_of([node("Relu", "x", "y"), node("Neg", "x", "y")], {"x": [2]}, ["y"]))


def test_huge_sizes_are_refused_before_memory_is_taken() -> None:
    model = ModelProto.FromString(model_of([node("Add", "x w", "y")], {"x": [4]}, ["y"], {"w": np.zeros(4, "f4")}))
    model.graph.initializer[0].dims[0] = 1 << 50
    with pytest.raises(htp.BadModel, match="'w' takes"):
        load(model.SerializeToString())
    shape = {"s": np.array([1 << 20, 1 << 20], np.int64)}
    with pytest.raises(htp.UnsupportedFeature, match="session"):
        load(model_of([node("Expand", "x s", "y")], {"x": [1]}, ["y"], shape))
    with pytest.raises(htp.QnnError):
        load(model_of([node("ConstantOfShape", "s", "y")], {"x": [1]}, ["y"], shape))


def _external(folder: Path, location: str) -> Path:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    model = ModelProto.FromString(model_of([node("Add", "x w", "y")], {"x": [4]}, ["y"]))
    model.graph.initializer.append(tensor)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data_beside_the_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights/w.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    graph = load(_external(tmp_path, "weights/w.bin"))
    assert next(iter(graph.statics.values())).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "location",
    ["../secret", "/etc/passwd", "", ".", "link", "missing", "weights/../../secret", "n" * 5000, "a\0b"],
)
def test_external_data_elsewhere_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(64))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(htp.BadModel, match=r"outside|not a file|no file name"):
        load(_external(folder, location))


def test_external_data_that_is_too_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(bytes(10))
    with pytest.raises(htp.BadModel, match="which has 10"):
        load(_external(tmp_path, "w"))
    with pytest.raises(htp.BadModel, match="by its path"):
        load(_external(tmp_path, "w").read_bytes())


def test_missing_file_and_wrong_opset_are_said_so(tmp_path: Path) -> None:
    with pytest.raises(htp.BadModel, match="cannot read"):
        load(tmp_path / "none.onnx")
    with pytest.raises(htp.UnsupportedFeature, match="opset 3"):
        load(model_of([node("Relu", "x", "y")], {"x": [1]}, ["y"], opset=3))


def test_models_of_other_kinds_are_called_what_they_are() -> None:
    with pytest.raises(htp.BadModel, match="ONNX Runtime's own format"):
        load(b"\x18\0\0\0ORTM" + bytes(64))
    tree = node("TreeEnsembleClassifier", "x", "y z", domain="ai.onnx.ml")
    with pytest.raises(htp.UnsupportedOp, match=r"not supported; of 'ai\.onnx\.ml' the HTP has no operators"):
        load(model_of([tree], {"x": [1, 4]}, ["y"]))
    words = helper.make_tensor_value_info("x", TensorProto.STRING, [2])
    graph = helper.make_graph([node("Identity", "x", "y")], "g", [words], [words])
    with pytest.raises(htp.UnsupportedFeature, match="element type string"):
        load(helper.make_model(graph).SerializeToString())


def test_subgraphs_sparse_constants_and_strings_are_refused() -> None:
    body = helper.make_graph([node("Relu", "x", "z")], "body", [], [helper.make_empty_tensor_value_info("z")])
    with pytest.raises(htp.UnsupportedFeature, match="Loop and Scan"):
        load(model_of([node("Loop", "c c", "y", body=body)], {"x": [1], "c": [1]}, ["y"]))
    model = ModelProto.FromString(model_of([node("Relu", "x", "y")], {"x": [1]}, ["y"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array(["a"], object), "s"))
    with pytest.raises(htp.UnsupportedFeature, match="strings"):
        load(model.SerializeToString())


def _calling(*names: str) -> onnx.FunctionProto:
    """A function that calls others, one after the other."""
    calls = [
        node(name, "x" if not index else f"t{index}", f"t{index + 1}", domain="own")
        for index, name in enumerate(names[1:])
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function("own", names[0], ["x"], [f"t{len(calls)}"], calls, opsets)


@pytest.mark.parametrize(
    ("functions", "problem"),
    [
        ([_calling("a", "b"), _calling("b", "a")], "in a circle: .*a"),
        ([_calling(f"f{i}", *[f"f{i + 1}"] * 8) for i in range(12)], "more than 262144 nodes"),
    ],
)
def test_functions_that_never_end_are_refused(functions: list[onnx.FunctionProto], problem: str) -> None:
    model = ModelProto.FromString(model_of([node(functions[0].name, "x", "y", domain="own")], {"x": [1]}, ["y"]))
    model.functions.extend(functions)
    model.opset_import.append(helper.make_opsetid("own", 1))
    with pytest.raises(htp.BadModel, match=problem):
        load(model.SerializeToString())


def _run_many(count: int) -> None:
    models = good_models()
    load(models[0])
    limit = (1 << 30) + 1024 * int(Path("/proc/self/statm").read_text().split()[0]) * 4
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for seed in range(count):
        _survives(damaged(models[seed % len(models)], seed))
    sys.stdout.write(f"{count} files\n")


if __name__ == "__main__":
    _run_many(int(sys.argv[1]))
