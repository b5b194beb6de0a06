"""``qnn-net-run``: graphs are run on raw files, line by line of an input list, and their outputs written."""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from openhtp.core.errors import BadBinary, InvalidArgument, UnsupportedFeature
from openhtp.core.files import read_file
from openhtp.core.tensor import TensorSpec
from openhtp.core.units import GIB
from openhtp.runtime.calls.execution import Execution
from openhtp.runtime.instruments.device_queries import open_library_binary
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.graph import Graph
from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.signal import Signal
from openhtp.tools.input_list import Feeds, InputCache, InputFeed, InputList, Repetition, read_input_list
from openhtp.tools.models import (
    GraphChanges,
    ToolTarget,
    composed,
    executable,
    import_models,
    is_binary,
    named_errors,
    opened_device,
    restored,
)
from openhtp.tools.profiling import ProfileRecorder, ToolProfiling
from openhtp.tools.raw import METADATA, Array, OutputTypes, OutputWriter, RawForm, make_folder, metadata_yaml
from openhtp.tools.stages import Tell, ToolStage, during

log = logging.getLogger(__name__)

_MOST_SECTION = 4 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class NetRunOrder:
    """An order: models or binaries, inputs, the target, and the handling of outputs."""

    where: ToolTarget
    models: Sequence[str] = ()
    binaries: Sequence[Path] = ()
    lists: Sequence[Path | None]
    output_dir: Path
    changes: GraphChanges = field(default_factory=GraphChanges)
    native_inputs: bool = False
    native_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    written: OutputTypes = OutputTypes.FLOAT_ONLY
    profiling: ToolProfiling = field(default_factory=ToolProfiling)
    synchronous: bool = False
    repetition: Repetition = field(default_factory=Repetition)
    keep: int | None = None
    batch: int = 1
    timeout_us: int | None = None
    retrieve_timeout_us: int | None = None
    shared_buffers: bool = False
    cached_sets: int | None = None
    cached_mb: int | None = None
    validate: bool = False
    updates: Sequence[tuple[str, Path]] = ()


@dataclass(slots=True, kw_only=True)
class GraphRun:
    """The result of one graph. Times are measured on this computer."""

    name: str
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    inferences: int = 0
    seconds: float = 0.0
    written: int = 0
    folder: Path = field(default_factory=Path)


@dataclass(slots=True, kw_only=True)
class NetRunResult:
    """The result of an order."""

    asynchronous: bool
    perf_profile: str | None
    graphs: list[GraphRun] = field(default_factory=list)
    log: Path | None = None


def net_run(order: NetRunOrder, tell: Tell) -> NetRunResult:
    """Carry out an order. ``tell(what, done, of)`` is called with the progress."""
    if order.where.library is not None and not all(is_binary(path) for path in order.binaries):
        return _by_library(order, tell)
    sources = [] if order.binaries else import_models(order.models, order.changes)
    if sources:  # before anything is started or compiled
        lists = _lists_of(order, [source.name for source in sources])
        for source, path in zip(sources, lists, strict=True):
            if path is not None:
                read_input_list(path, [spec.name for spec in source.inputs], source.output_names)
    recorder = ProfileRecorder(order.profiling, order.output_dir)
    with ExitStack() as stack:
        tell("Creating the device", 0, None)
        device = stack.enter_context(opened_device(order.where))
        make_folder(order.output_dir)
        profile = recorder.profile(device.backend)
        if order.binaries:
            contexts = _restored(device, order, profile, recorder)
        else:
            tell("Composing and finalizing graphs", 0, None)
            config = order.where.config
            contexts = [composed(device, sources, config, order.changes, profile=profile, log=recorder.log)]
        _update(contexts, order.updates)
        outcome = NetRunResult(asynchronous=not order.synchronous, perf_profile=device.perf_profile)
        graphs = [graph for context in contexts for graph in executable(context)]
        _run_all(_plans(order, graphs), order, outcome, recorder, tell)
        for context in contexts:
            context.free(profile=profile)
            recorder.add(profile)
        outcome.log = recorder.close(outcome.graphs)
    return outcome


def _update(contexts: Sequence[Context], updates: Sequence[tuple[str, Path]]) -> None:
    """Apply sections of a binary, each to the graph that it names, or to the only one there is."""
    owners = {graph.name: context for context in contexts for graph in executable(context)}
    for name, path in updates:
        if name not in owners and (name or len(owners) > 1):
            raise InvalidArgument(
                f"--binary_updates {str(path)!r} is for graph {name!r}; expected one of {', '.join(owners)}"
            )
        graph = name or next(iter(owners))
        section = read_file(path, most=_MOST_SECTION, what="a section of a context binary", error=InvalidArgument)
        with during(ToolStage.CREATE):
            owners[graph].apply_binary_section(graph, section)


