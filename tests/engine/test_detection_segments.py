"""A network that ends in detection: inside it shapes depend on data, and it must still have points to yield at."""

from __future__ import annotations

import numpy as np
import pytest

from openhtp.compiler.driver import compile_graph
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine.ort import OrtEngine
from openhtp.ir.builder import GraphBuilder
from openhtp.program.htp_program import HtpProgram

ANCHORS, CLASSES, SLOTS = 2000, 4, 50


def tensor(name: str, shape: tuple[int, ...], kind: TensorKind = TensorKind.NATIVE) -> TensorSpec:
    return TensorSpec(name, shape, DType.FLOAT_32, None, kind)


def network(kind: str) -> HtpProgram:
    """Convolutions worth several segments, then boxes and scores from their result."""
    rng = np.random.default_rng(5)
    builder = GraphBuilder("g")

    def add(spec: TensorSpec, data: np.ndarray | None = None) -> TensorSpec:
        builder.add_tensor(spec, None if data is None else data.astype(np.float32))
        return spec

    x = add(tensor("x", (1, 32, 32, 64), TensorKind.APP_WRITE))
    for number in range(8):
        weight = add(tensor(f"w{number}", (3, 3, 64, 64), TensorKind.STATIC), rng.normal(0, 0.04, (3, 3, 64, 64)))
        y = add(tensor(f"y{number}", (1, 32, 32, 64)))
        builder.add_node(OpCall("Conv2d", f"conv{number}", (x, weight), (y,),
                                {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}))  # fmt: skip
        x = y
    flat = add(tensor("flat", (1, 32 * 32 * 64)))
    ends = [ANCHORS * CLASSES, ANCHORS * (CLASSES + 4)]
    parts = [
        add(tensor(f"p{i}", (1, size))) for i, size in enumerate((ends[0], 4 * ANCHORS, 32 * 32 * 64 - ends[1]))
    ]
    scores, moves = add(tensor("scores", (1, ANCHORS, CLASSES))), add(tensor("moves", (1, ANCHORS, 4)))
    builder.add_node(OpCall("Reshape", "flatten", (x,), (flat,)))
    builder.add_node(OpCall("Split", "split", (flat,), tuple(parts), {"axis": 1, "split_index": ends}))
    builder.add_node(OpCall("Reshape", "to_scores", (parts[0],), (scores,)))
    builder.add_node(OpCall("Reshape", "to_moves", (parts[1],), (moves,)))
    anchors = add(tensor("anchors", (ANCHORS, 4), TensorKind.STATIC), rng.uniform(0.1, 1.0, (ANCHORS, 4)))
    outputs = (
        tensor("out", (1, SLOTS), TensorKind.APP_READ),
        tensor("boxes", (1, SLOTS, 4), TensorKind.APP_READ),
        TensorSpec("labels", (1, SLOTS), DType.INT_32, None, TensorKind.APP_READ),
        TensorSpec("count", (1,), DType.UINT_32, None, TensorKind.APP_READ),
    )
    for spec in outputs:
        add(spec)
    params = {"delta_scaling_factors": [10.0] * 4, "confidence_threshold": 0.1, "iou_threshold": 0.4}
    params |= {"nms_type": kind, "detection_limit": 1 if kind == "FAST" else 20}
    builder.add_node(OpCall("DetectionOutput", "detect", (scores, moves, anchors), outputs, params))
    return compile_graph(builder.finish(), "SM8650")


@pytest.mark.parametrize("kind", ["FAST", "REGULAR"])
def test_detection_does_not_cost_the_yield_points(kind: str) -> None:
    program = network(kind)
    data = np.random.default_rng(6).normal(0, 1, (1, 32, 32, 64)).astype(np.float32)
    found = []
    for engine in (OrtEngine(), OrtEngine(yield_points=False)):
        loaded = engine.load(program)
        results = {spec.name: np.zeros(spec.shape, spec.dtype.numpy) for spec in program.outputs}
        run = loaded.bind({"x": data, **results})
        for index in range(loaded.steps):
            run.step(index)
        found.append((loaded.steps, results))
    (cut, pieces), (whole, once) = found
    assert cut > 2
    assert whole == 1
    assert once["count"][0] > 5
    for name, array in once.items():
        np.testing.assert_array_equal(pieces[name], array)
