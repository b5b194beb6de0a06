"""Eight contexts from binaries in files: one after the other, against one call that makes them side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

import openhtp as htp
from openhtp.bench.quiet import Measurement, Quiet, median

CONTEXTS = 8


class ListRow(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds until all contexts are ready; ``ratio`` is how many times sooner the list is than one by one.

    ``accelerated_s`` is one by one as well, each with ``init_acceleration``: on all processors that there are.
    ``cpus`` are processors that client and device kept busy meanwhile.
    """

    network: str
    contexts: int
    one_by_one_s: float
    one_by_one_cpus: float
    accelerated_s: float
    list_s: float
    list_cpus: float
    ratio: float


class _ListingTime(NamedTuple):
    seconds: float
    cpus: float


def compare(network: str, device: htp.Device, path: Path, quiet: Quiet, rounds: int) -> ListRow:
    """Measure all in turns."""
    in_turn: list[Measurement[_ListingTime]] = []
    accelerated: list[Measurement[_ListingTime]] = []
    listed: list[Measurement[_ListingTime]] = []
    for _ in range(rounds):
        in_turn.append(quiet.measure(lambda: _timed(device, lambda: _one_by_one(device, path))))
        accelerated.append(quiet.measure(lambda: _timed(device, lambda: _one_by_one(device, path, fast=True))))
        listed.append(quiet.measure(lambda: _timed(device, lambda: _listed(device, path))))
    slow, quick = _seconds(in_turn), _seconds(listed)
    return ListRow(
        network=network,
        contexts=CONTEXTS,
        one_by_one_s=slow,
        one_by_one_cpus=median([Measurement(made.value.cpus, made.quiet) for made in in_turn]),
        accelerated_s=_seconds(accelerated),
        list_s=quick,
        list_cpus=median([Measurement(made.value.cpus, made.quiet) for made in listed]),
        ratio=slow / quick,
    )


def _seconds(samples: Sequence[Measurement[_ListingTime]]) -> float:
    return median([Measurement(made.value.seconds, made.quiet) for made in samples])


def _one_by_one(device: htp.Device, path: Path, *, fast: bool = False) -> list[htp.Context]:
    return [device.create_context_from_binary(path, init_acceleration=fast) for _ in range(CONTEXTS)]


def _listed(device: htp.Device, path: Path) -> list[htp.Context]:
    return device.create_contexts_from_binaries([path] * CONTEXTS).result()


def _timed(device: htp.Device, make: Callable[[], list[htp.Context]]) -> _ListingTime:
    used, begin = _processor_seconds(device), time.perf_counter()
    made = make()
    took = time.perf_counter() - begin
    used = _processor_seconds(device) - used
    for context in made:
        context.free()
    return _ListingTime(took, used / took)


def _processor_seconds(device: htp.Device) -> float:
    """Of this process and of the device's, by the kernel's clock of a process, which counts ended threads, too."""
    return time.process_time() + time.clock_gettime(~device.pid << 3 | 2)
