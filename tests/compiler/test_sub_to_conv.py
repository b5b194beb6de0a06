"""The rewrite of differences to convolutions: what it makes computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from openhtp.compiler.driver import portable_program, program_for
from openhtp.compiler.sub_to_conv import sub_to_conv
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine.ort import OrtEngine
from openhtp.ir.builder import GraphBuilder
from openhtp.program.qnn_program import QnnProgram, verify_program

SIZE, CHANNELS = 8, 5
CONV = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}


class Drawing:
    """Builds small graphs of pictures."""

    def __init__(self, *, quantized: bool, by_channel: bool = False) -> None:
        self.builder = GraphBuilder("g")
        self.quantized = quantized
        self.by_channel = by_channel
        self.rng = np.random.default_rng(7)
        self.x = self.picture("x", kind=TensorKind.APP_WRITE)

    def picture(self, name: str, scale: float = 0.05, kind: TensorKind = TensorKind.NATIVE) -> TensorSpec:
        dtype = DType.UFIXED_POINT_8 if self.quantized else DType.FLOAT_32
        quant = ScaleOffset(scale, -128) if self.quantized else None
        spec = TensorSpec(name, (1, SIZE, SIZE, CHANNELS), dtype, quant, kind)
        self.builder.add_tensor(spec, None)
        return spec

    def conv(self, name: str, source: TensorSpec, scale: float = 0.05) -> TensorSpec:
        shape = (3, 3, CHANNELS, CHANNELS)
        real = self.rng.normal(0, 0.2, shape)
        if self.quantized:
            quant: Any = ScaleOffset(0.01, 0)
            if self.by_channel:
                quant = AxisScaleOffset(3, tuple(self.rng.uniform(0.005, 0.02, CHANNELS)))
            weights = TensorSpec(f"{name}_w", shape, DType.SFIXED_POINT_8, quant, TensorKind.STATIC)
            self.builder.add_tensor(weights, np.clip(np.round(real * 100), -127, 127).astype(np.int8))
        else:
            weights = TensorSpec(f"{name}_w", shape, DType.FLOAT_32, None, TensorKind.STATIC)
            self.builder.add_tensor(weights, real.astype(np.float32))
        made = self.picture(name, scale)
        self.builder.add_node(OpCall("Conv2d", f"{name}_node", (source, weights), (made,), CONV))
        return made

    def relu(self, name: str, source: TensorSpec) -> TensorSpec:
        made = self.picture(name)
        self.builder.add_node(OpCall("Relu", f"{name}_node", (source,), (made,)))
        return made

    def difference(self, left: TensorSpec, right: TensorSpec) -> QnnProgram:
        y = self.picture("y", 0.1, TensorKind.APP_READ)
        self.builder.add_node(OpCall("ElementWiseSubtract", "sub", (left, right), (y,)))
        return portable_program(self.builder.finish())


def computed(program: QnnProgram) -> np.ndarray:
    loaded = OrtEngine().load(program_for(program, "SM8650"))
    (x,), (y,) = program.inputs, program.outputs
    rng = np.random.default_rng(1)
    data = rng.integers(0, 256, x.shape) if x.dtype.is_fixed_point else rng.normal(0, 1, x.shape)
    out = np.zeros(y.shape, y.dtype.numpy)
    run = loaded.bind({"x": data.astype(x.dtype.numpy), "y": out})
    for step in range(loaded.steps):
        run.step(step)
    return out


def branches(drawing: Drawing, *, other_scale: bool = False) -> QnnProgram:
    """Two convolutions with a Relu between them on each side."""
    ends = []
    for side in ("left", "right"):
        first = drawing.relu(f"{side}_r", drawing.conv(f"{side}_1", drawing.x))
        ends.append(drawing.conv(f"{side}_2", first, 0.07 if other_scale and side == "left" else 0.05))
    return drawing.difference(*ends)


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("by_channel", [False, True])
def test_branches_are_merged_and_compute_the_same(*, quantized: bool, by_channel: bool) -> None:
    program = branches(Drawing(quantized=quantized, by_channel=by_channel))
    written = sub_to_conv(program)
    verify_program(written)
    assert [node.op for node in written.nodes] == ["Conv2d", "Relu", "Conv2d", "Conv2d"]
    assert written.nodes[-1].outputs == ("y",)
    one, two = computed(program).astype(np.float64), computed(written).astype(np.float64)
    assert one.std() > 0.1
    assert np.abs(one - two).max() <= (1 if quantized else 0.02)


def test_what_cannot_be_merged_is_put_side_by_side() -> None:
    drawing = Drawing(quantized=True)
    program = drawing.difference(drawing.conv("one", drawing.x), drawing.x)
    written = sub_to_conv(program)
    assert [node.op for node in written.nodes] == ["Conv2d", "Concat", "Conv2d"]
    assert np.abs(computed(program).astype(int) - computed(written).astype(int)).max() <= 1


def test_encodings_that_differ_get_one_that_holds_both() -> None:
    program = branches(Drawing(quantized=True), other_scale=True)
    written = sub_to_conv(program)
    assert "Concat" in [node.op for node in written.nodes]
    assert np.abs(computed(program).astype(int) - computed(written).astype(int)).max() <= 1


def test_nothing_else_is_touched() -> None:
    drawing = Drawing(quantized=True)
    same = drawing.difference(drawing.x, drawing.x)
    assert sub_to_conv(same) is same
    drawing = Drawing(quantized=False)
    constant = TensorSpec("c", (1, SIZE, SIZE, CHANNELS), DType.FLOAT_32, None, TensorKind.STATIC)
    drawing.builder.add_tensor(constant, np.ones(constant.shape, np.float32))
    fixed = drawing.difference(drawing.x, constant)
    assert sub_to_conv(fixed) is fixed
