"""``openhtp sweep``: thousands of estimates, plans, quantizations or live runs, and what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress as Bar,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from typer.core import TyperGroup

from openhtp.cli._config import ConfigFile, modelled_config
from openhtp.cli._terminal import (
    JsonFile,
    TextTable,
    confirm_written,
    errors_reported,
    progress_console,
    say,
    show as show_sheet,
    write_file,
    write_json,
)
from openhtp.hw.catalog import find_soc
from openhtp.sweeping import Standing, SweepResult, load_results, load_study, sweep as run_sweep
from openhtp.sweeping.results import result_to_html
from openhtp.sweeping.study import PointResult

_CAUSES = 8


class _RunUnlessNamed(TyperGroup):
    """``openhtp sweep study.yaml`` is ``openhtp sweep run study.yaml``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command in if none is named."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunUnlessNamed,
    help="Run a study (openhtp sweep study.yaml), or show what one found.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

HtmlFile = Annotated[Path | None, typer.Option("--html", help="Write a report with plots and filters (one file).")]
ParquetFile = Annotated[Path | None, typer.Option("--parquet", help="Write all points as a Parquet file.")]
Best = Annotated[int, typer.Option("--best", min=1, help="How many of the best points to print.")]


def default_store(study: Path) -> Path:
    """``out/<study>.sweep``, or a folder of that name here that an earlier run has begun."""
    begun = Path(f"{study.stem}.sweep")
    return begun if begun.is_dir() else Path("out") / begun


@app.command()
def run(
    study: Annotated[Path, typer.Argument(help="Study file, YAML or JSON.")],
    store: Annotated[
        Path | None, typer.Option(help="Folder that keeps every finished point. Default: out/STUDY.sweep.")
    ] = None,
    on: Annotated[str, typer.Option(help="local, ray (the cluster here), or ray://host:port.")] = "local",
    workers: Annotated[int | None, typer.Option(min=1, help="How many at once; default: all cores.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Measure points that failed before once more.")] = False,
    json_file: JsonFile = None,
    html: HtmlFile = None,
    parquet: ParquetFile = None,
    count: Best = 5,
    config_file: ConfigFile = None,
) -> None:
    """Measure all points of a study that are not in the store yet; the same command goes on where one ended."""
    folder = store or default_store(study)
    with errors_reported():
        loaded = load_study(study, _fixed(config_file))
        try:
            with _bar() as bar:
                task = bar.add_task(loaded.name, total=None, failed=0)

                def told(standing: Standing) -> None:
                    bar.update(task, completed=standing.done, total=standing.total, failed=standing.failed)

                result = run_sweep(loaded, store=folder, on=on, workers=workers, retry=retry, progress=told)
        except KeyboardInterrupt:
            say(f"interrupted; what is finished is in {folder}, and the same command goes on from there")
            raise typer.Exit(130) from None
        _write(result, json_file, html, parquet)
    print_result(result, count)
    say(f"all points are in {folder}", style="dim")


def _fixed(config_file: Path | None) -> dict[str, str]:
    """The config's values for the chip: they hold for every point, unless the study varies them."""
    config, perf_profile = modelled_config(config_file)
    soc = {} if config is None else config.device_options()
    named = {"soc": find_soc(soc["soc"]).name} if soc else {}
    return named | ({} if perf_profile is None else {"perf_profile": perf_profile})


@app.command()
def show(
    store: Annotated[Path, typer.Argument(help="Folder of a study's points.")],
    json_file: JsonFile = None,
    html: HtmlFile = None,
    parquet: ParquetFile = None,
    count: Best = 10,
) -> None:
    """Show the best points, the Pareto front, which axis matters, and what failed."""
    with errors_reported():
        result = load_results(store)
        _write(result, json_file, html, parquet)
    print_result(result, count)


class _Rate(ProgressColumn):
    """Points per second, and failures."""

    def render(self, task: Task) -> Text:
        rate = f"{task.finished_speed or task.speed or 0:,.0f}/s"
        failed = task.fields["failed"]
        return Text(f"{rate}, {failed:,} failed" if failed else rate, style="red" if failed else "")


def _bar() -> Bar:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    return Bar(*columns, console=progress_console, transient=True)


def _write(result: SweepResult, json_file: Path | None, html: Path | None, parquet: Path | None) -> None:
    if json_file is not None:
        write_json(json_file, result.to_json())
    if html is not None:
        write_file(html, result_to_html(result))
    if parquet is not None:
        result.write_parquet(parquet)
        confirm_written(parquet)


def print_result(result: SweepResult, count: int) -> None:
    """Print the best points, the front, the effects and the failures."""
    study = result.study
    times = "measured" if study.measure == "live" else "modelled"
    say(
        f"{study.name}: {len(result.rows):,} points ({study.measure}, {times}),"
        f" {len(result.feasible):,} feasible, {len(result.failed):,} failed",
        "bold",
    )
    for objective in study.objectives:
        if result.feasible:
            word = "largest" if objective.largest else "smallest"
            rows = result.best(objective, max(1, count // len(result.groups())))
            show_sheet(_sheet(result, rows, f"{word} {objective.name}{_each(result)}"))
    if len(study.objectives) > 1 and result.front:
        title = f"Pareto front{_each(result)}: {len(result.front):,} points that nothing beats"
        rows = sorted(result.front, key=lambda row: [objective.loss(row) for objective in study.objectives])
        show_sheet(_sheet(result, rows[:count], title))
    _print_effects(result)
    for cause, times_met, first in result.causes()[:_CAUSES]:
        say(f"failed {times_met:,} times: {cause} (first: {_setting(result, first)})", "red", folded=False)
    left = len(result.causes()) - _CAUSES
    if left > 0:
        say(f"and {left} more causes; --json has them all", "red")


def _each(result: SweepResult) -> str:
    return f" for each {', '.join(result.study.each)}" if result.study.each else ""


def _sheet(result: SweepResult, rows: list[PointResult], title: str) -> TextTable:
    objectives = [objective.name for objective in result.study.objectives]
    sheet = TextTable(title, ("point", "setting", *objectives), ("setting",))
    for row in rows:
        numbers = (_cell(row.number(name)) for name in objectives)
        sheet.add(str(row.point.number), _setting(result, row), *numbers)
    return sheet


def _setting(result: SweepResult, row: PointResult) -> str:
    return ", ".join(f"{axis.name} {_cell(row.point.values[axis.name])}" for axis in result.study.varied)


def _cell(value: object) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def _print_effects(result: SweepResult) -> None:
    if not result.measured:
        return
    shares_by_metric = {
        name: {each.axis: each.share for each in effects} for name, effects in result.sensitivity().items()
    }
    sheet = TextTable("which axis matters (part of the spread)", ("axis", *shares_by_metric))
    for axis in result.study.varied:
        sheet.add(
            axis.name,
            *(f"{shares[axis.name]:.1%}" if axis.name in shares else "-" for shares in shares_by_metric.values()),
        )
    show_sheet(sheet)
