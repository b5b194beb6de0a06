"""A model, or a part of one, on ONNX Runtime's own CPU kernels."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from openhtp.core.errors import BadModel, QnnError
from openhtp.core.files import open_file
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.frontend.onnx_reader import MAX_FILE_BYTES
from openhtp.frontend.partitioning import partition
from openhtp.frontend.probing import with_fixed_inputs
from openhtp.runtime.objects.graph import Graph
from openhtp.runtime.objects.profile import Profile
from openhtp.session.executable import (
    AssignedPart,
    ModelMetadata,
    NodeArg,
    Results,
    RunCall,
    check_feed,
)
from openhtp.session.options import CPU, QNN, SessionRequest
from openhtp.session.pending import Carrier, PendingRun
from openhtp.session.values import OrtValue

_OF_A_NODE = "_kernel_time"


def cpu_session(source: bytes | Path, options: Any) -> Any:
    """ONNX Runtime's session. It reads files by itself, so what the path leads to is looked at before."""
    if isinstance(source, Path):
        with open_file(source, most=MAX_FILE_BYTES, what="an ONNX model", error=BadModel):
            pass
    try:
        return onnxruntime.InferenceSession(
            source if isinstance(source, bytes) else str(source), options, providers=[CPU]
        )
    except Exception as error:  # it has no class for all of its own
        raise BadModel(f"ONNX Runtime cannot take the model: {error}") from error


class CpuExecutable:
    """A whole model that ONNX Runtime loads, checks the feeds of, runs and profiles by itself."""

    graphs: Sequence[Graph | None] = (None,)
    half_precision = False
    value_context = None

    def __init__(self, request: SessionRequest, *, htp_wanted: bool) -> None:
        source = request.source
        if request.dims or request.freeze:
            source = with_fixed_inputs(source, request.dims, request.freeze, may_stay_open=True)
        self.leave: Callable[[], object] = int  # there is nothing to give back
        self._session = cpu_session(source, request.sess_options)
        self._request, self._htp_wanted = request, htp_wanted
        self.inputs, self.outputs = (
            [NodeArg(item.name, item.type, list(item.shape)) for item in items]
            for items in (self._session.get_inputs(), self._session.get_outputs())
        )
        theirs = self._session.get_modelmeta()
        self.metadata = ModelMetadata(**{name: getattr(theirs, name) for name in ModelMetadata.__slots__})

    @property
    def assigned(self) -> list[AssignedPart]:
        """All nodes, and why they are here; none if the model cannot be taken apart."""
        try:
            nodes = [node for part in partition(self._request.fixed_model()) for node in part.nodes]
        except QnnError:
            nodes = []
        if not self._htp_wanted:
            nodes = [replace(node, reason=f"{QNN} was not asked for") for node in nodes]
        return [AssignedPart(CPU, tuple(nodes))]

    def room_for(self, output: str) -> None:
        """None: results are arrays of their own."""

    def new_profile(self, level: str, max_events: int | None = None) -> None:
        """None: ONNX Runtime profiles by itself."""

    def checked(self, output_names: Any, feeds: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Feeds for ONNX Runtime, which does not know our values; it checks all the rest."""
        check_feed(feeds, ())
        return output_names, {
            name: np.asarray(array) if isinstance(array, OrtValue) else array for name, array in feeds.items()
        }

    def run(self, call: RunCall) -> Results:
        """Run once and wait."""
        results: Results = self._session.run(call.names, call.feeds, call.run_options)
        return results

    def queue(self, call: RunCall, carrier: Carrier, noted: Callable[[], None]) -> PendingRun:
        """Have a thread of the session run it."""
        return carrier.compute(call, self.run, noted)

    def end_profiling(self) -> str:
        """The file of ONNX Runtime's own profile; empty if there is none."""
        return str(self._session.end_profiling())

    def close(self) -> None:
        """It has nothing on a device."""

    def __str__(self) -> str:
        return "on the CPU"


class CpuPart:
    """A part of a model that runs in parts, with as many threads as the user's options say."""

    graph = None

    def __init__(self, model: bytes, sess_options: Any) -> None:
        self._model, self._threads = model, sess_options.intra_op_num_threads
        self._session = cpu_session(model, self._quiet_options())

    def new_profile(self, level: str, max_events: int | None = None) -> None:
        """None: it has no graph that could fill one."""

    def run_part(
        self, outputs: Sequence[str], feeds: Mapping[str, Any], run_options: Any, profile: Profile | None
    ) -> Results:
        """Run once and wait."""
        results: Results = self._session.run(list(outputs), dict(feeds), run_options)
        return results

    def profiled(self) -> ProfiledCpuSession:
        """The same for one run after which the times of its nodes are known."""
        return ProfiledCpuSession(self._model, self._quiet_options())

    def _quiet_options(self) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.log_severity_level = 3
        return options


class NodeTime(NamedTuple):
    """A node as the runtime ran it: of several that it made one, the name of one of them."""

    name: str
    op: str
    us: int


class ProfiledCpuSession:
    """How long each node took in one run, as ONNX Runtime measures it. Used in a ``with`` block.

    The runtime profiles a session from its making to its end, so such a run has a session of its own.
    """

    def __init__(self, model: bytes | Path, options: Any) -> None:
        """``options`` are taken over and changed."""
        self._folder = tempfile.TemporaryDirectory(prefix="openhtp-profile-")
        try:
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(self._folder.name) / "run")
            self._session = cpu_session(model, options)
        except BaseException:
            self._folder.cleanup()
            raise

    def __enter__(self) -> ProfiledCpuSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self._folder.cleanup()

    def run_part(
        self, outputs: Sequence[str], feeds: Mapping[str, Any], run_options: Any, profile: Profile | None
    ) -> Results:
        """Run once and wait."""
        results: Results = self._session.run(list(outputs), dict(feeds), run_options)
        return results

    def times(self) -> tuple[NodeTime, ...]:
        """Of the run, in the order in which the nodes ran."""
        events = json.loads(Path(self._session.end_profiling()).read_text(encoding="utf-8"))
        return tuple(
            NodeTime(event["name"].removesuffix(_OF_A_NODE), event["args"].get("op_name", ""), int(event["dur"]))
            for event in events
            if event.get("cat") == "Node" and event["name"].endswith(_OF_A_NODE)
        )
