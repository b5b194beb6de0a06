"""What a session writes down of its runs: rows and a log by provider options, events by those of the session."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.step_names import StepOps, ops_of_steps
from openhtp.session.node_events import EventFile
from openhtp.session.options import CPU, QNN
from openhtp.session.part_profile import AnyProfile, PartsProfile
from openhtp.session.partition import PartitionedModel
from openhtp.session.profiling import ProfileFile

if TYPE_CHECKING:
    from openhtp.session.loading import Loaded, Plan


class Recorder:
    """Of one loaded model. Without being asked for anything it profiles nothing."""

    def __init__(self, plan: Plan, sess_options: Any) -> None:
        """Made when loading begins."""
        self._begin_ns = time.monotonic_ns()
        self._events: EventFile | None = None
        self._rows: ProfileFile | None = None
        self._model: Loaded | PartitionedModel | None = None
        self._plan, self._sess_options = plan, sess_options
        self._level: str | None = None
        self._max_events = None if plan.config is None else plan.config.max_events

    def start(self, model: Loaded | PartitionedModel | None) -> None:
        """The model is loaded; None if ONNX Runtime has all of it, and profiles by itself."""
        if model is None:
            return
        plan, options = self._plan, self._plan.options
        self._model = model
        level = options["profiling_level"]
        if level == "off" and plan.config is not None:
            level = plan.config.profiling_level or "off"
        if level != "off" and options["profiling_file_path"]:
            self._rows = ProfileFile(options["profiling_file_path"])
        if self._sess_options.enable_profiling:
            self._events = EventFile(self._sess_options.profile_file_prefix, self._begin_ns)
            self._events.add("Session", "session_initialization", self._begin_ns, time.monotonic_ns())
            level = "detailed" if level == "off" else level
        self._level = None if level == "off" else level

    @property
    def start_ns(self) -> int:
        """When the times of the events begin; 0 without them."""
        return 0 if self._events is None else self._events.start_ns

    def profile(self) -> Any:
        """For the next run: a profile, if one is wanted."""
        model, level = self._model, self._level
        if level is None or model is None:
            return None
        return model.new_profile(level, self._max_events)

    def note(self, profile: AnyProfile | None, begin_ns: int) -> None:
        """A run is over: write down what it cost, wherever that is asked for."""
        if profile is None:
            return
        parts = profile.parts if isinstance(profile, PartsProfile) else ()
        if self._rows is not None:
            for each in [part.profile for part in parts] if isinstance(profile, PartsProfile) else [profile]:
                if each is not None:
                    self._rows.add(each)
        events = self._events
        if events is None:
            return
        end_ns = time.monotonic_ns()
        if isinstance(profile, Profile):
            events.add_steps(profile, QNN, self.step_ops[0], end_ns)
        for number, part in enumerate(parts):
            if part.profile is not None:
                events.add_steps(part.profile, QNN, self.step_ops[number], part.end_ns)
            elif part.end_ns:
                kinds, names = [node.op_type for node in part.nodes], [node.name for node in part.nodes]
                events.add_nodes(CPU, number, names, kinds, part.begin_ns, part.end_ns)
        events.add("Session", "model_run", begin_ns, end_ns)

    @functools.cached_property
    def step_ops(self) -> list[list[StepOps]]:
        """What the steps of each part compute; of a whole model, of the one."""
        model = self._model
        if isinstance(model, PartitionedModel):
            return [[] if graph is None else ops_of_steps(graph) for graph in model.graphs]
        return [[] if model is None else ops_of_steps(model.graph)]

    def end(self) -> str:
        """Close all files; returns the path of the first, empty if there is none."""
        written: list[ProfileFile | EventFile] = [it for it in (self._events, self._rows) if it is not None]
        for file in written:
            file.close()
        return written[0].path if written else ""
