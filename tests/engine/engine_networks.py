"""Image networks in two forms at once: a QNN graph (channel-last) and the equivalent QDQ ONNX model.

Weights and encodings are random but sensible: the point is that both forms describe the same arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ir.builder import GraphBuilder

U8 = DType.UFIXED_POINT_8


@dataclass
class Twin:
    """Builds both forms side by side; methods take and return tensor specs of the QNN graph."""

    size: int
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    builder: GraphBuilder = field(default_factory=lambda: GraphBuilder("twin"))
    onnx_nodes: list[Any] = field(default_factory=list)
    onnx_constants: list[Any] = field(default_factory=list)
    count: int = 0

    def start(self, channels: int = 3) -> TensorSpec:
        shape = (1, self.size, self.size, channels)
        spec = TensorSpec("x", shape, U8, ScaleOffset(0.02, -128), TensorKind.APP_WRITE)
        self.builder.add_tensor(spec)
        self._dequantize("x.q", spec)
        return spec

    def conv(
        self,
        x: TensorSpec,
        filters: int,
        kernel: int,
        stride: int = 1,
        *,
        depthwise: bool = False,
        relu: bool = True,
    ) -> TensorSpec:
        self.count += 1
        name, channels = f"c{self.count}", x.shape[3]
        per_group = 1 if depthwise else channels
        filters = channels if depthwise else filters
        w = self.rng.integers(-127, 128, (kernel, kernel, per_group, filters)).astype(np.int8)
        fan_in = kernel * kernel * per_group
        scales = (self.rng.uniform(0.8, 1.2, filters) * 1.7 / np.sqrt(fan_in) / 127).astype(np.float32)
        per_channel = AxisScaleOffset(3, tuple(scales.tolist()))
        weights = TensorSpec(f"{name}.w", w.shape, DType.SFIXED_POINT_8, per_channel, TensorKind.STATIC)
        self.builder.add_tensor(weights, w)
        b = self.rng.integers(-500, 500, filters).astype(np.int32)
        bias = TensorSpec(f"{name}.b", (filters,), DType.SFIXED_POINT_32, None, TensorKind.STATIC)
        self.builder.add_tensor(bias, b)
        pad = kernel // 2
        out_size = (x.shape[1] + 2 * pad - kernel) // stride + 1
        shape = (1, out_size, out_size, filters)
        quant = ScaleOffset(6 / 255, 0) if relu else ScaleOffset(0.05, -128)
        params = {"stride": [stride, stride], "pad_amount": [[pad, pad], [pad, pad]]}
        out = TensorSpec(f"{name}.o", shape, U8, quant)
        op = "DepthWiseConv2d" if depthwise else "Conv2d"
        if relu:
            middle = TensorSpec(f"{name}.m", shape, U8, ScaleOffset(12.4 / 255, -128))
            self.builder.add_tensor(middle)
            self.builder.add_tensor(out)
            self.builder.add_node(OpCall(op, name, (x, weights, bias), (middle,), params))
            bounds = {"min_value": 0.0, "max_value": 6.0}
            self.builder.add_node(OpCall("ReluMinMax", f"{name}.r", (middle,), (out,), bounds))
        else:
            self.builder.add_tensor(out)
            self.builder.add_node(OpCall(op, name, (x, weights, bias), (out,), params))
        self._onnx_conv(name, x, w, scales, b, stride, pad, channels if depthwise else 1, relu)
        self._quantize(f"{name}.f", out)
        return out

    def add(self, a: TensorSpec, b: TensorSpec) -> TensorSpec:
        self.count += 1
        out = TensorSpec(f"a{self.count}.o", a.shape, U8, ScaleOffset(0.06, -128))
        self.builder.add_tensor(out)
        self.builder.add_node(OpCall("ElementWiseAdd", f"a{self.count}", (a, b), (out,)))
        self._node("Add", [f"{a.name}.d", f"{b.name}.d"], f"a{self.count}.f")
        self._quantize(f"a{self.count}.f", out)
        return out

    def head(self, x: TensorSpec, classes: int) -> TensorSpec:
        channels, size = x.shape[3], x.shape[1]
        pooled = TensorSpec("pool.o", (1, 1, 1, channels), U8, ScaleOffset(6 / 255, 0))
        self.builder.add_tensor(pooled)
        params = {"filter_size": [size, size], "stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}
        self.builder.add_node(OpCall("PoolAvg2d", "pool", (x,), (pooled,), params))
        self._node("GlobalAveragePool", [f"{x.name}.d"], "pool.f")
        self._quantize("pool.f", pooled)
        w = self.rng.integers(-127, 128, (classes, channels)).astype(np.int8)
        weights = TensorSpec("fc.w", w.shape, DType.SFIXED_POINT_8, ScaleOffset(0.002, 0), TensorKind.STATIC)
        bias = TensorSpec("fc.b", (classes,), DType.SFIXED_POINT_32, None, TensorKind.STATIC)
        b = np.zeros(classes, np.int32)
        out = TensorSpec("y", (1, classes), U8, ScaleOffset(0.1, -128), TensorKind.APP_READ)
        for spec, data in ((weights, w), (bias, b), (out, None)):
            self.builder.add_tensor(spec, data)
        self.builder.add_node(OpCall("FullyConnected", "fc", (pooled, weights, bias), (out,)))
        self._node("Flatten", ["pool.o.d"], "flat", axis=1)
        self._constant("fc.w.q", w.T.copy())
        self._node("DequantizeLinear", ["fc.w.q", *self._scale("fc.w", 0.002, np.int8(0))], "fc.w.d")
        self._constant("fc.b.q", b)
        self._constant("fc.b.s", np.float32(0.002 * 6 / 255))
        self._node("DequantizeLinear", ["fc.b.q", "fc.b.s"], "fc.b.d")
        self._quantize("flat", TensorSpec("flat.o", (1, channels), U8, pooled.quant))
        self._node("Gemm", ["flat.o.d", "fc.w.d", "fc.b.d"], "fc.f")
        self._quantize("fc.f", out)
        return out

    def model(self, out: TensorSpec) -> bytes:
        shape = [1, 3, self.size, self.size]
        graph = helper.make_graph(
            self.onnx_nodes,
            "twin",
            [helper.make_tensor_value_info("x.q", TensorProto.UINT8, shape)],
            [helper.make_tensor_value_info(f"{out.name}.q", TensorProto.UINT8, list(out.shape))],
            self.onnx_constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        return bytes(model.SerializeToString())

    def _onnx_conv(
        self, name: str, x: TensorSpec, w: Any, scales: Any, b: Any, stride: int, pad: int, group: int, relu: bool
    ) -> None:
        self._constant(f"{name}.w.q", w.transpose(3, 2, 0, 1).copy())
        self._constant(f"{name}.w.s", scales)
        self._constant(f"{name}.w.z", np.zeros(len(scales), np.int8))
        self._node("DequantizeLinear", [f"{name}.w.q", f"{name}.w.s", f"{name}.w.z"], f"{name}.w.d", axis=0)
        assert isinstance(x.quant, ScaleOffset)
        self._constant(f"{name}.b.q", b)
        self._constant(f"{name}.b.s", (scales * np.float32(x.quant.scale)).astype(np.float32))
        self._node("DequantizeLinear", [f"{name}.b.q", f"{name}.b.s"], f"{name}.b.d", axis=0)
        target = f"{name}.c" if relu else f"{name}.f"
        inputs = [f"{x.name}.d", f"{name}.w.d", f"{name}.b.d"]
        self._node("Conv", inputs, target, strides=[stride, stride], pads=[pad] * 4, group=group)
        if relu:
            self._constant("zero", np.float32(0)) if name == "c1" else None
            self._constant("six", np.float32(6)) if name == "c1" else None
            self._node("Clip", [target, "zero", "six"], f"{name}.f")

    def _scale(self, name: str, scale: float, zero: Any) -> list[str]:
        self._constant(f"{name}.s", np.float32(scale))
        self._constant(f"{name}.z", np.asarray(zero))
        return [f"{name}.s", f"{name}.z"]

    def _quantize(self, source: str, spec: TensorSpec) -> None:
        assert isinstance(spec.quant, ScaleOffset)
        operands = self._scale(spec.name, spec.quant.scale, np.uint8(-spec.quant.offset))
        self._node("QuantizeLinear", [source, *operands], f"{spec.name}.q")
        self._node("DequantizeLinear", [f"{spec.name}.q", *operands], f"{spec.name}.d")

    def _dequantize(self, stored: str, spec: TensorSpec) -> None:
        assert isinstance(spec.quant, ScaleOffset)
        operands = self._scale(spec.name, spec.quant.scale, np.uint8(-spec.quant.offset))
        self._node("DequantizeLinear", [stored, *operands], f"{spec.name}.d")

    def _node(self, op_type: str, inputs: list[str], output: str, **attrs: Any) -> None:
        self.onnx_nodes.append(helper.make_node(op_type, inputs, [output], name=output, **attrs))

    def _constant(self, name: str, array: Any) -> None:
        self.onnx_constants.append(numpy_helper.from_array(np.asarray(array), name))


def mobilenet_v2(size: int = 224) -> tuple[GraphBuilder, bytes]:
    twin = Twin(size)
    x = twin.conv(twin.start(), 32, 3, 2)
    plan = [(16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1)]
    for channels, repeats, stride in plan:
        expand = 1 if channels == 16 else 6
        for index in range(repeats):
            step = stride if index == 0 else 1
            y = twin.conv(x, expand * x.shape[3], 1) if expand > 1 else x
            y = twin.conv(y, 0, 3, step, depthwise=True)
            y = twin.conv(y, channels, 1, relu=False)
            x = twin.add(x, y) if step == 1 and x.shape == y.shape else y
    out = twin.head(twin.conv(x, 1280, 1), 1000)
    return twin.builder, twin.model(out)


def resnet50(size: int = 224) -> tuple[GraphBuilder, bytes]:
    twin = Twin(size)
    x = twin.conv(twin.start(), 64, 7, 2)
    x = twin.conv(x, 64, 3, 2, depthwise=True)
    for channels, repeats, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(repeats):
            step = stride if index == 0 else 1
            y = twin.conv(twin.conv(x, channels, 1), channels, 3, step)
            y = twin.conv(y, 4 * channels, 1, relu=False)
            skip = twin.conv(x, 4 * channels, 1, step, relu=False) if index == 0 else x
            x = twin.add(skip, y)
    out = twin.head(x, 1000)
    return twin.builder, twin.model(out)
