"""The field kit: what a vendor's library computes and how long it takes, beside the emulator and its estimates.

Needs nothing but the installed package, so that anyone with a board can run it and send the report back. The
library's device and the emulator's get the same graphs and the same data. Start at ``BoardCheck``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import math
import platform
import queue
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp import zoo
from openhtp.core.enumerations import Priority
from openhtp.core.errors import Aborted, ExecutionError, QnnError, WrongState
from openhtp.core.quant import ScaleOffset
from openhtp.core.version import VERSION
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.estimation import estimate
from openhtp.frontend.onnx_import import load
from openhtp.ops import find_op
from openhtp.ops._opdef import TYPE_WORDS
from openhtp.runtime.calls.execution import Execution
from openhtp.runtime.objects.backend import Backend
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.graph import Graph
from openhtp.session.accuracy import closeness
from openhtp.tools.operator_case import PATIENCE_S, OperatorCase, as_stored, real_values

Array = npt.NDArray[Any]

# What most networks are made of, each with the type of its first input; the other types are those of a converter.
# A choice to be quick, not a list to be kept complete: a new op needs no row here.
OPERATORS = (
    ("Conv2d", "u8"),
    ("Conv2d", "u16"),
    ("Conv2d", "f16"),
    ("DepthWiseConv2d", "u8"),
    ("TransposeConv2d", "u8"),
    ("FullyConnected", "u8"),
    ("MatMul", "u8"),
    ("MatMul", "u16"),
    ("MatMul", "f16"),
    ("ElementWiseAdd", "u8"),
    ("ElementWiseSubtract", "u8"),
    ("ElementWiseMultiply", "u8"),
    ("ElementWiseDivide", "u8"),
    ("ElementWiseMaximum", "u8"),
    ("ElementWiseAdd", "u16"),
    ("ElementWiseAdd", "f16"),
    ("Relu", "u8"),
    ("ReluMinMax", "u8"),
    ("Sigmoid", "u8"),
    ("Tanh", "u8"),
    ("Gelu", "u8"),
    ("HardSwish", "u8"),
    ("Softmax", "u8"),
    ("Softmax", "u16"),
    ("LayerNorm", "u16"),
    ("ReduceMean", "u8"),
    ("PoolMax2d", "u8"),
    ("PoolAvg2d", "u8"),
    ("Concat", "u8"),
    ("Reshape", "u8"),
    ("Transpose", "u8"),
    ("StridedSlice", "u8"),
    ("ResizeBilinear", "u8"),
    ("Gather", "u8"),
)
QUICK_OPERATORS = (("Conv2d", "u8"), ("MatMul", "u8"), ("ElementWiseAdd", "u8"), ("Softmax", "u8"))

# The share of an operator's results that must be within one step of each other: the promise of docs/vendor.md.
_SHARE_WITHIN_A_STEP = 0.99
# Half precision is good for 60 dB, and a chip may add in another order. Results of 16 bits are judged likewise:
# the simulator's own Softmax is 25 of its 65536 steps off.
_CLOSE_DB = 45.0
# How much nearer to the float network one of the two may be.
_SLACK_DB = 2.0
_FARTHEST_DB = 999.0
_WARM_UPS, _LEAST_RUNS, _MOST_RUNS, _TIMING_S = 2, 5, 50, 2.0
_EXECUTE_DEVICE = 407
_QUEUED, _QUEUED_AT_MOST_US = 16, 200_000
# Folders that are the system's, not a person's, may stay in a report.
_PERSONAL = re.compile(r"(?<![\w.])(?!/(?:dev|sys|proc|usr|lib|lib64|vendor|system|etc)/)(?:/[^/\s'\":;,]+)+/")


class BoardVerdict(StrEnum):
    """The verdict of a comparison."""

    SAME = "pass"
    DIFFERS = "differs"
    REFUSED = "refused"
    ABSENT = "not on this chip"
    NOT_SEEN = "not seen"

    @property
    def is_fine(self) -> bool:
        """Whether emulator and library agree."""
        return self not in (BoardVerdict.DIFFERS, BoardVerdict.REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedOperator:
    """One operator on both: how far apart its results are, in steps of its encoding or in decibels."""

    operator: str
    types: str
    verdict: BoardVerdict
    widest_steps: int | None = None
    within_one_step: float | None = None
    apart_db: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedNetwork:
    """One network on both: decibels against the float network, and its time measured and modelled."""

    network: str
    form: str
    verdict: BoardVerdict
    emulator_db: float | None = None
    library_db: float | None = None
    apart_db: float | None = None
    measured_us: float | None = None
    modelled_us: float | None = None
    modelled_low_us: float | None = None
    modelled_high_us: float | None = None
    runs: int = 0
    note: str = ""

    @property
    def is_within(self) -> bool | None:
        """Whether the measured time lies in the modelled range; None if there is none to compare."""
        if self.measured_us is None or self.modelled_low_us is None or self.modelled_high_us is None:
            return None
        return self.modelled_low_us <= self.measured_us <= self.modelled_high_us


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedAbility:
    """Something that was tried on the library, and its result in words."""

    what: str
    verdict: BoardVerdict
    answer: str


@dataclass(frozen=True, slots=True)
class ZooForm:
    """A network of the zoo, small enough for a simulator, and how it is quantized."""

    name: str
    make: Callable[[], bytes]
    activation: str = "u8"
    weight: str = "s8"

    @property
    def form(self) -> str:
        """Types of activations and weights."""
        return f"{self.activation} {self.weight} per channel"

    def models(self) -> tuple[bytes, bytes]:
        """The float network and the quantized one."""
        plain = self.make()
        return plain, zoo.quantized(plain, self.activation, self.weight, per_channel=True)


NETWORKS = (
    ZooForm("tiny_mlp", zoo.tiny_mlp),
    ZooForm("small_cnn", zoo.small_cnn),
    ZooForm("mobilenet_v2", functools.partial(zoo.mobilenet_v2, 96)),
    ZooForm("resnet18", functools.partial(zoo.resnet18, 64)),
    ZooForm("resnet50", functools.partial(zoo.resnet50, 64)),
    ZooForm("transformer_blocks", functools.partial(zoo.transformer_blocks, 1, seq=64, hidden=128), "u16"),
)
QUICK_NETWORKS = NETWORKS[:2]


@contextlib.contextmanager
def open_board(library: str | Path, soc: str | None) -> Iterator[BoardCheck]:
    """Start the library's device and the emulator of the same chip.

    The error of a library that cannot be started says why, and what to do about it.
    """
    with Backend(library=library) as theirs, Backend() as ours:
        begin = time.perf_counter()
        device = theirs.create_device() if soc is None else theirs.create_device(soc=soc)
        ready_s = time.perf_counter() - begin
        yield BoardCheck(device, ours.create_device(soc=device.soc), ready_s)


def for_queueing(compared: Sequence[ComparedNetwork]) -> ZooForm:
    """The slowest network that is quick enough to be queued many times, so that there is something to overtake."""
    times = {row.network: row.measured_us for row in compared if row.measured_us is not None}
    quick_us = {name: us for name, us in times.items() if us <= _QUEUED_AT_MOST_US}
    slowest = max(quick_us, key=quick_us.__getitem__, default=NETWORKS[0].name)
    return next(network for network in NETWORKS if network.name == slowest)


class BoardCheck:
    """A library's device and the emulator of the same chip, side by side."""

    def __init__(self, device: Device, emulator: Device, ready_s: float) -> None:
        self.device = device
        self.emulator = emulator
        self.ready_s = ready_s

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """The facts of a report about chip, library and machine; none of them names a person or a folder."""
        info = self.device.info()
        return {
            "openhtp": VERSION,
            "onnxruntime": importlib.metadata.version("onnxruntime"),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "kernel": platform.release(),
            "library_version": info.get("library_version"),
            "library_is": self.kind,
            "chip": self.device.soc,
            "platform": info.get("platform"),
            "ready_s": round(self.ready_s, 3),
        }

    @functools.cached_property
    def kind(self) -> str:
        """The kind of hardware or software that computes behind the library."""
        if "openhtp" in str(self.device.info().get("library_version")):
            return "OpenHTP's own library"
        return "a simulator" if platform.machine() in ("x86_64", "AMD64") else "an NPU"

    @property
    def is_chip(self) -> bool:
        """Whether measured times are a chip's."""
        return self.kind == "an NPU"

    def operators(self, chosen: Sequence[tuple[str, str]]) -> Iterator[ComparedOperator]:
        """Compare single operators."""
        for name, word in chosen:
            case = OperatorCase.of(find_op(name), TYPE_WORDS[word])
            yield compare_operator(case, self.emulator, self.device)

    def networks(self, chosen: Sequence[ZooForm]) -> Iterator[ComparedNetwork]:
        """Compare whole networks, and take their times."""
        for network in chosen:
            yield compare_network(network, self.emulator, self.device)

    def abilities(self, network: ZooForm) -> Iterator[TriedAbility]:
        """Try the queue, priorities, an abort and votes, and report the library's use of memory and signals."""
        ir_graph = load(network.models()[1])
        feeds = zoo.random_feeds(network.make(), 1, seed=9)[0]
        yield self._tried("asynchronous queue", lambda: self._try_queue(ir_graph, feeds))
        yield self._tried("priorities", lambda: self._try_priorities(ir_graph, feeds))
        yield self._tried("abort signal", lambda: self._try_abort(ir_graph, feeds))
        yield self._tried("votes", self._try_votes)
        abilities = self.device.info().get("abilities", {})
        count = abilities.get("tensors_registered", 0)
        refusal = abilities.get("memory_refusal") or "the library did not say why"
        answer = f"the library took {count} tensors" if count else f"plain buffers instead: {refusal}"
        yield TriedAbility(what="registered memory", verdict=_seen(count), answer=without_paths(answer))
        refusal = abilities.get("signal_refusal")
        answer = f"our queue's only: {refusal}" if refusal else "the library has signals"
        yield TriedAbility(what="signals", verdict=_seen(not refusal), answer=without_paths(answer))

    @staticmethod
    def _tried(what: str, attempt: Callable[[], tuple[BoardVerdict, str]]) -> TriedAbility:
        try:
            verdict, answer = attempt()
        except QnnError as error:
            verdict, answer = BoardVerdict.REFUSED, str(error)
        return TriedAbility(what=what, verdict=verdict, answer=without_paths(answer))

    def _try_queue(self, ir_graph: Any, feeds: Mapping[str, Array]) -> tuple[BoardVerdict, str]:
        notifications = NotificationOrder()
        with self.device.create_context(queue_depth=_QUEUED) as context:
            graph = _composed(context, ir_graph)
            inputs = stored_feeds(graph, feeds)
            expected = graph.execute(inputs)
            results = notifications.gather(
                graph.execute_async(inputs, notify=notifications, notify_param=number) for number in range(_QUEUED)
            )
        same = all(np.array_equal(result[name], expected[name]) for result in results for name in expected)
        in_order = notifications.order == list(range(_QUEUED))
        answer = (
            f"{_QUEUED} executions queued and notified, {'in order' if in_order else 'out of order'};"
            f" results {'equal' if same else 'differ from'} those of a synchronous call"
        )
        return (BoardVerdict.SAME if same and in_order else BoardVerdict.DIFFERS), answer

    def _try_priorities(self, ir_graph: Any, feeds: Mapping[str, Array]) -> tuple[BoardVerdict, str]:
        notifications = NotificationOrder()
        with (
            self.device.create_context(queue_depth=_QUEUED, priority=Priority.LOW) as low,
            self.device.create_context(queue_depth=_QUEUED, priority=Priority.HIGH) as high,
        ):
            graphs = {"low": _composed(low, ir_graph), "high": _composed(high, ir_graph)}
            inputs = stored_feeds(graphs["low"], feeds)
            names = [*["low"] * _QUEUED, "high"]
            notifications.gather(
                graphs[name].execute_async(inputs, notify=notifications, notify_param=name) for name in names
            )
        overtaken = len(names) - 1 - notifications.order.index("high")
        if not overtaken:
            return (
                BoardVerdict.NOT_SEEN,
                "the executions of low priority were over before the urgent one was queued",
            )
        return (
            BoardVerdict.SAME,
            f"the urgent execution overtook {overtaken} of {_QUEUED} that were queued before it",
        )

    def _try_abort(self, ir_graph: Any, feeds: Mapping[str, Array]) -> tuple[BoardVerdict, str]:
        with self.device.create_context(queue_depth=_QUEUED) as context:
            graph = _composed(context, ir_graph)
            inputs, signal = stored_feeds(graph, feeds), self.device.backend.create_signal()
            pending = [graph.execute_async(inputs) for _ in range(_QUEUED - 1)]
            aborted = graph.execute_async(inputs, signal=signal)
            with contextlib.suppress(WrongState):  # it was over already, so the signal is idle
                signal.trigger()
            error = aborted.exception(PATIENCE_S)
            for execution in pending:
                execution.result(PATIENCE_S)
        if isinstance(error, Aborted):
            return BoardVerdict.SAME, "an execution that waited ended as aborted; the others went on"
        return BoardVerdict.NOT_SEEN, "the execution was over before the signal came"

    def _try_votes(self) -> tuple[BoardVerdict, str]:
        refusals = []
        for name in ("power_saver", "balanced", "burst"):
            try:
                self.device.set_perf_profile(name)
            except QnnError as error:
                refusals.append(f"{name}: {error}")
        if refusals:
            return BoardVerdict.REFUSED, "; ".join(refusals)
        effect = "" if self.is_chip else "; there are no clocks behind them here"
        return BoardVerdict.SAME, f"power_saver, balanced and burst were accepted{effect}"


