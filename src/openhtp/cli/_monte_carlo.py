"""``openhtp plan --seeds``: many arrivals of one scenario, and how sure the miss rates are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from openhtp.cli._terminal import console, errors_reported, write_json

if TYPE_CHECKING:
    from openhtp.sweep import Standing
    from openhtp.sweep.monte_carlo import ClientMisses, Interval, MonteCarlo


def monte_carlo_command(
    scenario: Path, seeds: int, policy: str | None, json_file: Path | None, *, of_one_run: Mapping[str, object]
) -> None:
    """Run all seeds for each policy, and print a table each; refuses options that show a single run."""
    for word in (word for word, given in of_one_run.items() if given):
        raise typer.BadParameter(f"--{word} shows one run; --seeds counts over many: give one of them")
    # A single plan, which takes milliseconds, need not wait for this.
    from openhtp.sweep.monte_carlo import monte_carlo

    policies = [name.strip() for name in policy.split(",")] if policy else [None]
    found: dict[str, MonteCarlo] = {}
    with errors_reported(), Progress(console=Console(stderr=True), transient=True) as bar:
        for name in policies:
            task = bar.add_task(f"planning, {name or 'given'} policy", total=seeds)

            def told(standing: Standing, task: object = task) -> None:
                bar.update(task, completed=standing.done)  # type: ignore[arg-type]

            found[name or "given"] = monte_carlo(scenario, seeds, policy=name, progress=told)
    document = {"policies": {name: each.to_json() for name, each in found.items()}}
    if json_file == Path("-"):
        typer.echo(json.dumps(document, indent=1))
        return
    write_json(json_file, document)
    for name, each in found.items():
        console.print(_table(each, name))


def _table(found: MonteCarlo, policy: str) -> Table:
    title = f"{found.scenario}: modelled, {policy} policy, {found.seeds:,} seeds, 95% confidence"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1))
    for column in ("client", "requests", "missed", "miss rate", "runs with a miss"):
        table.add_column(column, justify="left" if column == "client" else "right")
    for name, client in found.clients.items():
        table.add_row(name, *_cells(client))
    if len(found.clients) > 1:
        table.add_row("all", *_cells(found.together))
    return table


def _cells(client: ClientMisses) -> list[str]:
    return [f"{client.requests:,}", f"{client.missed:,}", _share(client.rate), _share(client.runs)]


def _share(interval: Interval) -> str:
    return f"{interval.share:.3%} ({interval.low:.3%} to {interval.high:.3%})"
