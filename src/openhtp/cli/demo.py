"""``openhtp demo``: a camera's network on one emulated HTP, alone and beside others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

import openhtp as htp
from openhtp import zoo
from openhtp.bench.showcase import ACTORS, ALONE, BY_PRIORITY, EQUAL, Showcase
from openhtp.cli._config import ConfigFile, PerfProfileName, preset_of
from openhtp.cli._terminal import (
    JsonFile,
    TextTable,
    errors_reported,
    progress_console,
    say,
    show,
    write_file,
    write_json,
)
from openhtp.report.chrome import marks_to_chrome
from openhtp.report.lanes import trace_to_marks

_STAGES = (ALONE, EQUAL, BY_PRIORITY)
_BAR = 24


def demo(
    turns: Annotated[int, typer.Option(min=1, help="Frames of the camera in each part.")] = 60,
    out: Annotated[Path, typer.Option(help="Folder for the trace and a model to try things with.")] = Path("out"),
    perf_profile: PerfProfileName = None,
    config_file: ConfigFile = None,
    json_file: JsonFile = None,
) -> None:
    """Queue three quantized networks on one HTP, and show what priorities do for the camera's latency."""
    with errors_reported(), htp.Backend() as backend:
        played = Showcase(backend, turns, config=preset_of(config_file, perf_profile))
        with Live(_view(played), console=progress_console, refresh_per_second=8, transient=True) as live:
            for _ in played.play():
                live.update(_view(played))
        show(_result(played))
        say(_summary(played), "bold")
        out.mkdir(parents=True, exist_ok=True)
        trace, model = out / "demo-trace.json", out / "mobilenet_v2.onnx"
        assert played.recorded is not None
        write_file(trace, marks_to_chrome(trace_to_marks(played.recorded)))
        write_file(model, zoo.mobilenet_v2())
        say(f"The trace is of the last part: open it at ui.perfetto.dev. Next: openhtp run {model} --check")
        write_json(json_file, _as_json(played, trace, model))


def _view(played: Showcase) -> Table:
    table = Table(title=f"one emulated HTP: {played.doing}", title_justify="left", box=None, pad_edge=False)
    for _ in range(3):
        table.add_column()
    for name in _STAGES:
        stage = played.stages.get(name)
        done = len(stage.latency_ms) if stage is not None else 0
        filled = _BAR * done // played.frames
        bar = Text("━" * filled, style="green") + Text("━" * (_BAR - filled), style="dim")
        table.add_row(f"camera {name}", bar, f"{stage.percentile(50):.1f} ms" if stage is not None else "")
    return table


def _result(played: Showcase) -> TextTable:
    others = [name for name, _, _ in ACTORS if name != "camera"]
    columns = ("camera", "median\nms", "p90\nms", "times\nalone", *(f"{name}\nper second" for name in others))
    networks = ", ".join(f"{name} {network} ({priority})" for name, network, priority in ACTORS)
    sheet = TextTable(
        f"a camera's latency on one HTP, {played.frames} frames each (measured, wall clock)", columns
    )
    for stage in played.stages.values():
        sheet.add(
            stage.name,
            f"{stage.percentile(50):.1f}",
            f"{stage.percentile(90):.1f}",
            f"{_times_alone(played, stage.name):.1f}",
            *(f"{stage.per_second(name):.1f}" if stage.others_done else "-" for name in others),
        )
    sheet.note = f"8 bits: {networks}"
    return sheet


def _times_alone(played: Showcase, name: str) -> float:
    return played.stages[name].percentile(50) / played.stages[ALONE].percentile(50)


def _summary(played: Showcase) -> str:
    return (
        f"Beside two busy networks the camera takes {_times_alone(played, EQUAL):.1f} times as long as alone,"
        f" with a higher priority {_times_alone(played, BY_PRIORITY):.1f} times."
    )


def _as_json(played: Showcase, trace: Path, model: Path) -> dict[str, object]:
    return {
        "frames": played.frames,
        "trace": str(trace),
        "model": str(model),
        "networks": [
            {"name": name, "network": network, "priority": priority} for name, network, priority in ACTORS
        ],
        "stages": [
            {
                "name": stage.name,
                "camera_ms_p50": stage.percentile(50),
                "camera_ms_p90": stage.percentile(90),
                "camera_times_alone": _times_alone(played, stage.name),
                "others_per_second": {name: stage.per_second(name) for name in stage.others_done},
            }
            for stage in played.stages.values()
        ],
    }
