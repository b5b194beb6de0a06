"""``openhtp board-check``: emulator against chip, in minutes, with a report that can be sent back."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from openhtp.abi.numbers import LIBRARY_NAME
from openhtp.cli._terminal import (
    STANDARD_OUTPUT,
    TextTable,
    complain,
    console,
    progress_console,
    say,
    show,
    write_json,
)
from openhtp.cli.doctor import Health, examine_installation
from openhtp.core.errors import QnnError
from openhtp.tools.board_check import (
    NETWORKS,
    OPERATORS,
    QUICK_NETWORKS,
    QUICK_OPERATORS,
    BoardCheck,
    BoardVerdict,
    ComparedNetwork,
    ComparedOperator,
    TriedAbility,
    for_queueing,
    open_board,
    without_paths,
)
from openhtp.vendor.library import require_library

_STEPS = ("installation and library", "operators", "networks", "latencies", "queue, priorities and votes")
_STYLES = {BoardVerdict.SAME: "green", BoardVerdict.DIFFERS: "red", BoardVerdict.REFUSED: "red"}


def board_check(
    library: Annotated[
        Path | None, typer.Option(help="libQnnHtp.so, or its folder; the one that doctor finds unless given.")
    ] = None,
    soc: Annotated[str | None, typer.Option(help="The chip that a simulator becomes; a board's is asked.")] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", "--json", help="Write the report, as JSON, to send back (-: only it)."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few operators and two networks.")] = False,
) -> None:
    """Compare the vendor's library with the emulator: results, latencies, queue. Exit 1: differs; 2: no start."""
    console.quiet = report == STANDARD_OUTPUT
    document: dict[str, Any] = {"quick": quick, "stopped": None}
    try:
        _run_steps(document, library, soc, quick)
    except _StepStopped as stop:
        step, why = stop.args
        document["stopped"] = {"step": step, "why": without_paths(why)}
        complain(f"error: board-check stopped at step {step} of {len(_STEPS)}, {_STEPS[step - 1]}: {why}", "red")
    write_json(report, document)
    if document["stopped"]:
        raise typer.Exit(2)
    if document["differing"]:
        raise typer.Exit(1)


class _StepStopped(Exception):
    """A step could not go on: its number, and why."""


@contextlib.contextmanager
def _step(number: int) -> Iterator[None]:
    title = f"step {number} of {len(_STEPS)}: {_STEPS[number - 1]}"
    say(title, "bold")
    try:
        with progress_console.status(f"{title}..."):
            yield
    except (QnnError, OSError) as error:
        raise _StepStopped(number, str(error)) from error


def _run_steps(document: dict[str, Any], library: Path | None, soc: str | None, quick: bool) -> None:
    with contextlib.ExitStack() as opened:
        with _step(1):
            document["installation"] = _installation()
            board = opened.enter_context(open_board(_library_file(library), soc))
            document |= board.facts
        _show_facts(board)
        with _step(2):
            operators = list(board.operators(QUICK_OPERATORS if quick else OPERATORS))
        document["operators"] = [dataclasses.asdict(row) for row in operators]
        show(_operator_table(operators, board))
        with _step(3):
            networks = list(board.networks(QUICK_NETWORKS if quick else NETWORKS))
        document["networks"] = [{**dataclasses.asdict(row), "within_range": row.is_within} for row in networks]
        show(_network_table(networks, board))
        with _step(4):
            show(_latency_table(networks, board))
        with _step(5):
            abilities = list(board.abilities(for_queueing(networks)))
        document["abilities"] = [dataclasses.asdict(row) for row in abilities]
        show(_ability_table(abilities))
    rows: list[ComparedOperator | ComparedNetwork | TriedAbility] = [*operators, *networks, *abilities]
    document["differing"] = sum(not row.verdict.is_fine for row in rows)
    counts = Counter(row.verdict.value for row in rows)
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    say(f"{board.device.soc}, {board.kind}: {words}.", "red" if document["differing"] else "green")


