"""Several networks on one device from one thread: first one call after the other, then queued."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import openhtp as htp
from openhtp.bench.subjects import Subject, client_work, import_network, prepare, quantized_network
from openhtp.trace.records import Trace

# name, network of the zoo, priority: a camera that must not wait, a scene model, and a background job.
ACTORS = (
    ("camera", "mobilenet_v2", "high"),
    ("scene", "resnet18", "normal"),
    ("language", "transformer_blocks", "low"),
)
_DEPTH = 12


@dataclass(slots=True)
class Actor:
    """One network and what was seen of it."""

    name: str
    network: str
    priority: str
    subject: Subject
    sync_ips: float = 0.0
    async_ips: float = 0.0
    queued: int = 0
    done: int = 0
    wait_us: list[float] = field(default_factory=list)
    run_us: list[float] = field(default_factory=list)
    yields: int = 0

    def note(self, execution: htp.Execution) -> None:
        """Take down what an execution that is over tells."""
        record = execution.record
        assert record is not None
        self.done += 1
        self.yields += record.yields
        self.wait_us.append((record.started_ns - record.received_ns) / 1e3)
        self.run_us.append((record.finished_ns - record.started_ns - record.paused_ns) / 1e3)


@dataclass(slots=True)
class Showcase:
    """The run, stage by stage: ``load``, ``run_sync``, ``run_async``; each yields whenever there is news."""

    backend: htp.Backend
    turns: int = 40
    actors: list[Actor] = field(default_factory=list)
    stage: str = "starting"
    recorded: Trace | None = None
    sync_seconds: float = 0.0
    async_seconds: float = 0.0

    def load(self) -> Iterator[None]:
        """Build, quantize and load the networks."""
        device = self.backend.create_device()
        context = device.create_context(queue_depth=3 * _DEPTH)
        for name, network, priority in ACTORS:
            self.stage = f"preparing {name} ({network}, 8 bits)"
            yield
            graph = import_network(context, quantized_network(network), name)
            graph.set_config(priority=priority)
            self.actors.append(Actor(name, network, priority, prepare(name, graph, _DEPTH)))

    def _work(self) -> float:
        """The client's own work for a frame: a third of what the networks take together."""
        return sum(actor.subject.inference_ns for actor in self.actors) / 3

    def run_sync(self) -> Iterator[None]:
        """One call after the other, as most programs do."""
        self.stage = "one call after the other"
        busy = client_work(int(self._work()))
        begin = time.perf_counter()
        for _ in range(self.turns):
            busy()
            for actor in self.actors:
                actor.subject.graph.execute(*actor.subject.feeds("registered", 0))
                actor.done += 1
            yield
        self.sync_seconds = time.perf_counter() - begin
        for actor in self.actors:
            actor.sync_ips = self.turns / self.sync_seconds
            actor.done = 0

    def run_async(self) -> Iterator[None]:
        """The same calls, queued from one thread; the device decides by priority."""
        self.stage = "queued, by priority"
        busy = client_work(int(self._work()))
        device = self.actors[0].subject.graph.context.device
        device.start_trace()
        under_way: list[tuple[Actor, htp.Execution]] = []
        begin = time.perf_counter()
        for turn in range(self.turns):
            busy()
            for actor in self.actors:
                if turn >= _DEPTH:
                    self._reap(under_way, actor, turn - _DEPTH)
                feeds = actor.subject.feeds("registered", turn)
                under_way.append((actor, actor.subject.graph.execute_async(*feeds)))
                actor.queued += 1
            for actor in self.actors:
                actor.done = sum(1 for owner, execution in under_way if owner is actor and execution.done())
            yield
        for _, execution in under_way:
            execution.result()
        self.async_seconds = time.perf_counter() - begin
        for actor in self.actors:
            actor.done = 0
            actor.async_ips = self.turns / self.async_seconds
        for actor, execution in under_way:
            actor.note(execution)
        self.recorded = device.stop_trace()
        yield

    def _reap(self, under_way: list[tuple[Actor, htp.Execution]], actor: Actor, turn: int) -> None:
        """Wait for the call whose memory is needed again."""
        own = [execution for owner, execution in under_way if owner is actor]
        own[turn].result()


def median(values: list[float]) -> float:
    """Median, 0 for none."""
    return statistics.median(values) if values else 0.0
