"""``openhtp throughput-net-run``: threads that run models side by side, by the vendor's configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from openhtp.cli import _tool_options as opt
from openhtp.cli._terminal import JsonFile, TextTable, show, write_file, write_json
from openhtp.tools.throughput import ThroughputResult, read_test_case, throughput


def throughput_net_run(
    config: Annotated[Path, typer.Option("--config", help="JSON: backends, models, contexts, testCase.")],
    output: Annotated[Path | None, typer.Option("--output", help="File for the result, as JSON.")] = None,
    version: opt.Version = False,
    json_file: JsonFile = None,
) -> None:
    """Run threads side by side and report how long executions took. All times are measured on this computer."""
    with opt.tool_errors():
        case = read_test_case(config)
        with opt.logged(case.log_level), opt.progress() as tell:
            outcome = throughput(case, tell)
        document = _as_json(outcome)
        sheet = TextTable(
            f"TotalTime: {outcome.total_s * 1e6:.0f} us (measured)",
            ("name", "repeat", "average (us)", "min (us)", "max (us)"),
        )
        for row in document["results"]:
            sheet.add(row["name"], str(row["repeat"]), *(f"{row[key]:.1f}" for key in ("average", "min", "max")))
        show(sheet)
        if outcome.mse:
            errors = TextTable("mean squared error, the worst of all runs", ("thread:graph:output", "MSE"))
            for name, value in outcome.mse.items():
                errors.add(name, f"{value:.6g}")
            show(errors)
        if output is not None:
            write_file(output, json.dumps(document, indent=2) + "\n")
        write_json(json_file, document)


def _as_json(outcome: ThroughputResult) -> dict[str, Any]:
    return {
        "unit": "us",
        "times": "measured",
        "totalTime": outcome.total_s * 1e6,
        "results": [
            {
                "name": name,
                "repeat": times.repeat,
                "average": times.average_us,
                "min": times.min_us if times.repeat else 0.0,
                "max": times.max_us,
            }
            for name, times in outcome.times.items()
        ],
        "mse": outcome.mse,
    }


app = opt.plain_app(throughput_net_run)