def _installation() -> list[dict[str, str]]:
    """Show the doctor's findings; a broken installation stops here, as any comparison would only show it again."""
    lines = list(examine_installation())
    for line in lines:
        if line.health is Health.BROKEN:
            raise _StepStopped(1, f"{line.what}: {line.detail} (what to do: {line.advice})")
    return [
        {"what": line.what, "state": line.health.value, "detail": without_paths(line.detail)}
        for line in lines
        if line.what != "runtime directory"  # names of devices are nobody else's business
    ]


def _library_file(named: Path | None) -> Path:
    if named is None:
        return require_library()
    return named / LIBRARY_NAME if named.is_dir() else named


def _show_facts(board: BoardCheck) -> None:
    sheet = TextTable("", ("", ""), ("",))
    sheet.add("library", f"{board.facts['library_version']}, {board.kind}")
    sheet.add("chip", board.device.soc)
    sheet.add("ready in", f"{board.ready_s:.2f} s (measured)")
    show(sheet)


def _verdict(verdict: BoardVerdict) -> Text:
    return Text(verdict.value, style=_STYLES.get(verdict, "yellow"))


def _operator_table(rows: Sequence[ComparedOperator], board: BoardCheck) -> TextTable:
    sheet = TextTable(
        f"Operators: emulator against {board.kind}",
        ("operator", "types", "verdict", "widest, steps", "within 1 step", "apart", "note"),
        ("types", "verdict", "note"),
    )
    for row in rows:
        is_compared = row.verdict in (BoardVerdict.SAME, BoardVerdict.DIFFERS)
        steps = "" if row.widest_steps is None else str(row.widest_steps)
        share = "" if row.within_one_step is None else f"{row.within_one_step:.1%}"
        apart = _decibels(row.apart_db) if is_compared else ""
        sheet.add(row.operator, row.types, _verdict(row.verdict), steps, share, apart, row.note)
    sheet.note = "Of 8-bit results, 99 % must be within a step; other differences must be 45 dB below the results."
    return sheet


def _decibels(value: float | None) -> str:
    return "equal" if value is None else f"{value:.1f} dB"


def _network_table(rows: Sequence[ComparedNetwork], board: BoardCheck) -> TextTable:
    sheet = TextTable(
        f"Networks: emulator against {board.kind}",
        ("network", "types", "verdict", "emulator to float", "library to float", "to each other", "note"),
        ("types", "verdict", "note"),
    )
    for row in rows:
        is_compared = row.measured_us is not None
        ratios = (row.emulator_db, row.library_db, row.apart_db)
        cells = [_decibels(value) if is_compared else "" for value in ratios]
        sheet.add(row.network, row.form, _verdict(row.verdict), *cells, row.note)
    sheet.note = "Both must be about as near to the float network: within 2 dB."
    return sheet


def _latency_table(rows: Sequence[ComparedNetwork], board: BoardCheck) -> TextTable:
    sheet = TextTable(
        f"Latencies on {board.device.soc}, in burst mode",
        ("network", "measured", "modelled", "modelled range", "measured to modelled", "within range"),
        ("within range",),
    )
    for row in rows:
        if row.measured_us is None or row.modelled_us is None:
            continue
        span = f"{row.modelled_low_us:,.0f} to {row.modelled_high_us:,.0f} us"
        ratio = f"{row.measured_us / row.modelled_us:,.2f}x"
        cells = (f"{row.measured_us:,.0f} us", f"{row.modelled_us:,.0f} us", span, ratio)
        sheet.add(row.network, *cells, ("yes" if row.is_within else "no") if board.is_chip else "no chip")
    sheet.note = (
        "Medians of single calls. No time decides the exit status: the range held 8 of 10 published times."
        if board.is_chip
        else f"The measured times are those of {board.kind}, not of a chip: they say nothing about the estimates."
    )
    return sheet


def _ability_table(rows: Sequence[TriedAbility]) -> TextTable:
    sheet = TextTable("Tried on the library", ("what", "verdict", "answer"), ("verdict", "answer"))
    for row in rows:
        sheet.add(row.what, _verdict(row.verdict), row.answer)
    return sheet
