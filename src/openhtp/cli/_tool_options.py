"""Options that the vendor's tools have in common, spelled as theirs; and how errors of a tool end it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from openhtp.capi import identity
from openhtp.cli._terminal import errors_reported, progress_console, say
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.foreign_text import printable
from openhtp.core.version import VERSION
from openhtp.frontend.data_formats import Formats, read_data_formats
from openhtp.hw.perf_profiles import PERF_PROFILES
from openhtp.tools.stages import Tell, exit_status_of

LOG_LEVELS = {"error": 40, "warn": 30, "info": 20, "debug": 10, "verbose": 5}
_UNUSED = "Accepted for the sake of scripts; "


def option(name: str, words: str, **rest: Any) -> Any:
    """An option spelled with underscores, as the vendor's are. Among a context's parameters, a path is a Path."""
    rest["path_type"] = Path  # which its stub does not know
    return typer.Option(f"--{name}", help=words, **rest)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"QNN SDK {identity.build_id()}")
        say(f"openhtp {VERSION}")
        raise typer.Exit


Models = Annotated[
    str | None, option("model", "ONNX file or zoo:NAME; several with commas: each is a graph, named as its file.")
]
BackendPath = Annotated[
    str | None,
    option("backend", "Any libQnnHtp.so, ours or Qualcomm's; without it, or by name alone: the emulator."),
]
OutputDir = Annotated[Path, option("output_dir", "Folder for what is written; made if missing.")]
ToolConfig = Annotated[
    Path | None, option("config_file", "JSON: backend extensions, contexts, graphs; see docs/config.md.")
]
DataFormats = Annotated[
    Path | None, option("data_format_config", "JSON: tensors in HMX weight layout (docs/llm.md).")
]
SetOutputs = Annotated[
    str | None, option("set_output_tensors", "More outputs: graph0:t0,t1;graph1:t0. Not with a context binary.")
]
ProfilingLevel = Annotated[
    str | None, option("profiling_level", "basic, detailed, client (only this tool), or backend (config).")
]
ProfilingOption = Annotated[str | None, option("profiling_option", "optrace; needs --profiling_level detailed.")]
PerfProfile = Annotated[
    str | None, option("perf_profile", f"Comes before the config's: default, {', '.join(PERF_PROFILES)}.")
]
LogLevel = Annotated[str | None, option("log_level", f"One of {', '.join(LOG_LEVELS)}.")]
Soc = Annotated[str | None, option("soc", "Chip to emulate; SM8650, unless the config names one.")]
SaverFolder = Annotated[
    Path | None, option("saver", "Record all calls of the API in this folder (openhtp replay).")
]
PlatformOptions = Annotated[
    str | None, option("platform_options", f"{_UNUSED}k:v;k:v, no key has an effect here.")
]
OpPackages = Annotated[
    str | None, option("op_packages", "library.so:provider[:CPU], or module:attribute; several with commas.")
]
DlcPath = Annotated[str | None, option("dlc_path", "Refused: give the ONNX file.")]
AdapterConfig = Annotated[Path | None, option("adapter_weight_config", "Refused: adapters are made in Python.")]
ModelPrefix = Annotated[str | None, option("model_prefix", f"{_UNUSED}ONNX files have no symbols.")]
Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the SDK's version."),
]


def plain_app(command: Callable[..., None]) -> typer.Typer:
    """A command whose help is plain lines: boxes would cut off the vendor's long names."""
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None)
    app.command(command.__name__.replace("_", "-"))(command)
    return app


def tool_errors() -> AbstractContextManager[None]:
    """One red line, and the exit status of the stage that failed: 11, 14, 15, 17; 2 for wrong usage."""
    return errors_reported(lambda error: (exit_status_of(error) if isinstance(error, QnnError) else None) or 2)


@contextlib.contextmanager
def progress() -> Iterator[Tell]:
    """A bar on a terminal; nothing in a pipe."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    off = not progress_console.is_terminal
    with Progress(*columns, console=progress_console, transient=True, disable=off) as bar:
        task = bar.add_task("", total=None)

        def tell(what: str, done: int, of: int | None) -> None:
            bar.update(task, description=what, completed=done, total=of)

        yield tell


@contextlib.contextmanager
def logged(level: str | None) -> Iterator[None]:
    """Log lines on the standard error, from this level on; warnings without one."""
    if level is not None and level not in LOG_LEVELS:
        raise InvalidArgument(f"--log_level {level!r}; expected one of {', '.join(LOG_LEVELS)}")
    logger, handler = logging.getLogger("openhtp"), logging.StreamHandler()
    handler.setFormatter(_Lines())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(LOG_LEVELS[level or "warn"])
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class _Lines(logging.Formatter):
    """Milliseconds since the start, the level, the text: as the vendor's tools write."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        return f"{record.relativeCreated:10.1f}ms [{record.levelname:^8}] {printable(record.getMessage())}"


def check_perf_profile(name: str | None) -> str | None:
    """The perf profile; ``default`` votes for none."""
    if name in (None, "default"):
        return None
    if name not in PERF_PROFILES:
        raise InvalidArgument(f"--perf_profile {name!r}; expected one of default, {', '.join(PERF_PROFILES)}")
    return name


def split_models(text: str | None, option: str) -> list[str]:
    """Names separated by commas."""
    words = [] if text is None else [word.strip() for word in text.split(",")]
    if not all(words):
        raise InvalidArgument(f"{option} {text!r} has an empty place; expected files separated by commas")
    return words


def by_graph(text: str | None, option: str) -> dict[str, list[str]]:
    """Names of tensors by graph: ``graph0:t0,t1;graph1:t0``."""
    tensors_of: dict[str, list[str]] = {}
    for part in [] if text is None else text.split(";"):
        graph, mark, names = part.strip().partition(":")
        words = [word.strip() for word in names.split(",")]
        if not graph or not mark or not all(words):
            raise InvalidArgument(
                f"{option} {text!r}: {part!r} is no graph with tensors; expected graph0:t0,t1;graph1:t0"
            )
        tensors_of.setdefault(graph, []).extend(words)
    return tensors_of


_FOREIGN = {
    "dlc_path": "the format is Qualcomm's own; give the ONNX file that it was made from (--model)",
    "direct_mode": "there is no LPAI here; leave it out",
    "adapter_weight_config": "adapters are made in Python (Context.get_binary_section, docs/context-binary.md) and"
    " applied by net-run --binary_updates",
}


def refuse_foreign(options: Mapping[str, Any]) -> None:
    """Refuse options of the vendor's tools that have no meaning here."""
    for option, why in _FOREIGN.items():
        value = options.get(option)
        if value not in (None, False):
            shown = "" if value is True else f" {str(value)!r}"
            raise InvalidArgument(f"--{option}{shown} is not taken: {why}")


def packages_of(text: str | None) -> tuple[str, ...]:
    """What ``--op_packages`` names, without targets: the emulated accelerator is this computer."""
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    if any(word.count(":") not in (1, 2) for word in words):
        raise InvalidArgument(
            f"--op_packages {text!r}; expected library.so:provider[:target],... or module:attribute"
        )
    return tuple(word.removesuffix(":CPU").removesuffix(":HTP") for word in words)


def formats_of(path: Path | None) -> Formats | None:
    """Read the file of ``--data_format_config``."""
    return None if path is None else read_data_formats(path)
