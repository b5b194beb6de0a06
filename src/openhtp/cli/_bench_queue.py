"""What ``openhtp bench async`` prints."""

from __future__ import annotations

from rich.text import Text

from openhtp.bench.queueing import Result
from openhtp.cli._text_table import TextTable, figures


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
