"""The networks: image classifiers, a transformer encoder, and two that run in a millisecond or less."""

from __future__ import annotations

import math

import numpy as np

from openhtp.zoo._net import Net

_CLASSES = 1000
# expansion, filters, repeats, stride of the first
_MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
# A residual branch adds this much of its input's variance, so that depth does not blow values up.
_BRANCH_GAIN = 0.3


def mobilenet_v2(resolution: int = 224, width: float = 1.0, *, seed: int = 0) -> bytes:
    """MobileNetV2: inverted residuals of depthwise convolutions, 3.5 M weights at width 1."""
    net = Net("mobilenet_v2", seed)
    x = net.input("input", (1, 3, resolution, resolution))
    x = net.relu6(net.conv(x, _rounded(32 * width), 3, stride=2))
    channels = _rounded(32 * width)
    for expansion, filters, repeats, first_stride in _MOBILENET_V2:
        wanted = _rounded(filters * width)
        for index in range(repeats):
            stride = first_stride if index == 0 else 1
            x = _inverted_residual(net, x, channels, wanted, expansion, stride)
            channels = wanted
    x = net.relu6(net.conv(x, max(1280, _rounded(1280 * width)), 1))
    net.output("output", net.classifier(x, _CLASSES), (1, _CLASSES))
    return net.model()


def resnet18(resolution: int = 224, *, seed: int = 0) -> bytes:
    """ResNet-18: basic blocks of two 3x3 convolutions, 11.7 M weights."""
    return _resnet("resnet18", (2, 2, 2, 2), resolution, seed, bottleneck=False)


def resnet50(resolution: int = 224, *, seed: int = 0) -> bytes:
    """ResNet-50: bottleneck blocks, 25.5 M weights."""
    return _resnet("resnet50", (3, 4, 6, 3), resolution, seed, bottleneck=True)


def _inverted_residual(net: Net, x: str, channels: int, filters: int, expansion: int, stride: int) -> str:
    inner = channels * expansion
    y = x if expansion == 1 else net.relu6(net.conv(x, inner, 1))
    y = net.relu6(net.conv(y, inner, 3, stride=stride, groups=inner))
    is_residual = stride == 1 and channels == filters
    y = net.conv(y, filters, 1, gain=_BRANCH_GAIN if is_residual else 2.0)
    return net.add(x, y) if is_residual else y


def _resnet(name: str, repeats: tuple[int, ...], resolution: int, seed: int, *, bottleneck: bool) -> bytes:
    net = Net(name, seed)
    x = net.input("input", (1, 3, resolution, resolution))
    x = net.max_pool(net.relu(net.conv(x, 64, 7, stride=2)), 3, 2, 1)
    for stage, count in enumerate(repeats):
        for index in range(count):
            stride = 2 if index == 0 and stage > 0 else 1
            x = _residual(net, x, 64 << stage, stride, bottleneck, changes=index == 0)
    net.output("output", net.classifier(x, _CLASSES), (1, _CLASSES))
    return net.model()


def _residual(net: Net, x: str, filters: int, stride: int, bottleneck: bool, *, changes: bool) -> str:
    out = filters * (4 if bottleneck else 1)
    if bottleneck:
        y = net.relu(net.conv(x, filters, 1))
        y = net.relu(net.conv(y, filters, 3, stride=stride))
        y = net.conv(y, out, 1, gain=_BRANCH_GAIN)
    else:
        y = net.relu(net.conv(x, filters, 3, stride=stride))
        y = net.conv(y, out, 3, gain=_BRANCH_GAIN)
    if changes and (stride > 1 or bottleneck):
        x = net.conv(x, out, 1, stride=stride, gain=1.0)
    return net.relu(net.add(x, y))


def _rounded(channels: float) -> int:
    """Nearest multiple of 8, never more than a tenth below what was asked."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


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


def small_cnn(resolution: int = 64, *, seed: int = 0) -> bytes:
    """Five convolutions with a residual and a pool, about 1 ms on one CPU core."""
    net = Net("small_cnn", seed)
    x = net.input("input", (1, 3, resolution, resolution))
    x = net.relu(net.conv(x, 16, 3, stride=2))
    x = net.relu(net.conv(x, 32, 3, stride=2))
    y = net.relu(net.conv(x, 32, 3, groups=32))
    x = net.relu(net.add(x, net.conv(y, 32, 1, gain=0.5)))
    x = net.max_pool(net.relu(net.conv(x, 64, 3)), 2, 2, 0)
    net.output("output", net.classifier(x, 10), (1, 10))
    return net.model()


def tiny_mlp(size: int = 64, *, seed: int = 0) -> bytes:
    """Three small linear layers: a few microseconds."""
    net = Net("tiny_mlp", seed)
    x = net.input("input", (1, size))
    x = net.relu(net.linear(x, size, 2 * size, gain=2.0))
    x = net.relu(net.linear(x, 2 * size, size, gain=2.0))
    net.output("output", net.linear(x, size, 10), (1, 10))
    return net.model()
