"""``openhtp bench``: measurements on this machine, each against something else in the same run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.progress import Progress as Bar
from rich.table import Table

import openhtp as htp
from openhtp import zoo
from openhtp.bench import loading, parallelism, planning, preemption, queueing
from openhtp.bench import networks as whole
from openhtp.bench.subjects import NETWORKS
from openhtp.cli._bench_load import NOT_PREPARED, load_table
from openhtp.cli._bench_networks import HOW_TO_INSTALL, networks_table
from openhtp.cli._terminal import JsonFile, console, errors_reported, write_json

R = TypeVar(
    "R",
    queueing.Result,
    preemption.PreemptResult,
    whole.NetworksResult,
    planning.PlanResult,
    loading.LoadResult,
    parallelism.ParallelResult,
)

app = typer.Typer(help="Measure this machine; every number is of the wall clock.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Measure this machine; every number is of the wall clock."""


@app.command("async")
def async_(
    json_file: JsonFile = None,
    peers: Annotated[bool, typer.Option(help="Compare with onnxruntime's run_async and OpenVINO.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Repeats of every piece; medians are shown.")] = 5,
    network: Annotated[
        list[str] | None, typer.Option(help="Only these: trivial, small_cnn, mobilenet_v2.")
    ] = None,
) -> None:
    """Compare sync with async execution by queue depth, kind of memory and client work."""
    chosen = tuple(network) if network else ("trivial", "small_cnn", "mobilenet_v2")
    unknown = [name for name in chosen if name not in ("trivial", "small_cnn", "mobilenet_v2")]
    if unknown:
        raise typer.BadParameter(f"unknown network {unknown[0]!r}")
    with errors_reported():
        result = _last(queueing.run(rounds=rounds, networks=chosen))
        compared = _compare_peers(rounds) if peers else {}
    console.print(_rows(result))
    console.print(_figures(result))
    if compared:
        console.print(_peers(compared))
    _warn_of_noise(result)
    write_json(json_file, {**msgspec.to_builtins(result), "peers_us": compared})


