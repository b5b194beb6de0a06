"""The tables that ``openhtp bench`` prints."""

from __future__ import annotations

from rich.text import Text

from openhtp.bench.cancelling import CancelResult
from openhtp.bench.language import LanguageResult
from openhtp.bench.loading import BinaryFigures, LoadResult
from openhtp.bench.networks import Contender, NetworksResult
from openhtp.bench.queueing import Result
from openhtp.cli._text_table import TextTable, figures

# How ``openhtp bench llm`` shows what it measured.


def language_sheet(result: LanguageResult) -> TextTable:
    """All figures, each beside what it is compared with and what is aimed at."""
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
    held = f"{result.loop_held_ms_p99:.2f} ms, {result.loop_held_ms_max:.2f} ms"
    table.add("event loop held, p99 and longest (goal: 5 ms)", held)
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


def binaries_sheet(found: BinaryFigures) -> TextTable:
    """What large binaries cost."""
    sheet = figures("large binaries (measured: wall clock, and memory of the device process)")
    size = f"{found.metadata_file_bytes / 1e9:.2f} GB"
    sheet.add(f"{size}: validated", f"{found.validate_s * 1e3:.1f} ms")
    sheet.add(f"{size}: a context that knows its graphs", f"{found.metadata_s * 1e3:.1f} ms")
    sheet.add("two ResNet50 graphs of equal weights to one: file", f"{found.shared_file_ratio:.3f}")
    sheet.add("the same: memory of the device", f"{found.shared_memory_ratio:.3f}")
    sheet.add("memory of the one", f"{found.one_graph_bytes / 1e6:.1f} MB")
    sheet.add("a float ResNet18 to the bytes of its weights: file", f"{found.float_file_ratio:.3f}")
    sheet.add("the same at two resolutions to one: file", f"{found.sizes_file_ratio:.3f}")
    sheet.add("the same: memory of the device", f"{found.sizes_memory_ratio:.3f}")
    dense, budget = f"{found.budget_file_bytes / 1e6:.0f} MB", f"{found.budget_bytes / 1e6:.0f} MB"
    sheet.add(f"peak over resident while loading {dense}", f"{found.peak_over_bytes / 1e6:.1f} MB")
    sheet.add(f"the same with a read budget of {budget}", f"{found.peak_over_with_budget_bytes / 1e6:.1f} MB")
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
    """One line per network; the vendor's only if they were asked for."""
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


def rows_sheet(result: Result) -> TextTable:
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


def figures_sheet(result: Result) -> TextTable:
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
