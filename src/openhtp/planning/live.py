"""A scenario for real: clients of a device process on the wall clock, at the pace that the scenario gives them.

The requests come from the same ``Traffic`` that feeds a plan. Each process domain is a session of its own. Graphs
are real ones and compute; how long an execution holds the device is the scenario's to say, as in the plan, so that
the order of what happens can be compared event by event.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import os
import queue
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from openhtp.config import Source
from openhtp.core.errors import UnsupportedFeature
from openhtp.core.limits import MAX_WAIT_US
from openhtp.core.units import US
from openhtp.device.config import DeviceConfig
from openhtp.hw.soc import ANY_PLATFORM
from openhtp.planning.scenario import ClientSpec, Scenario
from openhtp.planning.simulate import simulate
from openhtp.planning.sources import PlannedRequest, Traffic
from openhtp.records.phases import Moment, Phases, moments, phases_of
from openhtp.records.trace import Trace
from openhtp.rpc import messages as ms
from openhtp.runtime.calls.execution import Execution
from openhtp.runtime.instruments.device_queries import ask_about
from openhtp.runtime.links.device_process import DeviceOptions
from openhtp.runtime.objects.app import App
from openhtp.runtime.objects.backend import Backend
from openhtp.runtime.objects.chosen_options import ExtensionsConfig
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.graph import Graph
from openhtp.sched.events import ClientKind, Submitted
from openhtp.sched.timed import Pace
from openhtp.sched.virtual import Caller

# On the wall clock a scenario's shortest phase is stretched to this, so that jitter does not change its order.
_SHORTEST_PHASE_NS = 20_000_000
_LONGEST_RUN_NS = 60_000_000_000


@dataclass(slots=True)
class LiveResult:
    """Planned and measured moments. ``stretch`` is how much slower than the scenario the device ran."""

    scenario: Scenario
    stretch: float
    planned: list[Moment]
    measured: list[Moment]
    recorded: Trace

    @property
    def same_order(self) -> bool:
        """Whether everything happened in the planned order; what is planned for one instant may come in any."""
        left = list(self.measured)
        for _, group in itertools.groupby(self.planned, key=lambda moment: moment.t_ns):
            wanted = sorted((moment.what, moment.client) for moment in group)
            measured = sorted((moment.what, moment.client) for moment in left[: len(wanted)])
            if measured != wanted:
                return False
            left = left[len(wanted) :]
        return not left


def run_live(scenario: Scenario, *, stretch: float | None = None, config: Source | None = None) -> LiveResult:
    """Plan a scenario, run it on a device process, and put the two side by side.

    ``stretch`` slows the scenario down on the wall clock; by default so that its shortest phase takes 20 ms.
    ``config`` is a backend extensions config for the clients: votes, and options of contexts and graphs by name.
    """
    if scenario.switching:
        raise UnsupportedFeature(
            "scenarios with `switching` are planned only; on a device graphs of a context binary are switched"
            " (memory_limit_hint)"
        )
    phases = Phases()
    # How long a run takes is given to the live device with the run: it cannot change on the way.
    run = simulate(scenario.without_votes(), phases=phases)
    factor = _stretch_for(phases, run.end_ns) if stretch is None else stretch
    tracks = scenario.tracks
    with LiveStage(scenario, stretch=factor, extensions=ExtensionsConfig(config)) as stage:
        recorded = stage.record()
    return LiveResult(
        scenario, factor, moments(phases, lambda client: tracks[client].name), measured_moments(recorded), recorded
    )


def _stretch_for(phases: Phases, end_ns: int) -> float:
    shortest = min((i.end_ns - i.start_ns for i in phases.intervals), default=1)
    return max(1.0, min(_SHORTEST_PHASE_NS / shortest, _LONGEST_RUN_NS / max(1, end_ns)))


def measured_moments(recorded: Trace) -> list[Moment]:
    """Starts, pauses, resumes and ends as the device recorded them; times count from the first record."""
    begin = recorded.records[0].t if recorded.records else 0
    measured = moments(phases_of(recorded), lambda client: recorded.tracks[client].name)
    return [Moment(moment.t_ns - begin, moment.what, moment.client) for moment in measured]


class LiveClient:
    """One client of the scenario on the real device."""

    def __init__(self, spec: ClientSpec, context: Context, stretch: float) -> None:
        self._stretch = stretch
        self._pace: Pace | None = None
        self._runs: App | Graph
        self._deadline_us = None
        if spec.deadline_ns is not None:
            self._deadline_us = max(1, min(MAX_WAIT_US, round(spec.deadline_ns * stretch / US)))
        if spec.kind is ClientKind.APP:
            self._runs = context.create_app(
                spec.name,
                priority=spec.priority,
                hmx=spec.hmx,
                hvx=spec.hvx,
                vtcm_bytes=spec.vtcm_bytes,
                page_bytes=spec.page_bytes,
                core=spec.core,
            )
        else:
            self._runs = _small_graph(context, spec)

    def run(self, work: Pace) -> Execution:
        """Ask for one run of this length."""
        runs = self._runs
        scaled = _scaled(work, self._stretch)
        if scaled != self._pace:
            ask_about(runs, lambda number: ms.SetPace(graph=number, work=scaled))
            self._pace = scaled
        if isinstance(runs, App):
            return runs.run_async(scaled.total_ns / US, deadline_us=self._deadline_us)
        return runs.execute_async({"x": np.ones((1, 8, 8, 8), np.float32)}, deadline_us=self._deadline_us)


def _small_graph(context: Context, spec: ClientSpec) -> Graph:
    graph = context.create_graph(
        spec.name,
        priority=spec.priority,
        vtcm_bytes=spec.vtcm_bytes or None,
        hvx_threads=spec.hvx or None,
        core=spec.core,
    )
    x = graph.add_tensor("x", (1, 8, 8, 8), "float32", kind="app_write")
    y = graph.add_tensor("y", (1, 8, 8, 8), "float32", kind="app_read")
    graph.add_node("Sigmoid", inputs=[x], outputs=[y])
    graph.finalize()
    return graph


def _scaled(work: Pace, factor: float) -> Pace:
    def scale(time_ns: int | None) -> int | None:
        return None if time_ns is None else round(time_ns * factor)

    return Pace(
        step_ns=tuple(round(time_ns * factor) for time_ns in work.step_ns),
        eviction_ns=scale(work.eviction_ns),
        yield_every_ns=scale(work.yield_every_ns),
        save_ns=round(work.save_ns * factor),
        wake_ns=round(work.wake_ns * factor),
        restore_ns=round(work.restore_ns * factor),
    ).on_a_wall_clock()


class LiveStage(ExitStack):
    """A device with all clients on it, and the wall clock as ``Traffic`` knows a loop: call_at and expect."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        stretch: float = 1.0,
        extensions: ExtensionsConfig | None = None,
        open_device: Callable[[], Device] | None = None,
    ) -> None:
        """``open_device`` gives each process domain its device, in place of a device process for the scenario."""
        super().__init__()
        self._scenario = scenario
        self._extensions = ExtensionsConfig(None) if extensions is None else extensions
        self._open_device = open_device
        self._stretch = stretch
        self._heap: list[tuple[int, int, Caller]] = []
        self._order = itertools.count()
        self._works: dict[int, tuple[Pace, PlannedRequest]] = {}
        # None: no more requests.
        self._done: queue.SimpleQueue[tuple[PlannedRequest, int] | None] = queue.SimpleQueue()
        self._under_way = 0
        self._begin_ns = 0

    def __enter__(self) -> LiveStage:
        super().__enter__()
        opens = self._open_device or self._device_process()
        devices: dict[int, Device] = {}
        self._actors: list[LiveClient] = []
        contexts: dict[int, Context] = {}
        for spec in self._scenario.clients:
            if spec.pd not in devices:
                devices[spec.pd] = opens()
                self._extensions.vote(devices[spec.pd])
                contexts[spec.pd] = devices[spec.pd].create_context(queue_depth=300)
            if spec.perf_profile is not None:
                devices[spec.pd].create_power_config(spec.core).set_perf_profile(spec.perf_profile)
            self._actors.append(LiveClient(spec, contexts[spec.pd], self._stretch))
        self._device = next(iter(devices.values()))
        return self

    def _device_process(self) -> Callable[[], Device]:
        """Clients of one device process, which the first of them starts."""
        backend = self.enter_context(Backend())
        name = f"scenario-{os.getpid()}-{next(_STAGES)}"
        options = DeviceOptions(config=device_config(self._scenario), name=name)
        return lambda: Device(backend, options, extensions=self._extensions)

    def call_at(self, t: int, caller: Caller) -> None:
        """Ask ``caller`` for a request at the scenario's time ``t``."""
        heapq.heappush(self._heap, (t, next(self._order), caller))

    def expect(self, job: int, work: Pace, tag: Any = None) -> None:
        """Note the pace of a job that is about to be submitted."""
        self._works[job] = (work, tag)

    def record(self) -> Trace:
        """Run the whole scenario; returns what the device recorded."""
        self._device.start_trace()
        self.play()
        return self._device.stop_trace()

    def play(self) -> None:
        """Run the whole scenario, or until ``stop``."""
        traffic = Traffic(self._scenario, self)  # type: ignore[arg-type]
        self._begin_ns = time.monotonic_ns()
        while self._heap or self._under_way:
            self._submit_due()
            patience = None if not self._heap else max(0.0, self._seconds_to(self._heap[0][0]))
            try:
                ended = self._done.get(timeout=patience)
            except queue.Empty:
                continue
            if ended is None:
                self._heap.clear()
                continue
            self._under_way -= 1
            traffic.finished(*ended)

    def stop(self) -> None:
        """Ask for nothing more; ``play`` returns when all runs under way have ended. Any thread may call it."""
        self._done.put(None)

    def _submit_due(self) -> None:
        while self._heap and self._seconds_to(self._heap[0][0]) <= 0:
            t, _, caller = heapq.heappop(self._heap)
            event = caller(t)
            if event is None:
                continue
            assert isinstance(event, Submitted)
            work, asked = self._works.pop(event.job)
            self._under_way += 1
            execution = self._actors[event.client].run(work)
            execution.add_done_callback(functools.partial(self._ended, asked))

    def _ended(self, asked: PlannedRequest, _: Execution) -> None:
        """Runs on a thread of the backend."""
        self._done.put((asked, self._now()))

    def _now(self) -> int:
        """The scenario's time."""
        return round((time.monotonic_ns() - self._begin_ns) / self._stretch)

    def _seconds_to(self, t: int) -> float:
        return (t - self._now()) * self._stretch / 1e9


_STAGES = itertools.count(1)


def device_config(scenario: Scenario) -> DeviceConfig:
    """The live device that a scenario describes."""
    has = scenario.device
    return DeviceConfig(
        policy=scenario.policy.name,
        platform="windows" if has.flat_priorities else ANY_PLATFORM,
        parallel_graphs=has.parallel_graphs,
        vtcm_windowing=has.windowing,
        hmx=has.hmx,
        hvx=has.hvx,
        vtcm_bytes=has.vtcm_bytes,
        sharing=has.sharing,
        cores=has.cores,
    )
