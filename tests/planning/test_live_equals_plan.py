"""A device on the virtual clock does what the plan says, to the nanosecond: phases, units, yields, transfers."""

from __future__ import annotations

import json
from typing import Any

import pytest

import openhtp as htp
from openhtp.planning import parse_scenario
from openhtp.planning.live import LiveClient, device_config, measured_moments
from openhtp.planning.scenario import RequestSource, Scenario
from openhtp.planning.simulate import simulate
from openhtp.records.phases import Phases, moments, phases_of
from openhtp.records.trace import Granted, Trace, Track
from openhtp.report.chrome import marks_to_chrome
from openhtp.report.gantt import marks_to_svg, marks_to_text
from openhtp.report.lanes import lanes_of, phases_to_marks, trace_to_marks
from openhtp.report.timeline import marks_to_html
from openhtp.sched.timed import Pace
from openhtp.testing import virtual_device

TWO_CORES = """
device: {{hvx: 4, hmx: 1, vtcm_mb: 8, cores: 2{eviction}}}
policy: {policy}
clients:
  - {{name: long, priority: low, deadline: 9000}}
  - {{name: camera, priority: high, deadline: 500}}
  - {{name: second, priority: low, core: 1, deadline: 8000}}
  - {{name: pipeline, kind: app, priority: high, core: 1, hvx: 2, vtcm_mb: 4, deadline: 100}}
events:
  - {{client: long, at: [0, 10], run: 2000}}
  - {{client: camera, at: [300, 1500], run: 400}}
  - {{client: second, at: 100, run: 3000}}
  - {{client: pipeline, at: [150, 160, 2500], run: 200}}
"""


def _work(scenario: Scenario, source: RequestSource) -> Pace:
    return scenario.work_for(scenario.clients[source.client], source.run_ns)


class VirtualStage:
    """The clients of a scenario on a virtual device, asked at the scenario's times; the loop's inbox as well."""

    def __init__(self, scenario: Scenario, backend: htp.Backend) -> None:
        self._device = virtual_device(backend, config=device_config(scenario))
        self._core = self._device.link._core  # type: ignore[attr-defined]
        context = self._device.create_context(queue_depth=300)
        self._asked = sorted(
            (source.start_ns, order, source.client, _work(scenario, source))
            for order, source in enumerate(scenario.sources)
        )
        self._actors = [LiveClient(spec, context, 1.0) for spec in scenario.clients]
        clock = self._core.clock
        self._delivered = False
        self._advance_to = clock.advance_to
        clock.advance_to = self._advance_unless_there_is_news

    def play(self) -> Trace:
        self._device.start_trace()
        while self._asked or self._core.executions.jobs:
            self._core.loop.turn(self)
        return self._device.stop_trace()

    def poll(self, timeout_ns: int | None) -> None:
        """Deliver what is asked for before, or when, anything else happens."""
        now = self._core.clock.now()
        t = self._asked[0][0] if self._asked else None
        self._delivered = t is not None and (timeout_ns is None or t <= now + timeout_ns)
        if self._delivered:
            self._advance_to(t)
            while self._asked and self._asked[0][0] == t:
                _, _, client, work = self._asked.pop(0)
                self._actors[client].run(work)

    def flush(self) -> None:
        """Nothing is held back."""

    def _advance_unless_there_is_news(self, t: int) -> None:
        if not self._delivered:
            self._advance_to(t)


def both(backend: htp.Backend, *, eviction: str, policy: str) -> tuple[Scenario, Phases, Trace]:
    scenario = parse_scenario(TWO_CORES.format(eviction=eviction, policy=policy))
    planned = Phases()
    simulate(scenario, phases=planned)
    return scenario, planned, VirtualStage(scenario, backend).play()


def facts(phases: Phases, tracks: dict[int, Track]) -> dict[str, list[Any]]:
    """All that phases say, with clients by name instead of by number; job numbers are nobody's concern."""

    def name(client: int) -> str:
        return tracks[client].name

    def held(grant: Granted | None) -> tuple[Any, ...]:
        if grant is None:
            return ()
        return (grant.core, grant.hmx, grant.hvx, grant.vtcm_start, grant.vtcm_bytes, grant.resumed)

    return {
        "intervals": sorted(
            (name(i.client), i.start_ns, i.end_ns, i.phase.value, held(i.grant)) for i in phases.intervals
        ),
        "ended": sorted(
            (name(e.client), e.submitted_ns, e.ended_ns, e.outcome.value, e.deadline_ns) for e in phases.ended
        ),
        "evictions": sorted((name(e.client), e.asked_ns) for e in phases.evictions),
        "transfers": sorted(
            (name(client), core, moved.t, moved.end, moved.what.value, moved.nbytes)
            for client, core, moved in phases.transfers
        ),
    }


@pytest.mark.parametrize("policy", ["strict", "edf"])
@pytest.mark.parametrize("eviction", ["", ", eviction: 25"])
def test_live_equals_plan_on_two_cores(backend: htp.Backend, eviction: str, policy: str) -> None:
    scenario, planned, trace = both(backend, eviction=eviction, policy=policy)
    expected = facts(planned, scenario.tracks)
    assert facts(phases_of(trace), trace.tracks) == expected
    assert {interval[4][0] for interval in expected["intervals"] if interval[4]} == {0, 1}
    assert len(expected["evictions"]) >= 3
    assert bool(expected["transfers"]) == (not eviction)
    assert measured_moments(trace) == moments(planned, lambda client: scenario.tracks[client].name)
    assert sorted((track.name, track.kind, track.core) for track in trace.tracks.values()) == [
        ("camera", "graph", 0),
        ("long", "graph", 0),
        ("pipeline", "app", 1),
        ("second", "graph", 1),
    ]
    assert (trace.units, trace.dropped) == (scenario.units, 0)


def test_every_report_has_lanes_for_each_core(backend: htp.Backend) -> None:
    scenario, planned, trace = both(backend, eviction="", policy="strict")
    for marks in (phases_to_marks(planned, scenario.tracks), trace_to_marks(trace)):
        page = marks_to_html(marks, title="two", lanes=lanes_of(trace.units, trace.tracks), vtcm_bytes=8 << 20)
        start = page.index("const DATA = ") + len("const DATA = ")
        data, _ = json.JSONDecoder().raw_decode(page[start:])
        groups = list(dict.fromkeys(lane["group"] for lane in data["lanes"]))
        units = ["HMX", "HVX", "VTCM", "DMA"]
        assert groups == [*units, *(f"core1.{unit}" for unit in units), "Clients", "core1.Clients"]
        names = ["long", "camera", "second", "pipeline"]
        assert [lane["name"] for lane in data["lanes"] if lane["client"]] == names
        assert set(data["colours"]) == set(names)
        svg = marks_to_svg(marks, vtcm_bytes=8 << 20)
        for lane in ("HMX0", "core1.HMX0", "core1.VTCM", "core1.DMA", "pipeline"):
            assert f">{lane}</text>" in svg
        shown = [line.partition("│")[0].strip() for line in marks_to_text(marks, width=20).splitlines()]
        assert shown[:4] == ["long", "camera", "core1.second", "core1.pipeline"]
        document = json.loads(marks_to_chrome(marks))
        processes = {e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
        assert processes == set(groups)
