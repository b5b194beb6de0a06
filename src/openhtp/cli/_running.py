"""What ``openhtp run`` does before it prints: run the samples, time them, hold them against ONNX Runtime."""

from __future__ import annotations

import io
import statistics
import time
import zipfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.cli._inputs import Feeds
from openhtp.config import BackendConfig
from openhtp.core.errors import BadModel, UnsupportedFeature
from openhtp.core.writing import write_file
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.records.trace import Trace
from openhtp.runtime.objects.step_names import StepOps
from openhtp.session import InferenceSession, hosts
from openhtp.session.accuracy import Closeness, closeness
from openhtp.session.executable import AssignedPart
from openhtp.session.pending import PendingRun
from openhtp.session.profiling import AnyProfile
from openhtp.session.range_check import Overflow, check_range

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """What was asked for. ``depth`` None: each run is waited for; ``min_sqnr`` None: results are not compared."""

    source: bytes | Path
    soc: str
    repeat: int
    depth: int | None
    profile: bool
    trace: bool
    min_sqnr: float | None
    check_range: bool
    perf_profile: str | None = None
    config: BackendConfig | None = None


@dataclass(slots=True)
class RunResult:
    """What came of it; outputs by name, one array per sample."""

    order: RunOrder
    providers: list[str] = field(default_factory=list)
    partition: list[AssignedPart] = field(default_factory=list)
    outputs: dict[str, list[Array]] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    profile: AnyProfile | None = None
    steps: list[list[StepOps]] = field(default_factory=list)
    trace: Trace | None = None
    compared: dict[str, Closeness] = field(default_factory=dict)
    overflows: list[Overflow] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether everything that was to be checked is well."""
        least = self.order.min_sqnr
        far = least is not None and any(found.sqnr_db < least for found in self.compared.values())
        return not far and not self.overflows

    def latency(self) -> dict[str, float]:
        """In milliseconds, from asking to having, over all runs; and runs per second."""
        ordered = sorted(self.latencies_s)
        return {
            "runs": len(ordered),
            "min": ordered[0] * 1e3,
            "p50": statistics.median(ordered) * 1e3,
            "p90": ordered[min(len(ordered) - 1, len(ordered) * 9 // 10)] * 1e3,
            "max": ordered[-1] * 1e3,
            "per_second": len(ordered) / self.seconds,
        }


def carry_out(order: RunOrder, model: bytes, samples: Sequence[Feeds]) -> RunResult:
    """Run everything; ``model`` is what is run, as one file in memory."""
    ran = RunResult(order)
    with _recorded(order, ran):
        _run_samples(order, samples, ran)
    if order.min_sqnr is not None:
        ran.compared = _compare(model, samples, ran)
    if order.check_range:
        ran.overflows = check_range(model, samples)
    return ran


def _run_samples(order: RunOrder, samples: Sequence[Feeds], ran: RunResult) -> None:
    """The first run of each sample warms up and gives the outputs; it is not timed."""
    settings = {"enable_htp_fp16_precision": "1"}
    if order.profile:
        settings["profiling_level"] = "detailed"
    if order.perf_profile is not None:
        settings["htp_performance_mode"] = order.perf_profile
    qnn = [("QNNExecutionProvider", settings)]
    with InferenceSession(
        order.source, None, qnn, soc=order.soc, queue_depth=order.depth, backend_config=order.config
    ) as session:
        ran.providers, ran.partition = session.get_providers(), session.get_partition()
        names = [output.name for output in session.get_outputs()]
        results = [session.run(names, feeds) for feeds in samples]
        ran.outputs = {name: [result[index] for result in results] for index, name in enumerate(names)}
        begin = time.perf_counter()
        if order.depth is None:
            _run_in_turn(session, order, samples, ran)
        else:
            _run_queued(session, order, samples, ran)
        ran.seconds = time.perf_counter() - begin
        if order.profile:
            ran.profile, ran.steps = _profiled(session, samples[0]), session.get_steps()


@contextmanager
def _recorded(order: RunOrder, ran: RunResult) -> Iterator[None]:
    """Keep the device of the session at hand, to record what it does."""
    if not order.trace:
        yield
        return
    stay = hosts.Stay(hosts.HostKind(order.soc, 1, "rpc"))
    try:
        device = stay.begin()
        device.start_trace()
        yield
        ran.trace = device.stop_trace()
    finally:
        stay.end()


def _run_in_turn(session: InferenceSession, order: RunOrder, samples: Sequence[Feeds], ran: RunResult) -> None:
    for _ in range(order.repeat):
        for feeds in samples:
            asked = time.perf_counter()
            session.run(None, feeds)
            ran.latencies_s.append(time.perf_counter() - asked)


def _run_queued(session: InferenceSession, order: RunOrder, samples: Sequence[Feeds], ran: RunResult) -> None:
    pending: deque[PendingRun] = deque()

    def note(asked: float) -> None:
        ran.latencies_s.append(time.perf_counter() - asked)

    for _ in range(order.repeat):
        for feeds in samples:
            asked = time.perf_counter()
            run = session.run_async(None, feeds)
            run.add_done_callback(lambda _, asked=asked: note(asked))  # type: ignore[misc]
            pending.append(run)
            if len(pending) >= (order.depth or 1):
                pending.popleft().result()
    for run in pending:
        run.result()


def _profiled(session: InferenceSession, feeds: Feeds) -> AnyProfile | None:
    run = session.run_async(None, feeds)
    run.result()
    return run.profile


def _compare(model: bytes, samples: Sequence[Feeds], ran: RunResult) -> dict[str, Closeness]:
    """How far each output is from ONNX Runtime's CPU, over all samples."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise BadModel(f"onnxruntime cannot load the model: {error}") from error
    names = list(ran.outputs)
    exact = [session.run(names, dict(feeds)) for feeds in samples]
    found = {}
    for index, name in enumerate(names):
        wanted = [np.asarray(result[index]) for result in exact]
        if any(a.shape != b.shape for a, b in zip(wanted, ran.outputs[name], strict=True)):
            raise UnsupportedFeature(f"output {name!r} has another shape in ONNX Runtime: {list(wanted[0].shape)}")
        found[name] = closeness(_joined(wanted), _joined(ran.outputs[name]))
    return found


def _joined(arrays: Sequence[Array]) -> Array:
    return np.concatenate([array.reshape(-1) for array in arrays])


def save_outputs(path: Path, ran: RunResult) -> None:
    """One array per output; of several samples they are stacked."""
    arrays = {name: found[0] if len(found) == 1 else np.stack(found) for name, found in ran.outputs.items()}
    content = io.BytesIO()
    # As numpy.savez would, which takes an output that is called "file" for its own argument.
    with zipfile.ZipFile(content, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    write_file(path, content.getvalue())


def summaries(ran: RunResult) -> list[dict[str, Any]]:
    """Of each output: type, shape, and what its numbers are like."""
    rows = []
    for name, found in ran.outputs.items():
        numbers = _joined(found).astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        rows.append(
            {
                "name": name,
                "type": str(found[0].dtype),
                "shape": list(found[0].shape),
                "min": float(finite.min()) if finite.size else None,
                "mean": float(finite.mean()) if finite.size else None,
                "max": float(finite.max()) if finite.size else None,
                "not_finite": int(numbers.size - finite.size),
            }
        )
    return rows
