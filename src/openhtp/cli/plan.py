"""``openhtp plan``: what would these clients see on that device? Every number it prints is modelled."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress
from rich.text import Text

from openhtp.cli._config import ConfigFile, modelled_config
from openhtp.cli._inputs import OpPackageNames, registered_named
from openhtp.cli._terminal import (
    JsonFile,
    TextTable,
    complain,
    console,
    errors_reported,
    progress_console,
    say,
    say_lines,
    show,
    write_file,
    write_json,
)
from openhtp.core.units import duration_ns
from openhtp.planning import Advice, PlanResult, Scenario, load_scenario, optimize, plan as run_plan
from openhtp.planning.parsing import chips_for, expected_requests
from openhtp.planning.reading import file_text, rewritten
from openhtp.planning.result import ClientSummary, ExceededLimit, exceeded, read_limit, side_by_side
from openhtp.report.chrome import marks_to_chrome
from openhtp.report.gantt import marks_to_svg, marks_to_text, svg_to_png
from openhtp.report.timeline import marks_to_html
from openhtp.sched.policy import Policy, policy_named

if TYPE_CHECKING:
    from openhtp.sweeping import Standing
    from openhtp.sweeping.monte_carlo import ClientMisses, ConfidenceInterval, MonteCarlo


ShownPart = Annotated[
    str | None, typer.Option(help="START:END, as 0:500 or 1s:2s; files and pictures show only that part.")
]


def plan(
    ctx: typer.Context,
    scenario: Annotated[Path, typer.Argument(help="Scenario file, YAML or JSON.")],
    json_file: JsonFile = None,
    timeline: Annotated[Path | None, typer.Option(help="Write an interactive timeline (one HTML file).")] = None,
    svg: Annotated[
        Path | None, typer.Option("--picture", "--svg", help="Write a Gantt picture: SVG, or PNG by its ending.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace (chrome://tracing, Perfetto).")] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="strict, edf or fair, instead of the scenario's; several to compare: strict,fair"),
    ] = None,
    window: ShownPart = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with status 1 if a deadline is missed.")] = False,
    max_miss_rate: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Exit with status 1 if a client misses more than this share: 0.01."),
    ] = None,
    max_p99: Annotated[
        list[str] | None, typer.Option(help="Exit with status 1 if a client's p99 is longer: camera=20ms.")
    ] = None,
    search: Annotated[
        bool, typer.Option("--optimize", help="Find priorities, queue depths and a policy that hold deadlines.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option(help="With --optimize: write the scenario with the settings found to this file.")
    ] = None,
    gantt: Annotated[bool, typer.Option(help="Draw the clients in the terminal.")] = True,
    seeds: Annotated[int | None, typer.Option(help="Count misses over so many random arrivals.")] = None,
    config_file: ConfigFile = None,
    op_package: OpPackageNames = None,
) -> None:
    """Plan a scenario on the virtual clock: latencies, waiting, yields, deadlines, utilisation (modelled)."""
    if seeds is not None:
        monte_carlo_command(ctx, scenario, seeds, policy, json_file)
        return
    if write is not None and not search:
        raise typer.BadParameter("--write needs --optimize: there is nothing new to write")
    with errors_reported(), registered_named(op_package):
        loaded = _voting(load_scenario(scenario), modelled_config(config_file)[1])
        shown = _window(window, loaded)
        policies = [policy_named(name.strip()) for name in policy.split(",")] if policy else [loaded.policy]
        times = dict(read_limit(text, loaded) for text in max_p99 or ())
        advice = optimize(replace(loaded, policy=policies[0]), on_chip=chips_for(scenario)) if search else None
        chosen = _chosen(loaded, advice, policies)
        results = _run_all(chosen, advice, detail=any((json_file, timeline, svg, trace)), window=shown)
        rate = 0.0 if check and max_miss_rate is None else max_miss_rate
        over = [one for result in results for one in exceeded(result, max_miss_rate=rate, max_p99=times)]
        _print(results, advice, gantt=gantt)
        if rate is not None or times:
            print_exceeded(over)
        _write_pictures(results, timeline=timeline, svg=svg, trace=trace)
        if write is not None and advice is not None:
            _write_back(scenario, write, loaded, advice)
        write_json(json_file, {} if json_file is None else _document(results, over))
    if over or (advice is not None and not advice.holds):
        raise typer.Exit(1)


def _print(results: Sequence[PlanResult], advice: Advice | None, *, gantt: bool) -> None:
    if advice is not None:
        print_advice(advice)
    print_results(results, gantt=gantt)


def _voting(loaded: Scenario, perf_profile: str | None) -> Scenario:
    """The scenario with a config's votes, unless its device has votes of its own."""
    if perf_profile is None or loaded.perf_profile is not None:
        return loaded
    if loaded.soc is None:
        say(f"perf_profile {perf_profile} changes no time: the scenario names no soc whose clocks it could", "dim")
    return replace(loaded, perf_profile=perf_profile)


