"""``openhtp run``: a model on the emulated HTP: its outputs, how long it takes, and whether it is right."""

from __future__ import annotations

import dataclasses
import io
import math
import statistics
import time
import zipfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import typer
from rich.text import Text

from openhtp.cli._config import ConfigFile, PerfProfileName, config_of
from openhtp.cli._inputs import (
    Dim,
    Feeds,
    Freeze,
    Mean,
    OpPackageNames,
    Std,
    op_packages_of,
    parse_dims,
    parse_freeze,
    samples_of,
)
from openhtp.cli._terminal import (
    JsonFile,
    TextTable,
    errors_reported,
    figures,
    progress_console,
    say,
    show,
    write_file,
    write_json,
)
from openhtp.config import BackendConfig
from openhtp.core.errors import UnsupportedFeature
from openhtp.estimation import ZOO, zoo_model
from openhtp.frontend.probing import with_fixed_inputs
from openhtp.ops._packages import OpPackage
from openhtp.records.profile import ProfileEvent
from openhtp.records.trace import Trace
from openhtp.report.chrome import marks_to_chrome
from openhtp.report.lanes import trace_to_marks
from openhtp.runtime.objects.modelled import StepOps
from openhtp.session import InferenceSession, hosts
from openhtp.session.diagnosis import HalfPrecisionLoss, find_loss
from openhtp.session.executable import AssignedPart
from openhtp.session.options import CPU, soc_of
from openhtp.session.output_check import CheckedOutput, CheckVerdict, check_outputs, joined
from openhtp.session.pending import PendingRun
from openhtp.session.profiling import PART, AnyProfile
from openhtp.session.range_check import LARGEST, Overflow, check_range
from openhtp.zoo.feeds import feeds_in_words

NOTHING_COMPARED = 3
"""The status of a check that says nothing about an output."""


Check = Annotated[
    bool,
    typer.Option("--check", help="Compare with ONNX Runtime; status 1 if too far, 3 if an output says nothing."),
]
CheckRange = Annotated[
    bool, typer.Option("--check-range", help="Look for what half precision cannot hold; status 1 if found.")
]


def run(
    model: Annotated[str, typer.Argument(help="ONNX file, or a network of the zoo: zoo:mobilenet_v2.")],
    inputs: Annotated[
        Path | None,
        typer.Option("--input", "-i", help=".npz, .npy, picture, raw file, folder of them, or input list (.txt)."),
    ] = None,
    random: Annotated[int, typer.Option(min=1, help="Number of random samples, if there is no --input.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the random samples.")] = 0,
    mean: Mean = "0",
    std: Std = "1",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Save the outputs (.npz).")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each sample; latencies are of all of them.")] = 10,
    asynchronous: Annotated[bool, typer.Option("--async", help="Queue the runs, waiting for none.")] = False,
    depth: Annotated[int, typer.Option(min=1, max=300, help="With --async: runs that are queued at once.")] = 10,
    soc: Annotated[str | None, typer.Option(help="Chip to emulate; SM8650, unless a config names one.")] = None,
    perf_profile: PerfProfileName = None,
    config_file: ConfigFile = None,
    dim: Dim = None,
    freeze: Freeze = None,
    op_package: OpPackageNames = None,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time of a run goes.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace of the runs (ui.perfetto.dev).")] = None,
    check: Check = False,
    min_sqnr: Annotated[float, typer.Option(help="With --check: least decibels of an output.")] = 20.0,
    check_range: CheckRange = False,
    json_file: JsonFile = None,
) -> None:
    """Run a model on an emulated HTP: outputs, latency (measured on this computer), and checks."""
    with errors_reported():
        config, mode = config_of(config_file, perf_profile)
        source = zoo_model(model) if model.startswith(ZOO) else Path(model)
        data = with_fixed_inputs(source, parse_dims(dim), parse_freeze(freeze))
        samples = samples_of(data, inputs, mean, std, random, seed)
        order = RunOrder(
            source=data if isinstance(source, bytes) or dim or freeze else source,
            soc=soc or soc_of(config),
            perf_profile=mode,
            config=config,
            repeat=repeat,
            depth=depth if asynchronous else None,
            profile=profile,
            trace=trace is not None,
            min_sqnr=min_sqnr if check else None,
            check_range=check_range,
            op_packages=op_packages_of(op_package),
        )
        with progress_console.status("running"):
            outcome = carry_out(order, data, samples)
        origin = f"{len(samples)} random, seed {seed}" if inputs is None else f"{len(samples)} from {inputs}"
        filled = feeds_in_words(data) if inputs is None else {}
        print_outcome(outcome, f"{model} on {order.soc}, emulated; samples: {origin}", filled)
        _write(outcome, output, trace)
        write_json(json_file, {"model": model, "filled_inputs": filled, **as_json(outcome)})
    if outcome.status:
        raise typer.Exit(outcome.status)


