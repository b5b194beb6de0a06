"""``openhtp run``: a model on the emulated HTP: its outputs, how long it takes, and whether it is right."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openhtp.cli._config import ConfigFile, PerfProfileName, config_of
from openhtp.cli._dims import Dim, Freeze, parse_dims, parse_freeze
from openhtp.cli._inputs import Feeds, Mean, Std, normalization_of, samples_from
from openhtp.cli._run_report import as_json, print_outcome
from openhtp.cli._running import RunOrder, RunResult, carry_out, save_outputs
from openhtp.cli._terminal import (
    JsonFile,
    confirm_written,
    errors_reported,
    progress_console,
    write_file,
    write_json,
)
from openhtp.estimation import ZOO, zoo_model
from openhtp.frontend.probing import with_fixed_inputs
from openhtp.report.chrome import marks_to_chrome
from openhtp.report.lanes import trace_to_marks
from openhtp.session.options import soc_of
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
