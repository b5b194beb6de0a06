"""``openhtp platform-validator``: whether a backend has all that it needs, with the vendor's options and words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openhtp.capi import identity
from openhtp.cli import _tool_options as opt
from openhtp.cli._terminal import JsonFile, complain, say, write_file, write_json
from openhtp.cli._tool_options import option
from openhtp.core.errors import InvalidArgument
from openhtp.tools.raw import make_folder
from openhtp.tools.validating import (
    BACKENDS,
    COLUMNS,
    BackendFinding,
    ValidationRequest,
    as_csv,
    library_in,
    validate,
)

_HERE = ("localhost", "127.0.0.1")


def platform_validator(
    backend: Annotated[str, option("backend", "dsp (the HTP), gpu, or all.")] = "dsp",
    directory: Annotated[
        Path | None, option("directory", "Folder of an SDK whose library is looked at; without it, the emulator.")
    ] = None,
    dsp_type: Annotated[str | None, option("dsp_type", "Architecture, as v75.")] = None,
    test_backend: Annotated[bool, option("testBackend", "Compute something and look at the result.")] = False,
    core_version: Annotated[bool, option("coreVersion", "Print the architecture.")] = False,
    lib_version: Annotated[bool, option("libVersion", "Print the library's version.")] = False,
    target_path: Annotated[Path, option("targetPath", "Folder for the result.")] = Path("output"),
    build_variant: Annotated[
        str | None, option("buildVariant", "Accepted; it is this computer that is looked at.")
    ] = None,
    device_id: Annotated[str | None, option("deviceId", "Accepted; there is one device.")] = None,
    remote_host: Annotated[str, option("remoteHost", "Only this computer.")] = "localhost",
    debug: Annotated[bool, option("debug", "Report every step.")] = False,
    version: opt.Version = False,
    json_file: JsonFile = None,
) -> None:
    """Validate the platform; exit status 1 if a requested backend cannot be used here."""
    with opt.tool_errors(), opt.logged("debug" if debug else None):
        if backend not in (*BACKENDS, "all"):
            raise InvalidArgument(f"--backend {backend!r}; expected one of {', '.join(BACKENDS)}, all")
        if remote_host not in _HERE:
            raise InvalidArgument(f"--remoteHost {remote_host!r}; only this computer can be looked at")
        wanted = ValidationRequest(
            library=None if directory is None else library_in(directory),
            dsp_type=dsp_type,
            core_version=core_version,
            lib_version=lib_version,
            test=test_backend,
        )
        chosen = BACKENDS if backend == "all" else (backend,)
        findings = [validate(each, wanted, identity.build_id()) for each in chosen]
        for finding in findings:
            _print(finding)
        write_file(make_folder(target_path) / "Result.csv", as_csv(findings))
        write_json(json_file, {"backends": [dict(zip(COLUMNS, each.row, strict=True)) for each in findings]})
    if any(finding.problem or finding.unit_test == "Failed" for finding in findings):
        raise typer.Exit(1)


def _print(finding: BackendFinding) -> None:
    if finding.problem:
        complain(f"PF_VALIDATOR: ERROR: backend {finding.backend}: {finding.problem}", "red")
    say(f"Backend = {finding.backend}")
    say("{")
    for title, value in zip(COLUMNS[1:], finding.row[1:], strict=True):
        say(f"  {title:<18}: {value}")
    say("}")


app = opt.plain_app(platform_validator)