def _write(outcome: RunResult, output: Path | None, trace: Path | None) -> None:
    """The files that were asked for."""
    if output is not None:
        save_outputs(output, outcome)
    if trace is not None and outcome.trace is not None:
        write_file(trace, marks_to_chrome(trace_to_marks(outcome.trace)))


# What ``openhtp run`` prints.

_SHOWN = 12
# Below what only infinities and NaNs are.
_INFINITE_DB = -1000.0
_COLUMNS = ("part", "where", "nodes", "why not on the HTP")
_STEPS = 407  # the event under which a profile has its steps
_STYLES = {CheckVerdict.OK: "green", CheckVerdict.TOO_FAR: "red", CheckVerdict.NOTHING: "yellow"}


def print_outcome(ran: RunResult, title: str, filled: Mapping[str, str]) -> None:
    """Print every table; ``filled`` says how inputs that are no noise were filled."""
    say(title)
    if filled:
        say(f"inputs that are no noise: {'; '.join(f'{name}: {words}' for name, words in filled.items())}")
    if "QNNExecutionProvider" not in ran.providers:
        say("the HTP cannot take this model: all of it ran on the CPU", "yellow")
    if any(part.provider == CPU for part in ran.partition):
        show(_partition(ran))
    show(_outputs(ran))
    show(_latency(ran))
    for sheet in _profile(ran):
        show(sheet)
    if ran.order.min_sqnr is not None:
        show(_check(ran, ran.order.min_sqnr))
        _print_notes(ran)
    if ran.order.check_range:
        _print_overflows(ran)


def as_json(ran: RunResult) -> dict[str, Any]:
    """The same for programs; JSON has no infinity, so what is exact has no SQNR."""

    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    order = ran.order
    return {
        "soc": order.soc,
        "providers": ran.providers,
        "partition": [dataclasses.asdict(part) for part in ran.partition],
        "asynchronous": order.depth is not None,
        "latency_ms": {"times": "measured", **ran.latency()},
        "outputs": summaries(ran),
        "check": {
            name: {
                "sqnr_db": finite(output.nearness.sqnr_db),
                "cosine": finite(output.nearness.cosine),
                "max_error": finite(output.nearness.max_error),
                "holds": output.verdict is CheckVerdict.OK,
                "verdict": output.verdict.value,
                "note": output.note,
            }
            for name, output in ran.compared.items()
        },
        "first_loss": None if ran.loss is None else dataclasses.asdict(ran.loss),
        "overflows": [dataclasses.asdict(overflow) for overflow in ran.overflows],
        "profile": [] if ran.profile is None else msgspec.to_builtins(ran.profile.events()),
        "steps": [[list(names) for names, _ in part] for part in ran.steps],
    }


def _partition(ran: RunResult) -> TextTable:
    """One line per part on the HTP and per node that is not."""
    sheet = TextTable(f"runs in {len(ran.partition)} parts", _COLUMNS, _COLUMNS[2:])
    left = _SHOWN
    for number, part in enumerate(ran.partition, 1):
        if part.provider != CPU:
            sheet.add(str(number), "HTP", f"{len(part.nodes)} node{'s' * (len(part.nodes) > 1)}", "")
            continue
        for node in part.nodes[: max(0, left)]:
            sheet.add(str(number), "CPU", f"{node.name} ({node.op_type})", node.reason)
        left -= len(part.nodes)
    if left < 0:
        sheet.note = f"{-left} more nodes on the CPU: --json has all of them"
    return sheet


