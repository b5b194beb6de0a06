"""What the weights of a language model take in a device process: of one AR graph, and of three that share them.

Measured: two models of equal nodes and different width are loaded, each into a fresh device. By how much more
its process grows with the wider one is what its weights take: what the runtime keeps for a node is the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np

import openhtp as htp
from openhtp import llm
from openhtp.bench.binaries import kernel_says, warm
from openhtp.bench.queueing import Progress

_NARROW, _WIDE = 256, 2048
_ONE, _THREE = (1,), (128, 32, 1)


class WeightMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that so many more weights take in the device's process, by how many graphs share them."""

    weights: int
    one_bytes: int
    three_bytes: int

    @property
    def ratio(self) -> float:
        """Three graphs, of one."""
        return self.three_bytes / self.one_bytes if self.one_bytes > 0 else math.nan


def measure(width: int = _WIDE) -> Iterator[Progress | WeightMemory]:
    """Load four bundles; yields progress, and the result last."""
    found: dict[tuple[int, ...], int] = {}
    for number, ar in enumerate((_ONE, _THREE)):
        grown = []
        for place, hidden in enumerate((_NARROW, width)):
            yield Progress("memory of weights", 2 * number + place, 4)
            grown.append(_grown(hidden, ar))
        found[ar] = grown[1] - grown[0]
    more = _weights(width) - _weights(_NARROW)
    yield WeightMemory(weights=more, one_bytes=found[_ONE], three_bytes=found[_THREE])


def _model(hidden: int) -> llm.Llama:
    return llm.Llama(
        layers=2, hidden=hidden, heads=8, kv_heads=2, head_dim=64, vocab=512, ffn=3 * hidden, context=256
    )


def _weights(hidden: int) -> int:
    return sum(math.prod(shape) for shape in llm.Llama.shapes(_model(hidden).config).values())


def _grown(hidden: int, ar: tuple[int, ...]) -> int:
    """By how many bytes a fresh device grows that loads a model of this width."""
    text = [int(token) for token in np.random.default_rng(0).integers(0, 512, 64)]
    bundle = llm.export(_model(hidden), ar=ar, calibration=text, rounding="nearest")
    with htp.Backend() as backend:
        device = backend.create_device(soc="SM8650", threads=1)
        warm(device)
        before = kernel_says(device, "smaps_rollup", "Pss")
        # Not run yet: what lies between ops is no weight.
        with llm.Generator(bundle, device):
            return kernel_says(device, "smaps_rollup", "Pss") - before