class NotificationOrder:
    """Notes the order of notifications, which come on a thread of the backend."""

    def __init__(self) -> None:
        self.order: list[object] = []
        self._arrivals: queue.SimpleQueue[object] = queue.SimpleQueue()

    def __call__(self, param: object, status: int) -> None:
        """One notification."""
        self._arrivals.put(param)

    def gather(self, executions: Iterable[Execution]) -> list[dict[str, Array]]:
        """The results of executions, once all have been notified."""
        queued = list(executions)
        results = [execution.result(PATIENCE_S) for execution in queued]
        try:
            self.order += [self._arrivals.get(timeout=PATIENCE_S) for _ in queued]
        except queue.Empty:
            raise ExecutionError(f"not all of {len(queued)} executions were notified") from None
        return results


def _seen(something: object) -> BoardVerdict:
    return BoardVerdict.SAME if something else BoardVerdict.NOT_SEEN


def without_paths(text: str) -> str:
    """A text with names of files, but without the folders of the person who ran it."""
    return _PERSONAL.sub("", text.replace(str(Path.home()), ""))


def compare_operator(case: OperatorCase, emulator: Device, library: Device) -> ComparedOperator:
    """Run a case on both devices."""
    row = ComparedOperator(operator=case.call.op, types=case.types, verdict=BoardVerdict.SAME)
    try:
        ours = case.run(emulator)
    except QnnError as error:
        return replace(row, verdict=BoardVerdict.ABSENT, note=without_paths(str(error)))
    try:
        theirs = case.run(library)
    except QnnError as error:
        return replace(row, verdict=BoardVerdict.REFUSED, note=without_paths(str(error)))
    one, other = (
        np.concatenate([each.astype(np.float64).reshape(-1) for each in side]) for side in (ours, theirs)
    )
    spec = case.call.outputs[0]
    zero = spec.quant.offset if isinstance(spec.quant, ScaleOffset) else 0
    apart_db = closeness(one + zero, other + zero).sqnr_db
    share = float((np.abs(one - other) <= 1).mean())
    is_same = apart_db >= _CLOSE_DB if spec.dtype.bits == 16 else share >= _SHARE_WITHIN_A_STEP
    row = replace(row, verdict=BoardVerdict.SAME if is_same else BoardVerdict.DIFFERS, apart_db=_rounded(apart_db))
    if spec.dtype.is_float:
        return row
    return replace(row, widest_steps=int(np.abs(one - other).max()), within_one_step=round(share, 5))