def _outputs(ran: RunResult) -> TextTable:
    """One line per output."""
    sheet = TextTable("outputs", ("name", "type and shape", "min", "mean", "max", "inf, NaN"), ("type and shape",))
    for row in summaries(ran):
        numbers = ("-" if row[key] is None else f"{row[key]:.4g}" for key in ("min", "mean", "max"))
        bad = Text(str(row["not_finite"]), style="red" if row["not_finite"] else "")
        sheet.add(row["name"], f"{row['type']}{row['shape']}", *numbers, bad)
    return sheet


def _latency(ran: RunResult) -> TextTable:
    """Times of all runs."""
    order = ran.order
    how = "one after the other" if order.depth is None else f"queued, {order.depth} deep"
    latency = ran.latency()
    columns = ("runs", "min ms", "median ms", "p90 ms", "max ms", "per second")
    sheet = TextTable(f"latency, {how} (measured on this computer, wall clock)", columns)
    times = (f"{latency[key]:,.3g}" for key in ("min", "p50", "p90", "max"))
    sheet.add(f"{latency['runs']:.0f}", *times, f"{latency['per_second']:,.1f}")
    sheet.note = f"what it would take on the chip: openhtp estimate MODEL --soc {order.soc}"
    return sheet


def _profile(ran: RunResult) -> list[TextTable]:
    """Where the time of one run went."""
    if ran.profile is None:
        return []
    events = ran.profile.events()
    parts = [event for event in events if event.type == PART]
    if not parts:
        return _profile_of("profile of one run", events, ran.steps[0])
    whole = figures("profile of one run, in parts (measured, wall clock)")
    for event in events:
        whole.add(event.name, f"{event.value:,} {event.unit}")
    sheets = [whole]
    for part, steps in zip(parts, ran.steps, strict=True):
        if part.events:
            sheets += _profile_of(part.name, part.events, steps)
    return sheets


def _profile_of(title: str, events: Sequence[ProfileEvent], step_ops: Sequence[StepOps]) -> list[TextTable]:
    """One graph on the HTP. What is modelled says so."""
    total = figures(f"{title} (measured, wall clock, unless modelled)")
    steps: list[tuple[int, ProfileEvent]] = []
    for event in events:
        total.add(event.name, f"{event.value:,} {event.unit}{' (modelled)' if event.modelled else ''}")
        if event.type == _STEPS:
            steps = sorted(enumerate(event.events), key=lambda step: -step[1].value)[:_SHOWN]
    slowest = TextTable("steps that take most (measured)", ("step", "us", "nodes", "from", "to"), ("from", "to"))
    for number, step in steps:
        names = step_ops[number][0] if number < len(step_ops) else ()
        ends = (names[0], names[-1] if len(names) > 1 else "") if names else ("", "")
        slowest.add(step.name, f"{step.value:,}", f"{len(names) or ''}", *ends)
    return [total, slowest] if steps else [total]


def _check(ran: RunResult, least_db: float) -> TextTable:
    """The distance of each output from ONNX Runtime's."""
    sheet = TextTable(
        f"against ONNX Runtime, at least {least_db:g} dB", ("output", "SQNR dB", "cosine", "max error", "")
    )
    for name, output in ran.compared.items():
        verdict = Text(output.verdict.value, style=_STYLES[output.verdict])
        nearness = output.nearness
        numbers = f"{nearness.sqnr_db:.1f}", f"{nearness.cosine:.6f}", f"{nearness.max_error:.4g}"
        if output.verdict is CheckVerdict.NOTHING:
            numbers = ("-", "-", "-")
        sheet.add(name, *numbers, verdict)
    return sheet


def _print_notes(ran: RunResult) -> None:
    """Notes about single outputs, and the node at which values left half precision."""
    for name, output in ran.compared.items():
        if output.note:
            say(f"{name}: {output.note}", _STYLES[output.verdict])
    if ran.status == NOTHING_COMPARED:
        say("where nothing was compared, give real inputs with --input", "yellow")
    if ran.loss is not None:
        say(f"why: {ran.loss}", "red")


