"""``openhtp plan --seeds``: many arrivals of one scenario, and how sure the miss rates are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.progress import Progress

from openhtp.cli._terminal import errors_reported, progress_console, show, write_json
from openhtp.cli._text_table import TextTable

if TYPE_CHECKING:
    from openhtp.sweeping import Standing
    from openhtp.sweeping.monte_carlo import ClientMisses, ConfidenceInterval, MonteCarlo


_OF_MANY_RUNS = {"scenario", "seeds", "policy", "json_file", "gantt"}
"""Parameters of the command that mean something here; a picture in the terminal is not missed."""


def monte_carlo_command(
    ctx: typer.Context, scenario: Path, seeds: int, policy: str | None, json_file: Path | None
) -> None:
    """Run all seeds for each policy, and print a table each; refuses options that are about a single run."""
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if parameter.name not in _OF_MANY_RUNS and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"{parameter.opts[0]} is about one run; --seeds counts over many: give one of them"
            )
    # A single plan, which takes milliseconds, need not wait for this.
    from openhtp.sweeping.monte_carlo import monte_carlo

    policies = [name.strip() for name in policy.split(",")] if policy else [None]
    found: dict[str, MonteCarlo] = {}
    with errors_reported(), Progress(console=progress_console, transient=True) as bar:
        for name in policies:
            task = bar.add_task(f"planning, {name or 'given'} policy", total=seeds)

            def told(standing: Standing, task: object = task) -> None:
                bar.update(task, completed=standing.done)  # type: ignore[arg-type]

            found[name or "given"] = monte_carlo(scenario, seeds, policy=name, progress=told)
    document = {"policies": {name: each.to_json() for name, each in found.items()}}
    for name, each in found.items():
        show(_sheet(each, name))
    with errors_reported():
        write_json(json_file, document)


def _sheet(found: MonteCarlo, policy: str) -> TextTable:
    title = f"{found.scenario}: modelled, {policy} policy, {found.seeds:,} seeds, 95% confidence"
    sheet = TextTable(title, ("client", "requests", "missed", "miss rate", "runs with a miss"))
    for name, client in found.clients.items():
        sheet.add(name, *_cells(client))
    if len(found.clients) > 1:
        sheet.add("all", *_cells(found.together))
    return sheet


def _cells(client: ClientMisses) -> list[str]:
    return [f"{client.requests:,}", f"{client.missed:,}", _share(client.rate), _share(client.runs)]


def _share(interval: ConfidenceInterval) -> str:
    return f"{interval.share:.3%} ({interval.low:.3%} to {interval.high:.3%})"
