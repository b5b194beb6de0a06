"""The cost of a session's runs: the profile of a run in parts, and the files about all runs.

Provider options ask for rows of a CSV file and a log for the viewer, ``SessionOptions.enable_profiling`` for a
file of events as ONNX Runtime writes it.
"""

from __future__ import annotations

import csv
import functools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openhtp.frontend.partitioning import AssignedNode
from openhtp.records.profile import ProfileEvent, walk
from openhtp.report.listing import COLUMNS, csv_rows
from openhtp.runtime.instruments.instrument import Hook, Instrument
from openhtp.runtime.objects.modelled import StepOps, ops_of_steps
from openhtp.runtime.objects.profile import Profile, ProfileLog
from openhtp.session.options import QNN, SessionRequest

if TYPE_CHECKING:
    from openhtp.session.executable import AssignedPart, Executable, Results, RunCall
    from openhtp.session.inference import InferenceSession
    from openhtp.session.on_cpu import NodeTime
    from openhtp.session.pending import PendingRun

PART = 90_004
"""Ours: a part of a model, with the events of its graph below, or of its nodes if it is on the CPU. Measured."""
NODE = 90_005
"""Ours: a node of a part on the CPU. Measured, by ONNX Runtime."""
_WHOLE, _STEPS = 400, 407
# The log holds this many runs, from the first on: it stays in memory until the session ends.
_MOST_LOGGED = 1000


@dataclass(slots=True)
class PartRun:
    """One part of a run, and its profile if it is on the HTP. Times are 0 until it is over."""

    provider: str
    nodes: tuple[AssignedNode, ...]
    profile: Profile | None
    # Whether a part on the CPU reports its nodes, too.
    tells_nodes: bool = False
    begin_ns: int = 0
    end_ns: int = 0
    node_times: tuple[NodeTime, ...] = ()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Around the run."""
        self.begin_ns = time.monotonic_ns()
        yield
        self.end_ns = time.monotonic_ns()

    @property
    def events(self) -> tuple[ProfileEvent, ...]:
        """The events of the part's graph on the HTP, or of its nodes on the CPU."""
        if self.profile is not None:
            return self.profile.events()
        return tuple(ProfileEvent(NODE, f"{each.name} ({each.op})", each.us, "us") for each in self.node_times)


