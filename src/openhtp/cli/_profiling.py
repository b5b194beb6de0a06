"""Runs a model under a profile and keeps a log of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openhtp as htp
from openhtp.cli._config import open_device
from openhtp.config import BackendConfig
from openhtp.ir.graph import Graph
from openhtp.runtime.objects.profile_log import ProfileLog


def profile_model(
    graph: Graph,
    samples: Sequence[Mapping[str, Any]],
    path: Path,
    *,
    config: BackendConfig | None,
    soc: str | None,
    level: str,
    runs: int,
) -> ProfileLog:
    """Finalize, run and free a model; every call is in the log. The first run warms up and is not.

    ``soc`` comes before that of the config.
    """
    with (
        ProfileLog(path) as log,
        htp.Backend() as backend,
        open_device(backend, config, soc) as device,
    ):
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
                    f"{device.soc} has no half precision, so nothing can be told of a float model there;"
                    " quantize it (openhtp quantize), or profile at the level basic"
                )
            log.add(profile)
        context.free(profile=profile)
        log.add(profile)
    return log