def _run_all(
    plans: Sequence[_Plan], order: NetRunOrder, outcome: NetRunResult, recorder: ProfileRecorder, tell: Tell
) -> None:
    try:
        for plan in plans:
            outcome.graphs.append(plan.run(recorder, tell))
    finally:
        graph_runs = [plan.report for plan in plans]
        text = metadata_yaml((run.name, run.inputs, run.outputs, run.inferences) for run in graph_runs)
        (order.output_dir / METADATA).write_text(text, encoding="utf-8")


def _by_library(order: NetRunOrder, tell: Tell) -> NetRunResult:
    """Binaries in the library's own format: it runs them, one execution after the other."""
    asked = {
        "--profiling_level": order.profiling.level is not None,
        "--shared_buffer": order.shared_buffers,
        "--timeout": order.timeout_us is not None,
        "--perf_profile": order.where.perf_profile is not None,
        "--binary_updates": bool(order.updates),
    }
    for option, is_given in asked.items():
        if is_given:
            raise UnsupportedFeature(f"{option} does not go with a binary of the library's own; leave it out")
    tell("Loading the binary", 0, None)
    make_folder(order.output_dir)
    order = replace(order, synchronous=True)
    outcome = NetRunResult(asynchronous=False, perf_profile=None)
    with opened_binaries(order.where, order.binaries) as graphs:
        _run_all(_plans(order, graphs), order, outcome, ProfileRecorder(ToolProfiling(), order.output_dir), tell)
    return outcome


def _restored(
    device: Device, order: NetRunOrder, profile: Profile | None, recorder: ProfileRecorder
) -> list[Context]:
    if order.validate:
        with during(ToolStage.CREATE):
            for binary in order.binaries:
                device.validate_binary(binary, check_data=True)
    config, timeout = order.where.config, order.retrieve_timeout_us
    return restored(device, order.binaries, config, timeout_us=timeout, profile=profile, log=recorder.log)


def _lists_of(order: NetRunOrder, graphs: Sequence[str]) -> Sequence[Path | None]:
    """The list of each graph, in their order."""
    names = ", ".join(graphs)
    if len(order.lists) != len(graphs):
        raise InvalidArgument(
            f"--input_list has {len(order.lists)} lists; there are {len(graphs)} graphs ({names}): give one for"
            " each, in this order, or __ for one that is not to be run"
        )
    if all(path is None for path in order.lists):
        raise InvalidArgument(f"--input_list leaves out every graph ({names}); nothing would be run")
    return order.lists


def _plans(order: NetRunOrder, graphs: Sequence[Graph]) -> list[_Plan]:
    """Which graph runs which list: in their order, one each."""
    names = [graph.name for graph in graphs]
    lists = _lists_of(order, names)
    pairs = [(graph, path) for graph, path in zip(graphs, lists, strict=True) if path is not None]
    unknown = [name for name in order.native_names if name not in names]
    if unknown:
        known = ", ".join(names)
        raise InvalidArgument(f"--native_input_tensor_names names graph {unknown[0]!r}; there are {known}")
    # As in the vendor's tool, each of several graphs has a folder of its own.
    apart = len(graphs) > 1
    return [
        _Plan(order, graph, path, order.output_dir / graph.name if apart else order.output_dir)
        for graph, path in pairs
    ]


