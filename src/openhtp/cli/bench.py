"""``openhtp bench``: measurements on this machine, each against something else in the same run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer
from msgspec import Struct
from rich.progress import Progress as Bar
from rich.text import Text

import openhtp as htp
from openhtp import zoo
from openhtp.bench import (
    c_calls,
    cancelling,
    interruption,
    language,
    loading,
    networks as whole,
    parallelism,
    planning,
    polling,
    preemption,
    profiling,
    provider,
    queueing,
)
from openhtp.bench.cancelling import CancelResult
from openhtp.bench.language import LanguageResult
from openhtp.bench.loading import BinaryFigures, LoadResult
from openhtp.bench.networks import Contender, NetworksResult
from openhtp.bench.preemption import UrgentRow
from openhtp.bench.queueing import AsyncResult
from openhtp.bench.quiet import BenchProgress, QuietResult
from openhtp.bench.subjects import NETWORKS
from openhtp.cli._config import ConfigFile, PerfProfileName, preset_of
from openhtp.cli._interruption import (
    goals_sheet,
    interruption_sheet,
    network_files,
    preemption_sheet,
    urgent_sheet,
)
from openhtp.cli._terminal import (
    JsonFile,
    TextTable,
    errors_reported,
    figures,
    progress_console,
    say,
    show,
    write_json,
)
from openhtp.config import BackendConfig

R = TypeVar("R")
# With fewer samples the p99 is the worst of them, or nearly so.
_FEW_SAMPLES = 100
_ASYNC_NETWORKS = ("trivial", "small_cnn", "mobilenet_v2")


def _known(words: Iterable[str], known: Collection[str]) -> tuple[str, ...]:
    """The words of an option, each of which must be one of the known ones."""
    chosen = tuple(words)
    for word in chosen:
        if word not in known:
            raise typer.BadParameter(f"unknown {word!r}; expected one of {', '.join(known)}")
    return chosen


def _zoo_name(network: str) -> str:
    return _known((network,), zoo.MODELS)[0]


ZooNetwork = Annotated[str, typer.Option(help="A network of the zoo.", callback=_zoo_name)]

app = typer.Typer(
    help="Measure this machine; every number is of the wall clock.", no_args_is_help=True, add_completion=False
)


@app.callback()
def _group() -> None:
    """Measure this machine; every number is of the wall clock."""


@app.command("async")
def async_(
    json_file: JsonFile = None,
    peers: Annotated[bool, typer.Option(help="Compare with onnxruntime's run_async and OpenVINO.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Repeats of every piece; medians are shown.")] = 5,
    network: Annotated[list[str] | None, typer.Option(help=f"Only these: {', '.join(_ASYNC_NETWORKS)}.")] = None,
    perf_profile: PerfProfileName = None,
    config_file: ConfigFile = None,
) -> None:
    """Compare sync with async execution by queue depth, kind of memory and client work."""
    chosen = _known(network or _ASYNC_NETWORKS, _ASYNC_NETWORKS)
    result = _measured(
        lambda config: queueing.run(rounds=rounds, networks=chosen, config=config), config_file, perf_profile
    )
    compared = _compare_peers(rounds) if peers else {}
    sheets = [rows_sheet(result), figures_sheet(result), *([peers_sheet(compared)] if compared else ())]
    _finish(result, json_file, *sheets, peers_us=compared)


@app.command()
def preempt(
    json_file: JsonFile = None,
    network: ZooNetwork = "resnet50",
    samples: Annotated[
        int | None, typer.Option(min=10, help="Urgent executions: 600, or with --all 40 each.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of runs with and without yield points.")] = 160,
    every: Annotated[bool, typer.Option("--all", help="Each network of --models, aborts too.")] = False,
    models: Annotated[Path, typer.Option(help="Folder of ONNX files for --all.")] = Path("out/networks"),
    perf_profile: PerfProfileName = None,
    config_file: ConfigFile = None,
) -> None:
    """Measure how soon an urgent graph starts while a long one runs, and what yield points cost."""
    if every:
        with errors_reported():
            files = network_files(models)
        of_all = _measured(
            lambda config: interruption.run(files, samples=samples or 40, config=config), config_file, perf_profile
        )
        _finish(of_all, json_file, interruption_sheet(of_all))
        return
    result = _measured(
        lambda config: preemption.run(network, samples=samples or 600, rounds=rounds, config=config),
        config_file,
        perf_profile,
    )
    _finish(result, json_file, preemption_sheet(result))


@app.command()
def parallel(
    json_file: JsonFile = None,
    network: ZooNetwork = "resnet50",
    rounds: Annotated[int, typer.Option(min=1, help="Repeats of both ways; medians are shown.")] = 15,
    perf_profile: PerfProfileName = None,
    config_file: ConfigFile = None,
) -> None:
    """Measure what it brings to compute two graphs side by side rather than one after the other."""
    result = _measured(
        lambda config: parallelism.run(network, rounds=rounds, config=config), config_file, perf_profile
    )
    title = f"two graphs of {network}, {result.processors} processors (measured, wall clock)"
    table = figures(title)
    table.add("one after the other", f"{result.in_turns_ms:.2f} ms")
    table.add("side by side", f"{result.side_by_side_ms:.2f} ms")
    table.add("ratio, median of the rounds", f"{result.speedup:.2f}x")
    _finish(result, json_file, table)


@app.command("ort")
def ort_(
    json_file: JsonFile = None,
    rounds: Annotated[int, typer.Option(min=1, help="Repeats of every piece; medians are shown.")] = 20,
    network: Annotated[list[str] | None, typer.Option(help=f"Only these, or none: {', '.join(NETWORKS)}.")] = None,
    samples: Annotated[int, typer.Option(min=0, help="Urgent runs beside a long one; 0: none.")] = 300,
) -> None:
    """Measure session.run of ONNX Runtime's QNN provider on our library and, if there is one, on the vendor's.

    Then, on our library, an urgent session beside a long one that shares its NPU.
    """
    chosen = NETWORKS if network is None else _known((name for name in network if name != "none"), NETWORKS)
    result = _measured(lambda _: provider.run(networks=chosen, rounds=rounds, samples=samples))
    columns = ("model", "OpenHTP\nus", "vendor\nus", "ratio", "times\nvendor")
    sheet = TextTable(
        "session.run of ONNX Runtime's QNN provider (measured, wall clock, medians, in turns)", columns
    )
    for row in result.rows:
        vendor = "-" if row.vendor_us is None else f"{row.vendor_us:,.1f}"
        ratio, times = ("-", "-") if row.ratio is None else (f"{row.ratio:.3f}", f"{1 / row.ratio:.1f}")
        sheet.add(row.model, f"{row.openhtp_us:,.1f}", vendor, ratio, times)
    show(sheet)
    if result.urgent:
        _show_urgent(result.urgent, result.long_network, result.long_ms)
    show(goals_sheet(result.goals()))
    if not result.vendor_installed:
        say(HOW_TO_INSTALL)
    _finish(result, json_file)


def _show_urgent(rows: Sequence[UrgentRow], network: str, long_ms: float) -> None:
    show(urgent_sheet(rows, network, long_ms))
    if any(row.samples < _FEW_SAMPLES for row in rows):
        say(f"fewer than {_FEW_SAMPLES} undisturbed samples say little about a p99: measure on a quiet machine")


@app.command("c")
def c_(
    json_file: JsonFile = None,
    pieces: Annotated[int, typer.Option(min=1, help="Repeats of every piece; medians are shown.")] = 15,
    samples: Annotated[int, typer.Option(min=20, help="Urgent executions of each kind.")] = 300,
    network: ZooNetwork = "resnet50",
) -> None:
    """Measure a program in C: calls of a trivial graph, an urgent graph beside a long one, and a large binary."""
    result = _measured(lambda _: c_calls.run(pieces=pieces, samples=samples, network=network))
    calls = TextTable(
        "calls of a trivial graph from C (measured, wall clock, medians)",
        ("call", "OpenHTP\nus", "vendor\nus", "ratio"),
    )
    for row in result.calls:
        vendor = "-" if row.vendor_us is None else f"{row.vendor_us:,.1f}"
        ratio = "-" if row.vendor_us is None else f"{row.openhtp_us / row.vendor_us:.3f}"
        calls.add(row.what, f"{row.openhtp_us:,.1f}", vendor, ratio)
    show(calls)
    _show_urgent(result.urgent, network, result.long_ms)
    show(goals_sheet(result.goals()))
    if not result.vendor_installed:
        say(HOW_TO_INSTALL)
    _finish(result, json_file)


@app.command("polling")
def polling_(
    json_file: JsonFile = None,
    rounds: Annotated[int, typer.Option(min=1, help="Repeats of both ways; medians are shown.")] = 15,
    config_file: ConfigFile = None,
) -> None:
    """Measure what RPC polling brings: the round trip of a trivial graph asleep and polling, in turns."""
    result = _measured(lambda config: polling.run(rounds=rounds, config=config), config_file)
    columns = ("calls", "asleep\nus", "polling\nus", "ratio")
    title = f"execute of a trivial graph, {result.processors} processors (measured, wall clock, medians)"
    sheet = TextTable(title, columns)
    for row in result.rows:
        sheet.add(row.calls, f"{row.asleep_us:.1f}", f"{row.polling_us:.1f}", f"{row.ratio:.2f}x")
    show(sheet)
    best = min(row.ratio for row in result.rows)
    say(f"polling takes {best:.2f}x of the time asleep; the goal is at most 0.5x, with cores to spare")
    _finish(result, json_file)


@app.command("profiling")
def profiling_(
    json_file: JsonFile = None,
    network: ZooNetwork = "mobilenet_v2",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of all levels; medians are shown.")] = 30,
    perf_profile: PerfProfileName = None,
    config_file: ConfigFile = None,
) -> None:
    """Measure what a profile adds to a run, level by level."""
    result = _measured(
        lambda config: profiling.run(network, rounds=rounds, config=config), config_file, perf_profile
    )
    columns = ("level", "one run\nms", "added\n%", "events read\nus")
    sheet = TextTable(f"{network} under a profile (measured, CPU time of client and device, medians)", columns)
    for row in result.rows:
        sheet.add(row.level, f"{row.cpu_ms:.3f}", f"{row.percent:+.2f}", f"{row.read_us:.0f}")
    _finish(result, json_file, sheet)


@app.command()
def plan(
    json_file: JsonFile = None,
    rounds: Annotated[int, typer.Option(min=1, help="Repeats; medians are shown.")] = 15,
) -> None:
    """Measure how many scheduling events the planner handles per second, beside SimPy."""
    result = _measured(lambda _: planning.run(rounds=rounds))
    table = figures("planner: three cameras, one LLM (measured, processor time of one core)")
    table.add("scheduling events per second", f"{result.events_per_second:,.0f}")
    table.add("executions per second", f"{result.runs_per_second:,.0f}")
    if result.simpy_runs_per_second:
        table.add("SimPy: executions per second", f"{result.simpy_runs_per_second:,.0f}")
        table.add("ratio to SimPy", f"{result.ratio_to_simpy:.2f}x")
    else:
        table.add("SimPy", "not installed: pip install 'openhtp[bench]'")
    _finish(result, json_file, table)


@app.command()
def networks(
    json_file: JsonFile = None,
    vendor: Annotated[bool, typer.Option(help="Also on the vendor's simulator: seconds each.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Repeats of every piece; medians are shown.")] = 5,
    network: Annotated[list[str] | None, typer.Option(help="Only these networks of the zoo.")] = None,
    activation: Annotated[list[str] | None, typer.Option(help="Only these: u8, u16.")] = None,
    perf_profile: PerfProfileName = None,
    config_file: ConfigFile = None,
) -> None:
    """Compare whole quantized networks with plain ONNX Runtime and the vendor's simulator."""
    names = _known(network or NETWORKS, zoo.MODELS)
    types = _known(activation or whole.ACTIVATIONS, whole.ACTIVATIONS)
    result = _measured(
        lambda config: whole.run(networks=names, activations=types, rounds=rounds, vendor=vendor, config=config),
        config_file,
        perf_profile,
    )
    show(networks_sheet(result))
    if result.vendor_installed is False:
        say(HOW_TO_INSTALL, "yellow")
    _finish(result, json_file)


