"""``openhtp quantize``: a float model into one for the HTP, and how much that costs in accuracy."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any

import numpy.typing as npt
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from openhtp.cli._config import ConfigFile, preset_of
from openhtp.cli._inputs import Dim, Freeze, Mean, Std, normalization_of, parse_dims, parse_freeze
from openhtp.cli._terminal import (
    JsonFile,
    TextTable,
    confirm_written,
    errors_reported,
    progress_console,
    say,
    show,
    write_json,
)
from openhtp.core import files
from openhtp.core.errors import InvalidArgument
from openhtp.frontend.calibration import read_samples
from openhtp.frontend.probing import LOWEST_MASK, with_fixed_inputs
from openhtp.frontend.quantize import (
    ACTIVATIONS,
    DEFAULT,
    METHODS,
    WEIGHTS,
    Quantized,
    quantize_model,
    refuse_quantized,
)
from openhtp.session.accuracy import (
    Closeness,
    NodeReport,
    OutputReport,
    compare_outputs,
    first_diverging,
    trace_nodes,
)
from openhtp.session.range_check import Overflow, check_range
from openhtp.zoo.feeds import random_feeds

_SHOWN = 12


ReportSoc = Annotated[
    str | None, typer.Option(help="Chip to emulate for the report; SM8650, unless a config names one.")
]


Calibration = Annotated[
    Path | None,
    typer.Option(help="Folder of .npz, .npy or pictures, one such file, a raw file, or an input list (.txt)."),
]
RandomSamples = Annotated[
    int, typer.Option(min=0, help="Calibrate on so many random samples: to measure, not to ship.")
]
WeightSteps = Annotated[
    str | None,
    typer.Option(
        "--restrict_quantization_steps",
        "--restrict-quantization-steps",
        help='Lowest and highest code of 16-bit weights: "-0x8000 0x7F7F" is what an HTP has.',
    ),
]


def quantize(
    model: Annotated[Path, typer.Argument(help="Float ONNX model.")],
    calibration: Calibration = None,
    random: RandomSamples = 0,
    mean: Mean = "0",
    std: Std = "1",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: MODEL.qdq.onnx.")] = None,
    activation: Annotated[str, typer.Option(help=f"One of {', '.join(ACTIVATIONS)}.")] = DEFAULT.activation,
    weight: Annotated[str, typer.Option(help=f"One of {', '.join(WEIGHTS)}.")] = DEFAULT.weight,
    per_channel: Annotated[
        bool, typer.Option(help="A scale per output channel of weights.")
    ] = DEFAULT.per_channel,
    restrict_quantization_steps: WeightSteps = None,
    method: Annotated[str, typer.Option(help=f"How ranges are found: {', '.join(METHODS)}.")] = DEFAULT.method,
    dim: Dim = None,
    freeze: Freeze = None,
    soc: ReportSoc = None,
    config_file: ConfigFile = None,
    trace_accuracy: Annotated[bool, typer.Option(help="Compare every op; name the first that diverges.")] = False,
    threshold: Annotated[float, typer.Option(help="Decibels below which an op counts as diverging.")] = 20.0,
    json_file: JsonFile = None,
) -> None:
    """Quantize a model for the HTP with onnxruntime's quantizer, and report its accuracy."""
    with errors_reported():
        config = preset_of(config_file, None)
        source = with_fixed_inputs(model, parse_dims(dim), parse_freeze(freeze))
        refuse_quantized(source)
        samples = _samples(source, calibration, random, mean, std)
        with _bar() as bar:
            task = bar.add_task("calibrating", total=len(samples))
            qdq = quantize_model(
                source,
                samples,
                activation=activation,
                weight=weight,
                per_channel=per_channel,
                method=method,
                restrict_quantization_steps=restrict_quantization_steps,
                progress=lambda done: bar.update(task, completed=done),
            )
            target = output or model.with_suffix(".qdq.onnx")
            files.write_file(target, qdq.model)
            checked = bar.add_task("running on the emulated HTP", total=len(samples))
            where: Any = {"soc": soc, "backend_config": config}
            reports = compare_outputs(
                source, qdq.model, samples, **where, progress=lambda done: bar.update(checked, completed=done + 1)
            )
        nodes = trace_nodes(qdq.prepared, qdq.model, samples, **where) if trace_accuracy else []
        overflows = check_range(source, samples) if trace_accuracy else []
    _print_made(target, qdq, len(source))
    show(_output_table(reports, len(samples)))
    if trace_accuracy:
        _print_trace(nodes, threshold)
        _print_overflows(overflows)
    document = _as_json(target, reports, nodes, threshold, trace_accuracy)
    document |= {"floats": dict(qdq.floats), "overflows": [dataclasses.asdict(each) for each in overflows]}
    write_json(json_file, document)


