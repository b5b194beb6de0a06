"""``qnn-throughput-net-run``: threads that run models side by side, and how long each execution took."""

from __future__ import annotations

import difflib
import itertools
import shlex
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from openhtp.config import Key, Section, read_config
from openhtp.config.reading import check_section, load_json, refuse
from openhtp.core.errors import InvalidArgument, QnnError, UnsupportedFeature
from openhtp.core.latches import Latch
from openhtp.core.tensor import TensorSpec
from openhtp.core.threads import OwnThread
from openhtp.core.validating import PointerPlace
from openhtp.core.value_kinds import Numeral
from openhtp.frontend.fixing import OPEN_SIZES, OpenSizes
from openhtp.hw.perf_profiles import PERF_PROFILES
from openhtp.ir.graph import Graph as IrGraph
from openhtp.options import Choice, Flag, Text, Whole
from openhtp.runtime.calls.execution import Execution
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.graph import Graph
from openhtp.tools.input_list import read_input_list
from openhtp.tools.models import (
    GraphChanges,
    ToolTarget,
    composed,
    executable,
    import_models,
    is_binary,
    library_of,
    opened_device,
)
from openhtp.tools.raw import Array, OutputTypes, OutputWriter, RawForm, read_piece
from openhtp.tools.stages import Tell, ToolStage, during

# The configuration of ``qnn-throughput-net-run``: backends, models, contexts, and threads that use them.

_MOST_BYTES = 16 << 20
_MOST = 1 << 31
_PATH, _NAME = Text("a path"), Text("a name")
_FORMS = ("NATIVE_ONLY", "FLOAT_ONLY", "FLOAT_AND_NATIVE")
POST_PROCESSORS = ("NONE", "MSE", "MSE_FLOAT32", "MSE_INT8", "MSE_INT16")


def _keys(*rows: tuple[str, Any, str]) -> tuple[Key, ...]:
    return tuple(Key(name=name, kind=kind, about=about) for name, kind, about in rows)


_BACKENDS = _keys(
    ("backendName", _NAME, "Unique. Required."),
    ("backendPath", _PATH, "A libQnnHtp.so; by name alone the emulator. Required."),
    ("profilingLevel", Choice(("OFF", "BASIC", "DETAILED")), "What executions are profiled with."),
    ("backendExtensions", _PATH, "Not needed here."),
    ("perfProfile", Choice(("default", *PERF_PROFILES)), "Votes."),
    ("opPackagePath", Text("path:provider"), "Refused."),
    ("platformOption", Text("key:value"), "No effect."),
)
_MODELS = _keys(
    ("modelName", _NAME, "Unique. Required."),
    ("modelPath", _PATH, "ONNX file, zoo:NAME or context binary. Required."),
    ("loadFromCachedBinary", Flag(), "Whether it is a context binary."),
    ("inputPath", _PATH, "Input lists of the graphs, with commas; random data without."),
    ("inputDataType", Choice(("NATIVE", "FLOAT")), "Types of raw inputs."),
    ("postProcessor", Text("one for each graph"), f"Of {', '.join(POST_PROCESSORS)}, with commas."),
    ("groundTruthPath", _PATH, "Lists of what outputs should be, with commas."),
    ("outputPath", _PATH, "Folder for outputs."),
    ("outputDataType", Choice(_FORMS), "Types of raw outputs."),
    ("saveOutput", Choice(("NONE", "NATIVE_LAST", "NATIVE_ALL")), "Which outputs are written."),
)
_CONTEXTS = _keys(
    ("contextName", _NAME, "Unique. Required."),
    ("priority", Choice(("DEFAULT", "LOW", "NORMAL", "NORMAL_HIGH", "HIGH")), "Priority of its graphs."),
    ("executeAsyncQueueDepth", Whole(1, 300), "Depth of the queue."),
    ("cacheCompatibilityMode", Choice(("permissive", "strict")), "Which binaries do."),
)
_THREADS = _keys(
    ("threadName", _NAME, "Unique. Required."),
    ("backend", _NAME, "Required."),
    ("context", _NAME, "Required."),
    ("model", _NAME, "Required."),
    ("initModelInLoop", Flag(), "Make the model ready anew in each round; not from a binary."),
    ("loadInputDataInLoop", Flag(), "Read the inputs anew in each round."),
    ("useRandomData", Flag(), "Random inputs."),
    ("interval", Whole(0, _MOST, "microseconds"), "Between executions."),
    ("loopUnit", Choice(("count", "second")), "What loop counts."),
    ("loop", Whole(1, _MOST), "Rounds."),
    ("executeAsynchronous", Flag(), "Queue executions."),
    ("backendConfig", _PATH, "The HTP's own config file."),
)
_FILE = Section(
    name="",
    about="",
    keys=(),
    sections=(
        Section(name="backends", about="Libraries.", keys=_BACKENDS, is_list=True),
        Section(name="models", about="Models.", keys=_MODELS, is_list=True),
        Section(name="contexts", about="Settings of contexts.", keys=_CONTEXTS, is_list=True),
        Section(
            name="testCase",
            about="What is run.",
            keys=_keys(
                ("iteration", Numeral(-_MOST, _MOST), "Times; below 0 until interrupted. Required."),
                ("logLevel", Choice(("error", "warn", "info", "debug", "verbose")), "Log."),
            ),
            sections=(Section(name="threads", about="Side by side.", keys=_THREADS, is_list=True),),
        ),
    ),
)
_NAMES = {"backends": "backendName", "models": "modelName", "contexts": "contextName"}
_REQUIRED = {
    "backends": ("backendName", "backendPath"),
    "models": ("modelName", "modelPath"),
    "contexts": ("contextName",),
}

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputCase:
    """A checked file: entries by name, and the threads that use them."""

    source: Path
    backends: Mapping[str, Entry]
    models: Mapping[str, Entry]
    contexts: Mapping[str, Entry]
    threads: Sequence[Entry]
    iterations: int | None
    log_level: str | None


