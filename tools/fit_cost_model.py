"""Fits the cost model on published latencies, says how well it predicts networks it has not seen, and writes both.

    python tools/fit_cost_model.py extract FOLDER     FOLDER has latency*.csv and graphs/*.onnx.gz
    python tools/fit_cost_model.py fit                writes parameters.toml and docs/cost-model.md
    python tools/fit_cost_model.py report             writes only the table by SoC and precision

The first step is needed only for new data: its tables are in the repository.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cost_fit import Fit
from cost_prior import PADDING, WORDS, factors, is_slow_in_half
from openhtp.compiler.sizes import KernelSize
from openhtp.compiler.vtcm.place import place
from openhtp.core.opcall import HELPER_KINDS, MATRIX_KINDS, VECTOR_KINDS
from openhtp.core.precision import NumberFormat
from openhtp.cost.amounts import Amounts, Speeds
from openhtp.cost.rates import Parameters, SocRates, find_rates, fitted_parameters, parameters_from
from openhtp.cost.timeline import run
from openhtp.hw.catalog import find_soc
from published import (
    SOURCE,
    Latency,
    accuracy as accuracy_file,
    held_out_times,
    published_kernels,
    published_latencies,
)
from published.accuracy import accuracy, rank_correlation
from published_latencies import DATA, extract

ROOT = Path(__file__).parent.parent
PARAMETERS = ROOT / "src/openhtp/cost/parameters.toml"
PAGE = ROOT / "docs/cost-model.md"
REPORT_BEGIN, REPORT_END = "<!-- report: begin -->", "<!-- report: end -->"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    reading = commands.add_parser("extract")
    reading.add_argument("folder", type=Path)
    commands.add_parser("fit")
    commands.add_parser("report")
    given = parser.parse_args()
    if given.command == "extract":
        for line in extract(given.folder):
            print("not imported:", line)
    elif given.command == "fit":
        fit_and_write()
        write_report()
    else:
        write_report()


def fit_and_write() -> None:
    """Fit, cross-validate, and write the parameters and the page."""
    kernels, rows = published_kernels(), published_latencies()
    fit = Fit(kernels, rows)
    x = fit.solve(np.ones(len(rows), bool))
    held_out = fit.cross_validate()
    bands = bands_of(rows, held_out)
    text = _toml(fit, x, bands | {"extrapolated": (0.5, 2.0)})
    times, _ = fit.predict(x)
    fitted = np.log(times / fit.measured)
    # What moving to another SoC adds, on top of not knowing the network either.
    moved = transfer_errors(parameters_from(tomllib.loads(text)), kernels, rows) - fitted + held_out
    text = _toml(fit, x, bands | {"extrapolated": _band(moved)})
    PARAMETERS.write_text(text, encoding="utf-8")
    _write_held_out(rows, held_out)
    tables = _tables(fit, fitted, held_out, moved)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{tables}{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(tables)


def write_report() -> None:
    """The table by SoC and precision, and how many times a range holds that was drawn without their family."""
    fitted_parameters.cache_clear()
    held_out_times.cache_clear()
    rows = published_latencies()
    errors = np.log(np.array(held_out_times()) / np.array([row.us for row in rows]))
    accuracy_file.write_report()
    lowest = min(rank_correlation().values())
    inside = covered(rows, errors)
    by_word = {word: inside[[row.precision == word for row in rows]].mean() for word in WORDS}
    text = (
        f"Ranges that were drawn without a family hold {inside.mean():.0%} of its times"
        f" ({', '.join(f'{word} {share:.0%}' for word, share in by_word.items())}). The rank"
        f" correlation of held-out and measured times is {lowest:.3f} or better on every SoC.\n\n"
        "| SoC and precision | times | median error | p90 | in the range |\n|---|---:|---:|---:|---:|\n"
    )
    for row in accuracy()["SoC and precision"]:
        text += f"| {row.name} | {row.count} | {row.median:.1%} | {row.p90:.1%} | {row.covered:.0%} |\n"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(REPORT_BEGIN)
    PAGE.write_text(f"{before}{REPORT_BEGIN}\n{text}{REPORT_END}{rest.partition(REPORT_END)[2]}", encoding="utf-8")


def transfer_errors(
    parameters: Parameters, kernels: Mapping[str, Sequence[KernelSize]], rows: Sequence[Latency]
) -> np.ndarray:
    """Errors for every SoC if its own times were not published: what an extrapolation is worth."""
    guessed = {soc: _guessed_rates(soc, parameters) for soc in {row.soc for row in rows}}
    alike: dict[tuple[str, str, int], list[int]] = {}
    for number, row in enumerate(rows):
        alike.setdefault((row.network, row.precision, find_soc(row.soc).vtcm_bytes), []).append(number)
    errors = np.zeros(len(rows))
    for (network, word, vtcm_bytes), numbers in alike.items():
        net, formats = kernels[network], [NumberFormat(word)] * len(kernels[network])
        amounts = Amounts.of(net, formats, place(net, formats, vtcm_bytes), parameters)
        rates = [guessed[rows[number].soc] for number in numbers]
        line = run(amounts.busy(rates, [Speeds()] * len(rates)), amounts.tiles, amounts.free_after)
        totals = line.total + np.array([each.launch_us for each in rates])
        errors[numbers] = np.log(totals / np.array([rows[number].us for number in numbers]))
    return errors


def _guessed_rates(name: str, parameters: Parameters) -> SocRates:
    """What a SoC would be taken to do if none of its times were published."""
    others = {soc: rates for soc, rates in parameters.socs.items() if soc != name}
    # Under a number of its own, or a twin under another name would not be an extrapolation.
    soc = replace(find_soc(name), soc_model=-1, same_die="")
    return find_rates(soc, replace(parameters, socs=others)).rates


def _write_held_out(rows: Sequence[Latency], errors: np.ndarray) -> None:
    """What fits that had not seen a network's family said of it, for ``openhtp calibrate --report``."""
    lines = ["network,precision,soc,modelled_us"]
    for row, error in zip(rows, errors, strict=True):
        lines.append(f"{row.network},{row.precision},{row.soc},{row.us * np.exp(error):.4g}")
    (DATA / "held_out.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def bands_of(rows: Sequence[Latency], errors: np.ndarray) -> dict[str, tuple[float, float]]:
    """The range of each precision, from errors of families that the fits had not seen."""
    families = np.array([row.family for row in rows])
    chosen = {word: np.array([row.precision == word for row in rows]) for word in WORDS}
    return {word: _band(errors[mask], families[mask]) for word, mask in chosen.items()}


def covered(rows: Sequence[Latency], errors: np.ndarray) -> np.ndarray:
    """Which times lie in a range that was drawn without their family: nested, as an outsider would see it."""
    families = np.array([row.family for row in rows])
    inside = np.zeros(len(rows), bool)
    for family in sorted(set(families)):
        others = [row for row, kept in zip(rows, families != family, strict=True) if kept]
        bands = bands_of(others, errors[families != family])
        for number in np.flatnonzero(families == family):
            low, high = bands[rows[number].precision]
            inside[number] = low <= np.exp(-errors[number]) <= high
    return inside


def _band(errors: np.ndarray, families: np.ndarray | None = None) -> tuple[float, float]:
    """Tenth and ninetieth percentile of measured over modelled time, half by times and half by families."""
    weights = np.ones(len(errors))
    if families is not None:
        names, inverse, counts = np.unique(families, return_inverse=True, return_counts=True)
        weights = 0.5 / len(errors) + 0.5 / (len(names) * counts[inverse])
    order = np.argsort(-errors)
    ratios, reached = np.exp(-errors[order]), np.cumsum(weights[order]) / weights.sum()
    low, high = np.interp([0.1, 0.9], reached, ratios)
    return min(1.0, float(low)), max(1.0, float(high))


def _toml(fit: Fit, x: np.ndarray, bands: dict[str, tuple[float, float]]) -> str:
    def value(name: str) -> float:
        return float(np.exp(x[fit.prior.index[name]]))

    def price(amount: str, word: str) -> float:
        """What the factors that belong to no SoC make together."""
        soc = fit.socs[0]
        named = [(name, power) for name, power in factors(amount, word, soc) if not name.endswith(f".{soc}")]
        named = [(name, power) for name, power in named if name != "half"]
        return float(np.prod([value(name) ** power for name, power in named]))

    def table(name: str, kinds: Iterable[str]) -> list[str]:
        return [f"[{name}]", *(f"{kind} = {_inline({w: price(kind, w) for w in WORDS})}" for kind in kinds), ""]

    lines = [
        "# The cost model's parameters. Written by tools/fit_cost_model.py; do not edit.",
        f"# Fitted on published latencies ({SOURCE}).",
        "",
        f"spilled = {value('spill'):.4g}",
        f"streamed = {value('streamed'):.4g}",
        f"edge_us = {value('edge'):.4g}",
        f"scalar_us = {value('scalar'):.4g}",
        f"group_us = {value('groups'):.4g}",
        f"op_us = {_inline({word: value(f'op.{word}') for word in WORDS})}",
        f"matrix_us = {_inline({word: value(f'matrix.{word}') for word in WORDS})}",
        f"padding = {_inline({name: getattr(PADDING, name) for name in ('rows', 'channels', 'moved')})}",
        "",
        "# Measured over modelled time, 10th and 90th percentile, where the answer was kept out of the fit.",
        "[band]",
        *(f"{name} = [{low:.3f}, {high:.3f}]" for name, (low, high) in bands.items()),
        "",
        "# Factors to the time of a plain convolution with as many multiply-accumulates.",
        *table("matrix", MATRIX_KINDS),
        "# Microseconds for a million elements at a vector speed of 1.",
        *table("vector", (*VECTOR_KINDS, *HELPER_KINDS)),
    ]
    for soc in fit.socs:
        tmacs = {"w8a8": value(f"w8a8.{soc}"), "w8a16": value(f"w8a8.{soc}") * value(f"w8a16.{soc}")}
        if find_soc(soc).fp16:
            tmacs = {"float": value(f"float.{soc}"), **tmacs}
        lines += [
            f"[soc.{soc}]",
            f"launch_us = {value(f'launch.{soc}'):.4g}",
            f"tmacs = {_inline(tmacs)}",
            f"vector_speed = {value(f'speed.{soc}'):.4g}",
            f"ddr_gbs = {value(f'ddr.{soc}'):.4g}",
            *([f"half_cost = {value('half'):.4g}"] if is_slow_in_half(soc) else []),
            "",
        ]
    return "\n".join(lines[:-1]) + "\n"


def _inline(values: dict[str, float]) -> str:
    return "{ " + ", ".join(f"{name} = {number:.4g}" for name, number in values.items()) + " }"


def _tables(fit: Fit, fitted: np.ndarray, held_out: np.ndarray, moved: np.ndarray) -> str:
    rows = fit.rows
    text = (
        f"{len(rows)} times of {len({row.network for row in rows})} networks on {len(fit.socs)} SoCs"
        f" ({SOURCE}); {len(fit.start)} parameters.\n\n"
        "| what | times | median error | p90 | median bias |\n|---|---:|---:|---:|---:|\n"
    )
    text += _line("**families kept out of the fit**", held_out) + _line("all in the fit", fitted)
    text += _line("families kept out, on a SoC without published times", moved)
    families = np.array([row.family for row in rows])
    medians = [np.median(np.abs(np.expm1(held_out[families == name]))) for name in sorted(set(families))]
    text += f"\nWith every family counting once, the mean of their medians is {np.mean(medians):.1%}.\n"
    text += "\nFamilies kept out of the fit:\n\n"
    for heading, key in (
        ("precision", lambda row: row.precision),
        ("SoC", lambda row: row.soc),
        ("family", lambda row: row.family),
    ):
        names = [key(row) for row in rows]
        text += f"| {heading} | times | median error | p90 | median bias |\n|---|---:|---:|---:|---:|\n"
        for name in sorted(set(names)):
            text += _line(name, held_out[[each == name for each in names]])
        text += "\n"
    return text.rstrip("\n") + "\n"


def _line(name: str, errors: np.ndarray) -> str:
    size = np.abs(np.expm1(errors))
    numbers = f"{np.median(size):.1%} | {np.quantile(size, 0.9):.1%} | {np.expm1(np.median(errors)):+.1%}"
    return f"| {name} | {len(errors)} | {numbers} |\n"


if __name__ == "__main__":
    main()