def _print_overflows(ran: RunResult) -> None:
    """Values that become infinite on an HTP."""
    overflows = ran.overflows
    if ran.loss is not None and not overflows:
        say(f"range: {ran.loss}", "red")
    elif not overflows:
        say(f"range: every value stays within the {LARGEST:,.0f} of half precision", "green")
    for overflow in overflows[:_SHOWN]:
        say(f"range: {overflow}", "red")
    if len(overflows) > _SHOWN:
        say(f"range: and {len(overflows) - _SHOWN} more", "red")


# The work behind ``openhtp run``: run the samples, time them, and compare them with ONNX Runtime.


Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """The order to run. ``depth`` None: each run is waited for; ``min_sqnr`` None: results are not compared."""

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
    op_packages: tuple[OpPackage, ...] = ()


@dataclass(slots=True)
class RunResult:
    """The results of an order; outputs by name, one array per sample."""

    order: RunOrder
    providers: list[str] = field(default_factory=list)
    partition: list[AssignedPart] = field(default_factory=list)
    outputs: dict[str, list[Array]] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    profile: AnyProfile | None = None
    steps: list[list[StepOps]] = field(default_factory=list)
    trace: Trace | None = None
    compared: dict[str, CheckedOutput] = field(default_factory=dict)
    loss: HalfPrecisionLoss | None = None
    overflows: list[Overflow] = field(default_factory=list)

    @property
    def is_too_far(self) -> bool:
        """Whether an output is further from ONNX Runtime's than allowed."""
        return self._has(CheckVerdict.TOO_FAR)

    @property
    def has_infinities(self) -> bool:
        """Whether an output has infinities or NaNs on the HTP."""
        arrays = [array for of_samples in self.outputs.values() for array in of_samples]
        return any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in arrays)

    @property
    def status(self) -> int:
        """The exit status: 0 if every check passed."""
        if self.is_too_far or self.overflows or self.loss is not None:
            return 1
        return NOTHING_COMPARED if self._has(CheckVerdict.NOTHING) else 0

    def _has(self, verdict: CheckVerdict) -> bool:
        return any(output.verdict is verdict for output in self.compared.values())

    def latency(self) -> dict[str, float]:
        """In milliseconds, from call to result, over all runs; and runs per second."""
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
        refuse_unknown_to_onnxruntime(order.op_packages)
        ran.compared = check_outputs(model, samples, ran.outputs, order.min_sqnr)
        if ran.is_too_far:
            ran.loss = find_loss(model, samples, order.min_sqnr, order.soc)
    if order.check_range:
        ran.overflows = check_range(model, samples)
        if not ran.overflows and ran.loss is None and ran.has_infinities:
            ran.loss = find_loss(model, samples, _INFINITE_DB, order.soc)
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
        order.source,
        None,
        qnn,
        soc=order.soc,
        queue_depth=order.depth,
        backend_config=order.config,
        op_packages=order.op_packages,
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


def refuse_unknown_to_onnxruntime(packages: Sequence[OpPackage]) -> None:
    """Refuse a comparison that ONNX Runtime cannot be part of."""
    if packages:
        names = ", ".join(package.name for package in packages)
        raise UnsupportedFeature(f"--check with --op-package: ONNX Runtime has no operators of {names}")


def save_outputs(path: Path, ran: RunResult) -> None:
    """One array per output; several samples are stacked."""
    arrays = {
        name: of_samples[0] if len(of_samples) == 1 else np.stack(of_samples)
        for name, of_samples in ran.outputs.items()
    }
    content = io.BytesIO()
    # As numpy.savez would, which takes an output that is called "file" for its own argument.
    with zipfile.ZipFile(content, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    write_file(path, content.getvalue())


def summaries(ran: RunResult) -> list[dict[str, Any]]:
    """Type, shape and range of each output."""
    rows = []
    for name, of_samples in ran.outputs.items():
        values = joined(of_samples)
        numbers = values.astype(np.float64) if values.dtype.kind in "biufV" else np.empty(0)  # text has none
        finite = numbers[np.isfinite(numbers)]
        rows.append(
            {
                "name": name,
                "type": str(of_samples[0].dtype),
                "shape": list(of_samples[0].shape),
                "min": float(finite.min()) if finite.size else None,
                "mean": float(finite.mean()) if finite.size else None,
                "max": float(finite.max()) if finite.size else None,
                "not_finite": int(numbers.size - finite.size),
            }
        )
    return rows
