"""``qnn-throughput-net-run``: threads that run models side by side, and how long each execution took."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from openhtp.config import read_config
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.latches import Latch
from openhtp.core.tensor import TensorSpec
from openhtp.core.threads import OwnThread
from openhtp.runtime.calls.execution import Execution
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.graph import Graph
from openhtp.tools.input_list import read_input_list
from openhtp.tools.models import (
    Changes,
    ToolTarget,
    composed,
    executable,
    import_models,
    is_binary,
    library_of,
    opened_device,
)
from openhtp.tools.raw import Array, Form, read_piece
from openhtp.tools.results import Results, Written
from openhtp.tools.stages import Stage, Tell, during
from openhtp.tools.throughput_config import POST_PROCESSORS, Entry, TestCase

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
    """What came of a test case: times by name, and how far outputs were from what they should be."""

    total_s: float = 0.0
    times: dict[str, RepeatedTimes] = field(default_factory=dict)
    mse: dict[str, float] = field(default_factory=dict)


def throughput(case: TestCase, tell: Tell) -> ThroughputResult:
    """Run a test case. Ctrl-C ends one that has no end, and what was measured is told."""
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
    """One round of all threads. What one of them fails with ends the others, and is raised."""
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

    def __init__(self, case: TestCase, stack: ExitStack) -> None:
        self._case = case
        self._stack = stack
        self._devices: dict[tuple[str, str | None], Device] = {}
        self._contexts: dict[tuple[str, str | None, str, str], Context] = {}

    def context(self, thread: Entry, *, fresh: bool = False) -> Context:
        """The context of a thread; ``fresh`` for one that nobody else has."""
        key = (thread["backend"], thread.get("backendConfig"), thread["context"], thread["model"])
        if not fresh and key in self._contexts:
            return self._contexts[key]
        made = self._made(thread, self._device(thread))
        if not fresh:
            self._contexts[key] = made
        return made

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

    def _made(self, thread: Entry, device: Device) -> Context:
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
            with during(Stage.CREATE):
                mode = settings.get("cacheCompatibilityMode", "permissive")
                return device.create_context_from_binary(path, compatibility=mode, **options)
        changes = Changes(context_options=options)
        return composed(device, import_models([model["modelPath"]], changes), config, changes)


class _Worker:
    """One thread."""

    def __init__(self, case: TestCase, thread: Entry, places: _Places, outcome: ThroughputResult) -> None:
        self.name: str = thread["threadName"]
        self._thread, self._places = thread, places
        self._model = case.models[thread["model"]]
        self._whole = outcome.times.setdefault(f"{self.name}:threadExecute", RepeatedTimes())
        self._each = outcome.times.setdefault(f"{self.name}:{thread['model']}:graphExecute", RepeatedTimes())
        self._outcome = outcome
        self._in_loop = bool(thread.get("initModelInLoop"))
        self._graphs = [] if self._in_loop else executable(places.context(thread))
        self._feeds: dict[str, list[Feeds]] = {}
        self._saved: dict[str, Results] = {}
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
        for place, graph in enumerate(graphs):
            sets = self._inputs(graph, place)
            with during(Stage.EXECUTE):
                for line, outputs in enumerate(self._executed(graph, sets, stop)):
                    self._last[graph.name] = outputs
                    self._check.look(graph, place, line, outputs, self._outcome.mse, self.name)
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

    def _inputs(self, graph: Graph, place: int) -> list[Feeds]:
        if graph.name not in self._feeds or self._thread.get("loadInputDataInLoop"):
            lists = _of_graphs(self._model.get("inputPath"))
            if not lists or self._thread.get("useRandomData"):
                self._feeds[graph.name] = [random_inputs([tensor.spec for tensor in graph.inputs])]
            else:
                form = Form.FLOAT if self._model.get("inputDataType") == "FLOAT" else Form.NATIVE
                self._feeds[graph.name] = read_sets(_nth(lists, place, "inputPath"), graph.inputs, form)
        return self._feeds[graph.name]

    def _results(self, graph: Graph) -> Results:
        if graph.name not in self._saved:
            folder = Path(self._model.get("outputPath", "output")) / self.name / graph.name
            form = Written(self._model.get("outputDataType", "NATIVE_ONLY").lower())
            self._saved[graph.name] = Results(folder, [tensor.spec for tensor in graph.outputs], form, None)
        return self._saved[graph.name]

    def finish(self) -> None:
        """Write the last outputs, if those are wanted."""
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
        place: int,
        line: int,
        outputs: Mapping[str, Array],
        found: dict[str, float],
        thread: str,
    ) -> None:
        """Note how far the outputs of a line are off, if that is asked for."""
        if not self._words or _nth(self._words, place, "postProcessor") == "NONE":
            return
        wanted = self._wanted(graph, place, line, outputs)
        for name, array in outputs.items():
            off = array.astype(np.float64) - wanted[name].astype(np.float64)
            key = f"{thread}:{graph.name}:{name}"
            found[key] = max(found.get(key, 0.0), float(np.mean(off * off)))

    def _wanted(self, graph: Graph, place: int, line: int, outputs: Mapping[str, Array]) -> Mapping[str, Array]:
        if not self._truths:
            copies = {name: array.copy() for name, array in outputs.items()}
            return self._first.setdefault((graph.name, line), copies)
        if graph.name not in self._read:
            path = _nth(self._truths, place, "groundTruthPath")
            self._read[graph.name] = read_sets(path, graph.outputs, Form.NATIVE)
        truths = self._read[graph.name]
        if line >= len(truths):
            raise InvalidArgument(
                f"groundTruthPath has {len(truths)} lines for graph {graph.name!r}; there are more inputs"
            )
        return truths[line]


def read_sets(path: Path | str, tensors: Sequence[Any], form: Form) -> list[Feeds]:
    """All lines of a list, as arrays by name."""
    specs: list[TensorSpec] = [tensor.spec for tensor in tensors]
    listed = read_input_list(Path(path), [spec.name for spec in specs], ())
    return [
        {spec.name: read_piece(line.files[spec.name], line.where, spec, form, 1).array for spec in specs}
        for line in listed.lines
    ]


def random_inputs(specs: Sequence[TensorSpec]) -> Feeds:
    """Numbers from 0 to 1 for floats, any for fixed point, zeros for all else, whose meaning is not known."""
    random = np.random.default_rng(_SEED)
    made: Feeds = {}
    for spec in specs:
        if spec.dtype.is_float:
            made[spec.name] = random.random(spec.shape).astype(spec.dtype.numpy)
        elif spec.dtype.is_fixed_point:
            low, high = spec.dtype.integer_range
            made[spec.name] = random.integers(low, high, spec.shape, endpoint=True).astype(spec.dtype.numpy)
        else:
            made[spec.name] = np.zeros(spec.shape, spec.dtype.numpy)
    return made


def _of_graphs(text: str | None) -> list[str]:
    return [] if text is None else [word.strip() for word in text.split(",")]


def _nth(words: Sequence[str], place: int, key: str) -> str:
    if place >= len(words):
        raise InvalidArgument(f"{key} has {len(words)} entries; the model has more graphs: give one for each")
    return words[place]
