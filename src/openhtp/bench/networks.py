"""Whole quantized networks: the emulator, plain ONNX Runtime on the same file, and the vendor's simulator.

All of them compute with one thread and are measured in turns. Each is also compared with the float network, so
that nobody buys speed with wrong results.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

import openhtp as htp
from openhtp import zoo
from openhtp.bench.quiet import BenchProgress, Measurement, QuietGate, QuietResult, median
from openhtp.bench.subjects import NETWORKS, import_network, plain_session, registered_arrays
from openhtp.config import BackendConfig
from openhtp.session.accuracy import closeness
from openhtp.vendor.library import find_library

Array = npt.NDArray[Any]
Infer = Callable[[], Array]

ACTIVATIONS = ("u8", "u16")
OURS, PLAIN, VENDOR = "openhtp", "onnxruntime", "vendor"
_PIECE_SECONDS = 0.25


class Contender(msgspec.Struct, frozen=True):
    """One runtime on one network: time of an inference, and its output against the float network's."""

    ms: float
    sqnr_db: float


class NetworkRow(msgspec.Struct, frozen=True, kw_only=True):
    """One network. Ratios say how many times as fast OpenHTP is; those of a runtime that is missing are None."""

    network: str
    activation: str
    openhtp: Contender
    onnxruntime: Contender
    vendor: Contender | None
    times_onnxruntime: float
    times_vendor: float | None


class NetworksResult(QuietResult, kw_only=True):
    """Everything ``openhtp bench networks`` measured. All times are of the wall clock."""

    rows: list[NetworkRow] = msgspec.field(default_factory=list)
    vendor_installed: bool | None = None  # None if nobody asked


def run(
    *,
    networks: Sequence[str] = NETWORKS,
    activations: Sequence[str] = ACTIVATIONS,
    rounds: int = 5,
    vendor: bool = False,
    config: BackendConfig | None = None,
) -> Iterator[BenchProgress | NetworksResult]:
    """Measure; yields progress, and the result last."""
    result = NetworksResult(vendor_installed=find_library() is not None if vendor else None)
    total = len(networks) * len(activations) * (rounds + 2)
    done = 0
    with contextlib.ExitStack() as stack:
        devices = {OURS: stack.enter_context(htp.Backend()).create_device(threads=1, config=config)}
        if result.vendor_installed:
            devices[VENDOR] = stack.enter_context(htp.Backend(library="vendor")).create_device()
        quiet = QuietGate()
        for name in networks:
            plain = zoo.MODELS[name]()
            for activation in activations:
                what = f"{name} {activation}"
                yield BenchProgress(f"{what}: quantizing", done, total)
                model = zoo.quantized(plain, activation=activation)
                yield BenchProgress(f"{what}: loading", done + 1, total)
                race = _NetworkRace(plain, model, devices)
                for number in range(rounds):
                    yield BenchProgress(f"{what}: round {number + 1} of {rounds}", done + 2 + number, total)
                    race.round(quiet)
                result.rows.append(race.row(name, activation))
                race.close()
                done += rounds + 2
    quiet.tell(result)
    yield result


class _NetworkRace:
    """All runtimes on one network."""

    def __init__(self, plain: bytes, model: bytes, devices: dict[str, htp.Device]) -> None:
        feed = zoo.random_feeds(plain, 1, seed=7)[0]
        self._contexts = {name: device.create_context() for name, device in devices.items()}
        self._infer: dict[str, Infer] = {PLAIN: _on_onnxruntime(model, feed)}
        for name, context in self._contexts.items():
            self._infer[name] = _on_device(import_network(context, model, "network"), feed)
        wanted = _on_onnxruntime(plain, feed)()
        # The first inference warms a runtime up; its result is compared with the float network's.
        self._sqnr = {name: closeness(wanted, infer()).sqnr_db for name, infer in self._infer.items()}
        self._calls = {name: _calls_per_piece(infer) for name, infer in self._infer.items()}
        self._times: dict[str, list[Measurement[float]]] = {name: [] for name in self._infer}

    def round(self, quiet: QuietGate) -> None:
        """One piece of each, so that a slow minute hits them alike."""
        for name, infer in self._infer.items():
            calls = self._calls[name]
            # The simulator takes seconds: a disturbance is too short to matter, and no reason to run it again.
            tries = 1 if name == VENDOR else 3
            self._times[name].append(quiet.measure(lambda i=infer, c=calls: _piece_ms(i, c), tries=tries))  # type: ignore[misc]

    def row(self, network: str, activation: str) -> NetworkRow:
        """The medians of all rounds."""
        runtimes = {name: Contender(median(times), self._sqnr[name]) for name, times in self._times.items()}
        theirs = runtimes.get(VENDOR)
        return NetworkRow(
            network=network,
            activation=activation,
            openhtp=runtimes[OURS],
            onnxruntime=runtimes[PLAIN],
            vendor=theirs,
            times_onnxruntime=runtimes[PLAIN].ms / runtimes[OURS].ms,
            times_vendor=None if theirs is None else theirs.ms / runtimes[OURS].ms,
        )

    def close(self) -> None:
        """Give the devices' memory back."""
        for context in self._contexts.values():
            context.free()


def _piece_ms(infer: Infer, calls: int) -> float:
    begin = time.perf_counter_ns()
    for _ in range(calls):
        infer()
    return (time.perf_counter_ns() - begin) / calls / 1e6


def _calls_per_piece(infer: Infer) -> int:
    took_s = _piece_ms(infer, 1) / 1e3
    return max(1, round(_PIECE_SECONDS / took_s))


def _on_onnxruntime(model: bytes, feed: dict[str, Array]) -> Infer:
    session = plain_session(model)
    return lambda: np.asarray(session.run(None, feed)[0])


def _on_device(graph: htp.Graph, feed: dict[str, Array]) -> Infer:
    """Synchronous execution on registered memory."""
    inputs, outputs = registered_arrays(graph, feed)
    result = outputs[graph.outputs[0].name]

    def infer() -> Array:
        graph.execute(inputs, outputs)
        return result

    return infer
