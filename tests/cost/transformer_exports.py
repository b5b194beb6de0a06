"""Transformers as exporters write them: attention in pieces, one constant matrix per layer, rows in any order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper, numpy_helper


class ExportedGraph:
    """Writes nodes of opset 17, named and shaped as PyTorch's exporter does."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._nodes: list = []
        self._constants: list = []
        self._inputs: list = []

    def input(self, name: str, shape: tuple[int, ...], kind: int = TensorProto.FLOAT) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def constant(self, array: np.ndarray) -> str:
        self._constants.append(numpy_helper.from_array(array, f"onnx::Constant_{len(self._constants)}"))
        return self._constants[-1].name

    def weights(self, *shape: int) -> str:
        values = self._random.normal(size=shape) / np.sqrt(shape[0] if len(shape) < 3 else np.prod(shape[1:]))
        return self.constant(values.astype(np.float32))

    def ints(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        output = f"/{kind}_{len(self._nodes)}_output_0"
        self._nodes.append(helper.make_node(kind, inputs, [output], output.replace("_output_0", ""), **attributes))
        return output

    def linear(self, x: str, wide: int, out: int) -> str:
        return self.op("Add", self.weights(out), self.op("MatMul", x, self.weights(wide, out)))

    def norm(self, x: str, wide: int) -> str:
        gain, bias = self.constant(np.ones(wide, np.float32)), self.constant(np.zeros(wide, np.float32))
        return self.op("LayerNormalization", x, gain, bias, axis=-1, epsilon=1e-5)

    def gelu(self, x: str) -> str:
        half, one, root = (self.constant(np.float32(number)) for number in (0.5, 1.0, 2**0.5))
        erf = self.op("Add", self.op("Erf", self.op("Div", x, root)), one)
        return self.op("Mul", self.op("Mul", x, erf), half)

    def shaped(self, x: str, *shape: int, perm: tuple[int, ...] = ()) -> str:
        reshaped = self.op("Reshape", x, self.ints(*shape))
        return self.op("Transpose", reshaped, perm=perm) if perm else reshaped

    def attended(self, q: str, k: str, v: str, mask: str | None = None) -> str:
        """Scores of turned keys, over the last two axes."""
        scores = self.op("MatMul", self.op("Mul", q, self.constant(np.float32(0.2))), k)
        if mask is not None:
            scores = self.op("Add", scores, mask)
        return self.op("MatMul", self.op("Softmax", scores, axis=-1), v)

    def model(self, *outputs: str) -> bytes:
        told = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self._nodes, "main_graph", self._inputs, told, self._constants)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        ).SerializeToString()


def _block(g: ExportedGraph, x: str, batch: int, rows: int, wide: int, heads: int, mask: str | None = None) -> str:
    """Rows as [batch, rows, features]: three products of one row each, four axes inside."""
    deep = wide // heads
    y = g.norm(x, wide)
    q, v = (g.shaped(g.linear(y, wide, wide), batch, rows, heads, deep, perm=(0, 2, 1, 3)) for _ in range(2))
    k = g.shaped(g.linear(y, wide, wide), batch, rows, heads, deep, perm=(0, 2, 3, 1))
    out = g.op("Transpose", g.attended(q, k, v, mask), perm=(0, 2, 1, 3))
    x = g.op("Add", x, g.linear(g.shaped(out, batch, rows, wide), wide, wide))
    inner = g.gelu(g.linear(g.norm(x, wide), wide, 4 * wide))
    return g.op("Add", x, g.linear(inner, 4 * wide, wide))


def _rows_first(g: ExportedGraph, x: str, memory: str, rows: int, other: int, wide: int, heads: int) -> str:
    """Rows as [rows, batch, features], as ``nn.MultiheadAttention`` has them; three axes inside."""
    deep = wide // heads
    q = g.shaped(g.linear(x, wide, wide), rows, heads, deep, perm=(1, 0, 2))
    k = g.shaped(g.linear(memory, wide, wide), other, heads, deep, perm=(1, 2, 0))
    v = g.shaped(g.linear(memory, wide, wide), other, heads, deep, perm=(1, 0, 2))
    out = g.shaped(g.op("Transpose", g.attended(q, k, v), perm=(1, 0, 2)), rows, wide)
    projected = g.op("Gemm", out, g.weights(wide, wide), g.weights(wide), transB=1)
    return g.norm(g.op("Add", x, g.shaped(projected, rows, 1, wide)), wide)


def _forward(g: ExportedGraph, x: str, wide: int) -> str:
    inner = g.op("Relu", g.linear(x, wide, 4 * wide))
    return g.norm(g.op("Add", x, g.linear(inner, 4 * wide, wide)), wide)


