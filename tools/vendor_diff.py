"""Compare every operation, alone and in random graphs, with the vendor's library and with exact arithmetic.

Run by ``make vendor-diff``. Exits with 1 if an operation breaks a promise of docs/vendor.md.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import track
from rich.table import Table

from openhtp.engine.ort import OrtEngine
from openhtp.ops import op_names
from openhtp.testing import oracle
from vendor_agreement.agreement import (
    VENDOR_SHARE,
    Agreement,
    Deviation,
    Summary,
    measure,
    read_deviations,
    summarize,
)
from vendor_agreement.differential import NotOffered, draw_case, rows_of, run_ours, run_vendor
from vendor_agreement.graph_report import GraphReport, compare_graphs
from vendor_agreement.random_graphs import Offered
from vendor_agreement.rows import Row

ROOT = Path(__file__).parent.parent
DEVIATIONS = ROOT / "tests" / "vendor" / "deviations.toml"
GRAPH_DEVIATIONS = DEVIATIONS.with_name("graph_deviations.toml")
PAGE = ROOT / "docs" / "vendor.md"
TABLE = ROOT / "docs" / "vendor-diff.md"
BEGIN, END = "<!-- deviations: begin (make vendor-diff) -->\n", "<!-- deviations: end -->\n"
GRAPHS_BEGIN = BEGIN.replace("deviations", "graph deviations")
GRAPHS_END = END.replace("deviations", "graph deviations")

_HEAD = (
    "operation",
    "kind",
    "rows",
    "set aside",
    "equal",
    "within 1",
    "most",
    "ours to exact: within 1",
    "most",
    "vendor to exact: within 1",
    "most",
)
_SHORT_HEAD = ("", "", "rows", "aside", "equal", "≤ 1", "most", "≤ 1", "most", "≤ 1", "most")


# The table needs this much, also where there is no terminal.
_WIDTH = 125


def compare(op: str, rounds: int, soc: str, engine: OrtEngine) -> Iterator[Agreement | Row]:
    """All outputs of an operation that both sides compute, and the rows that the vendor does not take."""
    for row in rows_of(op):
        for number in range(rounds):
            case = draw_case(row, number)
            try:
                theirs = run_vendor(case, soc)
            except NotOffered:
                yield row
                continue
            yield from measure(case, number, run_ours(case, engine), theirs)


def cells(line: Summary) -> list[str]:
    """A line of the table."""

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.2%}"

    def steps(value: float | None) -> str:
        if value is None:
            return "-"
        return f"{value:.1f}" if line.kind == "float" and value < 1000 else f"{value:.0f}"

    return [
        line.op,
        f"{line.kind} bit" if line.kind.isdigit() else line.kind,
        str(line.rows),
        str(line.set_aside or ""),
        share(line.equal),
        share(line.within_one),
        steps(line.most),
        share(line.exact_within_one),
        steps(line.exact_most),
        share(line.vendor_exact_within_one),
        steps(line.vendor_exact_most),
    ]


def deviations_text(deviations: Sequence[Deviation]) -> str:
    """The list for docs/vendor.md."""
    lines = []
    for deviation in deviations:
        names = ", ".join(f"`{op}`" for op in deviation.ops)
        limits = (
            [f"types {', '.join(f'`{types}`' for types in deviation.types)}"] if deviation.types != ("*",) else []
        )
        if deviation.kinds != ("*",):
            limits.append(" and ".join(f"{kind} bit" if kind.isdigit() else kind for kind in deviation.kinds))
        if deviation.odd_rounds_only:
            limits.append("unusual encodings")
        where = f" ({'; '.join(limits)})" if limits else ""
        lines.append(f"- {names}{where}: {deviation.reason}\n")
    return "".join(lines)


def table_text(lines: Sequence[Summary], soc: str, version: str, rounds: int, refused: int) -> str:
    """The page with all numbers."""
    rows = ["| " + " | ".join(_HEAD) + " |", "|---|---|" + "---:|" * (len(_HEAD) - 2)]
    rows += ["| " + " | ".join(cells(line)) + " |" for line in lines]
    return (
        "# Every operation against the vendor's library\n\n"
        f"Made by `make vendor-diff`: simulator {version} as {soc}, {rounds} rounds of random data and encodings"
        f" per row. {refused} rows were left out because the library refuses them. *Set aside* counts outputs"
        " that a known deviation (see [vendor.md](vendor.md)) keeps from being judged by the vendor's result;"
        " they are still compared with exact arithmetic. Distances are in steps (LSB); a step of a float is the"
        " distance between half-precision numbers of its size.\n\n" + "\n".join(rows) + "\n"
    )


def graphs_text(report: GraphReport, totals: Sequence[Summary], lines: Sequence[Summary]) -> str:
    """The section on random graphs."""
    ours, theirs, count = report.inside
    rows = ["| " + " | ".join(_HEAD[1:]) + " |", "|---|" + "---:|" * (len(_HEAD) - 2)]
    rows += ["| " + " | ".join(cells(line)[1:]) + " |" for line in totals]
    off = [line for line in lines if line.kind == "8" and line.within_one is not None]
    off = [line for line in off if line.within_one is not None and line.within_one < VENDOR_SHARE]
    listed = "; ".join(f"{line.op} {line.within_one:.1%}" for line in off) or "none"
    return (
        "\n## Random graphs\n\n"
        f"{report.graphs} graphs of {report.nodes} nodes (branches, joins, cuts and reshapes where shapes do not"
        f" fit), {report.operations} operations in {report.rows} choices of types; {report.refused} more were left"
        " out because the library does not compile them. Every value between nodes is an output too, so that each"
        " node is judged on the inputs that it really had: ours and the vendor's against exact arithmetic on"
        " either's own inputs, and one against the other after what different inputs explain is taken away."
        " Distances are in steps, rows of all operations together.\n\n" + "\n".join(rows) + "\n\n"
        "8-bit operations that are within one step of the vendor's in less than 99 %, by the vendor's own distance"
        f" from exact arithmetic: {listed}.\n\n"
        f"With values kept inside the graph, where nodes may be fused, {ours / count:.4%} of our outputs and"
        f" {theirs / count:.4%} of the vendor's stay what they were.\n"
    )


def write_lists(deviations: Sequence[Deviation], in_graphs: Sequence[Deviation]) -> None:
    """Write both lists of deviations into their page."""
    page = PAGE.read_text(encoding="utf-8")
    for begin, end, listed in ((BEGIN, END, deviations), (GRAPHS_BEGIN, GRAPHS_END, in_graphs)):
        before, rest = page.split(begin)
        _, after = rest.split(end)
        page = f"{before}{begin}{deviations_text(listed)}{end}{after}"
    PAGE.write_text(page, encoding="utf-8")


def compare_many(rows: Sequence[Row], graphs: int, soc: str, engine: OrtEngine, console: Console) -> GraphReport:
    """Random graphs of these rows."""
    report = GraphReport()
    steps = compare_graphs(Offered(rows), range(graphs), soc, engine)
    for report in track(steps, "random graphs", total=graphs, console=console, transient=True):  # noqa: B007
        pass
    return report


def main() -> int:
    """Compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="*", help="operations to compare; all by default")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of random data and encodings per row")
    parser.add_argument("--graphs", type=int, default=600, help="random graphs")
    parser.add_argument("--soc", default="SM8650", help="which chip the vendor's library simulates")
    parser.add_argument("--json", type=Path, help="also write the lines to this file")
    parser.add_argument("--write-docs", action="store_true", help="write docs/vendor-diff.md and docs/vendor.md")
    chosen = parser.parse_args()
    console = Console()
    console.width = max(console.width, _WIDTH)
    if not oracle.available():
        console.print("the vendor's library is not installed: pip install openhtp[vendor]", style="red")
        return 2
    version = oracle.device_for(chosen.soc).info()["library_version"]
    deviations, engine = read_deviations(DEVIATIONS), OrtEngine()
    found: list[Agreement] = []
    refused: set[Row] = set()
    for op in track(chosen.ops or op_names(), "comparing", console=console, transient=True):
        for item in compare(op, chosen.rounds, chosen.soc, engine):
            if isinstance(item, Agreement):
                found.append(item)
            else:
                refused.add(item)
    taken = {agreement.row: None for agreement in found}
    refused -= taken.keys()
    lines = summarize(found, deviations)
    show(console, lines, found, refused)
    in_graphs = read_deviations(GRAPH_DEVIATIONS)
    report = compare_many(tuple(taken), chosen.graphs, chosen.soc, engine, console)
    oracle.close()
    totals = summarize(report.found, (*deviations, *in_graphs), per_op=False)
    show_graphs(console, report, totals)
    if chosen.json:
        chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode({"operations": lines, "graphs": totals})))
    if chosen.write_docs:
        text = table_text(lines, chosen.soc, version, chosen.rounds, len(refused))
        per_op = summarize(report.found, (*deviations, *in_graphs))
        TABLE.write_text(text + graphs_text(report, totals, per_op), encoding="utf-8")
        write_lists(deviations, in_graphs)
    return 1 if report.misses or any(line.broken for line in (*lines, *totals)) else 0