def read_test_case(path: Path) -> ThroughputCase:
    """Read a configuration; errors name the place."""
    document = load_json(path, what="a configuration of threads", most=_MOST_BYTES)
    content = check_section(document, _FILE, PointerPlace(str(path)))
    named = {part: _named(path, part, content) for part in _NAMES}
    case = content.get("testCase") or {}
    threads = case.get("threads") or []
    if "iteration" not in case or not threads:
        refuse(str(path), "/testCase", "needs iteration and threads")
    for index, thread in enumerate(threads):
        _check_thread(path, f"/testCase/threads/{index}", thread, named)
    names = [thread["threadName"] for thread in threads]
    if len(set(names)) != len(names):
        refuse(str(path), "/testCase/threads", f"have names that come twice: {', '.join(names)}")
    return ThroughputCase(
        source=path,
        backends=named["backends"],
        models=named["models"],
        contexts=named["contexts"],
        threads=threads,
        iterations=case["iteration"] if case["iteration"] >= 0 else None,
        log_level=case.get("logLevel"),
    )


def _named(path: Path, part: str, content: Entry) -> dict[str, Entry]:
    entries = content.get(part)
    if not entries:
        refuse(str(path), f"/{part}", "is missing; expected a list of at least one")
    named: dict[str, Entry] = {}
    for index, entry in enumerate(entries):
        for key in _REQUIRED[part]:
            if key not in entry:
                refuse(str(path), f"/{part}/{index}", f"has no {key}, which is required")
        name = entry[_NAMES[part]]
        if name in named:
            refuse(str(path), f"/{part}/{index}/{_NAMES[part]}", f"is {name!r}, which comes twice")
        named[name] = entry
    return named


def _check_thread(path: Path, pointer: str, thread: Entry, named: Mapping[str, Mapping[str, Entry]]) -> None:
    for key in ("threadName", "backend", "context", "model"):
        if key not in thread:
            refuse(str(path), pointer, f"has no {key}, which is required")
    for part, key in (("backends", "backend"), ("contexts", "context"), ("models", "model")):
        if thread[key] not in named[part]:
            near = difflib.get_close_matches(thread[key], named[part], 1) or list(named[part])
            refuse(
                str(path),
                f"{pointer}/{key}",
                f"is {thread[key]!r}, which /{part} has not; did you mean {near[0]!r}?",
            )
    if thread.get("initModelInLoop") and named["models"][thread["model"]].get("loadFromCachedBinary"):
        refuse(str(path), f"{pointer}/initModelInLoop", "does not go with a model from a context binary")


_SEED = 0
Feeds = dict[str, Array]


