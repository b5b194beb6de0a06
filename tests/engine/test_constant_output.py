"""An output that does not depend on any input: the runtime folds it, and the rest must still be cut."""

from __future__ import annotations

import numpy as np

from openhtp.compiler.driver import compile_graph
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine.ort import OrtEngine
from openhtp.ir.builder import GraphBuilder


def tensor(
    name: str, shape: tuple[int, ...], kind: TensorKind = TensorKind.NATIVE, dtype: DType = DType.FLOAT_32
) -> TensorSpec:
    return TensorSpec(name, shape, dtype, None, kind)


def test_a_constant_output_does_not_cost_the_yield_points() -> None:
    rng = np.random.default_rng(1)
    builder = GraphBuilder("g")
    x = tensor("x", (1, 32, 32, 64), TensorKind.APP_WRITE)
    builder.add_tensor(x)
    for number in range(8):
        weight = tensor(f"w{number}", (3, 3, 64, 64), TensorKind.STATIC)
        builder.add_tensor(weight, rng.normal(0, 0.04, weight.shape).astype(np.float32))
        y = tensor(f"y{number}", (1, 32, 32, 64), TensorKind.APP_READ if number == 7 else TensorKind.NATIVE)
        builder.add_tensor(y)
        builder.add_node(
            OpCall("Conv2d", f"c{number}", (x, weight), (y,), {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]})
        )
        x = y
    anchors = tensor("a", (300, 4), TensorKind.STATIC, DType.INT_32)
    doubled = tensor("doubled", (300, 4), TensorKind.APP_READ, DType.INT_32)
    values = np.arange(1200, dtype=np.int32).reshape(300, 4)
    builder.add_tensor(anchors, values)
    builder.add_tensor(doubled)
    builder.add_node(OpCall("ElementWiseAdd", "twice", (anchors, anchors), (doubled,)))
    program = compile_graph(builder.finish(), "SM8650")
    found = {}
    for engine, name in ((OrtEngine(), "cut"), (OrtEngine(yield_points=False), "whole")):
        loaded = engine.load(program)
        arrays = {
            "x": np.ones((1, 32, 32, 64), np.float32),
            "y7": np.zeros((1, 32, 32, 64), np.float32),
            "doubled": np.zeros((300, 4), np.int32),
        }
        run = loaded.bind(arrays)
        for step in range(loaded.steps):
            run.step(step)
        found[name] = (loaded.steps, arrays)
    assert found["cut"][0] > 2
    np.testing.assert_array_equal(found["cut"][1]["doubled"], 2 * values)
    np.testing.assert_array_equal(found["cut"][1]["y7"], found["whole"][1]["y7"])
