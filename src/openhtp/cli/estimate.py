"""``openhtp estimate``: what a model takes on a chip. Every number it prints is modelled."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Annotated, Any

import typer

from openhtp.cli._config import ConfigFile, PerfProfileName, modelled_config
from openhtp.cli._inputs import Dim, Freeze, OpPackageNames, parse_dims, parse_freeze, registered_named
from openhtp.cli._terminal import JsonFile, TextTable, errors_reported, say, show, write_file, write_json
from openhtp.compiler.driver import program_for
from openhtp.core.errors import InvalidArgument
from openhtp.core.units import MIB
from openhtp.cost import Bound, Estimate, NumberFormat, OpTime, estimate as estimate_program
from openhtp.estimation import compiled, throughput, with_options
from openhtp.hw.catalog import find_soc
from openhtp.hw.clocks import FULL
from openhtp.hw.perf_profiles import MODELLED_PERF_PROFILE, PerfProfile, find_perf_profile
from openhtp.hw.soc import SocSpec
from openhtp.program.qnn_program import QnnProgram
from openhtp.report.page import estimate_to_html
from openhtp.runtime.objects.chosen_options import ExtensionsConfig

_PROFILES = ("burst", "high_performance", "balanced", "power_saver")
_NODES = 3


Precisions = Annotated[
    str | None,
    typer.Option(help="float, w8a8 or w8a16: what a float model would be quantized to; several side by side."),
]


def estimate(
    model: Annotated[str, typer.Argument(help="ONNX file, or a network of the zoo: zoo:resnet50.")],
    soc: Annotated[
        list[str] | None, typer.Option(help="Chip, e.g. SM8650; several side by side: SM8550,SM8650.")
    ] = None,
    precision: Precisions = None,
    top: Annotated[int, typer.Option(min=0, help="How many kernels to list.")] = 10,
    vtcm_mb: Annotated[int | None, typer.Option(help="VTCM that the graph may use.")] = None,
    hvx_threads: Annotated[int | None, typer.Option(help="HVX threads that the graph may use.")] = None,
    level: Annotated[int | None, typer.Option(help="Level of optimization, 1 to 3.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Inputs in one call, for the rate of inferences.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads that call, for the rate of inferences.")] = 1,
    dim: Dim = None,
    freeze: Freeze = None,
    op_package: OpPackageNames = None,
    perf_profile: PerfProfileName = None,
    config_file: ConfigFile = None,
    json_file: JsonFile = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a self-contained page.")] = None,
) -> None:
    """Estimate the time of one inference: total, range, what takes most (modelled; in burst mode unless told)."""
    with errors_reported(), registered_named(op_package):
        config, named = modelled_config(config_file, perf_profile)
        mode = find_perf_profile(named or MODELLED_PERF_PROFILE)
        named_chips = soc or ([] if config is None else list(config.device_options().values()))
        settings = list(itertools.product(_chips(named_chips), _formats(precision)))
        chosen = {"vtcm_mb": vtcm_mb, "hvx_threads": hvx_threads, "optimization_level": level}
        program = compiled(model, parse_dims(dim), parse_freeze(freeze))
        options = {name: value for name, value in chosen.items() if value is not None}
        program = with_options(program, ExtensionsConfig(config).graph(program.name, options))
        by_profile = [_by_profile(program, chip, form, mode.name) for chip, form in settings]
        results = [modes[mode.name] for modes in by_profile]
        rates = [
            throughput(program, chip, precision=form, batch=batch, threads=threads, perf_profile=mode.name)
            for chip, form in settings
        ]
        sheets = [_totals(Path(model).name, results, mode.name), _profiles(by_profile)]
        if batch > 1 or threads > 1:
            sheets.append(_rates(results, rates, batch, threads))
        if top:
            sheets.append(_kernels(results, top))
        notes = [*_notes(results), _likeness(results[0]), _conditions(mode)]
        for sheet in sheets:
            show(sheet)
        for note in notes:
            say(note, "dim")
        document = {
            "model": model,
            "times": "modelled",
            "unit": "us",
            "perf_profile": mode.name,
            "batch": batch,
            "threads": threads,
            "estimates": _estimates_json(by_profile, mode.name, rates),
        }
        write_json(json_file, document)
        if html is not None:
            write_file(html, estimate_to_html(document, f"{Path(model).name}: modelled time", notes))


def _chips(named: list[str]) -> list[SocSpec]:
    chips = [find_soc(name.strip()) for item in named for name in item.split(",") if name.strip()]
    if not chips:
        raise InvalidArgument("--soc names no chip, nor does a config; expected one, like SM8650")
    return chips


def _formats(words: str | None) -> list[NumberFormat | None]:
    """Precisions that were asked for, or the model's own."""
    named = dict.fromkeys([] if words is None else [word.strip() for word in words.split(",")])
    return [NumberFormat.parse(word) for word in named] or [None]