def compare_network(network: ZooForm, emulator: Device, library: Device) -> ComparedNetwork:
    """Run a network on both devices and on the CPU in float; take the library's time in burst mode."""
    plain, quantized = network.models()
    feeds = zoo.random_feeds(plain, 2, seed=5)
    row = ComparedNetwork(network=network.name, form=network.form, verdict=BoardVerdict.SAME)
    try:
        ours, _ = _run_network(emulator, quantized, feeds, is_timed=False)
        expected = estimate(quantized, emulator.soc)
    except QnnError as error:
        return replace(row, verdict=BoardVerdict.ABSENT, note=without_paths(str(error)))
    try:
        theirs, times_us = _run_network(library, quantized, feeds, is_timed=True)
    except QnnError as error:
        return replace(row, verdict=BoardVerdict.REFUSED, note=without_paths(str(error)))
    session = onnxruntime.InferenceSession(plain, providers=["CPUExecutionProvider"])
    exact = np.concatenate([np.asarray(session.run(None, feed)[0], np.float64).reshape(-1) for feed in feeds])
    emulator_db, library_db = (closeness(exact, each).sqnr_db for each in (ours, theirs))
    is_same = abs(emulator_db - library_db) <= _SLACK_DB or min(emulator_db, library_db) >= _CLOSE_DB
    return replace(
        row,
        verdict=BoardVerdict.SAME if is_same else BoardVerdict.DIFFERS,
        emulator_db=_rounded(emulator_db),
        library_db=_rounded(library_db),
        apart_db=_rounded(closeness(ours, theirs).sqnr_db),
        measured_us=round(statistics.median(times_us), 1),
        modelled_us=round(expected.total_us, 1),
        modelled_low_us=round(expected.low_us, 1),
        modelled_high_us=round(expected.high_us, 1),
        runs=len(times_us),
    )