@dataclass(slots=True)
class RepeatedTimes:
    """How often something was done, and how long it took: microseconds, measured."""

    repeat: int = 0
    total_us: float = 0.0
    min_us: float = float("inf")
    max_us: float = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        took = seconds * 1e6
        self.repeat += 1
        self.total_us += took
        self.min_us, self.max_us = min(self.min_us, took), max(self.max_us, took)

    @property
    def average_us(self) -> float:
        """The mean."""
        return self.total_us / self.repeat if self.repeat else 0.0


@dataclass(slots=True)
class ThroughputResult:
    """The result of a test case: times by name, and the errors of outputs."""

    total_s: float = 0.0
    times: dict[str, RepeatedTimes] = field(default_factory=dict)
    mse: dict[str, float] = field(default_factory=dict)


def throughput(case: ThroughputCase, tell: Tell) -> ThroughputResult:
    """Run a test case. Ctrl-C ends an endless one; the result then holds everything measured so far."""
    outcome = ThroughputResult()
    with ExitStack() as stack:
        places = _Places(case, stack)
        workers = [_Worker(case, thread, places, outcome) for thread in case.threads]
        begin = time.monotonic()
        rounds = range(case.iterations) if case.iterations is not None else itertools.count()
        stop = Latch()
        try:
            for number in rounds:
                tell("Running", number, case.iterations)
                _side_by_side(workers, stop)
        except KeyboardInterrupt:
            stop.unlock()
            if case.iterations is not None:
                raise
        outcome.total_s = time.monotonic() - begin
        for worker in workers:
            worker.finish()
    return outcome


def _side_by_side(workers: Sequence[_Worker], stop: Latch) -> None:
    """One round of all threads. An error in one of them ends the others, and is raised."""
    failures: list[QnnError | OSError] = []

    def work(worker: _Worker) -> None:
        try:
            worker.work(stop)
        except (QnnError, OSError) as error:
            failures.append(error)
            stop.unlock()

    threads = [OwnThread(work, worker, name=worker.name) for worker in workers]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        stop.unlock()
        for thread in threads:
            thread.join()
        raise
    if failures:
        raise failures[0]


class _Places:
    """Devices of the backends, and contexts with models, made when a thread first needs them."""

    def __init__(self, case: ThroughputCase, stack: ExitStack) -> None:
        self._case = case
        self._stack = stack
        self._devices: dict[tuple[str, str | None], Device] = {}
        self._contexts: dict[tuple[str, str | None, str, str], Context] = {}

    def context(self, thread: Entry, *, fresh: bool = False) -> Context:
        """The context of a thread; a ``fresh`` one is shared with no other thread."""
        key = (thread["backend"], thread.get("backendConfig"), thread["context"], thread["model"])
        if not fresh and key in self._contexts:
            return self._contexts[key]
        context = self._create_context(thread, self._device(thread))
        if not fresh:
            self._contexts[key] = context
        return context

    def _device(self, thread: Entry) -> Device:
        key = (thread["backend"], thread.get("backendConfig"))
        if key not in self._devices:
            backend = self._case.backends[thread["backend"]]
            if "opPackagePath" in backend:
                raise InvalidArgument(
                    f"{self._case.source}: opPackagePath: packages hold code for Qualcomm's chip"
                )
            profile = backend.get("perfProfile", "default")
            where = ToolTarget(
                library=library_of(backend["backendPath"]),
                config=None if key[1] is None else read_config(key[1]),
                perf_profile=None if profile == "default" else profile,
            )
            self._devices[key] = self._stack.enter_context(opened_device(where))
        return self._devices[key]

    def _create_context(self, thread: Entry, device: Device) -> Context:
        model, settings = self._case.models[thread["model"]], self._case.contexts[thread["context"]]
        config = None if "backendConfig" not in thread else read_config(thread["backendConfig"])
        options: dict[str, Any] = {}
        if settings.get("priority", "DEFAULT") != "DEFAULT":
            options["priority"] = settings["priority"].lower()
        if "executeAsyncQueueDepth" in settings:
            options["queue_depth"] = settings["executeAsyncQueueDepth"]
        path = Path(model["modelPath"])
        stored = model.get("loadFromCachedBinary", path.is_file() and is_binary(path))
        if stored:
            with during(ToolStage.CREATE):
                mode = settings.get("cacheCompatibilityMode", "permissive")
                return device.create_context_from_binary(path, compatibility=mode, **options)
        changes = GraphChanges(context_options=options)
        return composed(device, _imported(model["modelPath"], changes), config, changes)