def encoder(*, batch_first: bool) -> bytes:
    """``nn.TransformerEncoder`` on a row of 197 patches."""
    g = ExportedGraph()
    if batch_first:
        return g.model(_block(g, g.input("x", (1, 197, 192)), 1, 197, 192, 3))
    x = g.input("x", (197, 1, 192))
    return g.model(_forward(g, _rows_first(g, x, x, 197, 197, 192, 3), 192))


def vision() -> bytes:
    g = ExportedGraph()
    x = g.op(
        "Conv", g.input("x", (1, 3, 112, 112)), g.weights(96, 3, 16, 16), kernel_shape=[16] * 2, strides=[16] * 2
    )
    x = g.shaped(x, 1, 96, 49, perm=(0, 2, 1))
    x = g.op("Add", g.op("Concat", g.weights(1, 1, 96), x, axis=1), g.weights(1, 50, 96))
    x = g.op("Gather", g.norm(_block(g, x, 1, 50, 96, 3), 96), g.constant(np.array(0, np.int64)), axis=1)
    return g.model(g.op("Gemm", x, g.weights(100, 96), g.weights(100), transB=1))


def text() -> bytes:
    """A classifier of words, with a mask."""
    g = ExportedGraph()
    ids, mask, kinds = (
        g.input(name, (1, 48), TensorProto.INT64) for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    hidden = g.op("Sub", g.constant(np.float32(1)), g.op("Cast", mask, to=TensorProto.FLOAT))
    hidden = g.op("Mul", g.op("Unsqueeze", hidden, g.ints(1, 2)), g.constant(np.float32(-1e9)))
    x = g.op("Add", g.op("Gather", g.weights(3000, 128), ids), g.op("Gather", g.weights(2, 128), kinds))
    x = _block(g, g.norm(x, 128), 1, 48, 128, 4, hidden)
    x = g.op("Tanh", g.op("Gather", x, g.constant(np.array(0, np.int64)), axis=1))
    return g.model(g.op("Gemm", x, g.weights(2, 128), g.weights(2), transB=1))


def language() -> bytes:
    g = ExportedGraph()
    ids, places = (g.input(name, (1, 64), TensorProto.INT64) for name in ("input_ids", "position_ids"))
    x = g.op("Add", g.op("Gather", g.weights(1000, 128), ids), g.op("Gather", g.weights(64, 128), places))
    causal = g.constant(np.triu(np.full((1, 1, 64, 64), -np.inf, np.float32), 1))
    return g.model(g.op("MatMul", g.norm(_block(g, x, 1, 64, 128, 4, causal), 128), g.weights(128, 1000)))


def windows() -> bytes:
    """Attention inside 64 windows of 49 pixels."""
    g = ExportedGraph()
    return g.model(_block(g, g.input("x", (64, 49, 96)), 64, 49, 96, 3))


def speech() -> bytes:
    g = ExportedGraph()
    x = _block(g, g.linear(g.input("x", (1, 200, 80)), 80, 144), 1, 200, 144, 4)
    y = g.op("Transpose", g.norm(x, 144), perm=(0, 2, 1))
    y = g.op("Conv", y, g.weights(144, 1, 31), group=144, kernel_shape=[31], pads=[15, 15])
    y = g.op("Transpose", g.op("Mul", y, g.op("Sigmoid", y)), perm=(0, 2, 1))
    return g.model(g.linear(g.op("Add", x, y), 144, 128))


def detector() -> bytes:
    """Queries that attend to the pixels of a picture, rows first."""
    g = ExportedGraph()
    x = g.op(
        "Conv", g.input("x", (1, 3, 112, 112)), g.weights(128, 3, 8, 8), kernel_shape=[8] * 2, strides=[8] * 2
    )
    x = g.op("Add", g.shaped(x, 1, 128, 196, perm=(2, 0, 1)), g.weights(196, 1, 128))
    memory = _forward(g, _rows_first(g, x, x, 196, 196, 128, 4), 128)
    queries = _rows_first(
        g,
        g.op("Add", g.weights(50, 1, 128), g.op("ReduceMean", memory, axes=[0], keepdims=1)),
        memory,
        50,
        196,
        128,
        4,
    )
    boxes = g.op("Sigmoid", g.linear(queries, 128, 4))
    return g.model(g.linear(queries, 128, 21), boxes)


EXPORTS: dict[str, Callable[[], bytes]] = {
    "encoder, rows first": lambda: encoder(batch_first=False),
    "encoder, batch first": lambda: encoder(batch_first=True),
    "vision": vision,
    "text": text,
    "language": language,
    "windows": windows,
    "speech": speech,
    "detector": detector,
}
