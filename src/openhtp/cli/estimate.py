"""``openhtp estimate``: what a model takes on a chip. Every number it prints is modelled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from openhtp.cli._dims import parse_dims
from openhtp.cli._terminal import console, errors_reported, write_json
from openhtp.core.errors import InvalidArgument
from openhtp.cost import Bound, Estimate, NumberFormat, OpTime
from openhtp.estimation import compiled
from openhtp.estimation import estimate as estimate_model
from openhtp.hw.catalog import find_soc

_STANDARD_OUTPUT = Path("-")
_NAME_WIDTH = 44


def estimate(
    model: Annotated[str, typer.Argument(help="ONNX file, or a network of the zoo: zoo:resnet50.")],
    soc: Annotated[list[str], typer.Option(help="Chip, e.g. SM8650; several side by side: SM8550,SM8650.")],
    precision: Annotated[
        str | None, typer.Option(help="float, w8a8 or w8a16: what a float model would be quantized to.")
    ] = None,
    top: Annotated[int, typer.Option(min=0, help="How many ops to list.")] = 10,
    dim: Annotated[list[str] | None, typer.Option(help="Fix an open dimension: --dim batch=1.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write everything to this file (-: only that).")
    ] = None,
) -> None:
    """Estimate the time of one inference in burst mode: total, range, what takes most (modelled)."""
    with errors_reported():
        chips = [find_soc(name.strip()) for item in soc for name in item.split(",") if name.strip()]
        if not chips:
            raise InvalidArgument("--soc names no chip; expected one, like SM8650")
        asked = None if precision is None else NumberFormat.parse(precision)
        program = compiled(model, parse_dims(dim or []))
        results = [estimate_model(program, chip, precision=asked) for chip in chips]
        document = {"model": model, "times": "modelled", "unit": "us", "estimates": [_as_json(r) for r in results]}
        if json_file == _STANDARD_OUTPUT:
            typer.echo(json.dumps(document, indent=1))
            return
        # A pipe has no width of its own; a table cut to 80 columns would be of no use there.
        wide = console if console.is_terminal else Console(width=120)
        wide.print(_totals(Path(model).name, results))
        if top:
            wide.print(_ops(results, top))
        for note in dict.fromkeys(note for result in results for note in result.notes):
            console.print(
                f"* {note}." if "extrapolated" in note else f"Note: {note}.",
                style="dim",
                highlight=False,
                soft_wrap=True,
            )
        console.print(
            "Modelled for a warm device in burst mode, nobody else on it; the range held 8 of 10 published times.",
            style="dim",
            highlight=False,
            soft_wrap=True,
        )
        write_json(json_file, document)


def _totals(name: str, results: list[Estimate]) -> Table:
    first = results[0]
    title = f"{name}: {first.macs / 1e9:,.3g} GMAC, {first.weight_bytes / 1e6:,.3g} MB of weights, modelled times"
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column("SoC")
    table.add_column("precision")
    for column in ("total", "range", "per second", "launch", *(f"by {bound.value}" for bound in Bound)):
        table.add_column(column, justify="right")
    for result in results:
        shares = result.bounds()
        table.add_row(
            result.soc + (" *" if result.extrapolated else ""),
            result.precision,
            _time(result.total_us),
            _span(result.low_us, result.high_us),
            f"{1e6 / result.total_us:,.0f}",
            _time(result.launch_us),
            *(f"{shares[bound] / result.total_us:.0%}" for bound in Bound),
        )
    return table


def _ops(results: list[Estimate], count: int) -> Table:
    """The ops that take most on the first chip, and what they take on the others."""
    first = results[0]
    table = Table(title=f"What takes most on {first.soc} (modelled)", box=box.SIMPLE_HEAD)
    for column in ("op", "name"):
        table.add_column(column)
    for result in results:
        table.add_column(result.soc, justify="right")
    for column in ("share", "HMX busy", "HVX busy", "memory busy"):
        table.add_column(column, justify="right")
    table.add_column("bound by")
    places = {op.name: place for place, op in enumerate(first.ops)}
    for op in first.slowest(count):
        table.add_row(
            op.op,
            op.name if len(op.name) <= _NAME_WIDTH else "…" + op.name[1 - _NAME_WIDTH :],
            *(_time(result.ops[places[op.name]].us) for result in results),
            f"{op.us / first.total_us:.1%}",
            *(_time(busy) for busy in (op.hmx_us, op.hvx_us, op.memory_us)),
            op.bound.value,
        )
    return table


def _time(us: float) -> str:
    if us <= 0:
        return "-"
    return f"{us / 1e3:,.2f} ms" if us >= 1000 else f"{us:,.3g} us"


def _span(low_us: float, high_us: float) -> str:
    if high_us >= 1000:
        return f"{low_us / 1e3:,.2f} to {high_us / 1e3:,.2f} ms"
    return f"{low_us:,.0f} to {high_us:,.0f} us"


def _as_json(result: Estimate) -> dict[str, Any]:
    return {
        "soc": result.soc,
        "precision": result.precision,
        "total_us": round(result.total_us, 3),
        "low_us": round(result.low_us, 3),
        "high_us": round(result.high_us, 3),
        "launch_us": result.launch_us,
        "extrapolated": result.extrapolated,
        "taken_from": result.taken_from,
        "macs": result.macs,
        "weight_bytes": result.weight_bytes,
        "bound_us": {bound.value: round(us, 3) for bound, us in result.bounds().items()},
        "notes": list(result.notes),
        "ops": [_op_json(op) for op in result.ops],
    }


def _op_json(op: OpTime) -> dict[str, Any]:
    times = {key: round(getattr(op, key), 3) for key in ("us", "hmx_us", "hvx_us", "memory_us", "overhead_us")}
    return {
        "name": op.name,
        "op": op.op,
        "kind": op.kind,
        "nodes": list(op.nodes),
        **times,
        "bound": op.bound.value,
    }