class _Plan:
    """One graph and its list."""

    def __init__(self, order: NetRunOrder, graph: Graph, path: Path, folder: Path) -> None:
        self._order = order
        self._graph = graph
        self._inputs = {tensor.name: tensor.spec for tensor in graph.inputs}
        specs = {tensor.name: tensor.spec for tensor in graph.outputs}
        self._list: InputList = read_input_list(path, list(self._inputs), list(specs))
        chosen = [specs[name] for name in self._list.outputs] or list(specs.values())
        self._results = OutputWriter(folder, chosen, order.written, order.keep)
        self._feeding = InputFeed(
            self._list.lines,
            self._inputs,
            self._forms_of(order),
            batch=order.batch,
            cache=InputCache(order.cached_sets, order.cached_mb),
        )
        self.report = GraphRun(name=graph.name, inputs=list(self._inputs.values()), outputs=chosen, folder=folder)

    def _forms_of(self, order: NetRunOrder) -> dict[str, RawForm]:
        native = order.native_names.get(self._graph.name, ())
        unknown = [name for name in native if name not in self._inputs]
        if unknown:
            raise InvalidArgument(
                f"--native_input_tensor_names names {unknown[0]!r}; graph {self._graph.name!r} has"
                f" {', '.join(self._inputs)}"
            )
        return {
            name: RawForm.NATIVE if order.native_inputs or name in native else RawForm.FLOAT
            for name in self._inputs
        }

    def run(self, recorder: ProfileRecorder, tell: Tell) -> GraphRun:
        """Run the list as often as it is asked for."""
        order, graph_run = self._order, self.report
        graph = self._graph
        depth = 1 if order.synchronous else self._depth(graph)
        pending: deque[tuple[Execution, Profile | None]] = deque()
        begin = time.monotonic()
        with during(ToolStage.EXECUTE):
            slots = self._slots(depth)
            for feeds in self._feeding.sets(order.repetition, begin):
                profile = recorder.profile_for(graph, time.monotonic() - begin)
                signal = self._signal(graph)
                if len(pending) == depth:
                    self._collect(pending, recorder)
                inputs, outputs = (feeds, None) if slots is None else slots.filled(feeds)
                if order.synchronous:
                    self._keep(graph.execute(inputs, outputs, profile=profile, signal=signal), recorder, profile)
                else:
                    pending.append((graph.execute_async(inputs, outputs, profile=profile, signal=signal), profile))
                tell(f"Executing {graph_run.name}", graph_run.inferences, self._total())
            while pending:
                self._collect(pending, recorder)
        graph_run.seconds = time.monotonic() - begin
        tell(f"Executing {graph_run.name}", graph_run.inferences, self._total())
        return graph_run

    def _signal(self, graph: Graph) -> Signal | None:
        timeout = self._order.timeout_us
        return None if timeout is None else graph.context.device.backend.create_signal(timeout)

    def _slots(self, depth: int) -> _Slots | None:
        if not self._order.shared_buffers:
            return None
        return _Slots(self._graph, depth, self._order.batch)

    def _depth(self, graph: Graph) -> int:
        """Executions under way at once: the queue's depth, or less if the config says so."""
        depth = graph.context.queue_depth
        config = self._order.where.config
        limits = {} if config is None else config.general.get("async_graph_execution_config", {})
        return min(depth, *(int(limit) for limit in limits.values())) if limits else depth

    def _total(self) -> int | None:
        wanted = self._order.repetition
        if wanted.duration_s is not None:
            return None
        return wanted.inferences or len(self._list.lines)

    def _collect(self, pending: deque[tuple[Execution, Profile | None]], recorder: ProfileRecorder) -> None:
        execution, profile = pending.popleft()
        self._keep(execution.result(), recorder, profile)

    def _keep(self, outputs: Mapping[str, Array], recorder: ProfileRecorder, profile: Profile | None) -> None:
        recorder.add(profile)
        self._results.add(self.report.inferences, outputs)
        self.report.inferences += 1
        self.report.written = self._results.written


class _Slots:
    """Registered memory for the tensors of as many executions as are under way at once."""

    def __init__(self, graph: Graph, depth: int, batch: int) -> None:
        self._sets = []
        for _ in range(depth):
            arrays = []
            for tensors in (graph.inputs, graph.outputs):
                mems = [(t, graph.context.register_memory(t.nbytes * batch)) for t in tensors]
                arrays.append({t.name: mem.array(t, batch=batch) for t, mem in mems})
            self._sets.append((arrays[0], arrays[1]))
        self._next = itertools.cycle(self._sets)

    def filled(self, feeds: Feeds) -> tuple[Feeds, Feeds]:
        """The next memory, with these inputs in it."""
        inputs, outputs = next(self._next)
        for name, array in feeds.items():
            inputs[name][...] = array.reshape(inputs[name].shape)
        return inputs, outputs


# Context binaries that a library saved in its own format: run by that library, on a device of its own.

_MOST_BYTES = 4 * GIB


@contextmanager
def opened_binaries(where: ToolTarget, binaries: Sequence[Path]) -> Iterator[list[Graph]]:
    """The graphs of binaries, on a device with the library of ``where``."""
    with opened_device(where) as device:
        graphs: list[Graph] = []
        for binary in binaries:
            with during(ToolStage.CREATE):
                blob = read_file(binary, most=_MOST_BYTES, what="a context binary", error=BadBinary)
                with named_errors(binary):
                    context = open_library_binary(device, blob)
            graphs += context.graphs.values()
        yield graphs
