"""``openhtp run --check``: what it says where there is nothing to compare, and why something is too far."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import openhtp as htp
from openhtp.cli.main import app
from openhtp.cli.run import NOTHING_COMPARED
from openhtp.engine.onnxruntime import onnxruntime


def invoke(*args: object, code: int = 0) -> str:
    words = ["run", *map(str, args), "--check", "--repeat", "1"]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "1000"})
    assert result.exit_code == code, result.output
    return result.output


def floats(name: str, shape: list[int] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def saved(path: Path, nodes: list, inputs: list, outputs: list, **constants: np.ndarray) -> Path:
    held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (
            [helper.make_node("Sub", ["x", "x"], ["z"]), helper.make_node("Relu", ["z"], ["y"])],
            "every number is 0",
        ),
        (
            [helper.make_node("Sub", ["x", "x"], ["z"]), helper.make_node("Div", ["z", "z"], ["y"])],
            "12 of 12 numbers are NaN on both sides",
        ),
    ],
    ids=["constant", "NaN"],
)
def test_nothing_was_compared(tmp_path: Path, nodes: list, reason: str) -> None:
    path = saved(tmp_path / "m.onnx", nodes, [floats("x", [3, 4])], [floats("y", [3, 4])])
    text = invoke(path, "--json", tmp_path / "o.json", code=NOTHING_COMPARED)
    assert "nothing was compared here" in text
    assert f"y: {reason}" in text
    told = json.loads((tmp_path / "o.json").read_text())["check"]["y"]
    assert (told["holds"], told["verdict"]) == (False, "nothing was compared here")


def test_what_is_too_far_comes_before_what_says_nothing(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Sub", ["x", "x"], ["zero"]),
        helper.make_node("Mul", ["x", "big"], ["m"], name="scale"),
        helper.make_node("Div", ["m", "big"], ["y"]),
    ]
    outputs = [floats("zero", [3, 4]), floats("y", [3, 4])]
    path = saved(tmp_path / "m.onnx", nodes, [floats("x", [3, 4])], outputs, big=np.array([6e4], np.float32))
    text = invoke(path, "--json", tmp_path / "o.json", code=1)
    assert "nothing was compared here" in text
    assert "too far" in text
    assert "why: node 'scale' (Mul) reaches" in text
    assert json.loads((tmp_path / "o.json").read_text())["first_loss"]["node"] == "scale"


def test_words_are_filled_with_words(tmp_path: Path) -> None:
    """Zeros everywhere would give rows that are all the same."""
    table = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 6])
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"]), helper.make_node("Tanh", ["rows"], ["y"])]
    path = saved(tmp_path / "m.onnx", nodes, [ids], [floats("y", [1, 6, 8])], table=table)
    text = invoke(path, "--output", tmp_path / "o.npz")
    assert "inputs that are no noise: ids: ids below 50" in text
    with np.load(tmp_path / "o.npz") as archive:
        assert len(np.unique(archive["y"][0], axis=0)) > 1


def test_a_logarithm_of_a_spectrum_is_named(tmp_path: Path) -> None:
    """A pure tone: next to it half precision has noise where there should be silence, which a logarithm shows."""
    time = np.arange(512)
    waves = np.cos(2 * np.pi * np.outer(time, np.arange(256)) / 512) * np.hanning(512)[:, None]
    nodes = [
        helper.make_node("MatMul", ["x", "waves"], ["spectrum"], name="spectrum"),
        helper.make_node("Mul", ["spectrum", "spectrum"], ["power"], name="power"),
        helper.make_node("Add", ["power", "least"], ["lifted"], name="lifted"),
        helper.make_node("Log", ["lifted"], ["y"], name="loudness"),
    ]
    path = saved(
        tmp_path / "m.onnx",
        nodes,
        [floats("x", [1, 512])],
        [floats("y", [1, 256])],
        waves=waves.astype(np.float32),
        least=np.array([1e-8], np.float32),
    )
    np.savez(tmp_path / "in.npz", x=0.5 * np.sin(2 * np.pi * 7.04 * time / 512).astype(np.float32)[None])
    text = invoke(path, "--input", tmp_path / "in.npz", "--min-sqnr", 30, code=1)
    assert "why: node 'loudness' (Log) is the first that is infinite or NaN in half precision" in text
    assert "the constant 'least', 1e-08, is 0 in half precision" in text
    assert "a logarithm shows what half precision rounds off" in text


def test_silence_that_is_infinite_because_its_epsilon_is_0_is_named(tmp_path: Path) -> None:
    """No value of the float model is beyond half precision."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["power"], name="power"),
        helper.make_node("Add", ["power", "least"], ["lifted"], name="lifted"),
        helper.make_node("Log", ["lifted"], ["y"], name="loudness"),
    ]
    constants = {"least": np.array([1e-8], np.float32)}
    path = saved(tmp_path / "m.onnx", nodes, [floats("x", [1, 4])], [floats("y", [1, 4])], **constants)
    np.savez(tmp_path / "in.npz", x=np.array([[0.5, 0.5, 0, 0.5]], np.float32))
    text = invoke(path, "--input", tmp_path / "in.npz", "--check-range", code=1)
    named = "node 'loudness' (Log) is the first that is infinite or NaN in half precision"
    assert f"why: {named}; the constant 'least', 1e-08, is 0 in half precision" in text
    words = ["run", str(path), "--repeat", "1", "--input", str(tmp_path / "in.npz"), "--check-range"]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "1000"})
    assert result.exit_code == 1
    assert f"range: {named}" in result.output


