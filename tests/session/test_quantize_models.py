"""What users give to the quantizer: notes in the file, layers that stay in floats, models that are quantized."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import openhtp as htp
import openhtp.onnx
from openhtp import zoo
from openhtp.cli.main import app
from openhtp.cli.quantize import quantize
from openhtp.frontend.quantize import quantize_model


def _model(
    nodes: list[onnx.NodeProto], shape: list[int | str], constants: dict[str, np.ndarray], outputs: list[str]
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def _weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape) * 0.3


def _samples(*shape: int) -> list[dict[str, np.ndarray]]:
    return [{"x": np.random.default_rng(seed).normal(size=shape).astype(np.float32)} for seed in range(2)]


def test_notes_in_a_model_survive() -> None:
    model = ModelProto.FromString(zoo.tiny_mlp(16))
    model.graph.node[0].name = "first"
    for part in (model, model.graph, model.graph.node[0], model.graph.initializer[0], model.graph.input[0]):
        part.metadata_props.add(key="author", value=type(part).__name__)
    made = ModelProto.FromString(quantize_model(model, zoo.random_feeds(zoo.tiny_mlp(16), 2)).model)
    assert {"author": "ModelProto"}.items() <= {item.key: item.value for item in made.metadata_props}.items()
    assert [item.value for item in made.graph.metadata_props] == ["GraphProto"]
    assert [item.value for item in made.graph.input[0].metadata_props] == ["ValueInfoProto"]


def test_the_quantizer_gets_no_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its preparations crash on some Ifs, as in a speech detector for two sample rates."""
    result = [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    slow, fast = (
        helper.make_graph([helper.make_node("MatMul", ["x", weight], ["z"], name=weight)], weight, [], result)
        for weight in ("slow", "fast")
    )
    model = _model(
        [
            helper.make_node("Equal", ["rate", "usual"], ["is_usual"]),
            helper.make_node("If", ["is_usual"], ["y"], then_branch=fast, else_branch=slow),
        ],
        [1, 8],
        {"slow": _weights(8, 8), "fast": _weights(8, 8), "rate": np.array(16), "usual": np.array(16)},
        ["y"],
    )
    prepared: list[list[str]] = []
    quantizer = importlib.import_module("openhtp.frontend.quantize")
    prepare = quantizer._qnn.qnn_preprocess_model

    def noted(source: str, target: str) -> bool:
        prepared.append([node.op_type for node in onnx.load(source).graph.node])
        return bool(prepare(source, target))

    monkeypatch.setattr(quantizer._qnn, "qnn_preprocess_model", noted)
    made = ModelProto.FromString(quantize_model(model, _samples(1, 8)).model)
    assert "If" not in prepared[0]
    assert "fast" in {node.name for node in made.graph.node}


def test_a_quantized_model_is_told_so(tmp_path: Path) -> None:
    data = zoo.quantized(zoo.tiny_mlp(16))
    with pytest.raises(htp.InvalidArgument, match=r"quantized already: \d+ nodes like .*Linear"):
        quantize_model(data, zoo.random_feeds(zoo.tiny_mlp(16)))
    (tmp_path / "q.onnx").write_bytes(data)
    done = CliRunner().invoke(app, ["quantize", str(tmp_path / "q.onnx"), "--random", "1"])
    assert done.exit_code == 2
    assert not (tmp_path / "q.qdq.onnx").exists()


def test_an_lstm_stays_in_floats_with_its_weights() -> None:
    """Its weights come from nodes that could be quantized: the HTP wants them constant."""
    nodes = [
        helper.make_node("Unsqueeze", ["w0", "front"], ["w"], name="lift"),
        helper.make_node("LSTM", ["x", "w", "r"], ["h"], name="memory", hidden_size=3),
        helper.make_node("MatMul", ["h", "out"], ["y"], name="last"),
    ]
    model = _model(
        nodes, [4, 1, 5], {"w0": _weights(12, 5), "r": _weights(1, 12, 3), "out": _weights(3, 2)}, ["y"]
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array([0], np.int64), "front"))
    quantized = quantize_model(model, _samples(4, 1, 5))
    assert list(quantized.floats) == ["memory"]
    assert "Lstm" in [node.op for node in openhtp.onnx.load(quantized.model).nodes]


