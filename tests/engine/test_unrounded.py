"""A convolution and its Prelu are computed as one, without rounding to 8 bits in between."""

from __future__ import annotations

import numpy as np
import pytest

from openhtp.compiler.driver import compile_graph
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine.ort import OrtEngine
from openhtp.ir.builder import GraphBuilder
from openhtp.program.htp_program import HtpProgram

U8 = DType.UFIXED_POINT_8
COARSE, FINE, WEIGHTS = ScaleOffset(0.5, -128), ScaleOffset(0.004, -20), ScaleOffset(0.01, -128)


def network(kind: TensorKind = TensorKind.NATIVE) -> tuple[HtpProgram, np.ndarray]:
    """Slopes of 0.01 bring what a coarse tensor holds below zero into the range of a fine one."""
    rng = np.random.default_rng(3)
    weights = rng.integers(0, 256, (1, 1, 8, 4)).astype(np.uint8)
    builder = GraphBuilder("g")
    x = TensorSpec("x", (1, 5, 6, 8), U8, ScaleOffset(0.05, -128), TensorKind.APP_WRITE)
    w = TensorSpec("w", weights.shape, U8, WEIGHTS, TensorKind.STATIC)
    between = TensorSpec("between", (1, 5, 6, 4), U8, COARSE, kind)
    slopes = TensorSpec("slopes", (4,), U8, ScaleOffset(0.01, 0), TensorKind.STATIC)
    y = TensorSpec("y", (1, 5, 6, 4), U8, FINE, TensorKind.APP_READ)
    for spec, data in ((x, None), (w, weights), (between, None), (slopes, np.ones(4, np.uint8)), (y, None)):
        builder.add_tensor(spec, data)
    builder.add_node(
        OpCall("Conv2d", "conv", (x, w), (between,), {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]})
    )
    builder.add_node(OpCall("Prelu", "prelu", (between, slopes), (y,)))
    return compile_graph(builder.finish(), "SM8650"), weights


def run(program: HtpProgram, x: np.ndarray) -> np.ndarray:
    loaded = OrtEngine().load(program)
    results = {spec.name: np.zeros(spec.shape, spec.dtype.numpy) for spec in program.outputs}
    bound = loaded.bind({"x": x, **results})
    for step in range(loaded.steps):
        bound.step(step)
    return results["y"]


@pytest.mark.parametrize("kind", [TensorKind.NATIVE, TensorKind.APP_READ])
def test_only_what_nobody_else_sees_is_not_rounded(kind: TensorKind) -> None:
    program, weights = network(kind)
    x = np.random.default_rng(4).integers(0, 256, (1, 5, 6, 8)).astype(np.uint8)
    real = np.einsum("bhwc,cf->bhwf", (x.astype(float) - 128) * 0.05, (weights[0, 0].astype(float) - 128) * 0.01)
    if kind is TensorKind.APP_READ:
        assert len(program.kernels) == 2
        assert all(node.rounds for node in program.nodes)
        real = (np.clip(np.rint(real / 0.5) + 128, 0, 255) - 128) * 0.5
    else:
        (kernel,) = program.kernels
        assert [(node.name, node.rounds) for node in kernel.nodes] == [("conv", False), ("prelu", True)]
    wanted = np.clip(np.rint(np.where(real > 0, real, 0.01 * real) / 0.004) + 20, 0, 255)
    found = run(program, x)
    assert np.abs(found.astype(int) - wanted).max() <= 1
    assert len(np.unique(found[found < 20])) > (6 if kind is TensorKind.NATIVE else 1)
