"""``openhtp calibrate``: how near the modelled times are to published ones, and what they rest on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from openhtp.cli._terminal import JsonFile, TextTable, errors_reported, say, show, write_json
from openhtp.cost.model import Accuracy, accuracy_report

_SHOWN = ("SoC and precision", "family")


def calibrate(
    report: Annotated[
        bool, typer.Option("--report", help="Every SoC in each precision, and every family of networks.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Show how well modelled times agree with published ones, in families that the fit had not seen."""
    with errors_reported():
        calibration = accuracy_report()
        groups, ranks = calibration.groups, calibration.rank_correlation
        say(f"{calibration.times} published times of {calibration.networks} networks ({calibration.source}).")
        show(_table("Modelled against published times", [*groups["all"], *groups["precision"]]))
        if report:
            for name in _SHOWN:
                show(_table(f"By {name}", groups[name]))
        lowest = min(ranks, key=lambda soc: ranks[soc])
        say(f"Rank correlation by SoC is {ranks[lowest]:.3f} ({lowest}) or better.", "dim")
        say("Each family was predicted by a fit without it. The fit is tools/fit_cost_model.py.", "dim")
        document = {name: [asdict(row) for row in rows] for name, rows in groups.items()}
        write_json(
            json_file, {"source": calibration.source, "times": "modelled", "rank_correlation": ranks, **document}
        )


def _table(title: str, rows: list[Accuracy]) -> TextTable:
    sheet = TextTable(title, ("what", "times", "median error", "p90", "median bias", "in the range"))
    for row in rows:
        sheet.add(
            row.name,
            str(row.count),
            f"{row.median:.1%}",
            f"{row.p90:.1%}",
            f"{row.bias:+.1%}",
            f"{row.covered:.0%}",
        )
    return sheet
