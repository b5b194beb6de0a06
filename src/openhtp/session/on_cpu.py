"""A model, or a part of one, on ONNX Runtime's own CPU kernels."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from openhtp.core.errors import BadModel, QnnError
from openhtp.core.files import open_file
from openhtp.engine.onnxruntime import onnxruntime, refusal_in_words
from openhtp.frontend.onnx_reader import MAX_FILE_BYTES
from openhtp.frontend.partitioning import partition
from openhtp.frontend.probing import with_fixed_inputs
from openhtp.session.executable import (
    AssignedPart,
    Executable,
    ModelMetadata,
    NodeArg,
    Results,
    RunCall,
    check_feed,
)
from openhtp.session.options import CPU, QNN, SessionRequest
from openhtp.session.profiling import PartRun
from openhtp.session.values import plain_arrays

_SPINNING = "session.intra_op.allow_spinning"
_OF_A_NODE = "_kernel_time"
# Entries that say where the constants of an optimized model go.
_OF_THE_OPTIMIZED = (
    "session.save_model_format",
    "session.optimized_model_external_initializers_file_name",
    "session.optimized_model_external_initializers_min_size_in_bytes",
)


def cpu_session(source: bytes | Path, options: Any) -> Any:
    """ONNX Runtime's session. It opens files by itself, so the file is checked before."""
    if isinstance(source, Path):
        with open_file(source, most=MAX_FILE_BYTES, what="an ONNX model", error=BadModel):
            pass
    try:
        return onnxruntime.InferenceSession(
            source if isinstance(source, bytes) else str(source), options, providers=[CPU]
        )
    except Exception as error:  # its errors have no common class
        raise BadModel(f"ONNX Runtime cannot take the model: {refusal_in_words(error)}") from error


def write_optimized(request: SessionRequest, executable: Executable) -> None:
    """Write the file that ``optimized_model_filepath`` asks for, where no session of ONNX Runtime has done so.

    The file is ONNX Runtime's optimized model for a CPU: what an HTP runs is no ONNX model.
    """
    asked = request.sess_options
    if not asked.optimized_model_filepath or isinstance(executable, CpuExecutable):
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = asked.graph_optimization_level
    options.optimized_model_filepath = asked.optimized_model_filepath
    for key in _OF_THE_OPTIMIZED:
        with suppress(RuntimeError):  # which is how ONNX Runtime says that there is no such entry
            options.add_session_config_entry(key, asked.get_session_config_entry(key))
    cpu_session(request.source, options)


class CpuExecutable(Executable):
    """A whole model on ONNX Runtime, which loads it, checks its feeds, runs and profiles it."""

    def __init__(self, request: SessionRequest, *, htp_wanted: bool) -> None:
        source = request.source
        if request.dims or request.freeze:
            source = with_fixed_inputs(source, request.dims, request.freeze, may_stay_open=True)
        self._session = cpu_session(source, request.sess_options)
        self._request, self._htp_wanted = request, htp_wanted
        self.inputs, self.outputs = (
            [NodeArg(item.name, item.type, list(item.shape)) for item in items]
            for items in (self._session.get_inputs(), self._session.get_outputs())
        )
        optional = {item.name for item in self._session.get_inputs() if item.type.startswith("optional(")}
        self._required = [item.name for item in self.inputs if item.name not in optional]
        theirs = self._session.get_modelmeta()
        self.metadata = ModelMetadata(**{name: getattr(theirs, name) for name in ModelMetadata.__slots__})

    @property
    def assigned(self) -> list[AssignedPart]:
        """All nodes, and why they are on the CPU; none if the model cannot be taken apart."""
        try:
            nodes = [node for part in partition(self._request.fixed_model()) for node in part.nodes]
        except QnnError:
            nodes = []
        if not self._htp_wanted:
            nodes = [replace(node, reason=f"{QNN} was not asked for") for node in nodes]
        return [AssignedPart(CPU, tuple(nodes))]

    def checked(self, output_names: Any, feeds: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Names and feeds as they are: ONNX Runtime checks them."""
        check_feed(feeds, self._required)
        return output_names, plain_arrays(feeds, self.inputs)

    def run(self, call: RunCall) -> Results:
        """Run once and wait."""
        results: Results = self._session.run(call.names, call.feeds, call.run_options)
        return results

    def end_profiling(self) -> str:
        """The file of ONNX Runtime's own profile; empty if there is none."""
        return str(self._session.end_profiling())

    def __str__(self) -> str:
        return "on the CPU"


class NodeTime(NamedTuple):
    """A node as the runtime ran it. A node that the runtime fused from several has the name of one of them."""

    name: str
    op: str
    us: int


class CpuPart:
    """A part of a model that runs in parts, with as many threads as the user's options say."""

    graph = None

    def __init__(self, model: bytes, sess_options: Any) -> None:
        self._model, self._threads = model, sess_options.intra_op_num_threads
        # Threads that spin after their part has run take the processor from the part that runs next.
        self._spinning = "0"
        with suppress(RuntimeError):  # which is how ONNX Runtime says that the user did not set it
            self._spinning = sess_options.get_session_config_entry(_SPINNING)
        self._session = cpu_session(model, self._quiet_options())

    def new_profile(self, level: str, max_events: int | None = None) -> None:
        """None: it has no graph that could fill one."""

    def run_part(
        self, outputs: Sequence[str], feeds: dict[str, Any], run_options: Any, part: PartRun | None
    ) -> Results:
        """Run once and wait."""
        if part is not None and part.tells_nodes:
            return self._run_and_tell_nodes(outputs, feeds, run_options, part)
        with nullcontext() if part is None else part.timed():
            results: Results = self._session.run(list(outputs), feeds, run_options)
        return results

    def _run_and_tell_nodes(
        self, outputs: Sequence[str], feeds: dict[str, Any], run_options: Any, part: PartRun
    ) -> Results:
        """The runtime profiles a session as a whole, so a profiled run has a session of its own."""
        options = self._quiet_options()
        options.enable_profiling = True
        with tempfile.TemporaryDirectory(prefix="openhtp-profile-") as folder:
            options.profile_file_prefix = str(Path(folder) / "run")
            session = cpu_session(self._model, options)
            with part.timed():
                results: Results = session.run(list(outputs), feeds, run_options)
            part.node_times = _node_times(Path(session.end_profiling()))
        return results

    def _quiet_options(self) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.add_session_config_entry(_SPINNING, self._spinning)
        options.log_severity_level = 3
        return options


def _node_times(path: Path) -> tuple[NodeTime, ...]:
    """Of one run, in the order in which the nodes ran."""
    # Older versions of the runtime write control characters of names as they are.
    return tuple(
        NodeTime(event["name"].removesuffix(_OF_A_NODE), event["args"].get("op_name", ""), int(event["dur"]))
        for event in json.loads(path.read_text(encoding="utf-8"), strict=False)
        if event.get("cat") == "Node" and event["name"].endswith(_OF_A_NODE)
    )
