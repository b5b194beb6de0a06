"""Networks in plain PyTorch with random weights, exported as users export theirs, for the table of both compilers.

Needs ``torch`` and ``onnxscript``, which the package does not: ``python tools/torch_networks.py FOLDER`` in an
environment that has them writes one file per network.
"""

# The forward methods and small builders of networks say what they are by their names.
# ruff: noqa: D102, D103

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from torch_blocks import (
    Dense,
    Joined,
    Last,
    Mean,
    Merge,
    Permuted,
    Reduced,
    Residual,
    Split,
    Windows,
    basic,
    bottleneck,
    classifier,
    conv,
    encoder,
    inverted,
    stages,
)


def resnet(block: Callable[[int, int, int], nn.Module], widths: list[int], counts: list[int]) -> nn.Module:
    plan = [
        (out, count, 1 if number == 0 else 2)
        for number, (out, count) in enumerate(zip(widths, counts, strict=True))
    ]
    return nn.Sequential(
        conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), *stages(block, 64, plan), *classifier(widths[-1])
    )


def regnet() -> nn.Module:
    block = lambda wide, out, step: bottleneck(wide, out, step, groups=out // 16, scale=True, mid=out)  # noqa: E731
    return nn.Sequential(
        conv(3, 32, 3, 2),
        *stages(block, 32, [(48, 1, 2), (112, 3, 2), (256, 8, 2), (608, 2, 2)]),
        *classifier(608),
    )


def convnext() -> nn.Module:
    def block(wide: int) -> nn.Module:
        mlp = Permuted(
            nn.Sequential(nn.LayerNorm(wide), nn.Linear(wide, 4 * wide), nn.GELU(), nn.Linear(4 * wide, wide))
        )
        return Residual(nn.Sequential(nn.Conv2d(wide, wide, 7, padding=3, groups=wide), mlp))

    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), Permuted(nn.LayerNorm(96))]
    widths = [96, 192, 384, 768]
    for number, (wide, count) in enumerate(zip(widths, [2, 2, 4, 2], strict=True)):
        if number:
            layers += [Permuted(nn.LayerNorm(widths[number - 1])), nn.Conv2d(widths[number - 1], wide, 2, 2)]
        layers += [block(wide) for _ in range(count)]
    return nn.Sequential(*layers, *classifier(768))


def efficientnet() -> nn.Module:
    plan = [(24, 2, 2), (40, 2, 2), (80, 3, 2), (112, 3, 1), (192, 4, 2), (320, 1, 1)]
    block = inverted(nn.SiLU, True, 6)
    return nn.Sequential(
        conv(3, 32, 3, 2, act=nn.SiLU),
        block(32, 16, 1),
        *stages(block, 16, plan),
        conv(320, 1280, 1, act=nn.SiLU),
        *classifier(1280),
    )


def mobilenet(act: type[nn.Module] = nn.Hardswish, size: int = 5) -> nn.Module:
    plan = [(16, 1, 1), (24, 2, 2), (40, 3, 2), (80, 4, 2), (112, 2, 1), (160, 3, 2)]
    return nn.Sequential(
        conv(3, 16, 3, 2, act=act),
        *stages(inverted(act, True, 4, size), 16, plan),
        conv(160, 960, 1, act=act),
        *classifier(960),
    )


