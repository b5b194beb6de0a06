"""``openhtp profile-viewer``: profile logs as text, CSV, JSON, traces and reports, with the vendor's options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openhtp.cli import _tool_options as opt
from openhtp.cli._terminal import (
    STANDARD_OUTPUT,
    JsonFile,
    complain,
    confirm_written,
    console,
    errors_reported,
    write_json,
)
from openhtp.core import files
from openhtp.core.errors import BadProfile
from openhtp.report.viewing import LogReader, ReaderFeatures, ViewRequest, read_features, view

READERS = "default (text, CSV), htp (every run), chrometrace (linting), json, optrace; or the vendor's library."


def profile_viewer(
    input_log: Annotated[str, typer.Option("--input_log", help="Profile log; several with commas.")],
    output: Annotated[
        Path | None, typer.Option("--output", help="File to write: CSV, JSON or a trace, by reader.")
    ] = None,
    reader: Annotated[str, typer.Option("--reader", help=READERS)] = "default",
    config: Annotated[
        Path | None, typer.Option("--config", help='Switches of the optrace reader: {"features": {...}}.')
    ] = None,
    schematic: Annotated[
        Path | None, typer.Option("--schematic", help="The graph's _schematic.bin, for the optrace reader.")
    ] = None,
    zoom_start: Annotated[str, typer.Option("--zoom_start", help="First node of the part to show.")] = "",
    zoom_end: Annotated[str, typer.Option("--zoom_end", help="Last node of the part to show.")] = "",
    dlc: Annotated[
        Path | None, typer.Option("--dlc", help="Refused: names of the model are in the schematic.")
    ] = None,
    gzip: Annotated[bool, typer.Option("--gzip", help="Compress the trace.")] = False,
    standardized: Annotated[
        bool, typer.Option("--standardized_json_output", help="JSON with the header that viewers look for.")
    ] = False,
    extract: Annotated[
        bool, typer.Option("--extract_opaque_objects", help="Also write what the log holds besides events.")
    ] = False,
    version: opt.Version = False,
    json_file: JsonFile = None,
) -> None:
    """Show a profile log. Cycles are modelled for the chip, other times measured; each page says so."""
    with errors_reported():
        if bool(zoom_start) != bool(zoom_end):
            raise BadProfile("--zoom_start and --zoom_end go together: name the first node and the last")
        if dlc is not None:
            _refuse_dlc(dlc)
        request = ViewRequest(
            logs=tuple(Path(name) for name in input_log.split(",") if name),
            reader=LogReader.parse(reader),
            output=output,
            schematic=schematic,
            zoom=(zoom_start, zoom_end) if zoom_start else None,
            features=ReaderFeatures() if config is None else read_features(config),
            gzip=gzip,
            standardized=standardized,
            extract=extract,
        )
        if not request.logs:
            raise BadProfile(f"--input_log {input_log!r} names no file")
        result = view(request)
        console.out(result.text, highlight=False, end="")
        for note in result.notes:
            complain(f"note: {note}", "dim")
        for path, data in result.files.items():
            files.write_file(path, data)
            confirm_written(path, f"({len(data):,} bytes)")
        if json_file is not None:
            shown = {"text": result.text} if json_file == STANDARD_OUTPUT else {}
            paths = [str(path) for path in result.files]
            write_json(json_file, {"reader": request.reader.name.lower(), "files": paths, **shown})


def _refuse_dlc(path: Path) -> None:
    if not path.is_file():
        raise BadProfile(f"--dlc: there is no file {str(path)!r}")
    raise BadProfile(
        "--dlc: DLC files are not read here, and names of the model are in the schematic already: leave out --dlc"
    )