def _chosen(loaded: Scenario, advice: Advice | None, policies: Sequence[Policy]) -> list[Scenario]:
    """The scenarios to plan: the given one or its better settings, and the same with the other policies."""
    best = replace(loaded, policy=policies[0]) if advice is None else advice.scenario
    return [best, *(replace(best, policy=other) for other in policies[1:])]


def _run_all(
    scenarios: Sequence[Scenario], advice: Advice | None, *, detail: bool, window: tuple[float, float] | None
) -> list[PlanResult]:
    """Plan each scenario, with a bar for those that take longer than a moment."""
    detail = detail or _is_small(scenarios[0])
    results = []
    with Progress(console=progress_console, transient=True) as bar:
        for scenario in scenarios:
            if advice is not None and scenario is advice.scenario and not detail:
                results.append(PlanResult(advice.run))  # it was run already, and may have taken seconds
                continue
            task = bar.add_task(f"planning, {scenario.policy.name} policy", total=1.0)

            def progress(part: float, task: Any = task) -> None:
                bar.update(task, completed=part)

            results.append(run_plan(scenario, detail=detail, window=window, progress=progress))
    return results


def _document(results: Sequence[PlanResult], over: Sequence[ExceededLimit]) -> dict[str, Any]:
    """The first plan in the fixed format; with several, each of them under its policy too."""
    document = results[0].to_json()
    document["summary"]["exceeded"] = [dataclasses.asdict(one) for one in over]
    if len(results) > 1:
        document["summary"]["compared"] = {r.scenario.policy.name: r.summary() for r in results[1:]}
        document["policies"] = {r.scenario.policy.name: r.to_json() for r in results}
    return document


def _is_small(scenario: Scenario) -> bool:
    """Whether detail is cheap."""
    return sum(expected_requests(scenario)) < LARGE


def _window(text: str | None, scenario: Scenario) -> tuple[float, float] | None:
    if text is None:
        return None
    start, _, end = text.partition(":")
    first_ns, last_ns = (duration_ns(time, scenario.unit_ns) for time in (start or "0", end))
    if first_ns is None or last_ns is None:
        raise typer.BadParameter(f"--window {text!r}: expected START:END, for example 0:500 or 1s:2s")
    if first_ns >= last_ns:
        raise typer.BadParameter(f"--window {text!r}: START must be below END")
    return first_ns / scenario.unit_ns, last_ns / scenario.unit_ns


def _write_pictures(
    results: Sequence[PlanResult], *, timeline: Path | None, svg: Path | None, trace: Path | None
) -> None:
    if timeline is None and svg is None and trace is None:
        return
    scenario = results[0].scenario
    title = scenario.name
    if len(results) > 1:
        title += ": " + " and ".join(result.scenario.policy.name for result in results)
    marks, lanes = side_by_side(results)
    unit, unit_ns, vtcm = scenario.unit, scenario.unit_ns, scenario.device.vtcm_bytes
    if trace is not None:
        write_file(trace, marks_to_chrome(marks, modelled=True))
    if svg is not None:
        text = marks_to_svg(marks, title=title, unit=unit, unit_ns=unit_ns, vtcm_bytes=vtcm)
        write_file(svg, svg_to_png(text) if svg.suffix.lower() == ".png" else text)
    if timeline is not None:
        write_file(
            timeline,
            marks_to_html(
                marks,
                title=title,
                unit=unit,
                unit_ns=unit_ns,
                vtcm_bytes=vtcm,
                lanes=lanes,
                verdict=_verdicts(results),
            ),
        )

    for path in filter(None, (trace, svg, timeline)):
        _warn_of_size(path)


def _warn_of_size(path: Path) -> None:
    nbytes = path.stat().st_size
    if nbytes > _LARGE_FILE:
        words = f"{path} has {nbytes / 1e6:,.0f} MB and opens slowly; --window 0s:10s writes a part of the plan"
        complain(words, "yellow")


def _verdicts(results: Sequence[PlanResult]) -> str:
    """The verdict on each plan, by policy if there are several."""
    if len(results) == 1:
        return results[0].verdict
    return "; ".join(f"{result.scenario.policy.name}: {result.verdict}" for result in results)


def _write_back(scenario: Path, target: Path, loaded: Scenario, advice: Advice) -> None:
    if advice.holds:
        write_file(target, rewritten(file_text(scenario), loaded, advice.scenario))
    else:
        say(f"not written, as no setting was found under which all deadlines hold: {target}", "red")


# What ``openhtp plan`` prints: tables, the picture in the terminal, and what was found.

LARGE = 20_000
"""Scheduling events above which the terminal picture is left out: a column would stand for too many runs."""
# Above this size browsers and viewers take long to open a file.
_LARGE_FILE = 30_000_000
_COLUMNS = (
    "client",
    "priority",
    "runs",
    "p50",
    "p99",
    "max",
    "wait mean",
    "wait max",
    "yields",
    "deadline",
    "missed",
    "busy",
)
_BESIDE_PICTURE = 24