def _imported(path: str, changes: GraphChanges) -> list[IrGraph]:
    """The graphs of a model. The vendor's config has no key for sizes that it leaves open."""
    try:
        return import_models([path], changes)
    except UnsupportedFeature as error:
        sizes = error.where.get(OPEN_SIZES)
        if not isinstance(sizes, OpenSizes):
            raise
        options = " ".join(shlex.join(("--dim", f"{name}={size}")) for name, size in sizes.example.items())
        advice = f"save it with openhtp context-binary-generator {options}, and name the binary"
        raise UnsupportedFeature(f"{sizes.problem}. This config has no key for sizes: {advice}") from error


class _Worker:
    """One thread."""

    def __init__(self, case: ThroughputCase, thread: Entry, places: _Places, outcome: ThroughputResult) -> None:
        self.name: str = thread["threadName"]
        self._thread, self._places = thread, places
        self._model = case.models[thread["model"]]
        self._whole = outcome.times.setdefault(f"{self.name}:threadExecute", RepeatedTimes())
        self._each = outcome.times.setdefault(f"{self.name}:{thread['model']}:graphExecute", RepeatedTimes())
        self._outcome = outcome
        self._in_loop = bool(thread.get("initModelInLoop"))
        self._graphs = [] if self._in_loop else executable(places.context(thread))
        self._feeds: dict[str, list[Feeds]] = {}
        self._saved: dict[str, OutputWriter] = {}
        self._last: dict[str, Mapping[str, Array]] = {}
        self._check = _Check(self._model)

    def work(self, stop: Latch) -> None:
        """All rounds of one iteration."""
        begin = time.monotonic()
        counted = self._thread.get("loopUnit", "count") == "count"
        loop = self._thread.get("loop", 1)
        for number in itertools.count():
            if stop.is_open or (number >= loop if counted else time.monotonic() - begin >= loop):
                break
            self._round(number, stop)
        self._whole.add(time.monotonic() - begin)

    def _round(self, number: int, stop: Latch) -> None:
        if not self._in_loop:
            self._execute_all(self._graphs, number, stop)
            return
        with self._places.context(self._thread, fresh=True) as context:
            self._execute_all(executable(context), number, stop)

    def _execute_all(self, graphs: Sequence[Graph], number: int, stop: Latch) -> None:
        for index, graph in enumerate(graphs):
            sets = self._inputs(graph, index)
            with during(ToolStage.EXECUTE):
                for line, outputs in enumerate(self._executed(graph, sets, stop)):
                    self._last[graph.name] = outputs
                    self._check.look(graph, index, line, outputs, self._outcome.mse, self.name)
                    saved = self._model.get("saveOutput", "NONE")
                    if saved != "NONE":
                        results = self._results(graph)
                        if saved == "NATIVE_ALL":
                            results.add(results.written, outputs)
                    pause = self._thread.get("interval", 0)
                    if pause:
                        stop.wait(pause / 1e6)

    def _executed(self, graph: Graph, sets: Sequence[Feeds], stop: Latch) -> Iterator[Mapping[str, Array]]:
        queued: deque[tuple[float, Execution]] = deque()
        for feeds in sets:
            if stop.is_open:
                break
            begin = time.monotonic()
            if not self._thread.get("executeAsynchronous"):
                outputs = graph.execute(feeds)
                self._each.add(time.monotonic() - begin)
                yield outputs
                continue
            queued.append((begin, graph.execute_async(feeds)))
            if len(queued) >= graph.context.queue_depth:
                yield self._ended(*queued.popleft())
        while queued:
            yield self._ended(*queued.popleft())

    def _ended(self, begin: float, execution: Execution) -> Mapping[str, Array]:
        outputs = execution.result()
        self._each.add(time.monotonic() - begin)
        return outputs

    def _inputs(self, graph: Graph, index: int) -> list[Feeds]:
        if graph.name not in self._feeds or self._thread.get("loadInputDataInLoop"):
            lists = _of_graphs(self._model.get("inputPath"))
            if not lists or self._thread.get("useRandomData"):
                self._feeds[graph.name] = [random_inputs([tensor.spec for tensor in graph.inputs])]
            else:
                form = RawForm.FLOAT if self._model.get("inputDataType") == "FLOAT" else RawForm.NATIVE
                self._feeds[graph.name] = read_sets(_nth(lists, index, "inputPath"), graph.inputs, form)
        return self._feeds[graph.name]

    def _results(self, graph: Graph) -> OutputWriter:
        if graph.name not in self._saved:
            folder = Path(self._model.get("outputPath", "output")) / self.name / graph.name
            form = OutputTypes(self._model.get("outputDataType", "NATIVE_ONLY").lower())
            self._saved[graph.name] = OutputWriter(folder, [tensor.spec for tensor in graph.outputs], form, None)
        return self._saved[graph.name]

    def finish(self) -> None:
        """Write the last outputs, if the configuration asks for them."""
        if self._model.get("saveOutput", "NONE") == "NATIVE_LAST":
            for name, results in self._saved.items():
                results.add(0, self._last[name])


