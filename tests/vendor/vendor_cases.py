"""Small graphs and their exact results, shared by the vendor tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.vendor.context import LibraryContext
from openhtp.vendor.forms import LibraryGraphOptions
from openhtp.vendor.graph import LibraryGraph

U8 = DType.UFIXED_POINT_8
ADD_SHAPE = (1, 4, 4, 8)


@dataclass(frozen=True)
class Case:
    """A node, its parameters and data, and the exact real-valued result."""

    call: OpCall
    params: Mapping[str, Any]
    inputs: Mapping[str, npt.NDArray[Any]]
    exact: npt.NDArray[np.float64]

    @property
    def plain_call(self) -> OpCall:
        """The node with its parameters as a program has them, without forms and types."""
        return dataclasses.replace(self.call, params={name: value for name, (value, _, _) in self.params.items()})

    @property
    def given(self) -> Mapping[str, npt.NDArray[Any]]:
        """What an execution is given."""
        statics = {spec.name for spec in self.call.inputs if spec is not None and spec.kind is TensorKind.STATIC}
        return {name: array for name, array in self.inputs.items() if name not in statics}

    def steps_from_exact(self, outputs: Mapping[str, npt.NDArray[Any]]) -> float:
        """Largest error in steps (LSB) of the output's scale."""
        spec = self.call.outputs[0]
        low, high = spec.quant.dequantize(np.array(spec.dtype.integer_range))
        error = np.abs(spec.quant.dequantize(outputs[spec.name]) - np.clip(self.exact, low, high))
        return float(error.max() / spec.quant.scale)


def covering(real: npt.NDArray[np.float64]) -> ScaleOffset:
    """The u8 encoding that just covers the values."""
    scale = float((real.max() - real.min()) / 255)
    return ScaleOffset(scale, round(real.min() / scale))


def add_specs(shape: tuple[int, ...] = ADD_SHAPE) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    a = TensorSpec("a", shape, U8, ScaleOffset(0.02, -128), TensorKind.APP_WRITE)
    b = TensorSpec("b", shape, U8, ScaleOffset(0.03, -100), TensorKind.APP_WRITE)
    o = TensorSpec("o", shape, U8, ScaleOffset(0.05, -120), TensorKind.APP_READ)
    return a, b, o


def add_case(seed: int = 1, shape: tuple[int, ...] = ADD_SHAPE) -> Case:
    rng = np.random.default_rng(seed)
    a, b, o = add_specs(shape)
    data = {spec.name: rng.integers(0, 256, spec.shape, np.uint8) for spec in (a, b)}
    exact = a.quant.dequantize(data["a"]) + b.quant.dequantize(data["b"])
    return Case(OpCall("ElementWiseAdd", "add0", (a, b), (o,)), {}, data, exact)


def build(
    context: LibraryContext,
    case: Case,
    name: str = "g",
    options: LibraryGraphOptions | None = None,
    *,
    validate: bool = True,
) -> LibraryGraph:
    """A graph of the case's node, not finalized."""
    graph = context.create_graph(name, options)
    for spec in (*case.call.inputs, *case.call.outputs):
        if spec is not None:
            graph.add_tensor(spec, case.inputs[spec.name] if spec.kind is TensorKind.STATIC else None)
    graph.add_node(case.call, case.params, validate=validate)
    return graph


def conv_case(weight: DType = DType.SFIXED_POINT_8, *, channels: int = 16) -> Case:
    """3x3 convolution, u8 activations, per-channel weights, 32-bit bias."""
    rng = np.random.default_rng(2)
    highest = weight.integer_range[1]
    scales = tuple(rng.uniform(0.005, 0.02, channels) * 127 / highest)
    x = TensorSpec("x", (1, 6, 6, 8), U8, ScaleOffset(0.02, -120), TensorKind.APP_WRITE)
    w = TensorSpec("w", (3, 3, 8, channels), weight, AxisScaleOffset(3, scales), TensorKind.STATIC)
    bias_scales = tuple(scale * x.quant.scale for scale in scales)
    b = TensorSpec("b", (channels,), DType.SFIXED_POINT_32, AxisScaleOffset(0, bias_scales), TensorKind.STATIC)
    data = {
        "x": rng.integers(0, 256, x.shape, np.uint8),
        "w": rng.integers(-highest, highest + 1, w.shape).astype(np.int8),
        "b": rng.integers(-1000, 1000, b.shape).astype(np.int32),
    }
    padded = np.pad(x.quant.dequantize(data["x"]), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    exact = np.einsum("nhwcij,ijco->nhwo", windows, w.quant.dequantize(data["w"]))
    exact += b.quant.dequantize(data["b"])
    o = TensorSpec("o", exact.shape, U8, covering(exact), TensorKind.APP_READ)
    params = {
        "stride": ([1, 1], DType.UINT_32, "tensor"),
        "pad_amount": ([[1, 1], [1, 1]], DType.UINT_32, "tensor"),
        "group": (1, DType.UINT_32, "scalar"),
    }
    return Case(OpCall("Conv2d", "conv0", (x, w, b), (o,)), params, data, exact)


def matmul_case() -> Case:
    """u8 by u8, both given at execution; the optional bias is left out."""
    rng = np.random.default_rng(3)
    a = TensorSpec("a", (1, 1, 8, 16), U8, ScaleOffset(0.02, -128))
    b = TensorSpec("b", (1, 1, 16, 8), U8, ScaleOffset(0.01, -130))
    data = {spec.name: rng.integers(0, 256, spec.shape, np.uint8) for spec in (a, b)}
    exact = a.quant.dequantize(data["a"]) @ b.quant.dequantize(data["b"])
    o = TensorSpec("o", exact.shape, U8, covering(exact))
    params = {"transpose_in0": (False, DType.BOOL_8, "scalar"), "transpose_in1": (False, DType.BOOL_8, "scalar")}
    return Case(OpCall("MatMul", "mm0", (a, b, None), (o,)), params, data, exact)


def softmax_case() -> Case:
    """u8 along the last axis, with the output scale that the HTP computes in."""
    rng = np.random.default_rng(4)
    a = TensorSpec("a", (1, 2, 4, 16), U8, ScaleOffset(0.04, -128))
    data = {"a": rng.integers(0, 256, a.shape, np.uint8)}
    powers = np.exp(a.quant.dequantize(data["a"]))
    exact = powers / powers.sum(-1, keepdims=True)
    o = TensorSpec("o", a.shape, U8, ScaleOffset(1 / 256, 0))
    params = {"axis": (3, DType.UINT_32, "scalar"), "beta": (1.0, DType.FLOAT_32, "scalar")}
    return Case(OpCall("Softmax", "softmax0", (a,), (o,)), params, data, exact)
