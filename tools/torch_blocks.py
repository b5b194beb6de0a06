"""Blocks of which the networks of ``torch_networks.py`` are made, in plain PyTorch."""

# The forward methods and small builders of networks say what they are by their names.
# ruff: noqa: D102, D103

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def conv(
    wide: int, out: int, size: int = 3, step: int = 1, groups: int = 1, act: type[nn.Module] | None = nn.ReLU
) -> nn.Sequential:
    """A convolution, a batch norm and an activation."""
    layers: list[nn.Module] = [
        nn.Conv2d(wide, out, size, step, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
    ]
    return nn.Sequential(*layers, *([act()] if act else []))


class Residual(nn.Module):
    """A branch, added to its input or to a projection of it."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None, act: nn.Module | None = None) -> None:
        super().__init__()
        self.branch, self.shortcut, self.act = branch, shortcut or nn.Identity(), act or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.shortcut(x) + self.branch(x))


class Scaled(nn.Module):
    """Squeeze and excite."""

    def __init__(self, wide: int, narrow: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(wide, narrow, 1),
            nn.SiLU(),
            nn.Conv2d(narrow, wide, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


class Joined(nn.Module):
    """Branches of one input, side by side."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def bottleneck(
    wide: int, out: int, step: int, groups: int = 1, scale: bool = False, mid: int | None = None
) -> nn.Module:
    mid = mid or out // 4
    branch = nn.Sequential(
        conv(wide, mid, 1),
        conv(mid, mid, 3, step, groups),
        *([Scaled(mid, mid // 4)] if scale else []),
        conv(mid, out, 1, act=None),
    )
    return Residual(branch, None if wide == out and step == 1 else conv(wide, out, 1, step, act=None), nn.ReLU())


def basic(wide: int, out: int, step: int) -> nn.Module:
    branch = nn.Sequential(conv(wide, out, 3, step), conv(out, out, 3, act=None))
    return Residual(branch, None if wide == out and step == 1 else conv(wide, out, 1, step, act=None), nn.ReLU())


def stages(
    block: Callable[[int, int, int], nn.Module], wide: int, plan: list[tuple[int, int, int]]
) -> list[nn.Module]:
    layers = []
    for out, count, step in plan:
        for number in range(count):
            layers.append(block(wide, out, step if number == 0 else 1))
            wide = out
    return layers


def classifier(wide: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 1000)]


class Permuted(nn.Module):
    """A layer that has the channels last."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def inverted(act: type[nn.Module], scale: bool, grow: int, size: int = 3) -> Callable[[int, int, int], nn.Module]:
    def block(wide: int, out: int, step: int) -> nn.Module:
        mid = wide * grow
        branch = nn.Sequential(
            conv(wide, mid, 1, act=act),
            conv(mid, mid, size, step, mid, act),
            *([Scaled(mid, max(8, wide // 4))] if scale else []),
            conv(mid, out, 1, act=None),
        )
        return Residual(branch) if wide == out and step == 1 else branch

    return block


class Dense(nn.Module):
    """A layer whose result is appended to its input."""

    def __init__(self, wide: int, more: int) -> None:
        super().__init__()
        self.layer = nn.Sequential(
            nn.BatchNorm2d(wide),
            nn.ReLU(),
            conv(wide, 4 * more, 1),
            nn.Conv2d(4 * more, more, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.layer(x)], 1)


class Split(nn.Module):
    """The block of newer detectors: half of the channels go through more layers, and everything is joined."""

    def __init__(self, wide: int, out: int, count: int) -> None:
        super().__init__()
        half = out // 2
        self.first, self.last = conv(wide, out, 1, act=nn.SiLU), conv((2 + count) * half, out, 1, act=nn.SiLU)
        self.layers = nn.ModuleList(
            Residual(nn.Sequential(conv(half, half, act=nn.SiLU), conv(half, half, act=nn.SiLU)))
            for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        pieces = list(self.first(x).chunk(2, 1))
        for layer in self.layers:
            pieces.append(layer(pieces[-1]))
        return self.last(torch.cat(pieces, 1))


class Attention(nn.Module):
    """Attention in several heads, keys and values of a smaller picture if ``reduce`` is more than 1."""

    def __init__(self, wide: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.last = heads, nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, wide = x.shape
        q, k, v = self.qkv(x).reshape(batch, rows, 3, self.heads, wide // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q * (wide // self.heads) ** -0.5) @ k.transpose(-2, -1)
        return self.last((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, rows, wide))


def encoder(wide: int, heads: int, count: int) -> nn.Sequential:
    layers = []
    for _ in range(count):
        layers.append(Residual(nn.Sequential(nn.LayerNorm(wide), Attention(wide, heads))))
        layers.append(
            Residual(
                nn.Sequential(nn.LayerNorm(wide), nn.Linear(wide, 4 * wide), nn.GELU(), nn.Linear(4 * wide, wide))
            )
        )
    return nn.Sequential(*layers)


class Windows(nn.Module):
    """Attention inside windows of a picture that has its channels last."""

    def __init__(self, wide: int, heads: int, shift: int) -> None:
        super().__init__()
        self.norm, self.inner, self.shift = nn.LayerNorm(wide), Attention(wide, heads), shift

    def forward(self, x: Tensor) -> Tensor:
        batch, high, wide, deep = x.shape
        y = self.norm(x)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = y.reshape(high // 7, 7, wide // 7, 7, deep).permute(0, 2, 1, 3, 4).reshape(-1, 49, deep)
        y = (
            self.inner(y)
            .reshape(high // 7, wide // 7, 7, 7, deep)
            .permute(0, 2, 1, 3, 4)
            .reshape(batch, high, wide, deep)
        )
        return torch.roll(y, (self.shift, self.shift), (1, 2)) if self.shift else y


class Merge(nn.Module):
    """Four pixels become one with twice the channels."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.norm, self.last = nn.LayerNorm(4 * wide), nn.Linear(4 * wide, 2 * wide, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.last(self.norm(joined))


class Last(nn.Module):
    """Channels last from here on."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1)


class Mean(nn.Module):
    """The mean of all pixels."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((1, 2))


class Reduced(nn.Module):
    """Attention to a smaller picture, as segmenters have it."""

    def __init__(self, wide: int, heads: int, side: int, reduce: int) -> None:
        super().__init__()
        self.heads, self.side = heads, side
        self.norm, self.q, self.kv, self.last = (
            nn.LayerNorm(wide),
            nn.Linear(wide, wide),
            nn.Linear(wide, 2 * wide),
            nn.Linear(wide, wide),
        )
        self.smaller = nn.Conv2d(wide, wide, reduce, reduce) if reduce > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, wide = x.shape
        y = self.norm(x)
        small = (
            self.smaller(y.transpose(1, 2).reshape(batch, wide, self.side, self.side)).flatten(2).transpose(1, 2)
        )
        q = self.q(y).reshape(batch, rows, self.heads, wide // self.heads).transpose(1, 2)
        k, v = self.kv(small).reshape(batch, -1, 2, self.heads, wide // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * (wide // self.heads) ** -0.5
        return self.last((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, rows, wide))