def show_graphs(console: Console, report: GraphReport, totals: Sequence[Summary]) -> None:
    """Print what random graphs came to."""
    table = Table(title=f"The same in {report.graphs} random graphs of {report.nodes} nodes", box=SIMPLE)
    for index, name in enumerate(_SHORT_HEAD):
        table.add_column(name, justify="left" if index < 2 else "right", no_wrap=True)
    for line in totals:
        table.add_row(*cells(line), style="red" if line.broken else None)
    console.print(table)
    for line in totals:
        for promise in line.broken:
            console.print(f"in graphs ({line.kind}): {promise}", style="red")
    for seed, item in report.misses:
        console.print(
            f"graph {seed}: {item.row} is {item.error_steps:.1f} steps from exact arithmetic, the vendor's"
            f" {item.vendor_error_steps:.1f}",
            style="red",
        )


def show(console: Console, lines: Sequence[Summary], found: Sequence[Agreement], refused: set[Row]) -> None:
    """Print the table, then what it comes to."""
    table = Table(
        title="Distances in steps (LSB): ours to the vendor's, ours to exact, the vendor's to exact", box=SIMPLE
    )
    for index, name in enumerate(_SHORT_HEAD):
        table.add_column(name, justify="left" if index < 2 else "right", no_wrap=True)
    for line in lines:
        table.add_row(*cells(line), style="red" if line.broken else None)
    console.print(table)
    rows = Counter(agreement.kind for agreement in found)
    console.print(f"outputs compared: {dict(rows)}; rows that the vendor's library does not take: {len(refused)}")
    for line in lines:
        for promise in line.broken:
            console.print(f"{line.op} ({line.kind}): {promise}", style="red")
    if not any(line.broken for line in lines):
        console.print("every promise is kept", style="green")


if __name__ == "__main__":
    sys.exit(main())
