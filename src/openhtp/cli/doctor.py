"""``openhtp doctor``: what is installed, which devices work, and what to do about the rest."""

from __future__ import annotations

import dataclasses

import typer
from rich.text import Text

from openhtp.cli._checkup import CheckupLine, Health, examine
from openhtp.cli._terminal import JsonFile, progress_console, show, write_json
from openhtp.cli._text_table import TextTable
from openhtp.core.foreign_text import printable

_STYLES = {Health.OK: "green", Health.MISSING: "yellow", Health.BROKEN: "red"}


def doctor(json_file: JsonFile = None) -> None:
    """Check the installation and every device. Fails only if the emulator does not work."""
    with progress_console.status("starting devices..."):
        findings = list(examine())
    show(_table(findings))
    usable = {
        finding.what: finding.health is Health.OK for finding in findings if finding.what in ("emulator", "vendor")
    }
    checks = [dataclasses.asdict(finding) for finding in findings]
    write_json(json_file, {"devices": usable, "checks": checks})
    if not usable["emulator"]:
        raise typer.Exit(1)


def _table(findings: list[CheckupLine]) -> TextTable:
    found = "found, and what to do"
    table = TextTable("openhtp doctor", ("what", "state", found), ("state", found))
    for finding in findings:
        text = Text(printable(finding.detail))
        if finding.advice:
            text.append(f"\n→ {finding.advice}", style="dim")
        table.add(finding.what, Text(finding.health.value, style=_STYLES[finding.health]), text)
    return table
