"""Attention masks in graphs built through the API: recognised by the compiler, however they are written."""

from __future__ import annotations

from typing import Any

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

SHAPE = (2, 3, 8)
U8, NATIVE = DType.UFIXED_POINT_8, TensorKind.NATIVE
FINE, WIDE, UNIT = ScaleOffset(8 / 255, -128), ScaleOffset(38 / 255, -228), ScaleOffset(1 / 256, 0)


def masked(
    *,
    addend: float = -30.0,
    swapped: bool = False,
    binary: bool = False,
    converted: bool = False,
    mask: DType = DType.BOOL_8,
    axes: tuple[int, ...] = (2,),
    keep_dims: bool = True,
    beta: float = 1.0,
    read_twice: bool = False,
) -> HtpProgram:
    """Softmax(Select(keep, x, ReduceMin(x) + B)) in 8 bits."""
    builder = GraphBuilder("g")

    def tensor(name: str, shape: Any, dtype: DType, quant: Any = None, kind: Any = NATIVE) -> TensorSpec:
        spec = TensorSpec(name, tuple(shape), dtype, quant, kind)
        data = None
        if kind is TensorKind.STATIC:
            data = quant.quantize(np.full(shape, addend), 0, 255).astype(np.uint8)
        builder.add_tensor(spec, data)
        return spec

    def node(op: str, inputs: Any, output: TensorSpec, **params: Any) -> TensorSpec:
        builder.add_node(OpCall(op, output.name, tuple(inputs), (output,), params))
        return output

    x = tensor("x", SHAPE, U8, FINE, TensorKind.APP_WRITE)
    quant = UNIT if mask.is_fixed_point else None
    keep = tensor("keep", (2, 1, 8) if keep_dims else SHAPE, mask, quant, TensorKind.APP_WRITE)
    least_shape = [1 if axis in axes else size for axis, size in enumerate(SHAPE) if keep_dims or axis not in axes]
    least = node("ReduceMin", [x], tensor("least", least_shape, U8, FINE), axes=list(axes), keep_dims=keep_dims)
    b = tensor("b", (1,), U8, ScaleOffset(-addend / 255, -255), TensorKind.STATIC)
    terms = [b, least] if swapped else [least, b]
    low = tensor("low", least_shape, U8, WIDE)
    node("ElementWiseBinary", terms, low, operation="ADD") if binary else node("ElementWiseAdd", terms, low)
    source = node("Convert", [x], tensor("wide", SHAPE, U8, WIDE)) if converted else x
    kind = TensorKind.APP_READ if read_twice else NATIVE
    chosen = node("ElementWiseSelect", [keep, source, low], tensor("chosen", SHAPE, U8, WIDE, kind))
    node("Softmax", [chosen], tensor("y", SHAPE, U8, UNIT, TensorKind.APP_READ), axis=2, beta=beta)
    return compile_graph(builder.finish(), "SM8650")


def results(program: HtpProgram, keep: np.ndarray, x: np.ndarray) -> dict[str, np.ndarray]:
    loaded = OrtEngine().load(program)
    found = {spec.name: np.zeros(spec.shape, spec.dtype.numpy) for spec in program.outputs}
    run = loaded.bind({"x": x, "keep": keep, **found})
    for index in range(loaded.steps):
        run.step(index)
    return found


@pytest.mark.parametrize(
    "form", [{}, {"swapped": True}, {"binary": True}, {"converted": True}, {"mask": U8}, {"axes": (0, 1, 2)}]
)
def test_every_form_is_recognised_and_exact(form: dict[str, Any]) -> None:
    program = masked(**form)
    (kernel,) = program.kernels
    assert (kernel.name, kernel.op, kernel.kind) == ("y", "SelectSoftmax", "softmax")
    assert sorted(kernel.sources) == sorted(node.name for node in program.source.nodes)
    rng = np.random.default_rng(2)
    x, keep = rng.integers(0, 256, SHAPE, np.uint8), rng.random((2, 1, 8)) < 0.6
    keep[..., 0] = True
    got = results(program, keep.astype(program.tensors["keep"].dtype.numpy), x)["y"]
    power = np.where(keep, np.exp(FINE.dequantize(x)), 0.0)
    exact = power / power.sum(-1, keepdims=True)
    assert np.abs(got.astype(int) - UNIT.quantize(exact, 0, 255)).max() <= 1
    assert not got[np.broadcast_to(~keep, SHAPE)].any()


def test_a_tensor_that_others_read_is_still_made() -> None:
    program = masked(read_twice=True)
    assert [kernel.op for kernel in program.kernels][-1] == "SelectSoftmax"
    assert len(program.kernels) == len(program.source.nodes)
    assert program.kernels[-1].sources == ("y",)
    x, keep = np.full(SHAPE, 128, np.uint8), np.zeros((2, 1, 8), np.bool_)
    keep[..., :4] = True
    got = results(program, keep, x)
    np.testing.assert_allclose(WIDE.dequantize(got["chosen"])[0, 0], [0.0] * 4 + [-30.0] * 4, atol=0.1)
    assert got["y"][0, 0].tolist() == [64] * 4 + [0] * 4


@pytest.mark.parametrize(
    "form", [{"addend": -19.0}, {"axes": (1,)}, {"beta": 2.0}, {"axes": (0,), "keep_dims": False}]
)
def test_what_only_looks_alike_is_left_alone(form: dict[str, Any]) -> None:
    program = masked(**form)
    assert [kernel.op for kernel in program.kernels] == [node.op for node in program.source.nodes]
