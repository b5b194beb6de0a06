"""Half-precision rounding: marks become casts, whatever the runtime did to them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from openhtp.compiler.driver import compile_graph
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine.half import MARK, place_rounding
from openhtp.engine.lowering import lower_program
from openhtp.engine.ort import OrtEngine
from openhtp.engine.sessions import optimised
from openhtp.engine.values import Rounding
from openhtp.ir.builder import GraphBuilder
from openhtp.program.htp_program import HtpProgram

F32 = DType.FLOAT_32
WINDOW = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}


@pytest.fixture(scope="module")
def program() -> HtpProgram:
    """conv, conv + relu, add, sigmoid, fully connected: each takes a mark in its own way."""
    rng = np.random.default_rng(0)
    builder = GraphBuilder("half")
    image = (1, 12, 12, 16)
    x = TensorSpec("x", image, F32, kind=TensorKind.APP_WRITE)
    tensors = {name: TensorSpec(name, image, F32) for name in ("a", "b", "c", "d", "e")}
    y = TensorSpec("y", (1, 10), F32, kind=TensorKind.APP_READ)
    for spec in (x, *tensors.values(), y):
        builder.add_tensor(spec)
    weights = {}
    for name, shape in (("w1", (3, 3, 16, 16)), ("w2", (3, 3, 16, 16)), ("w3", (10, 12 * 12 * 16))):
        weights[name] = TensorSpec(name, shape, F32, kind=TensorKind.STATIC)
        builder.add_tensor(weights[name], (rng.standard_normal(shape) / 12).astype(np.float32))
    a, b, c, d, e = tensors.values()
    builder.add_node(OpCall("Conv2d", "conv1", (x, weights["w1"]), (a,), WINDOW))
    builder.add_node(OpCall("Conv2d", "conv2", (a, weights["w2"]), (b,), WINDOW))
    builder.add_node(OpCall("Relu", "relu", (b,), (c,)))
    builder.add_node(OpCall("ElementWiseAdd", "add", (a, c), (d,)))
    builder.add_node(OpCall("Sigmoid", "sigmoid", (d,), (e,)))
    builder.add_node(OpCall("FullyConnected", "fc", (e, weights["w3"]), (y,)))
    return compile_graph(builder.finish(), "SM8650")


def output(program: HtpProgram) -> np.ndarray:
    x = np.random.default_rng(1).standard_normal((1, 12, 12, 16)).astype(np.float32)
    y = np.zeros((1, 10), np.float32)
    loaded = OrtEngine().load(program)
    bound = loaded.bind({"x": x, "y": y})
    for step in range(loaded.steps):
        bound.step(step)
    return y


def test_every_mark_becomes_a_pair_of_casts(program: HtpProgram) -> None:
    lowered = lower_program(program)
    assert len(lowered.marks) == 5
    model, _ = optimised(lowered, 1)
    assert place_rounding(model, lowered.marks)
    kinds = Counter(node.op_type for node in model.graph.node)
    assert kinds["Cast"] == 2 * (5 + 1), "one pair per op, one for the input"
    assert kinds[MARK] == 1, "the graph's own Sigmoid stays"
    activations = [a.s for node in model.graph.node for a in node.attribute if a.name == "activation"]
    assert activations == [b"Relu"]


def test_marks_and_plain_casts_give_the_same_numbers(program: HtpProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    marked = output(program)
    assert np.array_equal(marked, marked.astype(np.float16)), "results are half-precision numbers"
    monkeypatch.setattr("openhtp.engine.cutting.place_rounding", lambda model, marks: False)
    assert not lower_program(program, Rounding.CASTS).marks
    np.testing.assert_array_equal(output(program), marked)


def test_a_lost_mark_is_noticed(program: HtpProgram) -> None:
    lowered = lower_program(program)
    model, _ = optimised(lowered, 1)
    assert not place_rounding(model, {**lowered.marks, "n0/999": "n0/998"})


def test_a_value_that_is_computed_twice_keeps_its_marks() -> None:
    """The runtime merges equal operators and so their marks; if one is lost, all is lowered a second time."""
    builder = GraphBuilder("twice")
    x = TensorSpec("x", (1, 4, 4, 16), F32, kind=TensorKind.APP_WRITE)
    a, b = (TensorSpec(name, x.shape, F32) for name in ("a", "b"))
    y, z = (TensorSpec(name, x.shape, F32, kind=TensorKind.APP_READ) for name in ("y", "z"))
    for spec in (x, a, b, y, z):
        builder.add_tensor(spec)
    builder.add_node(OpCall("ElementWiseAdd", "first", (x, x), (a,)))
    builder.add_node(OpCall("ElementWiseAdd", "again", (x, x), (b,)))
    builder.add_node(OpCall("ElementWiseMultiply", "product", (a, x), (y,)))
    builder.add_node(OpCall("ElementWiseSubtract", "difference", (b, x), (z,)))
    lowered = lower_program(compile_graph(builder.finish(), "SM8650"))
    model, _ = optimised(lowered, 1)
    assert place_rounding(model, lowered.marks)
