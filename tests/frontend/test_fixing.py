"""Open dimensions and frozen inputs: one meaning, whichever door a model comes in by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from typer.testing import CliRunner

import openhtp as htp
import openhtp.onnx
from openhtp.cli.main import app
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.frontend.fixing import fix_inputs
from openhtp.planning.parsing import load_scenario

X = np.ones((2, 3), np.float32)
DIMS = {"batch": 2, "x.1": 3}
FREEZE = {"rate": 16000}


def open_model() -> ModelProto:
    """``y = x / rate * 1000`` with x [batch, ?] and rate a whole number."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", None])
    x.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    x.type.tensor_type.shape.dim[1].denotation = "DATA_FEATURE"
    thousand = helper.make_tensor("thousand", TensorProto.FLOAT, [], [1000.0])
    nodes = [
        helper.make_node("Cast", ["rate"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["thousand", "real"], ["factor"]),
        helper.make_node("Mul", ["x", "factor"], ["y"]),
    ]
    inputs = [x, helper.make_tensor_value_info("rate", TensorProto.INT64, [])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", None])]
    graph = helper.make_graph(nodes, "open", inputs, outputs, [thousand])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    onnx.save(open_model(), tmp_path / "open.onnx")
    return tmp_path / "open.onnx"


def test_all_open_sizes_are_named_at_once_with_a_line_to_paste(file: Path) -> None:
    with pytest.raises(htp.UnsupportedFeature) as caught:
        openhtp.onnx.load(file)
    for part in ("axis 0 of input 'x' (batch)", "axis 1 of input 'x'", "dims={'batch': 1, 'x.1': 16}"):
        assert part in str(caught.value)
    assert "--dim batch=1 --dim x.1=16" in str(caught.value)


def test_a_graph_has_the_sizes_and_lacks_the_frozen_input(file: Path) -> None:
    for source in (file, str(file), file.read_bytes(), onnx.load(file)):
        graph = openhtp.onnx.load(source, dims=DIMS, freeze=FREEZE)
        assert [(spec.name, spec.shape) for spec in graph.inputs] == [("x", (2, 3))]


def test_a_model_that_was_given_as_an_object_is_not_changed() -> None:
    model = open_model()
    openhtp.onnx.load(model, dims=DIMS, freeze=FREEZE)
    assert model == open_model()


def test_sessions_take_both(file: Path) -> None:
    for source in (file, onnx.load(file)):
        with htp.InferenceSession(source, dims=DIMS, freeze=FREEZE, transport="inprocess") as session:
            assert session.get_providers()[0] == "QNNExecutionProvider"
            np.testing.assert_allclose(session.run(None, {"x": X})[0], X / 16, rtol=1e-3)


def test_a_session_that_is_partly_on_the_cpu_takes_both() -> None:
    model = open_model()
    model.graph.node.append(helper.make_node("NonZero", ["y"], ["where"]))
    model.graph.output.append(helper.make_empty_tensor_value_info("where"))
    session = htp.InferenceSession(model, dims={"batch": 2}, freeze=FREEZE)
    assert {part.provider for part in session.get_partition()} >= {"CPUExecutionProvider"}
    assert session.get_outputs()[1].type == "tensor(int64)"
    np.testing.assert_allclose(session.run(["y"], {"x": X})[0], X / 16)


@pytest.mark.parametrize(
    "overrides",
    [
        [("name", "batch", 2), ("denotation", "DATA_FEATURE", 3)],
        [("denotation", "DATA_BATCH", 2), ("denotation", "DATA_FEATURE", 3)],
    ],
)
def test_free_dimension_overrides_of_onnxruntime_are_honoured(
    file: Path, tmp_path: Path, overrides: list[tuple[str, str, int]]
) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    for kind, name, size in overrides:
        getattr(options, f"add_free_dimension_override_by_{kind}")(name, size)
    with htp.InferenceSession(file, options, freeze=FREEZE, transport="inprocess") as session:
        assert session.get_inputs()[0].shape == [2, 3]
    assert options.optimized_model_filepath == str(tmp_path / "optimised.onnx")
    # Not that of the model with which ONNX Runtime is asked for the sizes, which has no nodes.
    assert onnx.load(tmp_path / "optimised.onnx").graph.node


def test_dims_are_stronger_than_overrides(file: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 5)
    options.add_free_dimension_override_by_name("unknown", 5)
    with htp.InferenceSession(file, options, dims=DIMS, freeze=FREEZE, transport="inprocess") as session:
        assert session.get_inputs()[0].shape == [2, 3]


def test_estimates_take_both(file: Path) -> None:
    assert htp.estimate(file, "SM8650", dims=DIMS, freeze=FREEZE).total_us > 0
    command = ["estimate", str(file), "--soc", "SM8650", "--dim", "batch=2", "--dim", "x.1=3"]
    assert CliRunner().invoke(app, [*command, "--freeze", "rate=16000"]).exit_code == 0
    assert CliRunner().invoke(app, [*command, "--freeze", "rate=fast"]).exit_code == 2


def _scenario(file: Path, **model: Any) -> Path:
    client = {"name": "c", "model": file.name, **model}
    scenario = {"device": {"soc": "SM8650"}, "clients": [client], "events": [{"client": "c", "at": 0}]}
    path = file.parent / "scenario.yaml"
    path.write_text(json.dumps(scenario))
    return path


def test_scenarios_take_both(file: Path) -> None:
    small = load_scenario(_scenario(file, dims=DIMS, freeze=FREEZE))
    large = load_scenario(_scenario(file, dims={"batch": 2000, "x.1": 3000}, freeze=FREEZE))
    assert small.sources[0].run_ns < large.sources[0].run_ns
    with pytest.raises(htp.FormatError, match="axis 0 of input 'x'"):
        load_scenario(_scenario(file))
    with pytest.raises(htp.FormatError, match="dims names 'height'"):
        load_scenario(_scenario(file, dims={**DIMS, "height": 3}, freeze=FREEZE))
    with pytest.raises(htp.FormatError, match="expected names and values"):
        load_scenario(_scenario(file, dims=3))


def test_scenario_keys_about_a_model_need_one(file: Path) -> None:
    path = _scenario(file)
    path.write_text(path.read_text().replace('"model": "open.onnx"', '"dims": {"batch": 2}'))
    with pytest.raises(htp.FormatError, match="'dims' says something about a 'model'"):
        load_scenario(path)


@pytest.mark.parametrize(
    ("dims", "freeze", "message"),
    [
        ({"heigth": 3}, {}, "dims names 'heigth'; the model has 'batch'"),
        ({"batch": 0}, {}, "expected names and whole numbers above 0"),
        ({"batch": True}, {}, "expected names and whole numbers above 0"),
        (DIMS, {"sr": 1}, "freeze names 'sr'; the model's inputs are 'rate', 'x'"),
        (DIMS, {"rate": 0.5}, "freeze gives input 'rate' the value 0.5; it takes int64"),
        (DIMS, {"rate": "fast"}, "it takes int64"),
        (DIMS, {"rate": [1, 2]}, "the shape [2]; expected []"),
        (DIMS, {"x": np.zeros((3, 3))}, "the shape [3, 3]; expected [2, 3]"),
    ],
)
def test_what_does_not_fit_is_refused(file: Path, dims: Any, freeze: Any, message: str) -> None:
    with pytest.raises(htp.InvalidArgument) as caught:
        openhtp.onnx.load(file, dims=dims, freeze=freeze)
    assert message in str(caught.value)


def test_one_number_fills_a_frozen_input(file: Path) -> None:
    graph = openhtp.onnx.load(file, dims=DIMS, freeze={"x": 1.0})
    assert [spec.name for spec in graph.inputs] == ["rate"]


def with_input_of(element_type: int) -> ModelProto:
    """A model with an input ``c`` of three elements of that type."""
    model = open_model()
    model.graph.input.append(helper.make_tensor_value_info("c", element_type, [3]))
    return model


def frozen_value(element_type: int, value: object) -> np.ndarray[Any, Any]:
    model = with_input_of(element_type)
    fix_inputs(model, freeze={"c": value}, may_stay_open=True)  # type: ignore[dict-item]
    assert "c" not in {each.name for each in model.graph.input}
    return onnx.numpy_helper.to_array(next(each for each in model.graph.initializer if each.name == "c"))


@pytest.mark.parametrize("name", sorted(set(TensorProto.DataType.keys()) - {"UNDEFINED", "STRING"}))
def test_an_input_is_frozen_to_values_of_its_own_type(name: str) -> None:
    """Whichever ONNX has, those of few bits too: what the HTP does not have is for the importer to refuse."""
    element_type = TensorProto.DataType.Value(name)
    value = np.ones(3, helper.tensor_dtype_to_np_dtype(element_type))
    found = frozen_value(element_type, value)
    assert found.dtype == value.dtype
    assert np.array_equal(found, value)
    assert np.array_equal(frozen_value(element_type, 1), value), "one number is spread"


def test_an_input_of_strings_is_frozen_to_strings() -> None:
    assert frozen_value(TensorProto.STRING, ["a", "b", "c"]).tolist() == ["a", "b", "c"]
    with pytest.raises(htp.InvalidArgument, match=r"the value \[1, 2, 3\]; it takes strings"):
        frozen_value(TensorProto.STRING, [1, 2, 3])


@pytest.mark.parametrize("name", ["INT8", "INT4", "UINT4", "INT2", "UINT2", "UINT64", "BOOL"])
@pytest.mark.parametrize("value", [-1000, 0.5])
def test_a_number_that_the_type_does_not_have_is_not_wrapped(name: str, value: float) -> None:
    with pytest.raises(htp.InvalidArgument, match=f"the value {value}; it takes {name.lower()}"):
        frozen_value(TensorProto.DataType.Value(name), value)


def test_an_input_without_shape_gets_one() -> None:
    model = open_model()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(htp.UnsupportedFeature, match="input 'x' has no shape"):
        openhtp.onnx.load(model, freeze=FREEZE)
    graph = openhtp.onnx.load(model, dims={"x.0": 2, "x.1": 3}, freeze=FREEZE)
    assert graph.inputs[0].shape == (2, 3)
