"""How soon finalizing and creating contexts end when their signal says so, and whether anything is left of them.

Each is begun over and over and stopped at another moment of its usual length: by an abort signal that another
thread triggers, and by a timeout. The time from then until the call is back counts.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

import openhtp as htp
from openhtp.bench.quiet import BenchProgress
from openhtp.bench.subjects import import_network, quantized_network

CONTEXTS = 4


class CallTimes:
    """When a call began and when it was back, without the work before and after it."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.begun_ns = self.back_ns = 0

    def __enter__(self) -> None:
        self.begun_ns = time.monotonic_ns()
        self.begun.set()

    def __exit__(self, *exc: object) -> None:
        self.back_ns = time.monotonic_ns()


Begin = Callable[[htp.Signal, CallTimes], None]
_GIVEN_BACK_WITHIN_S = 60.0


class CancelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One way to begin and one way to stop. ``left_over`` counts moments after which something was still held."""

    what: str
    signal: str
    usual_s: float
    moments: int
    stopped: int
    late_median_ms: float
    late_worst_ms: float
    left_over: int


class CancelResult(msgspec.Struct, frozen=True, kw_only=True):
    """All rows, of one network."""

    network: str
    rows: list[CancelRow]


def run(network: str, moments: int) -> Iterator[BenchProgress | CancelResult]:
    """Measure; yields progress, then the result."""
    from openhtp import onnx

    model = onnx.load(quantized_network(network))
    with htp.Backend() as backend:
        device = backend.create_device()
        with device.create_context() as context:
            import_network(context, quantized_network(network), network)
            binary = context.get_binary()
        ways: dict[str, Begin] = {
            "finalize": lambda signal, times: _finalized(device, model, signal, times),
            "create from a binary": lambda signal, times: _created(device, binary, signal, times),
            f"list of {CONTEXTS} binaries": lambda signal, times: _listed(device, binary, signal, times),
        }
        rows: list[CancelRow] = []
        for what, begin in ways.items():
            usual = min(_usual(backend, begin) for _ in range(3))
            for kind in ("abort", "timeout"):
                yield BenchProgress(f"{what}, {kind}", len(rows), 2 * len(ways))
                rows.append(_row(device, what, kind, begin, usual, moments))
    yield CancelResult(network=network, rows=rows)


def late_ms(device: htp.Device, binary: bytes | Path, moments: int) -> list[float]:
    """Milliseconds from an abort until the creation of a context is back, at moments of its usual length."""

    def begin(signal: htp.Signal, times: CallTimes) -> None:
        _created(device, binary, signal, times)

    usual_s = _usual(device.backend, begin)
    late_ns = [_stopped(device.backend, "abort", begin, usual_s * (n + 0.5) / moments) for n in range(moments)]
    return [late / 1e6 for late in late_ns if late is not None]


def _finalized(device: htp.Device, model: Any, signal: htp.Signal, times: CallTimes) -> None:
    with device.create_context() as context:
        graph = context.compose_graph(model, "network")
        with times:
            graph.finalize(signal=signal)


def _created(device: htp.Device, binary: bytes | Path, signal: htp.Signal, times: CallTimes) -> None:
    with times:
        context = device.create_context_from_binary(binary, signal=signal)
    context.free()


def _listed(device: htp.Device, binary: bytes, signal: htp.Signal, times: CallTimes) -> None:
    with contextlib.ExitStack() as tidying, times:
        creation = tidying.enter_context(device.create_contexts_from_binaries([binary] * CONTEXTS, signal=signal))
        creation.result(600)


def _row(device: htp.Device, what: str, kind: str, begin: Begin, usual_s: float, moments: int) -> CancelRow:
    late_ms: list[float] = []
    left_over = 0
    for number in range(moments):
        moment_s = usual_s * (number + 0.5) / moments
        late_ns = _stopped(device.backend, kind, begin, moment_s)
        if late_ns is not None:
            late_ms.append(late_ns / 1e6)
        left_over += not _is_empty(device)
    return CancelRow(
        what=what,
        signal=kind,
        usual_s=usual_s,
        moments=moments,
        stopped=len(late_ms),
        late_median_ms=statistics.median(late_ms) if late_ms else 0.0,
        late_worst_ms=max(late_ms, default=0.0),
        left_over=left_over,
    )


def _stopped(backend: htp.Backend, kind: str, begin: Begin, moment_s: float) -> float | None:
    """Nanoseconds from the signal until the call is back; None if the call was over before the signal."""
    signal = backend.create_signal() if kind == "abort" else backend.create_signal(max(1, int(moment_s * 1e6)))
    times, over = CallTimes(), threading.Event()
    triggered_ns = 0

    def trigger() -> None:
        nonlocal triggered_ns
        times.begun.wait()
        if not over.wait(moment_s):
            triggered_ns = time.monotonic_ns()
            with contextlib.suppress(htp.WrongState):  # the call was just over
                signal.trigger()

    thread = threading.Thread(target=trigger)
    if kind == "abort":
        thread.start()
    try:
        begin(signal, times)
    except (htp.Aborted, htp.TimedOut):
        said_ns = triggered_ns if kind == "abort" else times.begun_ns + int(moment_s * 1e9)
        return times.back_ns - said_ns
    finally:
        over.set()
        times.begun.set()
        if kind == "abort":
            thread.join()
    return None


def _is_empty(device: htp.Device) -> bool:
    """Whether the device holds nothing, once everything under way has been given back."""
    until_s = time.monotonic() + _GIVEN_BACK_WITHIN_S
    while time.monotonic() < until_s:
        (session,) = device.info()["sessions"]
        if (session["contexts"], session["graphs"], session["bytes"], session["tasks"]) == (0, [], 0, []):
            return True
        time.sleep(0.01)
    return False


def _usual(backend: htp.Backend, begin: Begin) -> float:
    """Seconds that an undisturbed call takes."""
    times = CallTimes()
    begin(backend.create_signal(), times)
    return (times.back_ns - times.begun_ns) / 1e9
