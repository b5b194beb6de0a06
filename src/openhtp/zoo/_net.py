"""A small writer of ONNX models: one method per layer, weights drawn as it goes.

Batch normalisation is not written: networks are as they are deployed, with it folded into the convolution before.
Weights are drawn so that a layer keeps the size of its input, which folded statistics would also do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper

_OPSET = 17


class Net:
    """Collects nodes and weights. Methods return the name of the new value."""

    def __init__(self, name: str, seed: int) -> None:
        self._name = name
        self._random = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._channels: dict[str, int] = {}

    def input(self, name: str, shape: Sequence[int]) -> str:
        """A float input; images are [batch, channels, height, width]."""
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))
        self._channels[name] = shape[1]
        return name

    def output(self, name: str, value: str, shape: Sequence[int]) -> None:
        """Give a value to the outside under a name of its own."""
        for node in self._nodes:
            node.output[:] = [name if item == value else item for item in node.output]
            node.input[:] = [name if item == value else item for item in node.input]
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))

    def node(self, op_type: str, inputs: Sequence[str], **attrs: Any) -> str:
        """Any node with one output."""
        name = f"{op_type.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, list(inputs), [name], name=f"{name}_node", **attrs))
        if inputs and inputs[0] in self._channels:
            self._channels[name] = self._channels[inputs[0]]
        return name

    def const(self, array: npt.NDArray[Any]) -> str:
        """A constant."""
        name = f"const_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(array, name))
        return name

    def normal(self, shape: Sequence[int], std: float, mean: float = 0.0) -> str:
        """A constant of normally distributed numbers."""
        return self.const(self._random.normal(mean, std, shape).astype(np.float32))

    def conv(
        self, x: str, filters: int, kernel: int, *, stride: int = 1, groups: int = 1, gain: float = 2.0
    ) -> str:
        """A convolution with bias and "same" padding; ``gain`` 2 makes up for a clamp after it."""
        channels = self._channels[x]
        std = math.sqrt(gain / (channels // groups * kernel * kernel))
        weight = self.normal((filters, channels // groups, kernel, kernel), std)
        out = self.node(
            "Conv",
            [x, weight, self.normal((filters,), 0.1)],
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
            group=groups,
        )
        self._channels[out] = filters
        return out

    def relu(self, x: str) -> str:
        """max(x, 0)."""
        return self.node("Relu", [x])

    def relu6(self, x: str) -> str:
        """x clamped to 0..6."""
        bounds = [self.const(np.array(bound, np.float32)) for bound in (0.0, 6.0)]
        return self.node("Clip", [x, *bounds])

    def add(self, a: str, b: str) -> str:
        """a + b."""
        return self.node("Add", [a, b])

    def max_pool(self, x: str, kernel: int, stride: int, pad: int) -> str:
        """Maximum over square windows."""
        return self.node("MaxPool", [x], kernel_shape=[kernel, kernel], strides=[stride, stride], pads=[pad] * 4)

    def linear(self, x: str, size_in: int, size_out: int, *, gain: float = 1.0) -> str:
        """x times weights plus bias, on matrices."""
        weight = self.normal((size_out, size_in), math.sqrt(gain / size_in))
        return self.node("Gemm", [x, weight, self.normal((size_out,), 0.1)], transB=1)

    def classifier(self, x: str, classes: int) -> str:
        """Global average, then a linear layer. The gain undoes most of what averaging took."""
        channels = self._channels[x]
        flat = self.node("Flatten", [self.node("GlobalAveragePool", [x])], axis=1)
        return self.linear(flat, channels, classes, gain=4.0)

    def model(self) -> bytes:
        """The finished model."""
        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, self._constants)
        opsets = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="openhtp")
        return bytes(model.SerializeToString())
