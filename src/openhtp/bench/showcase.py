"""A camera's network on one device: alone, beside two others of equal priority, and with a higher priority."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import openhtp as htp
from openhtp.bench.subjects import MeasuredGraph, import_network, prepare, quantized_network
from openhtp.config import BackendConfig
from openhtp.records.trace import Trace

# name, network of the zoo, priority: a camera that must not wait, a scene model, and a background job.
ACTORS = (
    ("camera", "mobilenet_v2", "high"),
    ("scene", "resnet18", "normal"),
    ("language", "transformer_blocks", "low"),
)
ALONE, EQUAL, BY_PRIORITY = "alone", "beside others", "with priority"
_BACKLOG = 2  # of each of the others: one runs or waits, the next is there when it is done
_PHASES = 8


@dataclass(slots=True)
class ShowPart:
    """The figures of one part of the show."""

    name: str
    latency_ms: list[float] = field(default_factory=list)
    others_done: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def percentile(self, percent: int) -> float:
        """A percentile of the camera's latencies so far, in ms; 0 if there is none."""
        if not self.latency_ms:
            return 0.0
        ordered = sorted(self.latency_ms)
        return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]

    def per_second(self, name: str) -> float:
        """How often another network got through."""
        return self.others_done.get(name, 0) / self.seconds if self.seconds else 0.0


class _Others:
    """Networks that always have something queued: each run that is over asks for the next."""

    def __init__(self, subjects: list[MeasuredGraph], stage: ShowPart) -> None:
        self._subjects = subjects
        self._stage = stage
        self._stopping = False
        self._lock = threading.RLock()  # a run that is over at once calls back from within execute_async
        self._under_way: dict[tuple[str, int], htp.Execution] = {}

    def __enter__(self) -> _Others:
        for subject in self._subjects:
            self._stage.others_done[subject.name] = 0
            for slot in range(_BACKLOG):
                self._ask(subject, slot)
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._stopping = True
        for execution in self._under_way.values():
            execution.exception()

    def _ask(self, subject: MeasuredGraph, slot: int) -> None:
        with self._lock:
            execution = subject.graph.execute_async(*subject.feeds("registered", slot))
            self._under_way[subject.name, slot] = execution
            execution.add_done_callback(lambda done: self._again(done, subject, slot))

    def _again(self, done: htp.Execution, subject: MeasuredGraph, slot: int) -> None:
        """Queue the next execution, on the thread of the backend.

        It never waits, as the queue has room for all.
        """
        with self._lock:
            self._stage.others_done[subject.name] += 1
            if not self._stopping and done.exception() is None:
                self._ask(subject, slot)


@dataclass(slots=True)
class Showcase:
    """The show, part by part; ``play`` yields whenever there is news."""

    backend: htp.Backend
    frames: int = 60
    doing: str = "starting"
    stages: dict[str, ShowPart] = field(default_factory=dict)
    recorded: Trace | None = None
    config: BackendConfig | None = None
    _casts: dict[bool, dict[str, MeasuredGraph]] = field(default_factory=dict)

    def play(self) -> Iterator[None]:
        """All of it."""
        yield from self._load()
        device = self._casts[True]["camera"].graph.context.device
        for name, cast, accompanied in ((ALONE, True, False), (EQUAL, False, True), (BY_PRIORITY, True, True)):
            if name == BY_PRIORITY:
                device.start_trace()
            yield from self._run(name, self._casts[cast], accompanied=accompanied)
        self.recorded = device.stop_trace()

    def _load(self) -> Iterator[None]:
        """Each network twice: a graph's priority is fixed once it has run."""
        device = self.backend.create_device(config=self.config)
        contexts = {by_priority: device.create_context(queue_depth=16) for by_priority in (False, True)}
        self._casts = {False: {}, True: {}}
        for name, network, priority in ACTORS:
            self.doing = f"preparing {name} ({network}, 8 bits)"
            yield
            model = quantized_network(network, "s8")  # symmetric, as the documents recommend
            for by_priority, context in contexts.items():
                graph = import_network(context, model, name)
                graph.set_config(priority=priority if by_priority else "normal")
                self._casts[by_priority][name] = prepare(name, graph, _BACKLOG)

    def _run(self, name: str, cast: dict[str, MeasuredGraph], *, accompanied: bool) -> Iterator[None]:
        """Frames at moments that fall anywhere into the work of the others, one after the other."""
        stage = self.stages[name] = ShowPart(name)
        self.doing = name
        camera = cast["camera"]
        others = [subject for subject in cast.values() if subject is not camera] if accompanied else []
        pause_s = sum(subject.inference_ns for subject in others or [camera]) / 1e9
        begin = time.perf_counter()
        with _Others(others, stage):
            for frame in range(self.frames):
                time.sleep(pause_s * (0.5 + frame % _PHASES / _PHASES))
                asked = time.perf_counter()
                camera.graph.execute_async(*camera.feeds("registered", 0)).result()
                stage.latency_ms.append((time.perf_counter() - asked) * 1e3)
                stage.seconds = time.perf_counter() - begin
                yield