@app.command()
def load(
    json_file: JsonFile = None,
    rounds: Annotated[int, typer.Option(min=1, help="Repeats of every way; medians are shown.")] = 9,
    network: Annotated[list[str] | None, typer.Option(help="Only these networks of the zoo.")] = None,
    large: Annotated[
        bool, typer.Option(help="Also large binaries: metadata of 1 GiB, shared weights, read budget.")
    ] = True,
    perf_profile: PerfProfileName = None,
    config_file: ConfigFile = None,
) -> None:
    """Measure how soon a network is ready from ONNX and from a context binary, beside plain ONNX Runtime."""
    names = _known(network or NETWORKS, zoo.MODELS)
    result = _measured(
        lambda config: loading.run(networks=names, rounds=rounds, large=large, config=config),
        config_file,
        perf_profile,
    )
    show(load_sheet(result))
    show(list_sheet(result))
    if result.binaries is not None:
        show(binaries_sheet(result.binaries))
    if not result.prepared:
        say(NOT_PREPARED, "yellow")
    _finish(result, json_file)


@app.command("abort")
def abort(
    json_file: JsonFile = None,
    network: ZooNetwork = "resnet50",
    moments: Annotated[int, typer.Option(min=1, help="At how many moments each is stopped.")] = 20,
) -> None:
    """Measure how soon finalizing and creating contexts end at their signal, and what is left of them."""
    result = _measured(lambda _: cancelling.run(network, moments))
    _finish(result, json_file, cancel_sheet(result))
    if any(row.left_over for row in result.rows):
        say("something that was stopped is still held on the device", "red")
        raise typer.Exit(1)


