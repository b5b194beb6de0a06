"""Options of commands that vote, or that take the vendor's config files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openhtp.cli._terminal import say
from openhtp.config import BackendConfig, parse_config, read_config
from openhtp.hw.perf_profiles import PERF_PROFILES, find_perf_profile

if TYPE_CHECKING:
    from openhtp import Backend, Device

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config_file", "--config-file", help="Backend extensions config (JSON), or the file that names it."
    ),
]
PerfProfileName = Annotated[
    str | None,
    typer.Option("--perf-profile", "--perf_profile", help=f"One of {', '.join(PERF_PROFILES)}."),
]


def config_of(path: Path | None, perf_profile: str | None) -> tuple[BackendConfig | None, str | None]:
    """Return the named config, if any, and the perf profile: the command's comes before the file's."""
    if perf_profile is not None:
        find_perf_profile(perf_profile)
    config = None if path is None else read_config(path)
    if perf_profile is None and config is not None:
        perf_profile = config.perf_profile
    return config, perf_profile


def preset_of(path: Path | None, perf_profile: str | None, default: str | None = None) -> BackendConfig | None:
    """Return the config for ``create_device``, with the command's perf profile, if there is either.

    ``default`` is the perf profile where neither names one.
    """
    config, named = config_of(path, perf_profile)
    wanted = named or default
    if wanted is None:
        return config
    return (config or parse_config({}, "the command line")).with_perf_profile(wanted)


def open_device(backend: Backend, config: BackendConfig | None, soc: str | None) -> Device:
    """Make a device by a config; a ``soc`` that the command names comes before the config's."""
    return backend.create_device(config=config) if soc is None else backend.create_device(config=config, soc=soc)


def modelled_config(path: Path | None, perf_profile: str | None = None) -> tuple[BackendConfig | None, str | None]:
    """Return config and perf profile of a command that models times; warn about keys that change none."""
    config, named = config_of(path, perf_profile)
    if config is not None and config.unmodelled:
        keys = " and ".join(config.unmodelled)
        say(f"{config.source}: {keys} change no modelled time: no published figure says what they bring", "dim")
    return config, named


def soc_of(config: BackendConfig | None, soc: str | None, default: str) -> str:
    """The chip of a command: the one given, otherwise the config's, otherwise the command's default."""
    if soc is not None:
        return soc
    named: str | None = None if config is None else config.device_options().get("soc")
    return named or default
