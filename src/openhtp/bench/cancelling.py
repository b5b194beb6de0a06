"""How soon finalizing and creating contexts end when their signal says so, and whether anything is left of them.

Each is begun over and over and stopped at another moment of its usual length: by an abort signal that another
thread triggers, and by a timeout. What counts is from then until the call is back.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

import openhtp as htp
from openhtp.bench.queueing import Progress
from openhtp.bench.subjects import import_network, quantized_network

CONTEXTS = 4
# Told when the call is back; what comes then only tidies up.
Back = Callable[[], None]
Begin = Callable[[htp.Signal, Back], None]
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


def run(network: str, moments: int) -> Iterator[Progress | CancelResult]:
    """Measure; yields progress, then the result."""
    from openhtp import onnx

    model = onnx.load(quantized_network(network))
    with htp.Backend() as backend:
        device = backend.create_device()
        with device.create_context() as context:
            import_network(context, quantized_network(network), network)
            binary = context.get_binary()
        ways: dict[str, Begin] = {
            "finalize": lambda signal, back: _finalized(device, model, signal, back),
            "create from a binary": lambda signal, back: _created(device, binary, signal, back),
            f"list of {CONTEXTS} binaries": lambda signal, back: _listed(device, binary, signal, back),
        }
        rows: list[CancelRow] = []
        for what, begin in ways.items():
            usual = min(_timed(lambda begin=begin: begin(backend.create_signal(), lambda: None)) for _ in range(3))  # type: ignore[misc]
            for kind in ("abort", "timeout"):
                yield Progress(f"{what}, {kind}", len(rows), 2 * len(ways))
                rows.append(_row(device, what, kind, begin, usual, moments))
    yield CancelResult(network=network, rows=rows)


def _finalized(device: htp.Device, model: Any, signal: htp.Signal, back: Back) -> None:
    with device.create_context() as context:
        graph = context.compose_graph(model, "network")
        try:
            graph.finalize(signal=signal)
        finally:
            back()


def _created(device: htp.Device, binary: bytes, signal: htp.Signal, back: Back) -> None:
    try:
        context = device.create_context_from_binary(binary, signal=signal)
    finally:
        back()
    context.free()


def _listed(device: htp.Device, binary: bytes, signal: htp.Signal, back: Back) -> None:
    with device.create_contexts_from_binaries([binary] * CONTEXTS, signal=signal) as creation:
        try:
            creation.result(600)
        finally:
            back()


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
    """Nanoseconds from the signal until the call is back; None if it had come to its end by then."""
    signal = backend.create_signal() if kind == "abort" else backend.create_signal(max(1, int(moment_s * 1e6)))
    said_ns = time.monotonic_ns() + int(moment_s * 1e9)
    over = threading.Event()

    def trigger() -> None:
        nonlocal said_ns
        if not over.wait(max(0.0, (said_ns - time.monotonic_ns()) / 1e9)):
            said_ns = time.monotonic_ns()
            with contextlib.suppress(htp.WrongState):  # the call was just over
                signal.trigger()

    thread = threading.Thread(target=trigger)
    if kind == "abort":
        thread.start()
    back_ns: list[int] = []
    try:
        begin(signal, lambda: back_ns.append(time.monotonic_ns()))
    except (htp.Aborted, htp.TimedOut):
        return back_ns[0] - said_ns
    finally:
        over.set()
        if kind == "abort":
            thread.join()
    return None


def _is_empty(device: htp.Device) -> bool:
    """Whether nothing is held on the device, once what was under way has been given back."""
    until_s = time.monotonic() + _GIVEN_BACK_WITHIN_S
    while time.monotonic() < until_s:
        (session,) = device.info()["sessions"]
        if (session["contexts"], session["graphs"], session["bytes"], session["tasks"]) == (0, [], 0, []):
            return True
        time.sleep(0.01)
    return False


def _timed(act: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin
