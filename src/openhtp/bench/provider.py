"""ONNX Runtime's QNN provider on our library and on the vendor's: the same sessions, in turns."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from openhtp import zoo
from openhtp.bench.preemption import UrgentRow, urgent_goals, urgent_row
from openhtp.bench.quiet import BenchProgress, MeasuredGoal, Measurement, QuietGate, QuietResult, median
from openhtp.bench.subjects import NETWORKS, quantized_network
from openhtp.capi.check import provider_session
from openhtp.capi.identity import backend_path
from openhtp.core.errors import UnsupportedFeature
from openhtp.vendor.library import find_library

_PIECE_SECONDS = 0.05
# A library that is slow or a machine that is busy gets fewer pieces: for each model, and for two sessions.
_MOST_SECONDS = 15.0
_FEWEST_PIECES = 3
_MOST_SECONDS_BESIDE = 30.0
_FLOAT_OPTIONS = {"soc_model": "57", "enable_htp_fp16_precision": "1"}
OPERATIONS = ("u8", "qdq", "float")
_ONE = "one operation"
# The goal for one operation.
_MOST_ONE_US, _MOST_RATIO = 20, 0.5
SHAPE = (1, 8, 2, 2)


class ProviderRow(msgspec.Struct, frozen=True):
    """One model: ``session.run`` at the median, and ours as a part of the vendor's; None without its library."""

    model: str
    openhtp_us: float
    vendor_us: float | None
    ratio: float | None
    create_ms: float


class ProviderResult(QuietResult, kw_only=True):
    """Everything ``openhtp bench ort`` measured. All times are of the wall clock."""

    rows: list[ProviderRow] = msgspec.field(default_factory=list)
    urgent: list[UrgentRow] = msgspec.field(default_factory=list)
    long_network: str = ""
    long_ms: float = 0.0
    vendor_installed: bool = False

    def goals(self) -> list[MeasuredGoal]:
        """The goals, and the figures that were reached."""
        short = [row for row in self.rows if row.model.startswith(_ONE)]
        return [
            *(MeasuredGoal(f"session.run, {row.model}", "us", row.openhtp_us, _MOST_ONE_US) for row in short),
            *(
                MeasuredGoal(f"session.run, {row.model}", "x the vendor's", row.ratio, _MOST_RATIO)
                for row in short
                if row.ratio is not None
            ),
            *urgent_goals(row for row in self.urgent if row.what != _EQUAL),
        ]


def one_operation(kind: str) -> onnx.ModelProto:
    """An addition: of bytes, of floats that are quantized on the way, or of floats."""
    if kind == "float":
        nodes = [helper.make_node("Add", ["a", "b"], ["o"])]
        return _model(nodes, TensorProto.FLOAT, [])
    numbers = {"scale": np.float32(0.02), "wide": np.float32(0.04), "zero": np.uint8(128)}
    nodes = []
    for name in "ab":
        if kind == "qdq":
            nodes.append(helper.make_node("QuantizeLinear", [name, "scale", "zero"], [f"{name}_stored"]))
        stored = f"{name}_stored" if kind == "qdq" else name
        nodes.append(helper.make_node("DequantizeLinear", [stored, "scale", "zero"], [f"{name}_real"]))
    nodes.append(helper.make_node("Add", ["a_real", "b_real"], ["sum"]))
    nodes.append(helper.make_node("QuantizeLinear", ["sum", "wide", "zero"], ["q" if kind == "qdq" else "o"]))
    if kind == "qdq":
        nodes.append(helper.make_node("DequantizeLinear", ["q", "wide", "zero"], ["o"]))
    constants = [numpy_helper.from_array(value, name) for name, value in numbers.items()]
    return _model(nodes, TensorProto.FLOAT if kind == "qdq" else TensorProto.UINT8, constants)