def densenet() -> nn.Module:
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    wide = 64
    for number, count in enumerate([6, 12, 16, 12]):
        if number:
            layers += [nn.BatchNorm2d(wide), nn.ReLU(), nn.Conv2d(wide, wide // 2, 1, bias=False), nn.AvgPool2d(2)]
            wide //= 2
        for _ in range(count):
            layers.append(Dense(wide, 32))
            wide += 32
    return nn.Sequential(*layers, nn.BatchNorm2d(wide), nn.ReLU(), *classifier(wide))


def inception() -> nn.Module:
    def block(wide: int, a: int, b: tuple[int, int], c: tuple[int, int], d: int) -> nn.Module:
        return Joined(
            conv(wide, a, 1),
            nn.Sequential(conv(wide, b[0], 1), conv(*b)),
            nn.Sequential(conv(wide, c[0], 1), conv(*c, 5)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(wide, d, 1)),
        )

    return nn.Sequential(
        conv(3, 64, 7, 2),
        nn.MaxPool2d(3, 2, 1),
        conv(64, 64, 1),
        conv(64, 192),
        nn.MaxPool2d(3, 2, 1),
        block(192, 64, (96, 128), (16, 32), 32),
        block(256, 128, (128, 192), (32, 96), 64),
        nn.MaxPool2d(3, 2, 1),
        block(480, 192, (96, 208), (16, 48), 64),
        block(512, 160, (112, 224), (24, 64), 64),
        nn.MaxPool2d(3, 2, 1),
        block(512, 256, (160, 320), (32, 128), 128),
        *classifier(832),
    )


class UNet(nn.Module):
    """Down and up again, with the pictures of the way down appended on the way up."""

    def __init__(self, wide: int, depth: int, act: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        widths = [wide << number for number in range(depth)]
        double = lambda a, b: nn.Sequential(conv(a, b, act=act), conv(b, b, act=act))  # noqa: E731
        self.down = nn.ModuleList(double(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * each, each, 2, 2) for each in widths[:-1])
        self.join = nn.ModuleList(double(2 * each, each) for each in widths[:-1])
        self.last = nn.Conv2d(wide, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for number, layer in enumerate(self.down):
            x = layer(functional.max_pool2d(x, 2) if number else x)
            kept.append(x)
        for number in reversed(range(len(self.up))):
            x = self.join[number](torch.cat([kept[number], self.up[number](x)], 1))
        return self.last(x)


class DeepLab(nn.Module):
    """Dilated convolutions of several widths on the features of a ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), *stages(basic, 64, [(64, 2, 1), (128, 2, 2), (256, 2, 2)])
        )
        self.wide = nn.ModuleList(nn.Conv2d(256, 128, 3, padding=rate, dilation=rate) for rate in (6, 12, 18))
        self.point, self.last = nn.Conv2d(256, 128, 1), nn.Sequential(conv(512, 128, 1), nn.Conv2d(128, 21, 1))

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x)
        joined = torch.cat([self.point(features), *(layer(features) for layer in self.wide)], 1)
        return functional.interpolate(self.last(joined), scale_factor=16.0, mode="bilinear", align_corners=False)


class Detector(nn.Module):
    """A detector with a pyramid of features and three heads."""

    def __init__(self, wide: int, count: int) -> None:
        super().__init__()
        w = [wide, 2 * wide, 4 * wide, 8 * wide, 16 * wide]
        down = lambda a, b: conv(a, b, 3, 2, act=nn.SiLU)  # noqa: E731
        self.stem = nn.Sequential(down(3, w[0]), down(w[0], w[1]), Split(w[1], w[1], count))
        self.small = nn.Sequential(down(w[1], w[2]), Split(w[2], w[2], count))
        self.middle = nn.Sequential(down(w[2], w[3]), Split(w[3], w[3], count))
        self.large = nn.Sequential(down(w[3], w[4]), Split(w[4], w[4], count))
        self.up = nn.ModuleList([Split(w[4] + w[3], w[3], 1), Split(w[3] + w[2], w[2], 1)])
        self.back = nn.ModuleList([down(w[2], w[2]), down(w[3], w[3])])
        self.join = nn.ModuleList([Split(w[2] + w[3], w[3], 1), Split(w[3] + w[4], w[4], 1)])
        self.heads = nn.ModuleList(
            nn.Sequential(conv(each, 64, act=nn.SiLU), conv(64, 64, act=nn.SiLU), nn.Conv2d(64, 85, 1))
            for each in w[2:]
        )

    def forward(self, x: Tensor) -> Tensor:
        small = self.small(self.stem(x))
        middle = self.middle(small)
        large = self.large(middle)
        middle = self.up[0](torch.cat([functional.interpolate(large, scale_factor=2.0), middle], 1))
        small = self.up[1](torch.cat([functional.interpolate(middle, scale_factor=2.0), small], 1))
        middle = self.join[0](torch.cat([self.back[0](small), middle], 1))
        large = self.join[1](torch.cat([self.back[1](middle), large], 1))
        features = [head(each).flatten(2) for head, each in zip(self.heads, (small, middle, large), strict=True)]
        return torch.cat(features, 2).sigmoid()


class ViT(nn.Module):
    """A vision transformer."""

    def __init__(self, wide: int, heads: int, count: int) -> None:
        super().__init__()
        self.cut, self.body = nn.Conv2d(3, wide, 16, 16), encoder(wide, heads, count)
        self.where, self.last = nn.Parameter(torch.randn(1, 196, wide)), nn.Linear(wide, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(self.cut(x).flatten(2).transpose(1, 2) + self.where).mean(1))


def swin() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), Last(), nn.LayerNorm(96)]
    for number, (count, wide) in enumerate([(2, 96), (2, 192), (2, 384), (2, 768)]):
        layers += [Merge(wide // 2)] if number else []
        for each in range(count):
            layers.append(Residual(Windows(wide, wide // 32, 3 * (each % 2))))
            layers.append(
                Residual(
                    nn.Sequential(
                        nn.LayerNorm(wide), nn.Linear(wide, 4 * wide), nn.GELU(), nn.Linear(4 * wide, wide)
                    )
                )
            )
    return nn.Sequential(*layers, nn.LayerNorm(768), Mean(), nn.Linear(768, 1000))


class SegFormer(nn.Module):
    """A pyramid of transformers whose results are joined for every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.widths, self.sides = [32, 64, 160, 256], [64, 32, 16, 8]
        self.cut = nn.ModuleList(
            nn.Conv2d(a, b, 7 if n == 0 else 3, 4 if n == 0 else 2, 3 if n == 0 else 1)
            for n, (a, b) in enumerate(zip([3, *self.widths], self.widths, strict=False))
        )
        self.body = nn.ModuleList(
            nn.Sequential(
                *(
                    nn.Sequential(
                        Residual(Reduced(w, w // 32, s, r)),
                        Residual(
                            nn.Sequential(nn.LayerNorm(w), nn.Linear(w, 4 * w), nn.GELU(), nn.Linear(4 * w, w))
                        ),
                    )
                    for _ in range(2)
                )
            )
            for w, s, r in zip(self.widths, self.sides, [8, 4, 2, 1], strict=True)
        )
        self.heads = nn.ModuleList(nn.Linear(w, 128) for w in self.widths)
        self.join, self.last = conv(512, 128, 1), nn.Conv2d(128, 19, 1)

    def forward(self, x: Tensor) -> Tensor:
        features = []
        for cut, body, head, side in zip(self.cut, self.body, self.heads, self.sides, strict=True):
            rows = body(cut(x).flatten(2).transpose(1, 2))
            x = rows.transpose(1, 2).reshape(1, -1, side, side)
            picture = head(rows).transpose(1, 2).reshape(1, 128, side, side)
            features.append(functional.interpolate(picture, size=(64, 64), mode="bilinear", align_corners=False))
        return self.last(self.join(torch.cat(features, 1)))


def video() -> nn.Module:
    def block(wide: int, out: int, step: int) -> nn.Module:
        layers = [
            nn.Conv3d(wide, out, 3, step, 1),
            nn.BatchNorm3d(out),
            nn.ReLU(),
            nn.Conv3d(out, out, 3, 1, 1),
            nn.BatchNorm3d(out),
            nn.ReLU(),
        ]
        return nn.Sequential(*layers)

    return nn.Sequential(
        block(3, 32, 2),
        block(32, 64, 2),
        block(64, 128, 2),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(128, 400),
    )


class Speech(nn.Module):
    """The encoder of a recognizer of speech."""

    def __init__(self, wide: int = 384, frames: int = 1500) -> None:
        super().__init__()
        self.cut = nn.Sequential(
            nn.Conv1d(80, wide, 3, padding=1), nn.GELU(), nn.Conv1d(wide, wide, 3, 2, 1), nn.GELU()
        )
        self.where, self.body = nn.Parameter(torch.randn(1, frames, wide)), encoder(wide, wide // 64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.cut(x).transpose(1, 2) + self.where)


def tagger() -> nn.Module:
    layers: list[nn.Module] = []
    for wide, out in zip([1, 64, 128, 256], [64, 128, 256, 512], strict=True):
        layers += [conv(wide, out), conv(out, out), nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 527))


class Temporal(nn.Module):
    """A separator of sounds: dilated convolutions on frames, with a mask at the end."""

    def __init__(self, wide: int = 256) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv1d(1, wide, 16, 8), nn.ConvTranspose1d(wide, 1, 16, 8)

        def block(rate: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv1d(wide, 512, 1),
                nn.PReLU(),
                nn.Conv1d(512, 512, 3, padding=rate, dilation=rate, groups=512),
                nn.PReLU(),
                nn.Conv1d(512, wide, 1),
            )

        self.body = nn.Sequential(*(Residual(block(1 << number)) for number in range(6)))

    def forward(self, x: Tensor) -> Tensor:
        coded = self.encode(x)
        return self.decode(coded * self.body(coded).sigmoid())


def upscaler(wide: int = 64, count: int = 8) -> nn.Module:
    body = [
        Residual(
            nn.Sequential(nn.Conv2d(wide, wide, 3, padding=1), nn.ReLU(), nn.Conv2d(wide, wide, 3, padding=1))
        )
        for _ in range(count)
    ]
    return nn.Sequential(
        nn.Conv2d(3, wide, 3, padding=1),
        Residual(nn.Sequential(*body)),
        nn.Conv2d(wide, 48, 3, padding=1),
        nn.PixelShuffle(4),
    )


class Depth(nn.Module):
    """Depth of a picture: an encoder, and a decoder that adds what the encoder saw."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 32, 3, 2), *stages(inverted(nn.ReLU6, False, 4), 32, [(24, 2, 2)]))
        self.body = nn.ModuleList(
            nn.Sequential(*stages(inverted(nn.ReLU6, False, 6), a, [(b, 2, 2)]))
            for a, b in [(24, 48), (48, 96), (96, 192)]
        )
        self.side = nn.ModuleList(nn.Conv2d(each, 128, 1) for each in (24, 48, 96, 192))
        self.fuse = nn.ModuleList(basic(128, 128, 1) for _ in range(4))
        self.last = nn.Sequential(conv(128, 64), nn.Conv2d(64, 1, 1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        features = [self.stem(x)]
        for layer in self.body:
            features.append(layer(features[-1]))
        y = self.fuse[3](self.side[3](features[3]))
        for number in (2, 1, 0):
            y = self.fuse[number](
                functional.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
                + self.side[number](features[number])
            )
        return self.last(functional.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False))


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    wide = 3
    for out, count in [(64, 1), (128, 1), (256, 2), (512, 2), (512, 2)]:
        for _ in range(count):
            layers += [nn.Conv2d(wide, out, 3, padding=1), nn.ReLU()]
            wide = out
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, *classifier(512))


PICTURE = (1, 3, 224, 224)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet34": (lambda: resnet(basic, [64, 128, 256, 512], [3, 4, 6, 3]), PICTURE),
    "resnext50": (
        lambda: resnet(lambda a, b, s: bottleneck(a, b, s, 32, mid=b // 2), [256, 512, 1024, 2048], [3, 4, 6, 3]),
        PICTURE,
    ),
    "wide resnet": (
        lambda: resnet(lambda a, b, s: bottleneck(a, b, s, mid=b // 2), [256, 512, 1024, 2048], [2, 2, 2, 2]),
        PICTURE,
    ),
    "resnet50 at 384": (lambda: resnet(bottleneck, [256, 512, 1024, 2048], [3, 4, 6, 3]), (1, 3, 384, 384)),
    "regnet": (regnet, PICTURE),
    "convnext": (convnext, PICTURE),
    "efficientnet": (efficientnet, PICTURE),
    "mobilenet v3": (mobilenet, PICTURE),
    "densenet": (densenet, PICTURE),
    "inception": (inception, PICTURE),
    "vgg": (vgg, PICTURE),
    "unet": (lambda: UNet(32, 4), (1, 3, 256, 256)),
    "unet, large": (lambda: UNet(32, 4), (1, 3, 512, 512)),
    "deeplab": (DeepLab, (1, 3, 384, 384)),
    "detector, small": (lambda: Detector(16, 1), (1, 3, 416, 416)),
    "detector, large": (lambda: Detector(32, 2), (1, 3, 640, 640)),
    "depth": (Depth, (1, 3, 256, 256)),
    "upscaler": (upscaler, (1, 3, 128, 128)),
    "vit": (lambda: ViT(384, 6, 6), PICTURE),
    "swin": (swin, PICTURE),
    "segformer": (SegFormer, (1, 3, 256, 256)),
    "speech encoder": (Speech, (1, 80, 3000)),
    "tagger of sounds": (tagger, (1, 1, 500, 64)),
    "separator of sounds": (Temporal, (1, 1, 8000)),
    "video": (video, (1, 3, 16, 112, 112)),
}


def export(name: str, path: Path) -> None:
    """Write a network, with the same weights every time."""
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    network = make().eval()
    torch.onnx.export(
        network,
        (torch.randn(shape),),
        str(path),
        opset_version=18,
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def main(folder: Path) -> None:
    """Write all networks that are not there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in NETWORKS:
        path = folder / f"{name.replace(',', '').replace(' ', '_')}.onnx"
        if not path.exists():
            export(name, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
