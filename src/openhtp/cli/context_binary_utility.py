"""``openhtp context-binary-utility``: what is in a context binary, with the vendor's options and key names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from openhtp.capi import identity
from openhtp.cli import _tool_options as opt
from openhtp.cli._terminal import (
    STANDARD_OUTPUT,
    JsonFile,
    TextTable,
    errors_reported,
    say,
    show,
    write_file,
    write_json,
)
from openhtp.core.units import MIB, bytes_in_words
from openhtp.memory.needs import backup_of
from openhtp.program.binary import ContextBinary
from openhtp.report.context_binary import ApiVersions, context_binary_json
from openhtp.runtime.binaries.opening import check_data, open_given


def context_binary_utility(
    context_binary: Annotated[Path, typer.Option("--context_binary", help="The context binary.")],
    json_path: Annotated[
        Path | None, typer.Option("--json_file", help="File to write; its folder must exist.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Look at every byte, not only at the header.")] = False,
    version: opt.Version = False,
    json_file: JsonFile = None,
) -> None:
    """Show what is in a context binary: graphs, tensors, sizes. Its weights are not read, except with --check."""
    with errors_reported():
        binary = open_given(context_binary)
        if check:
            check_data(binary)
        core, backend = (".".join(map(str, version())) for version in (identity.core_api, identity.htp_api))
        versions = ApiVersions(core=core, backend=backend, build_id=identity.build_id())
        document = context_binary_json(binary, versions)
        if json_file != STANDARD_OUTPUT:
            _print(binary, checked=check)
        if json_path is not None:
            write_file(json_path, json.dumps(document, indent=4) + "\n")
        write_json(json_file, document)


def _print(binary: ContextBinary, *, checked: bool) -> None:
    about = binary.info
    target = f"for {about.soc} (v{about.arch}, {about.vtcm_mb} MB of VTCM)" if about.soc else "for any SoC"
    checks = "; every byte is checked" if checked else ""
    say(
        f"{bytes_in_words(binary.nbytes)}, format {about.blob_version}, made {target} by openhtp"
        f" {about.sdk_version}{checks}"
    )
    columns = (
        "graph",
        "inputs",
        "outputs",
        "weights",
        "operations",
        "paged",
        "spill-fill",
        "VTCM backup",
        "prepared",
    )
    sheet = TextTable("graphs", columns, ("inputs", "outputs"))
    for name in binary.graph_names:
        graph = binary.packed(name)
        info = graph.info()
        chip = graph.chip_program()
        backup = backup_of(info, graph.vtcm_peak_bytes, about.vtcm_mb * MIB)
        sheet.add(
            name,
            ", ".join(map(str, info.inputs)),
            ", ".join(map(str, info.outputs)),
            bytes_in_words(sum(section.nbytes for section in graph.stored_data)),
            "unknown" if chip is None else f"{chip.operations:,}",
            "unknown" if chip is None else bytes_in_words(chip.paged_bytes),
            bytes_in_words(graph.spill_fill_bytes),
            bytes_in_words(backup) if backup or graph.vtcm_peak_bytes == 0 else "all VTCM",
            "yes" if graph.prepared is not None else "no",
        )
    show(sheet)
