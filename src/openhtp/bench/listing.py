"""Eight contexts from eight binaries: one after the other, against one call that makes them side by side."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

import openhtp as htp
from openhtp.bench.quiet import Quiet, Sample, median

CONTEXTS = 8


class ListRow(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds until all contexts are ready, either way; ``ratio`` is how many times sooner the list is."""

    network: str
    contexts: int
    one_by_one_s: float
    list_s: float
    ratio: float


def compare(network: str, device: htp.Device, binary: bytes, quiet: Quiet, rounds: int) -> ListRow:
    """Measure both in turns."""
    in_turn: list[Sample[float]] = []
    listed: list[Sample[float]] = []
    for _ in range(rounds):
        in_turn.append(quiet.measure(lambda: _timed(lambda: _one_by_one(device, binary))))
        listed.append(quiet.measure(lambda: _timed(lambda: _listed(device, binary))))
    slow, quick = median(in_turn), median(listed)
    return ListRow(network=network, contexts=CONTEXTS, one_by_one_s=slow, list_s=quick, ratio=slow / quick)


def _one_by_one(device: htp.Device, binary: bytes) -> list[htp.Context]:
    return [device.create_context_from_binary(binary) for _ in range(CONTEXTS)]


def _listed(device: htp.Device, binary: bytes) -> list[htp.Context]:
    return device.create_contexts_from_binaries([binary] * CONTEXTS).result()


def _timed(make: Callable[[], list[htp.Context]]) -> float:
    begin = time.perf_counter()
    made = make()
    took = time.perf_counter() - begin
    for context in made:
        context.free()
    return took
