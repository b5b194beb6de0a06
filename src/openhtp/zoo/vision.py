"""Image classifiers."""

from __future__ import annotations

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
