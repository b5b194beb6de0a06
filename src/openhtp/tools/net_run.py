"""``qnn-net-run``: graphs are run on raw files, line by line of an input list, and their outputs written."""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from openhtp.core.errors import InvalidArgument
from openhtp.core.tensor import TensorSpec
from openhtp.core.units import MIB
from openhtp.runtime.calls.execution import Execution
from openhtp.runtime.context import Context
from openhtp.runtime.device import Device
from openhtp.runtime.graph import Graph
from openhtp.runtime.profile import Profile
from openhtp.runtime.signal import Signal
from openhtp.tools.input_list import InputList, Line, read_input_list
from openhtp.tools.models import Changes, Where, composed, executable, import_models, opened_device, restored
from openhtp.tools.profiling import Profiling, Recorder
from openhtp.tools.raw import Array, Form, read_piece
from openhtp.tools.results import METADATA, Results, Written, make_folder, metadata_yaml
from openhtp.tools.stages import Stage, during

log = logging.getLogger(__name__)

Feeds = dict[str, Array]
Tell = Callable[[str, int, int | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """How often lists are gone through: once, until so many inferences or seconds are done."""

    inferences: int | None = None
    duration_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be run, on what, and what becomes of the outputs."""

    where: Where
    models: Sequence[str] = ()
    binaries: Sequence[Path] = ()
    lists: Sequence[Path | None]
    output_dir: Path
    changes: Changes = field(default_factory=Changes)
    native_inputs: bool = False
    native_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    written: Written = Written.FLOAT_ONLY
    profiling: Profiling = field(default_factory=Profiling)
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


@dataclass(slots=True, kw_only=True)
class GraphRun:
    """What came of one graph. Times are measured on this computer."""

    name: str
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    inferences: int = 0
    seconds: float = 0.0
    written: int = 0
    folder: Path = field(default_factory=Path)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of an order."""

    asynchronous: bool
    perf_profile: str | None
    graphs: list[GraphRun] = field(default_factory=list)
    log: Path | None = None


def net_run(order: Order, tell: Tell) -> Outcome:
    """Carry out an order. ``tell(what, done, of)`` hears how far it is."""
    graphs_told = [] if order.binaries else import_models(order.models, order.changes)
    recorder = Recorder(order.profiling, order.output_dir)
    with ExitStack() as stack:
        tell("Creating the device", 0, None)
        device = stack.enter_context(opened_device(order.where))
        make_folder(order.output_dir)
        profile = recorder.profile(device.backend)
        if order.binaries:
            contexts = [_restored(device, binary, order, profile, recorder) for binary in order.binaries]
        else:
            tell("Composing and finalizing graphs", 0, None)
            config = order.where.config
            contexts = [composed(device, graphs_told, config, order.changes, profile=profile, log=recorder.log)]
        outcome = Outcome(asynchronous=not order.synchronous, perf_profile=device.perf_profile)
        plans = _plans(order, contexts)
        try:
            for plan in plans:
                outcome.graphs.append(plan.run(recorder, tell))
        finally:
            (order.output_dir / METADATA).write_text(
                metadata_yaml(
                    (plan.told.name, plan.told.inputs, plan.told.outputs, plan.told.inferences) for plan in plans
                ),
                encoding="utf-8",
            )
        for context in contexts:
            context.free(profile=profile)
            recorder.add(profile)
        outcome.log = recorder.close(outcome.graphs)
    return outcome


def _restored(device: Device, binary: Path, order: Order, profile: Profile | None, recorder: Recorder) -> Context:
    signal = None if order.retrieve_timeout_us is None else device.backend.create_signal(order.retrieve_timeout_us)
    if order.validate:
        with during(Stage.CREATE):
            device.validate_binary(binary, check_data=True)
    context = restored(device, binary, order.where.config, signal=signal, profile=profile)
    recorder.add(profile)
    return context


def _plans(order: Order, contexts: Sequence[Context]) -> list[_Plan]:
    """Which graph runs which list: in their order, one each."""
    graphs = [graph for context in contexts for graph in executable(context)]
    names = ", ".join(graph.name for graph in graphs)
    if len(order.lists) != len(graphs):
        raise InvalidArgument(
            f"--input_list has {len(order.lists)} lists; there are {len(graphs)} graphs ({names}): give one for"
            " each, in this order, or __ for one that is not to be run"
        )
    pairs = [(graph, path) for graph, path in zip(graphs, order.lists, strict=True) if path is not None]
    if not pairs:
        raise InvalidArgument(f"--input_list leaves out every graph ({names}); nothing would be run")
    unknown = [name for name in order.native_names if name not in {graph.name for graph in graphs}]
    if unknown:
        raise InvalidArgument(f"--native_input_tensor_names names graph {unknown[0]!r}; there are {names}")
    # As the vendor's: a folder of its own for each graph, if there are several.
    apart = len(graphs) > 1
    return [
        _Plan(order, graph, path, order.output_dir / graph.name if apart else order.output_dir)
        for graph, path in pairs
    ]


class _Plan:
    """One graph and its list."""

    def __init__(self, order: Order, graph: Graph, path: Path, folder: Path) -> None:
        self._order = order
        self._graph = graph
        self._inputs = {tensor.name: tensor.spec for tensor in graph.inputs}
        specs = {tensor.name: tensor.spec for tensor in graph.outputs}
        self._list: InputList = read_input_list(path, list(self._inputs), list(specs))
        chosen = [specs[name] for name in self._list.outputs] or list(specs.values())
        self._forms = self._forms_of(order)
        self._results = Results(folder, chosen, order.written, order.keep)
        self._cache = _Cache(order.cached_sets, order.cached_mb)
        self.told = GraphRun(name=graph.name, inputs=list(self._inputs.values()), outputs=chosen, folder=folder)

    def _forms_of(self, order: Order) -> dict[str, Form]:
        native = order.native_names.get(self._graph.name, ())
        unknown = [name for name in native if name not in self._inputs]
        if unknown:
            raise InvalidArgument(
                f"--native_input_tensor_names names {unknown[0]!r}; graph {self._graph.name!r} has"
                f" {', '.join(self._inputs)}"
            )
        return {
            name: Form.NATIVE if order.native_inputs or name in native else Form.FLOAT for name in self._inputs
        }

    def run(self, recorder: Recorder, tell: Tell) -> GraphRun:
        """Run the list as often as it is asked for."""
        order, told = self._order, self.told
        depth = 1 if order.synchronous else self._depth()
        pending: deque[tuple[Execution, Profile | None]] = deque()
        begin = time.monotonic()
        with during(Stage.EXECUTE):
            slots = _Slots(self._graph, depth, order.batch) if order.shared_buffers else None
            for feeds in self._sets(begin):
                profile = recorder.profile_for(self._graph, time.monotonic() - begin)
                signal = self._signal()
                if order.synchronous:
                    given, into = (feeds, None) if slots is None else slots.filled(feeds)
                    self._keep(self._graph.execute(given, into, profile=profile, signal=signal), recorder, profile)
                else:
                    if len(pending) == depth:
                        self._collect(pending, recorder)
                    given, into = (feeds, None) if slots is None else slots.filled(feeds)
                    pending.append(
                        (self._graph.execute_async(given, into, profile=profile, signal=signal), profile)
                    )
                tell(f"Executing {told.name}", told.inferences, self._total())
            while pending:
                self._collect(pending, recorder)
        told.seconds = time.monotonic() - begin
        tell(f"Executing {told.name}", told.inferences, self._total())
        return told

    def _signal(self) -> Signal | None:
        timeout = self._order.timeout_us
        return None if timeout is None else self._graph.context.device.backend.create_signal(timeout)

    def _depth(self) -> int:
        """Executions under way at once: the queue's depth, or less if the config says so."""
        depth = self._graph.context.queue_depth
        config = self._order.where.config
        limits = {} if config is None else config.general.get("async_graph_execution_config", {})
        return min(depth, *(int(limit) for limit in limits.values())) if limits else depth

    def _total(self) -> int | None:
        wanted = self._order.repetition
        if wanted.duration_s is not None:
            return None
        return wanted.inferences or len(self._list.lines)

    def _collect(self, pending: deque[tuple[Execution, Profile | None]], recorder: Recorder) -> None:
        execution, profile = pending.popleft()
        self._keep(execution.result(), recorder, profile)

    def _keep(self, outputs: Mapping[str, Array], recorder: Recorder, profile: Profile | None) -> None:
        recorder.add(profile)
        self._results.add(self.told.inferences, outputs)
        self.told.inferences += 1
        self.told.written = self._results.written

    # Inputs

    def _sets(self, begin: float) -> Iterator[Feeds]:
        """Inputs of one execution after the other, until enough is done."""
        wanted = self._order.repetition
        count = 0
        while True:
            for feeds in self._once():
                if wanted.inferences is not None and count >= wanted.inferences:
                    return
                if wanted.duration_s is not None and time.monotonic() - begin >= wanted.duration_s:
                    return
                yield feeds
                count += 1
            if wanted.inferences is None and wanted.duration_s is None:
                return

    def _once(self) -> Iterator[Feeds]:
        """The list once: a line is an execution, or one element of its batch."""
        lines = iter(self._list.lines)
        for line in lines:
            feeds, parts = self._read(line)
            whole = self._parts()
            if parts == whole:
                yield feeds
                continue
            several = [feeds, *(self._element(other) for other in itertools.islice(lines, whole - 1))]
            if len(several) < whole:
                log.warning(
                    "%s: the last batch has %d of %d elements; the rest is zeros", line.where, len(several), whole
                )
            yield {
                name: self._joined(spec, [each[name] for each in several]) for name, spec in self._inputs.items()
            }

    def _parts(self) -> int:
        batches = {spec.shape[0] for spec in self._inputs.values() if spec.shape}
        return (batches.pop() if len(batches) == 1 else 1) * self._order.batch

    def _element(self, line: Line) -> Feeds:
        feeds, parts = self._read(line)
        if parts != 1:
            raise InvalidArgument(f"{line.where}: holds a whole batch; the lines before hold one element each")
        return feeds

    def _joined(self, spec: TensorSpec, arrays: Sequence[Array]) -> Array:
        whole = np.zeros((self._parts(), *spec.shape[1:]), spec.dtype.numpy)
        joined = np.concatenate(arrays)
        whole[: len(joined)] = joined
        return whole

    def _read(self, line: Line) -> tuple[Feeds, int]:
        known = self._cache.get(line.where)
        if known is not None:
            return known
        found, parts = {}, set()
        for name, spec in self._inputs.items():
            piece = read_piece(line.files[name], line.where, spec, self._forms[name], self._order.batch)
            found[name] = piece.array
            parts.add(piece.parts)
        if len(parts) > 1:
            raise InvalidArgument(f"{line.where}: some files hold a whole batch and some one element of it")
        count = parts.pop() if parts else 1
        self._cache.put(line.where, (found, count))
        return found, count


class _Cache:
    """Inputs that were read and are kept for the next time: so many sets, or so many bytes."""

    def __init__(self, sets: int | None, megabytes: int | None) -> None:
        self._sets = sets if sets is None or sets >= 0 else None
        self._left = (512 if megabytes is None else megabytes) * MIB
        self._held: dict[str, tuple[Feeds, int]] = {}

    def get(self, key: str) -> tuple[Feeds, int] | None:
        return self._held.get(key)

    def put(self, key: str, value: tuple[Feeds, int]) -> None:
        nbytes = sum(array.nbytes for array in value[0].values())
        if nbytes <= self._left and (self._sets is None or len(self._held) < self._sets):
            self._held[key] = value
            self._left -= nbytes


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
