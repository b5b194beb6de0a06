"""``openhtp run``: a model on the emulated HTP: its outputs, how long it takes, and whether it is right."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from openhtp.cli._config import ConfigFile, PerfProfileName, config_of
from openhtp.cli._dims import Dim, Freeze, parse_dims, parse_freeze
from openhtp.cli._inputs import Feeds, Mean, Std, normalization_of, samples_from
from openhtp.cli._running import RunOrder, RunResult, carry_out, save_outputs, summaries
from openhtp.cli._terminal import (
    JsonFile,
    confirm_written,
    errors_reported,
    progress_console,
    say,
    show,
    write_file,
    write_json,
)
from openhtp.cli._text_table import TextTable, figures
from openhtp.estimation import ZOO, zoo_model
from openhtp.frontend.probing import with_fixed_inputs
from openhtp.records.profile import ProfileEvent
from openhtp.report.chrome import marks_to_chrome
from openhtp.report.lanes import trace_to_marks
from openhtp.runtime.objects.step_names import StepOps
from openhtp.session.options import CPU, soc_of
from openhtp.session.profiling import PART
from openhtp.session.range_check import LARGEST, Overflow
from openhtp.zoo.feeds import random_feeds


def run(
    model: Annotated[str, typer.Argument(help="ONNX file, or a network of the zoo: zoo:mobilenet_v2.")],
    inputs: Annotated[
        Path | None,
        typer.Option("--input", "-i", help=".npz, .npy, picture, raw file, folder of them, or input list (.txt)."),
    ] = None,
    random: Annotated[int, typer.Option(min=1, help="So many random samples, if there is no --input.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the random samples.")] = 0,
    mean: Mean = "0",
    std: Std = "1",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Save the outputs (.npz).")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each sample; latencies are of all of them.")] = 10,
    asynchronous: Annotated[
        bool, typer.Option("--async", help="Queue the runs instead of waiting for each.")
    ] = False,
    depth: Annotated[int, typer.Option(min=1, max=300, help="With --async: runs that are queued at once.")] = 10,
    soc: Annotated[str | None, typer.Option(help="Chip to emulate; SM8650, unless a config says so.")] = None,
    perf_profile: PerfProfileName = None,
    config_file: ConfigFile = None,
    dim: Dim = None,
    freeze: Freeze = None,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time of a run goes.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace of the runs (ui.perfetto.dev).")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare with ONNX Runtime; status 1 if too far.")
    ] = False,
    min_sqnr: Annotated[float, typer.Option(help="With --check: least decibels of an output.")] = 20.0,
    check_range: Annotated[
        bool, typer.Option("--check-range", help="Look for what half precision cannot hold; status 1 if found.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Run a model on an emulated HTP: outputs, latency (measured on this computer), and checks."""
    with errors_reported():
        config, mode = config_of(config_file, perf_profile)
        chip = soc or soc_of(config)
        source = zoo_model(model) if model.startswith(ZOO) else Path(model)
        data = with_fixed_inputs(source, parse_dims(dim), parse_freeze(freeze))
        samples = _samples(data, inputs, random, seed, mean, std)
        order = RunOrder(
            source=data if isinstance(source, bytes) or dim or freeze else source,
            soc=chip,
            perf_profile=mode,
            config=config,
            repeat=repeat,
            depth=depth if asynchronous else None,
            profile=profile,
            trace=trace is not None,
            min_sqnr=min_sqnr if check else None,
            check_range=check_range,
        )
        with progress_console.status("running"):
            outcome = carry_out(order, data, samples)
        told = f"{len(samples)} random, seed {seed}" if inputs is None else f"{len(samples)} from {inputs}"
        print_outcome(outcome, f"{model} on {chip}, emulated; samples: {told}")
        _write(outcome, output, trace)
        write_json(json_file, {"model": model, **as_json(outcome)})
    if not outcome.holds:
        raise typer.Exit(1)


def _write(outcome: RunResult, output: Path | None, trace: Path | None) -> None:
    """The files that were asked for."""
    if output is not None:
        save_outputs(output, outcome)
        confirm_written(output)
    if trace is not None and outcome.trace is not None:
        write_file(trace, marks_to_chrome(trace_to_marks(outcome.trace)))


def _samples(model: bytes, inputs: Path | None, count: int, seed: int, mean: str, std: str) -> list[Feeds]:
    if inputs is None:
        return random_feeds(model, count, seed=seed)
    return samples_from(inputs, model, normalization_of(mean, std))


# What ``openhtp run`` prints.

_SHOWN = 12
_COLUMNS = ("part", "where", "nodes", "why not on the HTP")
_STEPS = 407  # the event under which a profile has its steps


def print_outcome(ran: RunResult, title: str) -> None:
    """All that there is to see."""
    say(title)
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
    if ran.order.check_range:
        _print_overflows(ran.overflows)


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
                "sqnr_db": finite(found.sqnr_db),
                "cosine": finite(found.cosine),
                "max_error": finite(found.max_error),
                "holds": order.min_sqnr is not None and found.sqnr_db >= order.min_sqnr,
            }
            for name, found in ran.compared.items()
        },
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
    found = ran.latency()
    columns = ("runs", "min ms", "median ms", "p90 ms", "max ms", "per second")
    sheet = TextTable(f"latency, {how} (measured on this computer, wall clock)", columns)
    times = (f"{found[key]:,.3g}" for key in ("min", "p50", "p90", "max"))
    sheet.add(f"{found['runs']:.0f}", *times, f"{found['per_second']:,.1f}")
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
    found = [whole]
    for part, steps in zip(parts, ran.steps, strict=True):
        if part.events:
            found += _profile_of(part.name, part.events, steps)
    return found


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
    """How far each output is from ONNX Runtime's."""
    sheet = TextTable(
        f"against ONNX Runtime, at least {least_db:g} dB", ("output", "SQNR dB", "cosine", "max error", "")
    )
    for name, found in ran.compared.items():
        holds = found.sqnr_db >= least_db
        verdict = Text("ok" if holds else "too far", style="green" if holds else "red")
        sheet.add(name, f"{found.sqnr_db:.1f}", f"{found.cosine:.6f}", f"{found.max_error:.4g}", verdict)
    return sheet


def _print_overflows(overflows: Sequence[Overflow]) -> None:
    """Values that become infinite on an HTP."""
    if not overflows:
        say(f"range: every value stays within the {LARGEST:,.0f} of half precision", "green")
    for overflow in overflows[:_SHOWN]:
        say(f"range: {overflow}", "red")
    if len(overflows) > _SHOWN:
        say(f"range: and {len(overflows) - _SHOWN} more", "red")