def _model(nodes: Sequence[Any], kind: int, constants: Sequence[Any]) -> onnx.ModelProto:
    ends = [[helper.make_tensor_value_info(name, kind, SHAPE) for name in names] for names in ("ab", "o")]
    graph = helper.make_graph(nodes, "g", *ends, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def run(
    *,
    operations: Sequence[str] = OPERATIONS,
    networks: Sequence[str] = NETWORKS,
    rounds: int = 20,
    samples: int = 300,
    long_network: str = "resnet50",
) -> Iterator[BenchProgress | ProviderResult]:
    """Measure; yields progress, and the result last. Without ``samples``, no two sessions are on one NPU."""
    vendor = find_library()
    libraries = {"openhtp": backend_path()} | ({} if vendor is None else {"vendor": str(vendor)})
    result = ProviderResult(vendor_installed=vendor is not None)
    models = [(kind, f"{_ONE}, {kind}") for kind in operations] + [(name, name) for name in networks]
    quiet = QuietGate()
    for done, (name, shown) in enumerate(models):
        yield BenchProgress(f"{shown}: sessions", done * rounds, len(models) * rounds)
        whole = name in networks
        data = quantized_network(name) if whole else one_operation(name).SerializeToString()
        race = _LibraryRace(data, libraries, _FLOAT_OPTIONS if name == "float" else {})
        for number in range(rounds):
            yield BenchProgress(f"{shown}: round {number + 1}", done * rounds + number, len(models) * rounds)
            race.round(quiet)
        result.rows.append(race.row(shown))
    if samples:
        yield BenchProgress(f"an urgent session beside {long_network}", len(models) * rounds, len(models) * rounds)
        urgent = one_operation("u8").SerializeToString()
        result.long_network = long_network
        result.long_ms, result.urgent = measure_two_sessions(urgent, long_network, samples)
    quiet.tell(result)
    yield result


class _LibraryRace:
    """Sessions of one model, one for each library."""

    def __init__(self, model: bytes, libraries: Mapping[str, str], options: Mapping[str, str]) -> None:
        self._feeds = zoo.random_feeds(model, 1, seed=7)[0]
        self._sessions: dict[str, Any] = {}
        self._created: dict[str, float] = {}
        for name, library in libraries.items():
            begin = time.perf_counter()
            self._sessions[name] = provider_session(model, library, options)
            self._created[name] = (time.perf_counter() - begin) * 1e3
        self._times: dict[str, list[Measurement[float]]] = {name: [] for name in libraries}
        self._spent_s = dict.fromkeys(libraries, 0.0)
        self._compare()

    def _compare(self) -> None:
        """The first runs, which also warm up. A library that computes something else is not measured."""
        outputs = {name: session.run(None, self._feeds) for name, session in self._sessions.items()}
        for name, arrays in outputs.items():
            for ours, theirs in zip(outputs["openhtp"], arrays, strict=True):
                span = max(1.0, float(np.ptp(theirs.astype(np.float64))))
                off = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
                if float(np.median(off)) > 0.1 * span:
                    raise UnsupportedFeature(f"results of {name} differ by {float(np.median(off))} at the median")

    def round(self, quiet: QuietGate) -> None:
        """One piece of each library, so that a slow minute hits them alike."""
        for name, session in self._sessions.items():
            if self._spent_s[name] > _MOST_SECONDS and len(self._times[name]) >= _FEWEST_PIECES:
                continue
            begin = time.perf_counter()
            tries = 1 if name == "vendor" else 3
            self._times[name].append(quiet.measure(lambda s=session: self._piece_us(s), tries=tries))  # type: ignore[misc]
            self._spent_s[name] += time.perf_counter() - begin

    def _piece_us(self, session: Any) -> float:
        """The median of the runs that fit into a piece."""
        times: list[int] = []
        end = time.perf_counter() + _PIECE_SECONDS
        while not times or time.perf_counter() < end:
            begin = time.perf_counter_ns()
            session.run(None, self._feeds)
            times.append(time.perf_counter_ns() - begin)
        return float(np.median(times)) / 1e3

    def row(self, shown: str) -> ProviderRow:
        """The medians of all rounds."""
        ours = median(self._times["openhtp"])
        theirs = median(self._times["vendor"]) if "vendor" in self._times else None
        ratio = None if theirs is None else ours / theirs
        return ProviderRow(shown, ours, theirs, ratio, self._created["openhtp"])


# Two sessions on one NPU: a short model is called while a long one runs.


# A long run that takes this much longer than usual, what the urgent ones in it compute not counted, was disturbed.
_DISTURBED = 1.08
_ALONE = 10
_EQUAL = "equal priorities, session.run on two threads"
_PRIORITIES = {
    _EQUAL: ("normal", "normal"),
    "low and high, session.run on two threads": ("low", "high"),
}


class SpanNs(NamedTuple):
    """When a run began and ended."""

    begin: int
    end: int


def measure_two_sessions(urgent_model: bytes, network: str, samples: int) -> tuple[float, list[UrgentRow]]:
    """How long the network takes alone, in milliseconds, and the urgent model beside it."""
    model, rows, alone_ns = quantized_network(network), [], 0.0
    long_feeds, urgent_feeds = (zoo.random_feeds(each, 1, seed=7)[0] for each in (model, urgent_model))
    for words, (background, urgent) in _PRIORITIES.items():
        slow = provider_session(model, backend_path(), {"qnn_context_priority": background})
        quick = provider_session(urgent_model, backend_path(), {"qnn_context_priority": urgent})
        urgent_alone_ns = min(_run_ns(quick, urgent_feeds) for _ in range(_ALONE))
        alone_ns = statistics.median(_run_ns(slow, long_feeds) for _ in range(_ALONE))
        long_runs, urgent_runs = _beside(slow, long_feeds, quick, urgent_feeds, samples, alone_ns)
        every = [span.end - span.begin for span in urgent_runs]
        usual = _Usual(alone_ns, urgent_alone_ns)
        undisturbed = [
            span.end - span.begin for span in urgent_runs if not usual.is_disturbed(span, long_runs, urgent_runs)
        ]
        rows.append(urgent_row(words, undisturbed, every, alone_ns))
        del slow, quick
    return alone_ns / 1e6, rows


def _run_ns(session: Any, feeds: Any) -> int:
    begin = time.perf_counter_ns()
    session.run(None, feeds)
    return time.perf_counter_ns() - begin


def _beside(
    slow: Any, long_feeds: Any, quick: Any, urgent_feeds: Any, samples: int, alone_ns: float
) -> tuple[list[SpanNs], list[SpanNs]]:
    """Run one model all the time, and another now and then; return when each of them ran."""
    clock, dice, goes_on = time.perf_counter_ns, random.Random(1), [True]
    long_runs: list[SpanNs] = []
    urgent_runs: list[SpanNs] = []

    def keep_running() -> None:
        while goes_on:
            begin = clock()
            slow.run(None, long_feeds)
            long_runs.append(SpanNs(begin, clock()))

    thread = threading.Thread(target=keep_running)
    thread.start()
    until_ns = clock() + int(_MOST_SECONDS_BESIDE * 1e9)
    try:
        for number in range(samples):
            if number and clock() > until_ns:
                break
            time.sleep(alone_ns / 1e9 * dice.uniform(0.2, 1.5))
            begin = clock()
            quick.run(None, urgent_feeds)
            urgent_runs.append(SpanNs(begin, clock()))
    finally:
        goes_on.clear()
        thread.join()
    return long_runs, urgent_runs


class _Usual(NamedTuple):
    """How long the runs take alone, in nanoseconds."""

    long: float
    urgent: float

    def is_disturbed(self, urgent: SpanNs, long_runs: list[SpanNs], urgent_runs: list[SpanNs]) -> bool:
        """Whether a long run took longer than the urgent runs within it explain."""
        for run in long_runs:
            if run.begin < urgent.end and urgent.begin < run.end:
                inside = sum(run.begin < span.end and span.begin < run.end for span in urgent_runs)
                if run.end - run.begin > self.long * _DISTURBED + self.urgent * inside:
                    return True
        return False
