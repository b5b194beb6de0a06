"""Profiles of a tool's run: which level, of which executions, and the log that the viewer reads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openhtp.config import BackendConfig
from openhtp.core.errors import InvalidArgument
from openhtp.records.profile import Message, Method, ProfileEvent
from openhtp.runtime.objects.backend import Backend
from openhtp.runtime.objects.graph import Graph
from openhtp.runtime.objects.profile import Profile, ProfileLog

if TYPE_CHECKING:
    from openhtp.tools.net_run import GraphRun

_LOG_NAME = "qnn-profiling-data_0.log"
_OPTRACE_LOG_NAME = "qnn-profiling-data.log"
LEVELS = ("off", "basic", "detailed", "client", "backend")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProfiling:
    """The profiling of a run. ``level`` is a profile's, or None; ``client`` logs how long the tool itself took."""

    level: str | None = None
    client: bool = False
    start_delay_s: float = 0.0
    executions: int | None = None
    max_events: int | None = None


def profiling_of(
    level: str | None,
    option: str | None,
    config: BackendConfig | None,
    *,
    start_delay_s: float | None = None,
    executions: int | None = None,
) -> ToolProfiling:
    """The profiling that the options of a command ask for; the config fills in the rest."""
    general = {} if config is None else config.general
    graph: dict[str, Any] = next(iter(general.get("graph_configs", ())), {})
    if option not in (None, "optrace"):
        raise InvalidArgument(f"--profiling_option {option!r}; expected optrace")
    if option is not None and level != "detailed":
        raise InvalidArgument(f"--profiling_option optrace with --profiling_level {level}; expected detailed")
    if level is not None and level not in LEVELS:
        raise InvalidArgument(f"--profiling_level {level!r}; expected one of {', '.join(LEVELS)}")
    if level == "backend":
        level = None if config is None else config.profiling_level
        if level is None:
            raise InvalidArgument(
                '--profiling_level backend takes the level from the config: give --config_file with "devices":'
                ' [{"profiling_level": "linting"}]'
            )
    delay = start_delay_s if start_delay_s is not None else graph.get("graph_profiling_start_delay", 0)
    most = executions if executions is not None else graph.get("graph_profiling_num_executions")
    return ToolProfiling(
        level="optrace" if option else None if level in ("off", "client") else level,
        client=level == "client",
        start_delay_s=float(delay),
        executions=None if most is None else int(most),
        max_events=general.get("profile_configs", {}).get("num_max_events") or None,
    )


class ProfileRecorder:
    """Makes profiles for calls and keeps them in one log."""

    def __init__(self, wanted: ToolProfiling, folder: Path) -> None:
        self._wanted = wanted
        self._given = 0
        on = wanted.level is not None or wanted.client
        path = folder / (_OPTRACE_LOG_NAME if wanted.level == "optrace" else _LOG_NAME)
        self.log = ProfileLog(path, app="openhtp net-run", schematic_folder=Path()) if on else None

    def profile(self, backend: Backend) -> Profile | None:
        """A profile for a call that is no execution."""
        level = self._wanted.level
        return None if level is None else backend.create_profile(level, max_events=self._wanted.max_events)

    def profile_for(self, graph: Graph, elapsed_s: float) -> Profile | None:
        """A profile for an execution, if that execution is to be profiled."""
        wanted = self._wanted
        enough = wanted.executions is not None and self._given >= wanted.executions
        if wanted.level is None or enough or elapsed_s < wanted.start_delay_s:
            return None
        self._given += 1
        return self.profile(graph.context.device.backend)

    def add(self, profile: Profile | None) -> None:
        """Keep the events of a call."""
        if self.log is not None and profile is not None:
            self.log.add(profile)

    def close(self, runs: Sequence[GraphRun]) -> Path | None:
        """Write the log, with the number of inferences and their time; None without a log."""
        if self.log is None:
            return None
        count, seconds = sum(run.inferences for run in runs), sum(run.seconds for run in runs)
        events = (
            ProfileEvent(0, "numInferences", count, "count"),
            ProfileEvent(0, "duration", int(seconds * 1e6), "us"),
        )
        self.log.note(Message(method=Method.IPS, stamp_us=time.time_ns() // 1000, events=events))
        self.log.close()
        return self.log.path