def print_results(results: Sequence[PlanResult], *, gantt: bool) -> None:
    """Tables of all plans, then their clients over time."""
    for result in results:
        show(_table(result))
        _print_footer(result)
        say(f"Verdict (modelled): {result.verdict}", "red" if result.missed else "green")
    scenario = results[0].scenario
    for note in scenario.notes:
        say(f"Note: {note}.", "dim")
    if gantt and all(result.run.phases is not None and result.run.events <= LARGE for result in results):
        width = max(20, min(100, console.width - _BESIDE_PICTURE))
        marks, _ = side_by_side(results)
        say_lines(marks_to_text(marks, unit=scenario.unit, unit_ns=scenario.unit_ns, width=width))


def print_advice(advice: Advice) -> None:
    """What the search found."""
    if advice.holds:
        say(f"All deadlines hold (modelled; {advice.tried} settings tried):", "green")
    else:
        say(f"No setting holds (modelled; {advice.tried} tried); below is the plan as it was given:", "red")
    for words in advice.words:
        say(f"  - {words}")


def print_exceeded(broken: Sequence[ExceededLimit]) -> None:
    """Print the limits that are exceeded, or that all are kept."""
    if not broken:
        say("all limits are kept (modelled)", "green")
    for one in broken:
        say(f"limit exceeded (modelled): {one}", "red")


def _table(result: PlanResult) -> TextTable:
    scenario = result.scenario
    title = f"{scenario.name}: modelled times in {scenario.unit}, {scenario.policy.name} policy"
    sheet = TextTable(title, _COLUMNS, ("priority",))
    for name, row in result.clients.items():
        sheet.add(name, *_cells(row))
    return sheet


def _cells(row: ClientSummary) -> list[str | Text]:
    missed = str(row.missed) if row.deadline is not None else "-"
    return [
        row.priority,
        str(row.runs),
        *(_number(value) for value in (row.p50, row.p99, row.max, row.waiting_mean, row.waiting_max)),
        str(row.yields),
        _number(row.deadline),
        Text(missed, style="red" if row.missed else ""),
        f"{row.busy:.1%}",
    ]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:,.4g}"


def _print_footer(result: PlanResult) -> None:
    unit = result.scenario.unit
    for name, row in result.clients.items():
        if row.ttft_p50 is not None:
            rate = "-" if row.tokens_per_s is None else f"{row.tokens_per_s:,.1f}"
            first = f"{_number(row.ttft_p50)} {unit} (p99 {_number(row.ttft_p99)})"
            say(f"{name} (modelled): first token after {first}, then {rate} tokens/s", "bold")
    used = result.run.utilisation()
    parts = ", ".join(f"{name.upper()} {value:.1%}" for name, value in used.items())
    end = result.scenario.in_unit(result.run.end_ns)
    switched = [
        f"{name} {row.loads} times, {_number(row.loading)} {result.scenario.unit}"
        for name, row in result.clients.items()
        if row.loads
    ]
    if switched:
        say(f"Graphs loaded by switching (modelled): {'; '.join(switched)}")
    say(f"Utilisation (modelled): {parts}, until {_number(end)} {result.scenario.unit}")


# ``openhtp plan --seeds``: many arrivals of one scenario, and how sure the miss rates are.

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
    results: dict[str, MonteCarlo] = {}
    with errors_reported(), Progress(console=progress_console, transient=True) as bar:
        for name in policies:
            task = bar.add_task(f"planning, {name or 'given'} policy", total=seeds)

            def told(standing: Standing, task: object = task) -> None:
                bar.update(task, completed=standing.done)  # type: ignore[arg-type]

            results[name or "given"] = monte_carlo(scenario, seeds, policy=name, progress=told)
    document = {"policies": {name: each.to_json() for name, each in results.items()}}
    for name, each in results.items():
        show(_sheet(each, name))
    with errors_reported():
        write_json(json_file, document)


def _sheet(outcome: MonteCarlo, policy: str) -> TextTable:
    title = f"{outcome.scenario}: modelled, {policy} policy, {outcome.seeds:,} seeds, 95% confidence"
    sheet = TextTable(title, ("client", "requests", "missed", "miss rate", "runs with a miss"))
    for name, client in outcome.clients.items():
        sheet.add(name, *_miss_cells(client))
    if len(outcome.clients) > 1:
        sheet.add("all", *_miss_cells(outcome.together))
    return sheet


def _miss_cells(client: ClientMisses) -> list[str]:
    return [f"{client.requests:,}", f"{client.missed:,}", _share(client.rate), _share(client.runs)]


def _share(interval: ConfidenceInterval) -> str:
    return f"{interval.share:.3%} ({interval.low:.3%} to {interval.high:.3%})"
