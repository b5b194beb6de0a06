"""``openhtp profile``: run a model under a profile and show where its time goes; logs, traces and a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import openhtp as htp
from openhtp.cli._config import ConfigFile, PerfProfileName, open_device, preset_of
from openhtp.cli._inputs import (
    Dim,
    Freeze,
    Mean,
    OpPackageNames,
    Std,
    parse_dims,
    parse_freeze,
    registered_named,
    samples_of,
)
from openhtp.cli._terminal import (
    JsonFile,
    confirm_written,
    console,
    errors_reported,
    progress_console,
    say,
    write_json,
)
from openhtp.cli._tool_options import DataFormats
from openhtp.config import BackendConfig
from openhtp.core import files
from openhtp.core.errors import BadProfile
from openhtp.estimation import ZOO, zoo_model
from openhtp.frontend.probing import with_fixed_inputs
from openhtp.hw.perf_profiles import MODELLED_PERF_PROFILE
from openhtp.ir.graph import Graph
from openhtp.ops._packages import OpPackage
from openhtp.report.viewing import LogReader, ReaderFeatures, ViewRequest, view
from openhtp.runtime.objects.profile import ProfileLog
from openhtp.session.options import soc_of

LEVELS = ("basic", "detailed", "linting", "optrace")
_READERS = {"linting": LogReader.CHROMETRACE, "optrace": LogReader.OPTRACE}


def profile(
    model: Annotated[str, typer.Argument(help="ONNX file, or a network of the zoo: zoo:mobilenet_v2.")],
    level: Annotated[
        str | None,
        typer.Option(help="basic, detailed, linting or optrace (the default, unless a config names one)."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the log, and for the files made from it.")
    ] = Path("profile"),
    soc: Annotated[str | None, typer.Option(help="Chip to emulate; SM8650, unless a config names one.")] = None,
    perf_profile: PerfProfileName = None,
    config_file: ConfigFile = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs to profile.")] = 3,
    inputs: Annotated[
        Path | None, typer.Option("--input", "-i", help="Samples as for `openhtp run`; otherwise random ones.")
    ] = None,
    mean: Mean = "0",
    std: Std = "1",
    dim: Dim = None,
    freeze: Freeze = None,
    data_format_config: DataFormats = None,
    op_package: OpPackageNames = None,
    json_file: JsonFile = None,
) -> None:
    """Profile a model: times measured here, cycles of every op modelled for the chip."""
    with errors_reported(), registered_named(op_package) as packages:
        config = preset_of(config_file, perf_profile, MODELLED_PERF_PROFILE)
        level = level or _level_of(config)
        if level not in LEVELS:
            raise BadProfile(f"--level {level!r}; expected {', '.join(LEVELS)}")
        source = zoo_model(model) if model.startswith(ZOO) else Path(model)
        dims, frozen = parse_dims(dim), parse_freeze(freeze)
        # A number without axes has one on the HTP.
        samples = [
            {name: np.atleast_1d(array) for name, array in sample.items()}
            for sample in samples_of(with_fixed_inputs(source, dims, frozen), inputs, mean, std)
        ]
        graph = htp.onnx.load(source, dims=dims, freeze=frozen, data_format_config=data_format_config)
        output.mkdir(parents=True, exist_ok=True)
        with progress_console.status(f"running {runs} times"):
            path = output / "profile.log"
            log = profile_model(
                graph, samples, path, config=config, soc=soc, level=level, runs=runs, packages=packages
            )
        written = _write_views(log, level, output)
        if level == "optrace":
            say("the .html is for a browser, chrometrace.json for ui.perfetto.dev, _htp.json for Netron")
        write_json(
            json_file,
            {
                "model": model,
                "soc": soc or soc_of(config),
                "perf_profile": None if config is None else config.perf_profile,
                "level": level,
                "files": [str(path) for path in written],
            },
        )


def _write_views(log: ProfileLog, level: str, output: Path) -> list[Path]:
    """Show and write the content of the log; return all files that there are now."""
    request = ViewRequest(
        logs=(log.path,),
        reader=_READERS.get(level, LogReader.DEFAULT),
        output=output / ("chrometrace.json" if level in _READERS else "profile.csv"),
        schematic=next(iter(log.schematics.values()), None),
        features=ReaderFeatures(qhas_json=True),
    )
    result = view(request)
    console.out(result.text, highlight=False, end="")
    for path, content in result.files.items():
        files.write_file(path, content)
    written = [log.path, *log.schematics.values(), *result.files]
    for path in written:
        confirm_written(path)
    return written


def _level_of(config: BackendConfig | None) -> str:
    """The outputs that a config asks for; all of them unless it does."""
    level = None if config is None else config.profiling_level
    return "optrace" if level in (None, "off") else str(level)


# Runs a model under a profile and keeps a log of it.


def profile_model(
    graph: Graph,
    samples: Sequence[Mapping[str, Any]],
    path: Path,
    *,
    config: BackendConfig | None,
    soc: str | None,
    level: str,
    runs: int,
    packages: Sequence[OpPackage] = (),
) -> ProfileLog:
    """Finalize, run and free a model; every call is in the log. The first run warms up and is not.

    ``soc`` comes before that of the config.
    """
    with (
        ProfileLog(path) as log,
        htp.Backend() as backend,
        open_device(backend, config, soc) as device,
    ):
        for package in packages:
            backend.register_op_package(package)
        context = device.create_context()
        ready = context.compose_graph(graph)
        profile = backend.create_profile(level, max_events=None if config is None else config.max_events)
        ready.finalize(profile=profile)
        log.add(profile)
        ready.execute(dict(samples[0]))
        for number in range(runs):
            ready.execute(dict(samples[number % len(samples)]), profile=profile)
            if profile.schematic() is None and profile.level is not htp.ProfileLevel.BASIC:
                raise htp.UnsupportedFeature(
                    f"{device.soc} has no half precision, so a float model cannot be profiled there;"
                    " quantize it (openhtp quantize), or profile at the level basic"
                )
            log.add(profile)
        context.free(profile=profile)
        log.add(profile)
    return log
