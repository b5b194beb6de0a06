"""Damaged context binaries, ONNX models and scenarios: errors of the tree, little memory, little time."""

from __future__ import annotations

import copy
import json
import random
import resource
import sys
from typing import Any

import msgspec
import numpy as np
import yaml

import openhtp
import openhtp as htp
from openhtp.onnx import load
from openhtp.planning import parse_scenario
from openhtp.planning.keys import RANGES
from openhtp.planning.parsing import expected_requests
from tests.conftest import relu_graph
from tests.hostile.leaks import Holdings
from tests.hostile.probe import Neighbour
from tests.hostile.running import ROOT
from tests.hostile.tally import Budget, Watch
from tests.hostile.wire import mutated
from tests.program.forging import parts_of, put_together

sys.path.insert(0, str(ROOT / "tests/frontend"))
from mutations import damaged, good_models

SHORT = 250
"""Rounds of the short form."""

_MOST_GROWTH = 1 << 30
_MOST_INPUT = 1 << 24
_MOST_REQUESTS = 20_000
"""Of scenarios that are also planned; the larger good ones may take their time."""


def attack(rng: random.Random, budget: Budget, watch: Watch) -> None:
    """One file after the other."""
    models = good_models()
    scenarios = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").glob("*.yaml"))]
    load(models[0])
    with htp.Backend() as warm:
        Neighbour(warm.create_device())
    holdings = Holdings()
    with htp.Backend() as backend:
        device = backend.create_device()
        neighbour = Neighbour(device)
        binary = _binary(device, models[2])
        before = _peak()
        while budget:
            kind = rng.choice(("binary", "binary", "model", "scenario", "scenario"))
            if kind == "binary":
                _binary_attack(rng, watch, device, binary)
            elif kind == "model":
                seed = rng.randrange(1 << 40)
                model = rng.randrange(len(models))
                with watch.call(f"load(damaged(good_models()[{model}], {seed}))"):
                    load(damaged(models[model], seed))
            else:
                _scenario_attack(rng, watch, rng.choice(scenarios))
            if watch.tally.calls % 50 == 0:
                neighbour.check(watch)
        neighbour.check(watch)
        if device.restarts:
            watch.found("wrong", f"the device died {device.restarts} times")
        if _peak() - before > _MOST_GROWTH:
            watch.found("leak", f"memory grew by {(_peak() - before) >> 20} MiB")
    holdings.check(watch)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _binary(device: htp.Device, model: bytes) -> bytes:
    context = device.create_context()
    relu_graph(context, "first")
    context.compose_graph(load(model), "second").finalize()
    binary = context.get_binary()
    context.free()
    return binary


def _binary_attack(rng: random.Random, watch: Watch, device: htp.Device, binary: bytes) -> None:
    """Bytes that are damaged, or a file that is sound and lies."""
    twist = rng.random()
    if twist < 0.1:
        binary = binary[: rng.randrange(len(binary))]
    elif twist < 0.3:
        # What is said about the graphs stands in front.
        part = rng.choice((64, 1024, len(binary)))
        binary = mutated(rng, binary[:part]) + binary[part:]
    else:
        binary = _lying(rng, binary)
    with watch.call(f"create_context_from_binary({binary[:80]!r}... {len(binary)} bytes)"):
        context = device.create_context_from_binary(binary)
        try:
            for graph in context.graphs.values():
                feeds = {
                    tensor.name: np.zeros(tensor.spec.shape, tensor.spec.dtype.numpy)
                    for tensor in graph.inputs
                    if tensor.spec.nbytes < _MOST_INPUT
                }
                graph.execute(feeds)
        finally:
            context.free()


def _lying(rng: random.Random, binary: bytes) -> bytes:
    """Another header or another program, with all checksums right."""
    header, sections = parts_of(binary)
    if rng.random() < 0.5:
        for _ in range(rng.randint(1, 3)):
            _change(rng, header, _NUMBERS)
        return put_together(header, sections, measure=False, bind=rng.random() < 0.7)
    number = rng.choice(header["graphs"])["program"]
    program = msgspec.msgpack.decode(sections[number])
    for _ in range(rng.randint(1, 3)):
        _change(rng, program, _NUMBERS)
    sections[number] = msgspec.msgpack.encode(program)
    return put_together(header, sections, bind=True)


def _scenario_attack(rng: random.Random, watch: Watch, text: str) -> None:
    if rng.random() < 0.4:
        changed = mutated(rng, text.encode()).decode(errors="surrogateescape")
    else:
        tree = yaml.safe_load(text)
        for _ in range(rng.randint(1, 4)):
            _change(rng, tree, _VALUES)
        changed = json.dumps(tree)
    with watch.call(f"parse_scenario({changed[:600]!r})"):
        scenario = parse_scenario(changed)
        if sum(expected_requests(scenario)) < _MOST_REQUESTS:
            openhtp.plan(scenario, detail=rng.random() < 0.5)


def _change(rng: random.Random, tree: Any, values: tuple[Any, ...]) -> None:
    """Put something else somewhere into a tree of lists and mappings."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(tree[key], dict | list) and tree[key] and rng.random() < 0.85:
            tree = tree[key]
            continue
        twist = rng.random()
        if twist < 0.15:
            del tree[key]
        elif twist < 0.3 and isinstance(tree, dict):
            tree[rng.choice(_KEYS)] = copy.deepcopy(tree[key])
        else:
            tree[key] = copy.deepcopy(rng.choice(values))
        return


_KEYS = (*RANGES, "model", "kind", "policy", "after", "client", "name")
_NUMBERS: tuple[Any, ...] = (
    *(0, 1, 2, 3, -1, 4, 5, 7, 8, 16, 255, 256, 65536, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64 - 1, 0.0, -1.0),
    *(
        float("nan"),
        float("inf"),
        1e308,
        1e-320,
        None,
        True,
        "",
        "x",
        "input",
        "Relu",
        "Conv2d",
        b"",
        b"x",
        [],
        {},
    ),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, "", "x", [], {}, [[]], 0, 1, -1, 2, 7, 0.5, 1e308, -1e308, 1e-300, 2**31, 2**63, 10**30, 10**9),
    *("n" * 5000, "/dev/zero", "zoo:tiny_mlp", "zoo:nothing", "../x.onnx", "\x00", "SM8650", "app", "edf", "fair"),
    *(100_000, 1_000_000, 300, 301, 64, 65, [0, 1, 2], [1e308], {"name": "fair", "window": 1e308}, "cam", "llm"),
)