class PartsProfile:
    """Filled by one run; read like a ``Profile``."""

    def __init__(self, level: str, assigned: Sequence[AssignedPart], profiles: Sequence[Profile | None]) -> None:
        self.level = level
        tells_nodes = level not in ("off", "basic")
        self.parts = tuple(
            PartRun(part.provider, part.nodes, profile, tells_nodes)
            for part, profile in zip(assigned, profiles, strict=True)
        )

    def events(self) -> tuple[ProfileEvent, ...]:
        """The parts in their order, and the whole; those of an HTP have the events of their graphs."""
        run = [(number, part) for number, part in enumerate(self.parts) if part.end_ns]
        if not run:
            return ()
        events = [
            ProfileEvent(
                PART,
                f"part {number + 1} on {part.provider}, {len(part.nodes)} nodes",
                (part.end_ns - part.begin_ns) // 1000,
                "us",
                events=part.events,
            )
            for number, part in run
        ]
        whole = sum(part.end_ns - part.begin_ns for _, part in run)
        return (*events, ProfileEvent(_WHOLE, "All parts (execute) time", whole // 1000, "us"))

    def event(self, number: int) -> ProfileEvent | None:
        """The first event with this API number, wherever it is in the tree."""
        return next((event for event in walk(self.events()) if event.type == number), None)

    def __repr__(self) -> str:
        return f"<PartsProfile {self.level}, {len(self.parts)} parts>"


AnyProfile = Profile | PartsProfile
"""Of a run as a whole, or in parts."""


class ProfileRows:
    """Appends the events of each run; rows of one run stay together. ``<name>_qnn.log`` is written at the end."""

    def __init__(self, path: str) -> None:
        self.path = path
        file = Path(path)
        self._lock = threading.Lock()
        self._file = file.open("w", newline="", encoding="utf-8")
        self._rows = csv.writer(self._file)
        self._rows.writerow(COLUMNS)
        self._log = ProfileLog(file.with_name(f"{file.stem}_qnn.log"), app="OnnxRuntime")
        self._logged = 0

    def add(self, profile: Profile) -> None:
        """Write one call's events."""
        stamp = time.time_ns() // 1000
        with self._lock:
            if self._file.closed:
                return
            self._rows.writerows(csv_rows(profile.events(), stamp))
            self._file.flush()
            if self._logged < _MOST_LOGGED:
                self._logged += 1
                self._log.add(profile)

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            self._file.close()
            self._log.close()


class EventFile:
    """Collects events and writes them at the end: a JSON list, times in microseconds since ``start_ns``."""

    def __init__(self, prefix: str, start_ns: int) -> None:
        self.start_ns = start_ns
        stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S_%f")[:-3]
        self.path = f"{prefix}_{stamp}.json"
        self._events: list[dict[str, Any]] = []
        self._is_open = True

    def add(
        self, category: str, name: str, begin_ns: int, end_ns: int, args: dict[str, Any] | None = None
    ) -> None:
        """Something that took time."""
        if self._is_open:
            self._events.append(
                {
                    "cat": category,
                    "pid": os.getpid(),
                    "tid": threading.get_native_id(),
                    "dur": max(0, end_ns - begin_ns) // 1000,
                    "ts": max(0, begin_ns - self.start_ns) // 1000,
                    "ph": "X",
                    "name": name,
                    "args": args or {},
                }
            )

    def add_part(self, part: PartRun, number: int, ops: Sequence[StepOps]) -> None:
        """One part of a run: its steps on the HTP, or all its nodes on the CPU."""
        if part.profile is not None:
            self.add_steps(part.profile, part.provider, ops, part.end_ns)
        elif part.end_ns:
            kinds, names = [node.op_type for node in part.nodes], [node.name for node in part.nodes]
            self.add_nodes(part.provider, number, names, kinds, part.begin_ns, part.end_ns)

    def add_steps(self, profile: Profile, provider: str, ops: Sequence[StepOps], end_ns: int) -> None:
        """Every step of a run that ended then, with the ops that it computes."""
        steps = profile.event(_STEPS)
        times = [] if steps is None else [step.value * 1000 for step in steps.events]
        # The device says how long each step took; the last one ended with the run.
        at = end_ns - sum(times)
        for index, duration in enumerate(times):
            names, kinds = ops[index] if index < len(ops) else ((f"step {index}",), ("",))
            self.add_nodes(provider, index, names, kinds, at, at + duration)
            at += duration

    def add_nodes(
        self, provider: str, index: int, names: Sequence[str], kinds: Sequence[str], begin_ns: int, end_ns: int
    ) -> None:
        """Nodes that ran together."""
        args = {
            "op_name": "+".join(dict.fromkeys(kinds)),
            "provider": provider,
            "node_index": str(index),
            "nodes": list(names),
        }
        self.add("Node", f"{names[0]}_kernel_time", begin_ns, end_ns, args)

    def close(self) -> None:
        """Write the file; events that come later are dropped."""
        if self._is_open:
            self._is_open = False
            # One event a line, as ONNX Runtime writes them.
            lines = ",\n".join(json.dumps(event) for event in self._events)
            Path(self.path).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


class SessionRecorder:
    """The instrument that records the runs of one loaded model. It is installed only if an option asks for it."""

    def __init__(self, request: SessionRequest, executable: Executable) -> None:
        self._request, self._executable = request, executable
        self._events: EventFile | None = None
        self._rows: ProfileRows | None = None
        self._level: str | None = None
        self._max_events = None if request.config is None else request.config.max_events
        # The files and the instrument, while runs are recorded.
        self.opened = ExitStack()

    def begin(self, begin_ns: int) -> None:
        """Record from now on what the options ask for. ``begin_ns`` is when loading began."""
        request, config, options = self._request, self._request.config, self._request.options
        if not any(self._executable.graphs):
            return  # ONNX Runtime runs all of the model, and profiles it
        level = options["profiling_level"]
        if level == "off" and config is not None:
            level = config.profiling_level or "off"
        if level != "off" and options["profiling_file_path"]:
            self._rows = ProfileRows(options["profiling_file_path"])
            self.opened.callback(self._rows.close)
        if request.sess_options.enable_profiling:
            self._events = EventFile(request.sess_options.profile_file_prefix, begin_ns)
            self._events.add("Session", "session_initialization", begin_ns, time.monotonic_ns())
            self.opened.callback(self._events.close)
            level = "detailed" if level == "off" else level
        if level != "off":
            self._level = level
            hooks: dict[str, Hook] = {"session_run": self._record_run, "session_queue": self._record_queued}
            self.opened.enter_context(Instrument(hooks))

    @property
    def start_ns(self) -> int:
        """When the times of the events begin; 0 without them."""
        return 0 if self._events is None else self._events.start_ns

    def _record_run(
        self, proceed: Callable[[InferenceSession, RunCall], Results], session: InferenceSession, call: RunCall
    ) -> Results:
        if session.executable is not self._executable:
            return proceed(session, call)
        begin_ns = self._prepare(call)
        results = proceed(session, call)
        self._note(call.profile, begin_ns)
        return results

    def _record_queued(
        self, proceed: Callable[[InferenceSession, RunCall], PendingRun], session: InferenceSession, call: RunCall
    ) -> PendingRun:
        if session.executable is self._executable:
            begin_ns = self._prepare(call)
            call.noted = lambda: self._note(call.profile, begin_ns)
        return proceed(session, call)

    def _prepare(self, call: RunCall) -> int:
        """Give the run a profile; returns the time, which is when the run begins."""
        assert self._level is not None
        call.profile = self._executable.new_profile(self._level, self._max_events)
        return time.monotonic_ns()

    def _note(self, profile: AnyProfile | None, begin_ns: int) -> None:
        """Write the cost of a finished run, wherever an option asks for it."""
        if profile is None:
            return
        end_ns = time.monotonic_ns()
        parts = (PartRun(QNN, (), profile, end_ns=end_ns),) if isinstance(profile, Profile) else profile.parts
        for number, part in enumerate(parts):
            if part.profile is not None and self._rows is not None:
                self._rows.add(part.profile)
            if self._events is not None:
                self._events.add_part(part, number, self.step_ops[number])
        if self._events is not None:
            self._events.add("Session", "model_run", begin_ns, end_ns)

    @functools.cached_property
    def step_ops(self) -> list[list[StepOps]]:
        """The nodes that the steps of each part compute; a whole model is one part."""
        return [[] if graph is None else ops_of_steps(graph) for graph in self._executable.graphs]

    def end(self) -> str:
        """Record no more, and close all files; returns the path of the first, empty if there is none."""
        self.opened.close()
        file = self._events or self._rows
        return "" if file is None else file.path