@app.command()
def preempt(
    json_file: JsonFile = None,
    network: Annotated[str, typer.Option(help="The long graph: resnet50, resnet18, mobilenet_v2...")] = "resnet50",
    samples: Annotated[int, typer.Option(min=10, help="Urgent executions.")] = 600,
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of runs with and without yield points.")] = 160,
) -> None:
    """Measure how soon an urgent graph starts while a long one runs, and what yield points cost."""
    with errors_reported():
        result = _last(preemption.run(network, samples=samples, rounds=rounds))
    table = Table(title=f"pre-emption of {network} (measured, wall clock)", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("one run of the long graph, undisturbed", f"{result.latency_ms:.2f} ms")
    table.add_row("steps (a yield point after each)", str(result.steps))
    table.add_row("submit to start of the urgent graph, p50", f"{result.wait_ms_p50:.2f} ms")
    table.add_row("  p99", f"{result.wait_ms_p99:.2f} ms ({result.wait_share_p99:.1%} of the long run)")
    table.add_row("  max", f"{result.wait_ms_max:.2f} ms")
    table.add_row("  p99 of all runs, disturbed or not", f"{result.wait_share_p99_all:.1%} of the long run")
    left_out = result.samples_all - result.samples
    table.add_row("runs left out: the machine was taken away", f"{left_out} of {result.samples_all}")
    table.add_row("runs that were pre-empted", f"{result.preempted} of {result.samples}")
    table.add_row("cost of yield points to the long graph alone", f"{result.yield_points_cost:+.1%}")
    console.print(table)
    write_json(json_file, msgspec.to_builtins(result))


@app.command()
def parallel(
    json_file: JsonFile = None,
    network: Annotated[str, typer.Option(help="A network of the zoo.")] = "resnet50",
    rounds: Annotated[int, typer.Option(min=1, help="Repeats of both ways; medians are shown.")] = 15,
) -> None:
    """Measure what it brings to compute two graphs side by side rather than one after the other."""
    if network not in zoo.MODELS:
        raise typer.BadParameter(f"unknown {network!r}; expected one of {', '.join(zoo.MODELS)}")
    with errors_reported():
        result = _last(parallelism.run(network, rounds=rounds))
    title = f"two graphs of {network}, {result.processors} processors (measured, wall clock)"
    table = Table(title=title, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("one after the other", f"{result.in_turns_ms:.2f} ms")
    table.add_row("side by side", f"{result.side_by_side_ms:.2f} ms")
    table.add_row("ratio, median of the rounds", f"{result.speedup:.2f}x")
    console.print(table)
    _warn_of_noise(result)
    write_json(json_file, msgspec.to_builtins(result))


@app.command()
def plan(
    json_file: JsonFile = None,
    rounds: Annotated[int, typer.Option(min=1, help="Repeats; medians are shown.")] = 15,
) -> None:
    """Measure how many scheduling events the planner handles per second, beside SimPy."""
    with errors_reported():
        result = _last(planning.run(rounds=rounds))
    table = Table(
        title="planner: three cameras, one LLM (measured, processor time of one core)", show_header=False
    )
    table.add_column()
    table.add_column(justify="right")
    table.add_row("scheduling events per second", f"{result.events_per_second:,.0f}")
    table.add_row("executions per second", f"{result.runs_per_second:,.0f}")
    if result.simpy_runs_per_second:
        table.add_row("SimPy: executions per second", f"{result.simpy_runs_per_second:,.0f}")
        table.add_row("ratio to SimPy", f"{result.ratio_to_simpy:.2f}x")
    else:
        table.add_row("SimPy", "not installed: pip install 'openhtp\\[bench]'")
    console.print(table)
    _warn_of_noise(result)
    write_json(json_file, msgspec.to_builtins(result))


@app.command()
def networks(
    json_file: JsonFile = None,
    vendor: Annotated[bool, typer.Option(help="Also on the vendor's simulator: seconds each.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Repeats of every piece; medians are shown.")] = 5,
    network: Annotated[list[str] | None, typer.Option(help="Only these networks of the zoo.")] = None,
    activation: Annotated[list[str] | None, typer.Option(help="Only these: u8, u16.")] = None,
) -> None:
    """Compare whole quantized networks with plain ONNX Runtime and the vendor's simulator."""
    names, types = tuple(network or NETWORKS), tuple(activation or whole.ACTIVATIONS)
    for given, known in ((names, zoo.MODELS), (types, whole.ACTIVATIONS)):
        for word in given:
            if word not in known:
                raise typer.BadParameter(f"unknown {word!r}; expected one of {', '.join(known)}")
    with errors_reported():
        result = _last(whole.run(networks=names, activations=types, rounds=rounds, vendor=vendor))
    console.print(networks_table(result))
    if result.vendor_installed is False:
        console.print(HOW_TO_INSTALL, style="yellow", markup=False)
    _warn_of_noise(result)
    write_json(json_file, msgspec.to_builtins(result))


@app.command()
def load(
    json_file: JsonFile = None,
    rounds: Annotated[int, typer.Option(min=1, help="Repeats of every way; medians are shown.")] = 9,
    network: Annotated[list[str] | None, typer.Option(help="Only these networks of the zoo.")] = None,
) -> None:
    """Measure how soon a network is ready from ONNX and from a context binary, beside plain ONNX Runtime."""
    names = tuple(network or NETWORKS)
    for word in names:
        if word not in zoo.MODELS:
            raise typer.BadParameter(f"unknown {word!r}; expected one of {', '.join(zoo.MODELS)}")
    with errors_reported():
        result = _last(loading.run(networks=names, rounds=rounds))
    console.print(load_table(result))
    if not result.prepared:
        console.print(NOT_PREPARED, style="yellow")
    _warn_of_noise(result)
    write_json(json_file, msgspec.to_builtins(result))


def _last(steps: Iterator[queueing.Progress | R]) -> R:
    """Show progress until the result comes."""
    with Bar(console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        for step in steps:
            if not isinstance(step, queueing.Progress):
                return step
            bar.update(task, description=step.what, completed=step.done, total=step.total)
    raise AssertionError("a run ends with its result")


def _warn_of_noise(
    result: queueing.Result
    | planning.PlanResult
    | whole.NetworksResult
    | loading.LoadResult
    | parallelism.ParallelResult,
) -> None:
    if result.noisy_pieces:
        console.print(
            f"{result.noisy_pieces} of {result.noisy_pieces + result.quiet_pieces} pieces met no quiet moment:"
            " others use this machine, and the numbers are worse than they should be",
            style="yellow",
        )


def _compare_peers(rounds: int) -> dict[str, float | None]:
    from openhtp.bench import peers

    with htp.Backend() as backend, console.status("peers"):
        return peers.compare(queueing.trivial_piece(backend.create_device()), rounds)


def _rows(result: queueing.Result) -> Table:
    table = Table(title="sync against async (inferences per second, measured, wall clock)")
    for column in ("network", "client work", "memory", "depth", "sync", "async", "ratio"):
        table.add_column(column, justify="left" if column in ("network", "memory") else "right")
    for row in result.rows:
        table.add_row(
            row.network,
            f"{row.client_work:g}x",
            row.memory,
            str(row.depth),
            f"{row.sync_ips:,.0f}",
            f"{row.async_ips:,.0f}",
            f"[{'green' if row.ratio >= 1 else 'yellow'}]{row.ratio:.2f}[/]",
        )
    return table


def _figures(result: queueing.Result) -> Table:
    table = Table(title="figures (medians, measured, wall clock)", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, time_ms in result.inference_ms.items():
        table.add_row(f"one inference of {name}, sync", f"{time_ms:.3f} ms")
    if result.submit_us_p50:
        table.add_row("execute_async as the caller sees it, registered memory", f"{result.submit_us_p50:.1f} us")
        table.add_row("execute on a trivial graph, round trip", f"{result.roundtrip_us_p50:.1f} us")
    if result.efficiency_vs_ort:
        table.add_row("mobilenet_v2 async over plain ONNX Runtime, 1 thread", f"{result.efficiency_vs_ort:.2f}x")
    table.add_row("import to first result, fresh process", f"{result.cold_start_s:.2f} s")
    return table


def _peers(compared: dict[str, float | None]) -> Table:
    table = Table(title="trivial model, asynchronous (measured in turns, wall clock)")
    table.add_column("runtime")
    table.add_column("us per inference", justify="right")
    table.add_column("ratio to openhtp", justify="right")
    ours = next(iter(compared.values()))
    for name, time_us in compared.items():
        if time_us is None or ours is None:
            table.add_row(name, "not installed", "pip install 'openhtp\\[bench]'")
        else:
            table.add_row(name, f"{time_us:.1f}", f"{time_us / ours:.2f}")
    return table
