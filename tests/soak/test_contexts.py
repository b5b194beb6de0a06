"""Contexts made and freed over and over: nothing grows, in the client or in the device."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import numpy as np
import pytest

import openhtp as htp
from tests.conftest import ramp, relu_graph
from tests.soak.test_million import resident_bytes

CONTEXTS = int(os.environ.get("OPENHTP_SOAK_CONTEXTS", "200"))
ROUNDS = int(os.environ.get("OPENHTP_SOAK_ROUNDS", "50"))
MOST_GROWTH = 10 * 1024 * 1024


def held(pid: int) -> dict[str, int]:
    """Descriptors, threads and shared mappings of a process."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "shared memory": sum("memfd:" in line for line in maps),
    }


def one_round(device: htp.Device, binary: bytes, *, as_list: bool) -> None:
    if as_list:
        contexts = device.create_contexts_from_binaries([binary] * CONTEXTS).result(600)
    else:
        contexts = [device.create_context_from_binary(binary) for _ in range(CONTEXTS)]
    for context in contexts[:: max(1, CONTEXTS // 10)]:
        memory = context.register_memory(4096)
        x = memory.array("x")
        x[:] = ramp()
        np.testing.assert_array_equal(context.graph("g").execute({"x": x})["y"], np.maximum(ramp(), 0))
    for context in contexts:
        context.free()


def measured(pids: dict[str, int]) -> dict[str, dict[str, int]]:
    gc.collect()
    return {name: {**held(pid), "resident": resident_bytes(pid)} for name, pid in pids.items()}


@pytest.mark.soak
def test_contexts_created_and_freed(backend: htp.Backend, capsys: pytest.CaptureFixture[str]) -> None:
    device = backend.create_device()
    with device.create_context() as context:
        relu_graph(context)
        binary = context.get_binary()
    pids = {"client": os.getpid(), "device": device.pid}
    for warm in range(4):  # ducts, pools and arenas come to their size
        one_round(device, binary, as_list=bool(warm % 2))
    before = measured(pids)
    for number in range(ROUNDS):
        one_round(device, binary, as_list=bool(number % 2))
    after = measured(pids)
    with capsys.disabled():
        for name in pids:
            grown = {what: after[name][what] - before[name][what] for what in before[name]}
            sys.stdout.write(f"\n{name}: {ROUNDS} rounds of {CONTEXTS} contexts, growth (measured) {grown}")
    for name in pids:
        for what in ("descriptors", "threads", "shared memory"):
            assert after[name][what] <= before[name][what], (name, what)
        assert after[name]["resident"] - before[name]["resident"] < MOST_GROWTH, name
    (session,) = device.info()["sessions"]
    assert (session["contexts"], session["bytes"], session["tasks"]) == (0, 0, [])