def _run_network(
    device: Device, model: bytes, feeds: Sequence[Mapping[str, Array]], *, is_timed: bool
) -> tuple[Array, list[float]]:
    """Real values of the first output for all feeds, and how long single calls took."""
    with device.create_context() as context:
        graph = _composed(context, load(model))
        spec = graph.outputs[0].spec
        inputs = [stored_feeds(graph, feed) for feed in feeds]
        results = [real_values(spec, graph.execute(each)[spec.name]).reshape(-1) for each in inputs]
        return np.concatenate(results), _times_us(graph, inputs[0]) if is_timed else []


def _times_us(graph: Graph, inputs: Mapping[str, Array]) -> list[float]:
    """Times of single calls in burst mode, inside the device's process: our own way there is not the chip's."""
    device = graph.context.device
    with contextlib.suppress(QnnError):  # reported when votes are tried
        device.set_perf_profile("burst")
    times: list[float] = []
    end = time.perf_counter() + _TIMING_S
    while len(times) < _WARM_UPS + _LEAST_RUNS or (time.perf_counter() < end and len(times) < _MOST_RUNS):
        profile = device.backend.create_profile("basic")
        begin = time.perf_counter()
        graph.execute(inputs, profile=profile)
        wall_us = (time.perf_counter() - begin) * 1e6
        event = profile.event(_EXECUTE_DEVICE)
        times.append(wall_us if event is None else float(event.value))
        profile.free()
    return times[_WARM_UPS:]


def _composed(context: Context, ir_graph: Any) -> Graph:
    graph = context.compose_graph(ir_graph)
    graph.finalize()
    return graph


def stored_feeds(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Real values as a graph's inputs store them."""
    return {tensor.name: as_stored(tensor.spec, feeds[tensor.name]) for tensor in graph.inputs}


def _rounded(decibels: float) -> float | None:
    """Decibels for a report, which has no infinity: None for results that are equal to the last bit."""
    return None if decibels == math.inf else round(max(decibels, -_FARTHEST_DB), 1)
