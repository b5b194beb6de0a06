"""Context binaries whose checksums are right and whose words are not: an error of the tree each, or a sound graph.

What stands in one place of a file is put into another, numbers lose a bit, lists are cut and shuffled: what only
somebody who knows the format would send.
"""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

import openhtp as htp
from openhtp import zoo
from openhtp.onnx import load
from openhtp.zoo.networks import transformer_blocks
from tests.conftest import relu_graph
from tests.hostile.fuzz_files import _NUMBERS
from tests.hostile.leaks import Holdings
from tests.hostile.probe import Neighbour
from tests.hostile.tally import Budget, Watch
from tests.program.forging import parts_of, put_together

SHORT = 1500
"""Rounds of the short form."""

_MOST_INPUT = 1 << 24
_Path = tuple[str | int, ...]


def attack(rng: random.Random, budget: Budget, watch: Watch) -> None:
    """One forged binary after the other."""
    with htp.Backend() as warm:
        Neighbour(warm.create_device())
    holdings = Holdings()
    with htp.Backend() as backend:
        device = backend.create_device()
        neighbour = Neighbour(device)
        forgers = [Forger(binary) for binary in _good(device)]
        while budget:
            binary, notes = rng.choice(forgers).forge(rng)
            with watch.call(f"create_context_from_binary(changed: {notes})"):
                _load_and_run(device, binary)
            if watch.tally.calls % 200 == 0:
                neighbour.check(watch)
        neighbour.check(watch)
        if device.restarts:
            watch.found("wrong", f"the device died {device.restarts} times")
    holdings.check(watch)


def _good(device: htp.Device) -> Iterator[bytes]:
    with device.create_context() as context:
        relu_graph(context)
        yield context.get_binary()
    models = (
        zoo.quantized(zoo.tiny_mlp(), "u8", samples=2),
        zoo.quantized(zoo.small_cnn(16), "u16", samples=2),
        zoo.small_cnn(16),
        transformer_blocks(1, seq=8, hidden=16, heads=2, ffn=32),
    )
    for model in models:
        with device.create_context() as context:
            context.compose_graph(load(model), "g").finalize()
            yield context.get_binary()


def _load_and_run(device: htp.Device, binary: bytes) -> None:
    context = device.create_context_from_binary(binary)
    try:
        for graph in context.graphs.values():
            specs = [tensor.spec for tensor in graph.inputs]
            feeds = {
                spec.name: np.zeros(spec.shape, spec.dtype.numpy) for spec in specs if spec.nbytes < _MOST_INPUT
            }
            graph.execute(feeds)
    finally:
        context.free()


class Forger:
    """One sound binary of one graph, of whose words some are changed at a time."""

    def __init__(self, binary: bytes) -> None:
        self._header, self._sections = parts_of(binary)
        self._place = self._header["graphs"][0]["program"]
        self._tree = {"header": self._header, "program": msgspec.msgpack.decode(self._sections[self._place])}
        self._paths = [path for path, _ in leaves(self._tree) if len(path) > 1]
        # What stands elsewhere under the same key is of the right type, and mostly wrong.
        self._alike: dict[str | int, list[Any]] = defaultdict(list)
        for path, value in leaves(self._tree):
            self._alike[_key(path)].append(value)

    def forge(self, rng: random.Random) -> tuple[bytes, list[str]]:
        """A binary with one to three things changed, and which."""
        tree = copy.deepcopy(self._tree)
        changed = [
            path for path in rng.choices(self._paths, k=rng.choice((1, 1, 2, 3))) if self._change(rng, tree, path)
        ]
        sections = list(self._sections)
        sections[self._place] = msgspec.msgpack.encode(tree["program"])
        measure = not any(path[:2] == ("header", "sections") for path in changed)
        return put_together(tree["header"], sections, measure=measure, bind=True), [str(path) for path in changed]

    def _change(self, rng: random.Random, tree: Any, path: _Path) -> bool:
        """Change what is at this place; False if an earlier change has taken that away."""
        try:
            for key in path[:-1]:
                tree = tree[key]
            old = tree[path[-1]]
        except (KeyError, IndexError, TypeError):
            return False
        if not isinstance(tree, dict | list):
            return False
        if isinstance(tree, dict) and rng.random() < 0.05:
            del tree[path[-1]]
        else:
            tree[path[-1]] = self._other(rng, old, _key(path))
        return True

    def _other(self, rng: random.Random, old: Any, key: str | int) -> Any:
        twist = rng.random()
        if twist < 0.35:
            return copy.deepcopy(rng.choice(self._alike[key]))
        if twist < 0.7 and isinstance(old, bool):
            return not old
        if twist < 0.6 and isinstance(old, int):
            return old ^ (1 << rng.randrange(16))
        if twist < 0.7 and isinstance(old, bytes) and old:
            flipped = bytearray(old)
            flipped[rng.randrange(len(old))] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        if twist < 0.7 and isinstance(old, list):
            return rng.sample(old, rng.randrange(len(old) + 1))
        return copy.deepcopy(rng.choice(_NUMBERS))


def _key(path: _Path) -> str | int:
    """The word under which a value stands; that of its list if it is in one."""
    return next((part for part in reversed(path) if isinstance(part, str)), path[-1])


def leaves(tree: Any, above: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """All places of a tree, with what is there."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*above, key), value
        yield from leaves(value, (*above, key))
