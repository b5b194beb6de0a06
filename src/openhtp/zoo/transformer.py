"""A transformer encoder."""

from __future__ import annotations

import math

import numpy as np

from openhtp.zoo._net import Net


def transformer_blocks(
    blocks: int = 2, *, seq: int = 128, hidden: int = 256, heads: int = 4, ffn: int = 1024, seed: int = 0
) -> bytes:
    """Pre-norm encoder blocks: attention, then a two-layer network with GELU, each with a residual."""
    net = Net("transformer_blocks", seed)
    x = net.input("input", (1, seq, hidden))
    for _ in range(blocks):
        x = net.add(x, _attention(net, _norm(net, x, hidden), seq, hidden, heads))
        y = _project(net, _norm(net, x, hidden), hidden, ffn, gain=2.0)
        x = net.add(x, _project(net, _gelu(net, y), ffn, hidden, gain=1.0))
    net.output("output", _norm(net, x, hidden), (1, seq, hidden))
    return net.model()


def _norm(net: Net, x: str, hidden: int) -> str:
    return net.node(
        "LayerNormalization",
        [x, net.normal((hidden,), 0.1, 1.0), net.normal((hidden,), 0.1)],
        axis=-1,
        epsilon=1e-5,
    )


def _project(net: Net, x: str, size_in: int, size_out: int, *, gain: float) -> str:
    product = net.node("MatMul", [x, net.normal((size_in, size_out), math.sqrt(gain / size_in))])
    return net.add(product, net.normal((size_out,), 0.1))


def _attention(net: Net, x: str, seq: int, hidden: int, heads: int) -> str:
    size = hidden // heads

    def split(value: str, perm: list[int]) -> str:
        shape = net.const(np.array([1, seq, heads, size], np.int64))
        return net.node("Transpose", [net.node("Reshape", [value, shape])], perm=perm)

    query = split(_project(net, x, hidden, hidden, gain=2.0), [0, 2, 1, 3])
    key = split(_project(net, x, hidden, hidden, gain=2.0), [0, 2, 3, 1])
    value = split(_project(net, x, hidden, hidden, gain=1.0), [0, 2, 1, 3])
    scores = net.node("Mul", [net.node("MatMul", [query, key]), net.const(np.array(size**-0.5, np.float32))])
    mixed = net.node("MatMul", [net.node("Softmax", [scores], axis=-1), value])
    merged = net.node("Transpose", [mixed], perm=[0, 2, 1, 3])
    flat = net.node("Reshape", [merged, net.const(np.array([1, seq, hidden], np.int64))])
    return _project(net, flat, hidden, hidden, gain=1.0)


def _gelu(net: Net, x: str) -> str:
    """Written out, as exporters for this opset do: x * (1 + erf(x / sqrt(2))) / 2."""
    inner = net.node("Div", [x, net.const(np.array(math.sqrt(2.0), np.float32))])
    grown = net.add(net.node("Erf", [inner]), net.const(np.array(1.0, np.float32)))
    return net.node("Mul", [net.node("Mul", [x, grown]), net.const(np.array(0.5, np.float32))])