def test_a_mask_that_half_precision_does_not_hold_hides_nothing(tmp_path: Path) -> None:
    """What is shown is 0 times the mask's number: 0, as the vendor's library has it, and no 0 times infinity."""
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [1, 4])
    nodes = [
        helper.make_node("Cast", ["attention_mask"], ["shown"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "shown"], ["hidden"]),
        helper.make_node("Mul", ["hidden", "lowest"], ["added"], name="mask"),
        helper.make_node("Add", ["x", "added"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"]),
    ]
    constants = {"one": np.array(1, np.float32), "lowest": np.array(-1e9, np.float32)}
    path = saved(tmp_path / "m.onnx", nodes, [floats("x", [1, 4]), mask], [floats("y", [1, 4])], **constants)
    invoke(path)
    shown = np.array([[1, 1, 0, 0]], np.int64)
    np.savez(tmp_path / "in.npz", x=np.array([[1, 2, 3, 4]], np.float32), attention_mask=shown)
    invoke(path, "--input", tmp_path / "in.npz")


def test_range_inside_a_branch(tmp_path: Path) -> None:
    """All nodes are in the branches of an If whose condition a frozen input settles."""

    def branch(name: str, factor: float) -> onnx.GraphProto:
        held = numpy_helper.from_array(np.array([factor], np.float32), f"{name}_factor")
        node = helper.make_node("Mul", ["x", held.name], [f"{name}_y"], name=f"{name}_scale")
        return helper.make_graph([node], name, [], [floats(f"{name}_y", None)], [held])

    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["is_fast"]),
        helper.make_node(
            "If", ["is_fast"], ["y"], then_branch=branch("fast", 1e6), else_branch=branch("slow", 1.0)
        ),
    ]
    inputs = [floats("x", [1, 4]), helper.make_tensor_value_info("sr", TensorProto.INT64, [])]
    path = saved(tmp_path / "m.onnx", nodes, inputs, [floats("y", [1, 4])], rate=np.array(16000, np.int64))
    assert "stays within" in invoke(path, "--freeze", "sr=8000", "--check-range")
    text = invoke(path, "--freeze", "sr=16000", "--check-range", code=1)
    assert "fast_scale' (Mul) reaches" in text


def test_a_model_whose_outputs_are_no_tensors() -> None:
    path = Path(onnxruntime.__file__).parent / "datasets" / "logreg_iris.onnx"
    text = invoke(path, code=2)
    assert "output 'probabilities' is a sequence; expected tensors only" in text
    assert text.count("\n") == 1
    label, probabilities = htp.InferenceSession(path).run(None, {"float_input": np.ones((3, 2), np.float32)})
    assert label.shape == (3,)
    assert [type(each) for each in probabilities] == [dict] * 3


def _detector(path: Path) -> Path:
    """Boxes of a picture in the order of their scores, two and two of which are nearly equal."""
    nodes = [
        helper.make_node("Mul", ["logits", "scale"], ["scores"]),
        helper.make_node("TopK", ["scores", "count"], ["best", "which"]),
        helper.make_node("Gather", ["boxes", "which"], ["chosen"], axis=0),
    ]
    outputs = [
        floats("best", [6]),
        floats("chosen", [6, 4]),
        helper.make_tensor_value_info("which", TensorProto.INT64, [6]),
    ]
    return saved(
        path,
        nodes,
        [floats("logits", [12]), floats("boxes", [12, 4])],
        outputs,
        count=np.array([6], np.int64),
        scale=np.array([0.7], np.float32),
    )