def test_what_the_htp_refuses_once_quantized_stays_in_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    from openhtp.frontend import quantize as module

    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["t"], name="one"),
        helper.make_node("Relu", ["t"], ["u"], name="two"),
        helper.make_node("MatMul", ["u", "b"], ["y"], name="three"),
    ]
    real = module.import_model

    def refusing(model: object) -> object:
        """Refuses node ``three`` between quantized values, and its maker after that."""
        types = {node.op_type for node in model.nodes}
        reads = next(node.inputs[0] for node in model.nodes if node.name == "three")
        if "DequantizeLinear" in types and reads != "u":
            error = htp.UnsupportedOp("not so")
            error.where = {"node": "three"}
            raise error
        return real(model)

    monkeypatch.setattr(module, "import_model", refusing)
    model = _model(nodes, [2, 4], {"a": _weights(4, 4), "b": _weights(4, 4)}, ["y"])
    quantized = quantize_model(model, _samples(2, 4))
    assert quantized.floats["three"] == "not so"
    assert "one" not in quantized.floats


def test_biases_that_are_shared_get_names_of_their_own() -> None:
    """The quantizer would call the second copy of ``b`` ``b2``, which is a value of this model."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["b2"], name="one"),
        helper.make_node("Conv", ["b2", "w", "b"], ["t"], name="two"),
        helper.make_node("Conv", ["t", "w", "b"], ["y"], name="three"),
    ]
    model = _model(nodes, [1, 2, 4, 4], {"w": _weights(2, 2, 1, 1), "b": _weights(2)}, ["y"])
    quantized = quantize_model(model, _samples(1, 2, 4, 4))
    assert not quantized.floats


def test_open_sizes_and_frozen_inputs_are_given_in_python() -> None:
    nodes = [helper.make_node("MatMul", ["x", "a"], ["t"]), helper.make_node("Mul", ["t", "gain"], ["y"])]
    model = _model(nodes, ["batch", 4], {"a": _weights(4, 4)}, ["y"])
    model.graph.input.append(helper.make_tensor_value_info("gain", TensorProto.FLOAT, []))
    quantized = quantize_model(model, _samples(2, 4), dims={"batch": 2}, freeze={"gain": 2.0})
    assert [spec.shape for spec in openhtp.onnx.load(quantized.model).inputs] == [(2, 4)]


def test_the_command_and_python_have_the_same_defaults() -> None:
    ours = inspect.signature(quantize_model).parameters
    theirs = inspect.signature(quantize).parameters
    for name in ("activation", "weight", "per_channel", "method"):
        assert ours[name].default == theirs[name].default


def test_random_samples_on_request_only(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(zoo.tiny_mlp(16))
    command = ["quantize", str(tmp_path / "net.onnx")]
    assert CliRunner().invoke(app, command).exit_code == 2
    done = CliRunner().invoke(app, [*command, "--random", "2"])
    assert done.exit_code == 0, done.output
    assert "2 samples" in done.output
    assert CliRunner().invoke(app, [*command, "--random", "2", "--std", "0"]).exit_code == 2
    assert CliRunner().invoke(app, [*command, "--random", "2", "--calibration", str(tmp_path)]).exit_code == 2


def test_what_the_quantizer_cannot_do_is_not_a_broken_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: object, **kwargs: object) -> None:
        raise KeyError("scale")

    monkeypatch.setattr("openhtp.frontend.quantize._ort.quantize", failing)
    with pytest.raises(htp.UnsupportedFeature, match="quantizer refuses the model: 'scale'"):
        quantize_model(zoo.tiny_mlp(16), zoo.random_feeds(zoo.tiny_mlp(16)))
