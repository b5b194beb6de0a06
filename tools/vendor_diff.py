"""Compare every operation with the vendor's library and with exact arithmetic; print and write what was found.

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
from openhtp.testing.agreement import Agreement, Deviation, Summary, measure, read_deviations, summarize
from openhtp.testing.differential import NotOffered, draw_case, rows_of, run_ours, run_vendor
from openhtp.testing.rows import Row
from openhtp.vendor import oracle

ROOT = Path(__file__).parent.parent
DEVIATIONS = ROOT / "tests" / "vendor" / "deviations.toml"
PAGE = ROOT / "docs" / "vendor.md"
TABLE = ROOT / "docs" / "vendor-diff.md"
BEGIN, END = "<!-- deviations: begin (make vendor-diff) -->\n", "<!-- deviations: end -->\n"

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


def write_docs(text: str, deviations: Sequence[Deviation]) -> None:
    """Write both pages."""
    TABLE.write_text(text, encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}{deviations_text(deviations)}{END}{after}", encoding="utf-8")


def main() -> int:
    """Compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="*", help="operations to compare; all by default")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of random data and encodings per row")
    parser.add_argument("--soc", default="SM8650", help="which chip the vendor's library simulates")
    parser.add_argument("--json", type=Path, help="also write the lines to this file")
    parser.add_argument("--write-docs", action="store_true", help="write docs/vendor-diff.md and docs/vendor.md")
    chosen = parser.parse_args()
    console = Console()
    console.width = max(console.width, _WIDTH)
    if not oracle.available():
        console.print("the vendor's library is not installed: pip install openhtp[vendor]", style="red")
        return 2
    version = oracle.process_for(chosen.soc).info.build_id
    deviations, engine = read_deviations(DEVIATIONS), OrtEngine()
    found: list[Agreement] = []
    refused: set[Row] = set()
    for op in track(chosen.ops or op_names(), "comparing", console=console, transient=True):
        for item in compare(op, chosen.rounds, chosen.soc, engine):
            if isinstance(item, Agreement):
                found.append(item)
            else:
                refused.add(item)
    oracle.close()
    refused -= {agreement.row for agreement in found}
    lines = summarize(found, deviations)
    show(console, lines, found, refused)
    if chosen.json:
        chosen.json.write_bytes(msgspec.json.format(msgspec.json.encode(lines)))
    if chosen.write_docs:
        write_docs(table_text(lines, chosen.soc, version, chosen.rounds, len(refused)), deviations)
    return 1 if any(line.broken for line in lines) else 0


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