@app.command("llm")
def llm_(
    json_file: JsonFile = None,
    rounds: Annotated[int, typer.Option(min=1, help="Repeats of every way; medians are shown.")] = 9,
    samples: Annotated[int, typer.Option(min=10, help="Urgent executions during prefill.")] = 200,
) -> None:
    """Measure a small language model: beside plain ONNX Runtime, native beside flat, urgent graphs in prefill."""
    result = _measured(lambda _: language.run(rounds=rounds, samples=samples))
    _finish(result, json_file, language_sheet(result))


def _measured(
    run: Callable[[BackendConfig | None], Iterator[BenchProgress | R]],
    config_file: Path | None = None,
    perf_profile: str | None = None,
) -> R:
    """Show progress until the result comes."""
    with errors_reported(), Bar(console=progress_console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        for step in run(preset_of(config_file, perf_profile)):
            if not isinstance(step, BenchProgress):
                return step
            bar.update(task, description=step.what, completed=step.done, total=step.total)
    raise AssertionError("a run ends with its result")


def _finish(result: Struct, json_file: Path | None, *sheets: TextTable, **more: Any) -> None:
    """Show the sheets, say whether others used the machine, and write the result if a file is wanted."""
    for sheet in sheets:
        show(sheet)
    if isinstance(result, QuietResult) and result.noisy_pieces:
        say(
            f"{result.noisy_pieces} of {result.noisy_pieces + result.quiet_pieces} pieces met no quiet moment:"
            " others use this machine, and the numbers are worse than they should be",
            "yellow",
        )
    write_json(json_file, {**msgspec.to_builtins(result), **more})


def _compare_peers(rounds: int) -> dict[str, float | None]:
    with errors_reported(), htp.Backend() as backend, progress_console.status("peers"):
        return queueing.compare_peers(queueing.trivial_piece(backend.create_device()), rounds)


# How ``openhtp bench llm`` shows what it measured.


def language_sheet(result: LanguageResult) -> TextTable:
    """All figures, each beside its comparison and its goal."""
    table = figures("a Llama of 4 layers, w8a16, context 1024 (measured, wall clock)")
    table.add("tokens/s, native KV cache", f"{result.tokens_per_s:,.0f}")
    table.add("  plain ONNX Runtime loop, the same graph as QDQ", f"{result.plain_tokens_per_s:,.0f}")
    table.add("  ratio, median of the rounds (goal: 0.7x or more)", f"{result.times_plain:.2f}x")
    table.add("  that loop with the engine's integer products", f"{result.alike_tokens_per_s:,.0f}")
    table.add("  ratio: what the way to the device costs", f"{result.times_alike:.2f}x")
    table.add("one token, native and flat cache", f"{result.pass_native_ms:.2f} ms, {result.pass_flat_ms:.2f} ms")
    table.add("  ratio, median of the rounds (goal: at most 1.3x)", f"{result.native_to_flat:.2f}x")
    times = ", ".join(f"{us:.0f} us (context {context})" for context, us in result.update_us.items())
    table.add("update of the cache for one token", times)
    table.add("  ratio (goal: at most 1.3x)", f"{result.update_ratio:.2f}x")
    table.add("binary with three AR graphs, of one (at most 1.15x)", f"{result.binary_ratio:.2f}x")
    if result.weights is not None:
        one, three = (number / 1e6 for number in (result.weights.one_bytes, result.weights.three_bytes))
        table.add(
            f"device process: {result.weights.weights / 1e6:.0f} million weights, one and three graphs",
            f"{one:.0f} MB, {three:.0f} MB",
        )
        table.add("  ratio (goal: at most 1.1x)", f"{result.weights.ratio:.2f}x")
    table.add("prefill pass of 128 tokens, best", f"{result.prefill_ms:.1f} ms in {result.prefill_steps} steps")
    wait = f"{result.urgent_wait_ms_p50:.2f} ms, {result.urgent_wait_ms_p99:.2f} ms"
    table.add("submit to start of an urgent graph in it, p50 and p99", wait)
    table.add("  p99, of the pass (goal: at most 10%)", f"{result.urgent_share_p99:.1%}")
    table.add("  p99 of all passes, disturbed or not", f"{result.urgent_share_p99_all:.1%}")
    left_out = result.urgent_samples_all - result.urgent_samples
    table.add("  left out: the machine was taken away", f"{left_out} of {result.urgent_samples_all}")
    blocked = f"{result.loop_held_ms_p99:.2f} ms, {result.loop_held_ms_max:.2f} ms"
    table.add("event loop held, p99 and longest (goal: 5 ms)", blocked)
    table.add("  longest by CPU time of its thread, all passes", f"{result.loop_held_cpu_ms_max:.2f} ms")
    return table


# The tables of ``openhtp bench load`` and ``abort``.

NOT_PREPARED = "a device could not use what another had prepared: is there a home directory to keep a key in?"


def load_sheet(result: LoadResult) -> TextTable:
    """One line per network and way."""
    columns = ("network", "way", "file\nMB", "ready\nms", "first result\nms", "times\nORT", "of saved\n.ort")
    sheet = TextTable("from file to ready, one thread (medians, measured in turns, wall clock)", columns, ("way",))
    for row in result.rows:
        sheet.add(
            row.network,
            row.way.removeprefix("OpenHTP, ").replace("ONNX Runtime", "ORT"),
            f"{row.file_bytes / 1e6:.1f}",
            f"{row.ready_s * 1e3:,.0f}",
            f"{row.first_result_s * 1e3:,.0f}",
            f"{row.times_onnxruntime:.2f}",
            f"{row.time_to_saved_ort:.2f}",
        )
    return sheet


def binaries_sheet(measured: BinaryFigures) -> TextTable:
    """What large binaries cost."""
    sheet = figures("large binaries (measured: wall clock, and memory of the device process)")
    size = f"{measured.metadata_file_bytes / 1e9:.2f} GB"
    sheet.add(f"{size}: validated", f"{measured.validate_s * 1e3:.1f} ms")
    sheet.add(f"{size}: a context that knows its graphs", f"{measured.metadata_s * 1e3:.1f} ms")
    sheet.add("two ResNet50 graphs of equal weights to one: file", f"{measured.shared_file_ratio:.3f}")
    sheet.add("the same: memory of the device", f"{measured.shared_memory_ratio:.3f}")
    sheet.add("memory of the one", f"{measured.one_graph_bytes / 1e6:.1f} MB")
    sheet.add("a float ResNet18 to the bytes of its weights: file", f"{measured.float_file_ratio:.3f}")
    sheet.add("the same at two resolutions to one: file", f"{measured.sizes_file_ratio:.3f}")
    sheet.add("the same: memory of the device", f"{measured.sizes_memory_ratio:.3f}")
    dense, budget = f"{measured.budget_file_bytes / 1e6:.0f} MB", f"{measured.budget_bytes / 1e6:.0f} MB"
    sheet.add(f"peak over resident while loading {dense}", f"{measured.peak_over_bytes / 1e6:.1f} MB")
    sheet.add(f"the same with a read budget of {budget}", f"{measured.peak_over_with_budget_bytes / 1e6:.1f} MB")
    return sheet


def list_sheet(result: LoadResult) -> TextTable:
    """One line per network: its contexts one after the other, the same with acceleration, and by one call."""
    columns = (
        "network",
        "contexts",
        "one by one\nms",
        "CPUs\nbusy",
        "acceler-\nated ms",
        "as a list\nms",
        "CPUs\nbusy",
        "times\nsooner",
    )
    sheet = TextTable("several contexts of a network until all are ready (medians, measured in turns)", columns)
    for row in result.lists:
        sheet.add(
            row.network,
            str(row.contexts),
            f"{row.one_by_one_s * 1e3:,.0f}",
            f"{row.one_by_one_cpus:.1f}",
            f"{row.accelerated_s * 1e3:,.0f}",
            f"{row.list_s * 1e3:,.0f}",
            f"{row.list_cpus:.1f}",
            f"{row.ratio:.2f}",
        )
    return sheet


def cancel_sheet(result: CancelResult) -> TextTable:
    """One line per call and kind of signal."""
    columns = ("call", "signal", "usually\nms", "stopped", "late, median\nms", "late, worst\nms", "left over")
    title = f"{result.network}: from the signal until the call is back (measured, wall clock)"
    sheet = TextTable(title, columns, ("signal",))
    for row in result.rows:
        sheet.add(
            row.what,
            row.signal,
            f"{row.usual_s * 1e3:,.0f}",
            f"{row.stopped} of {row.moments}",
            f"{row.late_median_ms:.1f}",
            f"{row.late_worst_ms:.1f}",
            str(row.left_over),
        )
    return sheet


# The table of ``openhtp bench networks``.

HOW_TO_INSTALL = "the vendor's simulator is not installed: pip install 'openhtp[vendor]' (x86-64 Linux)"


def networks_sheet(result: NetworksResult) -> TextTable:
    """One line per network; the vendor's figures only if the command asked for them."""
    with_vendor = result.vendor_installed is not None
    heads = ["network", "OpenHTP\nms", "ORT\nms", "times\nORT"]
    if with_vendor:
        heads += ["vendor\nms", "times\nvendor"]
    heads.append("dB to float:\nours/ORT/vendor" if with_vendor else "dB to float:\nours/ORT")
    sheet = TextTable("one inference, one thread (medians, measured in turns, wall clock)", heads)
    for row in result.rows:
        cells = [_ms(row.openhtp), _ms(row.onnxruntime), f"{row.times_onnxruntime:.2f}"]
        decibels = [row.openhtp, row.onnxruntime]
        if with_vendor:
            cells += [_ms(row.vendor), "-" if row.times_vendor is None else f"{row.times_vendor:.0f}"]
            decibels += [] if row.vendor is None else [row.vendor]
        sheet.add(f"{row.network} {row.activation}", *cells, " ".join(f"{one.sqnr_db:.1f}" for one in decibels))
    return sheet


def _ms(contender: Contender | None) -> str:
    return "not installed" if contender is None else f"{contender.ms:,.1f}"


# What ``openhtp bench async`` prints.


def rows_sheet(result: AsyncResult) -> TextTable:
    """Inferences per second, by network, memory and depth."""
    columns = ("network", "client work", "memory", "depth", "sync", "async", "ratio")
    sheet = TextTable("sync against async (inferences per second, measured, wall clock)", columns, ("memory",))
    for row in result.rows:
        sheet.add(
            row.network,
            f"{row.client_work:g}x",
            row.memory,
            str(row.depth),
            f"{row.sync_ips:,.0f}",
            f"{row.async_ips:,.0f}",
            Text(f"{row.ratio:.2f}", style="green" if row.ratio >= 1 else "yellow"),
        )
    return sheet


def figures_sheet(result: AsyncResult) -> TextTable:
    """Times of single executions."""
    table = figures("figures (medians, measured, wall clock)")
    for name, time_ms in result.inference_ms.items():
        table.add(f"one inference of {name}, sync", f"{time_ms:.3f} ms")
    if result.submit_us_p50:
        table.add("execute_async as the caller sees it, registered memory", f"{result.submit_us_p50:.1f} us")
        table.add("execute on a trivial graph, round trip", f"{result.roundtrip_us_p50:.1f} us")
    if result.efficiency_vs_ort:
        table.add("mobilenet_v2 async over plain ONNX Runtime, 1 thread", f"{result.efficiency_vs_ort:.2f}x")
    table.add("import to first result, fresh process", f"{result.cold_start_s:.2f} s")
    return table


def peers_sheet(compared: dict[str, float | None]) -> TextTable:
    """Other runtimes, beside ours."""
    columns = ("runtime", "us per inference", "ratio to openhtp")
    sheet = TextTable("trivial model, asynchronous (measured in turns, wall clock)", columns)
    ours = next(iter(compared.values()))
    for name, time_us in compared.items():
        if time_us is None or ours is None:
            sheet.add(name, "not installed", "pip install 'openhtp[bench]'")
        else:
            sheet.add(name, f"{time_us:.1f}", f"{time_us / ours:.2f}")
    return sheet