def _print_made(target: Path, qdq: Quantized, float_bytes: int) -> None:
    confirm_written(target, f"({len(qdq.model):,} bytes; float: {float_bytes:,})")
    if qdq.masks:
        say(f"{qdq.masks} constants that hide positions from attention brought to {LOWEST_MASK:g}")
    for name, why in qdq.floats.items():
        say(f"{name} stays in floats: {why}")


def _samples(
    source: bytes, calibration: Path | None, count: int, mean: str, std: str
) -> list[dict[str, npt.NDArray[Any]]]:
    if (calibration is None) == (count == 0):
        raise InvalidArgument("give --calibration PATH or, to try it out, --random 8")
    normalization = normalization_of(mean, std)
    if calibration is None:
        return random_feeds(source, count)
    return read_samples(calibration, source, normalization)


def _print_overflows(overflows: list[Overflow]) -> None:
    """Values that would overflow if the float model ran as it is."""
    for overflow in overflows[:_SHOWN]:
        say(f"as a float model: {overflow}")
    if len(overflows) > _SHOWN:
        say(f"and {len(overflows) - _SHOWN} more")


def _bar() -> Progress:
    columns = (TextColumn("{task.description:28}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=progress_console, transient=True)


def _output_table(reports: list[OutputReport], samples: int) -> TextTable:
    columns = ("output", "engine", "SQNR dB", "cosine", "max error")
    sheet = TextTable(f"against the float model, {samples} samples", columns, ("engine",))
    for report in reports:
        sheet.add(report.name, "quantized, CPU", *_cells(report.cpu))
        sheet.add("", "quantized, HTP", *_cells(report.htp))
    return sheet


def _cells(nearness: Closeness) -> tuple[str, str, str]:
    return f"{nearness.sqnr_db:.2f}", f"{nearness.cosine:.6f}", f"{nearness.max_error:.4g}"


def _print_trace(nodes: list[NodeReport], threshold: float) -> None:
    first = first_diverging(nodes, threshold)
    if first is None:
        lowest = min(node.htp.sqnr_db for node in nodes)
        say(f"no op diverges: all {len(nodes)} are above {threshold:g} dB (lowest {lowest:.2f})")
    else:
        say(
            f"first diverging op: {first.node} ({first.op_type}), {first.htp.sqnr_db:.2f} dB on the HTP,"
            f" {first.cpu.sqnr_db:.2f} on the CPU"
        )
    sheet = TextTable("where most is lost, in dB", ("op", "type", "HTP", "CPU", "lost in it"), ("type",))
    for node in sorted(nodes, key=lambda node: -node.lost_db)[:_SHOWN]:
        numbers = (node.htp.sqnr_db, node.cpu.sqnr_db, node.lost_db)
        sheet.add(node.node, node.op_type, *(f"{number:.2f}" for number in numbers))
    show(sheet)


def _as_json(
    target: Path, reports: list[OutputReport], nodes: list[NodeReport], threshold: float, traced: bool
) -> dict[str, Any]:
    first = first_diverging(nodes, threshold)
    document: dict[str, Any] = {"model": str(target), "outputs": [_report_to_json(report) for report in reports]}
    if traced:
        document["threshold_db"] = threshold
        document["first_diverging"] = None if first is None else _report_to_json(first)
        document["nodes"] = [_report_to_json(node) for node in nodes]
    return document


def _report_to_json(report: OutputReport | NodeReport) -> dict[str, Any]:
    """As plain data; JSON has no infinity, so an exact result has no SQNR."""

    def finite(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: finite(item) for key, item in value.items()}
        return None if isinstance(value, float) and not math.isfinite(value) else value

    cleaned: dict[str, Any] = finite(dataclasses.asdict(report))
    return cleaned
