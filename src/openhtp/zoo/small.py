"""Networks that run in a millisecond or less, for tests and for measuring what surrounds the computing."""

from __future__ import annotations

from openhtp.zoo._net import Net


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