def _by_profile(program: QnnProgram, chip: SocSpec, asked: NumberFormat | None, named: str) -> dict[str, Estimate]:
    """One estimate for the profile that was asked for, and for a few to compare it with."""
    names = dict.fromkeys((named, *_PROFILES))
    compiled_for = program_for(program, chip)
    return {name: estimate_program(compiled_for, asked, find_perf_profile(name).clocks()) for name in names}


def _conditions(mode: PerfProfile) -> str:
    """The conditions for which the numbers hold."""
    clocks = mode.clocks()
    if clocks == FULL:
        return (
            "Modelled for a warm device in burst mode, nobody else on it; the range held 8 of 10 published times."
        )
    return (
        f"Modelled for a warm device, nobody else on it, in {mode.name}: core at {clocks.core:.0%}, bus at"
        f" {clocks.bus:.0%} of their highest clocks, which is estimated; published times, and so the range, are of"
        " burst."
    )


def _totals(name: str, results: list[Estimate], profile: str) -> TextTable:
    first = results[0]
    title = (
        f"{name}: {first.macs / 1e9:,.3g} GMAC, {first.weight_bytes / 1e6:,.3g} MB of weights;"
        f" modelled times, {profile}"
    )
    bounds = (f"by {bound.value}" for bound in Bound)
    columns = ["SoC", "precision", "total", "range", "per second", "launch", *bounds]
    least = min(result.energy_pj for result in results)
    energies = [f"{result.energy_pj / least:.2f}x" for result in results]
    # A column of equal ratios would say that the chips need as much, which no source states.
    differ = len(set(energies)) > 1
    columns += ["VTCM peak", "DDR read", "DDR written", *(["energy"] if differ else [])]
    sheet = TextTable(title, columns, ("precision",))
    for result, energy in zip(results, energies, strict=True):
        shares = result.bounds()
        sheet.add(
            result.soc + (" *" if result.extrapolated else ""),
            result.precision,
            _time(result.total_us),
            _span(result.low_us, result.high_us),
            f"{1e6 / result.total_us:,.0f}",
            _time(result.launch_us),
            *(f"{shares[bound] / result.total_us:.0%}" for bound in Bound),
            f"{result.vtcm_peak_bytes / MIB:.1f} MiB",
            f"{result.ddr_read_bytes / 1e6:,.3g} MB",
            f"{result.ddr_written_bytes / 1e6:,.3g} MB",
            *([energy] if differ else []),
        )
    return sheet


def _profiles(by_profile: list[dict[str, Estimate]]) -> TextTable:
    chips = _titles([next(iter(modes.values())) for modes in by_profile])
    sheet = TextTable("By perf profile (modelled; clocks and energies are estimates)", ("profile", *chips))
    least = _least_energy(by_profile)
    for name in by_profile[0]:
        cells = (
            f"{_time(modes[name].total_us)}, energy {modes[name].energy_pj / least:.2f}x" for modes in by_profile
        )
        sheet.add(name, *cells)
    sheet.note = "Energy of a run as a ratio to the least here. No source states an HTP's in joules."
    return sheet


def _rates(results: list[Estimate], busier: list[float], batch: int, threads: int) -> TextTable:
    busy = f"{threads} thread{'s' * (threads > 1)}, batches of {batch}"
    sheet = TextTable(
        "Inferences a second (modelled)", ("SoC", "precision", "one call after the other", busy, "gain")
    )
    for result, rate in zip(results, busier, strict=True):
        alone = 1e6 / result.total_us
        sheet.add(result.soc, result.precision, f"{alone:,.0f}", f"{rate:,.0f}", f"{rate / alone:.2f}x")
    return sheet