def test_boxes_are_compared_as_a_set(tmp_path: Path) -> None:
    path = _detector(tmp_path / "m.onnx")
    apart = np.repeat(np.linspace(0.9, 0.3, 6), 2)
    # In half precision each pair is a tie: whichever the chip takes first, it is the other one in some pairs.
    apart[1::4] += 1e-5
    apart[3::4] -= 1e-5
    boxes = np.random.default_rng(0).uniform(0, 100, (12, 4))
    np.savez(tmp_path / "in.npz", logits=apart.astype(np.float32), boxes=boxes.astype(np.float32))
    text = invoke(path, "--input", tmp_path / "in.npz")
    assert re.search("compared as a set of 6 rows: [24] at another place, 0 near the cut left out", text)


def test_other_boxes_are_too_far(tmp_path: Path) -> None:
    """Scores so large that half precision has infinities, and takes the first."""
    path = _detector(tmp_path / "m.onnx")
    boxes = np.random.default_rng(0).uniform(0, 100, (12, 4))
    np.savez(
        tmp_path / "in.npz", logits=np.linspace(1e5, 2e5, 12).astype(np.float32), boxes=boxes.astype(np.float32)
    )
    assert "without a partner" in invoke(path, "--input", tmp_path / "in.npz", code=1)


def test_what_a_choice_only_flows_into_keeps_its_order(tmp_path: Path) -> None:
    """Routing by the two best of four: a token or class at another place would be wrong."""
    nodes = [
        helper.make_node("TopK", ["x", "count"], ["best", "which"]),
        helper.make_node("ScatterElements", ["zeros", "which", "best"], ["y"], axis=-1),
        helper.make_node("Concat", ["best", "best"], ["both"], axis=1),
    ]
    outputs = [floats("y", [1, 9, 4]), floats("both", [1, 18, 2]), floats("best", [1, 9, 2])]
    path = saved(
        tmp_path / "m.onnx",
        nodes,
        [floats("x", [1, 9, 4])],
        outputs,
        count=np.array([2], np.int64),
        zeros=np.zeros((1, 9, 4), np.float32),
    )
    assert "as a set" not in invoke(path)


def test_random_numbers_are_not_compared(tmp_path: Path) -> None:
    """A Dropout that trains draws other numbers each time: half precision is not to blame."""
    nodes = [helper.make_node("Dropout", ["x", "ratio", "train"], ["d"]), helper.make_node("Relu", ["d"], ["y"])]
    path = saved(
        tmp_path / "m.onnx",
        nodes,
        [floats("x", [8, 8])],
        [floats("y", [8, 8])],
        ratio=np.float32(0.5),
        train=np.bool_(True),
    )
    text = invoke(path, code=NOTHING_COMPARED)
    assert "y: ONNX Runtime itself puts out something else in a second run" in text
    assert "half precision" not in text


def test_text_has_no_mean(tmp_path: Path) -> None:
    strings = [helper.make_tensor_value_info(name, TensorProto.STRING, [2]) for name in "xy"]
    path = saved(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], strings[:1], strings[1:])
    assert "compared as text" in invoke(path)


def test_what_onnxruntime_cannot_run_is_told_in_one_line(tmp_path: Path) -> None:
    """The operator is the CPU's, whose runtime finds the mistake when it runs."""
    nodes = [
        helper.make_node("Attention", ["x", "w", "b", "mask"], ["y"], domain="com.microsoft", num_heads=2),
    ]
    path = saved(
        tmp_path / "m.onnx",
        nodes,
        [floats("x", [1, 3, 4])],
        [floats("y", None)],
        w=np.ones((4, 12), np.float32),
        b=np.ones(12, np.float32),
        mask=np.ones((5, 7), np.int32),
    )
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path)
    text = invoke(path, code=2)
    assert "error: ONNX Runtime cannot run the model: [ONNXRuntimeError] : 2 : INVALID_ARGUMENT" in text
    assert "Traceback" not in text


def test_inputs_without_room_are_refused_before_they_are_drawn(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = saved(tmp_path / "m.onnx", nodes, [floats("x", [1 << 20, 1 << 20])], [floats("y", None)])
    assert "the inputs take 4,398,046,511,104 bytes" in invoke(path, code=2)