class _Check:
    """Mean squared errors of outputs: against files, or against the first run on the same inputs."""

    def __init__(self, model: Entry) -> None:
        self._words = _of_graphs(model.get("postProcessor"))
        unknown = [word for word in self._words if word not in POST_PROCESSORS]
        if unknown:
            raise InvalidArgument(f"postProcessor {unknown[0]!r}; expected some of {', '.join(POST_PROCESSORS)}")
        self._truths = _of_graphs(model.get("groundTruthPath"))
        self._read: dict[str, list[Feeds]] = {}
        self._first: dict[tuple[str, int], Mapping[str, Array]] = {}

    def look(
        self,
        graph: Graph,
        index: int,
        line: int,
        outputs: Mapping[str, Array],
        errors: dict[str, float],
        thread: str,
    ) -> None:
        """Note the error of a line's outputs, if the configuration asks for it."""
        if not self._words or _nth(self._words, index, "postProcessor") == "NONE":
            return
        wanted = self._expected_outputs(graph, index, line, outputs)
        for name, array in outputs.items():
            off = array.astype(np.float64) - wanted[name].astype(np.float64)
            key = f"{thread}:{graph.name}:{name}"
            errors[key] = max(errors.get(key, 0.0), float(np.mean(off * off)))

    def _expected_outputs(
        self, graph: Graph, index: int, line: int, outputs: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        if not self._truths:
            copies = {name: array.copy() for name, array in outputs.items()}
            return self._first.setdefault((graph.name, line), copies)
        if graph.name not in self._read:
            path = _nth(self._truths, index, "groundTruthPath")
            self._read[graph.name] = read_sets(path, graph.outputs, RawForm.NATIVE)
        truths = self._read[graph.name]
        if line >= len(truths):
            raise InvalidArgument(
                f"groundTruthPath has {len(truths)} lines for graph {graph.name!r}; there are more inputs"
            )
        return truths[line]


def read_sets(path: Path | str, tensors: Sequence[Any], form: RawForm) -> list[Feeds]:
    """All lines of a list, as arrays by name."""
    specs: list[TensorSpec] = [tensor.spec for tensor in tensors]
    listed = read_input_list(Path(path), [spec.name for spec in specs], ())
    return [
        {spec.name: read_piece(line.files[spec.name], line.where, spec, form, 1).array for spec in specs}
        for line in listed.lines
    ]


def random_inputs(specs: Sequence[TensorSpec]) -> Feeds:
    """Numbers from 0 to 1 for floats, any for fixed point, zeros for other types, whose meaning is not known."""
    random = np.random.default_rng(_SEED)
    feeds: Feeds = {}
    for spec in specs:
        if spec.dtype.is_float:
            feeds[spec.name] = random.random(spec.shape).astype(spec.dtype.numpy)
        elif spec.dtype.is_fixed_point:
            low, high = spec.dtype.integer_range
            feeds[spec.name] = random.integers(low, high, spec.shape, endpoint=True).astype(spec.dtype.numpy)
        else:
            feeds[spec.name] = np.zeros(spec.shape, spec.dtype.numpy)
    return feeds


def _of_graphs(text: str | None) -> list[str]:
    return [] if text is None else [word.strip() for word in text.split(",")]


def _nth(words: Sequence[str], index: int, key: str) -> str:
    if index >= len(words):
        raise InvalidArgument(f"{key} has {len(words)} entries; the model has more graphs: give one for each")
    return words[index]
