"""``openhtp demo``: three networks on one emulated HTP, and what queueing them does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live
from rich.table import Table

import openhtp as htp
from openhtp.bench.showcase import Showcase, median
from openhtp.cli._terminal import JsonFile, console, errors_reported, write_json
from openhtp.report.chrome import marks_to_chrome
from openhtp.report.lanes import trace_to_marks


def demo(
    turns: Annotated[int, typer.Option(min=1, help="Frames to process.")] = 60,
    out: Annotated[Path, typer.Option(help="Folder for the trace.")] = Path("out"),
    json_file: JsonFile = None,
) -> None:
    """Queue three quantized networks of different priority from one thread, and show what it brings."""
    with errors_reported(), htp.Backend() as backend:
        show = Showcase(backend, turns)
        with Live(_view(show), console=console, refresh_per_second=8, transient=True) as live:
            for _ in _stages(show):
                live.update(_view(show))
        console.print(_result(show))
        out.mkdir(parents=True, exist_ok=True)
        path = out / "demo-trace.json"
        assert show.recorded is not None
        path.write_bytes(marks_to_chrome(trace_to_marks(show.recorded)))
        console.print(
            f"{show.turns} frames of three networks: {show.sync_seconds:.2f} s one after the other,"
            f" {show.async_seconds:.2f} s queued ([bold]{show.sync_seconds / show.async_seconds:.2f}x[/bold])"
        )
        console.print(f"trace of the queued run: [bold]{path.resolve()}[/bold] (open it at ui.perfetto.dev)")
        write_json(json_file, _as_json(show, path))


def _stages(show: Showcase) -> Iterator[None]:
    yield from show.load()
    yield from show.run_sync()
    yield from show.run_async()


def _view(show: Showcase) -> Table:
    table = Table(title=f"one emulated HTP: {show.stage}", title_justify="left", expand=False)
    for column in ("network", "priority", "progress", "done"):
        table.add_column(column, justify="right" if column == "done" else "left")
    for actor in show.actors:
        filled = round(30 * actor.done / show.turns)
        bar = f"[green]{'━' * filled}[/green][dim]{'━' * (30 - filled)}[/dim]"
        table.add_row(f"{actor.name} ({actor.network})", actor.priority, bar, f"{actor.done}/{show.turns}")
    return table


def _result(show: Showcase) -> Table:
    table = Table(title="measured, wall clock; medians of queue wait and run time")
    for column in ("client", "priority", "sync/s", "async/s", "gain", "waits", "runs", "yields"):
        left = column in ("client", "priority")
        table.add_column(column, justify="left" if left else "right", no_wrap=True)
    for actor in show.actors:
        table.add_row(
            actor.name,
            actor.priority,
            f"{actor.sync_ips:.1f}",
            f"{actor.async_ips:.1f}",
            f"{actor.async_ips / actor.sync_ips:.2f}x",
            f"{median(actor.wait_us) / 1e3:.2f} ms",
            f"{median(actor.run_us) / 1e3:.2f} ms",
            str(actor.yields),
        )
    told = ", ".join(f"{actor.name} runs {actor.network}" for actor in show.actors)
    table.caption = f"inferences per second; {told}, 8 bits"
    return table


def _as_json(show: Showcase, trace: Path) -> dict[str, object]:
    return {
        "frames": show.turns,
        "sync_s": show.sync_seconds,
        "async_s": show.async_seconds,
        "trace": str(trace),
        "networks": [
            {
                "name": actor.name,
                "network": actor.network,
                "priority": actor.priority,
                "sync_ips": actor.sync_ips,
                "async_ips": actor.async_ips,
                "queue_wait_us_p50": median(actor.wait_us),
                "run_us_p50": median(actor.run_us),
                "yields": actor.yields,
            }
            for actor in show.actors
        ],
    }