def _least_energy(by_profile: list[dict[str, Estimate]]) -> float:
    return min(result.energy_pj for modes in by_profile for result in modes.values())


def _titles(results: list[Estimate]) -> list[str]:
    """The label of a result: its chip, and its precision if there are several."""
    several = len({result.precision for result in results}) > 1
    return [f"{result.soc} {result.precision}" if several else result.soc for result in results]


def _kernels(results: list[Estimate], count: int) -> TextTable:
    """The kernels that take most on the first chip, and what they take on the others."""
    first = results[0]
    chips = _titles(results)
    columns = ("kernel", "op", *chips, "share", "HMX busy", "HVX busy", "memory busy", "bound by", "ONNX nodes")
    sheet = TextTable(f"What takes most on {chips[0]} (modelled)", columns, ("op", "bound by", "ONNX nodes"))
    places = {op.name: index for index, op in enumerate(first.ops)}
    for op in first.slowest(count):
        sheet.add(
            op.name,
            op.op,
            *(_time(result.ops[places[op.name]].us) for result in results),
            f"{op.us / first.total_us:.1%}",
            *(_time(busy) for busy in (op.hmx_us, op.hvx_us, op.memory_us)),
            op.bound.value,
            _named(op.nodes),
        )
    return sheet


def _named(nodes: tuple[str, ...]) -> str:
    more = len(nodes) - _NODES
    return ", ".join(nodes[:_NODES]) + (f" and {more} more" if more > 0 else "")


def _notes(results: list[Estimate]) -> list[str]:
    notes = dict.fromkeys(note for result in results for note in result.notes)
    return [f"* {note}." if "extrapolated" in note else f"Note: {note}." for note in notes]


def _likeness(result: Estimate) -> str:
    """How much is known about networks like this one."""
    near = result.nearest_family
    return (
        f"Of the published families its time is spent most like that of {near.name} (likeness"
        f" {near.likeness:.2f} of 1), whose times were missed by {near.median_error:.0%} at the median by a fit"
        " without them."
    )


def _time(us: float) -> str:
    if us <= 0:
        return "-"
    return f"{us / 1e3:,.2f} ms" if us >= 1000 else f"{us:,.3g} us"


def _span(low_us: float, high_us: float) -> str:
    if high_us >= 1000:
        return f"{low_us / 1e3:,.2f} to {high_us / 1e3:,.2f} ms"
    return f"{low_us:,.0f} to {high_us:,.0f} us"


def _estimates_json(
    by_profile: list[dict[str, Estimate]], chosen: str, rates: list[float]
) -> list[dict[str, Any]]:
    """Energies are ratios to the least of all; ``rates`` are those with batches and threads."""
    least = _least_energy(by_profile)
    return [_as_json(modes, chosen, least, rate) for modes, rate in zip(by_profile, rates, strict=True)]


def _as_json(profiles: dict[str, Estimate], chosen: str, least_energy: float, rate: float) -> dict[str, Any]:
    result = profiles[chosen]
    return {
        "soc": result.soc,
        "precision": result.precision,
        "total_us": round(result.total_us, 3),
        "low_us": round(result.low_us, 3),
        "high_us": round(result.high_us, 3),
        "inferences_per_second": round(rate, 3),
        "launch_us": result.launch_us,
        "extrapolated": result.extrapolated,
        "taken_from": result.taken_from,
        "nearest_family": dataclasses.asdict(result.nearest_family),
        "unseen_share": round(result.unseen_share, 4),
        "macs": result.macs,
        "weight_bytes": result.weight_bytes,
        "vtcm_peak_bytes": result.vtcm_peak_bytes,
        "ddr_read_bytes": result.ddr_read_bytes,
        "ddr_written_bytes": result.ddr_written_bytes,
        "bound_us": {bound.value: round(us, 3) for bound, us in result.bounds().items()},
        "perf_profiles": {
            name: {
                "total_us": round(estimate_at.total_us, 3),
                "energy_ratio": round(estimate_at.energy_pj / least_energy, 4),
            }
            for name, estimate_at in profiles.items()
        },
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
