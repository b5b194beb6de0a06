"""Sources, figures and costs of small scenarios that can be worked out by hand."""

from __future__ import annotations

import pytest

from openhtp.core.units import MIB
from openhtp.device.config import DeviceConfig
from openhtp.hw.catalog import catalog
from openhtp.planning import parse_scenario, plan
from openhtp.planning.result import percentile
from openhtp.planning.simulate import simulate
from openhtp.sched.events import ClientAdded, StepDone, Submitted
from openhtp.sched.resources import DeviceResources
from openhtp.sched.scheduler import Scheduler
from openhtp.sched.timed import Pace
from openhtp.sched.virtual import VirtualLoop

DEVICE = {"hvx": 1, "hmx": 1, "vtcm_mb": 1, "eviction": 10}


def run(clients, events, **top):
    return plan({"device": DEVICE, "clients": clients, "events": events, **top})


def test_every():
    result = run([{"name": "a"}], [{"client": "a", "every": 10, "run": 4, "from": 5, "until": 45}])
    assert [(s["start"], s["end"]) for s in result.to_json()["clients"]["a"]] == [
        (5, 9),
        (15, 19),
        (25, 29),
        (35, 39),
    ]
    assert result["a"].p50 == 4
    assert result.run.utilisation()["hmx"] == pytest.approx(16 / 39)


def test_bursts_and_depth():
    # Four at once into a queue of two: two wait outside, and their waiting counts.
    clients = [{"name": "a", "depth": 2}]
    result = run(clients, [{"client": "a", "burst": 4, "at": 10, "run": 5, "every": 100, "count": 2}])
    assert result["a"].runs == 8
    assert result["a"].max == 20
    assert result["a"].waiting_max == 15
    assert result["a"].waiting_mean == 7.5


def test_a_shallow_queue_lets_others_in_between():
    events = [{"client": "a", "burst": 4, "run": 10}, {"client": "b", "at": 1, "run": 10}]
    deep = run([{"name": "a"}, {"name": "b"}], events)
    shallow = run([{"name": "a", "depth": 1}, {"name": "b"}], events)
    assert deep["b"].max == 49
    assert shallow["b"].max == 19


def test_poisson_repeats_with_its_seed_only():
    def at(seed):
        event = {"client": "a", "poisson": 50, "run": 1, "count": 200, "seed": seed}
        return [s["start"] for s in run([{"name": "a", "depth": 300}], [event]).to_json()["clients"]["a"]]

    assert at(1) == at(1)
    assert at(1) != at(2)
    gaps = at(1)[-1] / 200
    assert 35 < gaps < 65


def test_closed_loop_with_thinking_time():
    result = run([{"name": "a"}], [{"client": "a", "closed": 1, "run": 10, "think": 5, "count": 3}])
    assert [(s["start"], s["end"]) for s in result.to_json()["clients"]["a"]] == [(0, 10), (15, 25), (30, 40)]


def test_two_in_flight_wait_for_each_other():
    result = run([{"name": "a"}], [{"client": "a", "closed": 2, "run": 10, "count": 4}])
    assert result["a"].max == 20
    assert result.run.end_ns == 40_000


def test_after_follows_each_end():
    events = [
        {"client": "a", "every": 50, "run": 10, "count": 2},
        {"client": "b", "after": "a", "delay": 3, "run": 4},
    ]
    result = run([{"name": "a"}, {"name": "b"}], events)
    assert [(s["start"], s["end"]) for s in result.to_json()["clients"]["b"]] == [(13, 17), (63, 67)]


def test_deadlines_and_timeouts():
    clients = [{"name": "a", "deadline": 15}, {"name": "b", "timeout": 10, "deadline": 100}]
    events = [{"client": "a", "burst": 2, "run": 10}, {"client": "b", "at": 1, "run": 5}]
    result = run(clients, events)
    assert (result["a"].missed, result["a"].runs) == (1, 2)
    assert (result["b"].missed, result["b"].runs, result["b"].not_done) == (1, 0, 1)
    assert result.missed == 2


def test_the_modelled_eviction_is_rest_of_step_save_and_wake():
    # 4 MB at 40 GB/s: 104.858 us each way; a run of 1000 us in 10 steps; the wake-up takes 26 us.
    scenario = {
        "device": {"hvx": 1, "hmx": 1, "vtcm_mb": 4, "dma_gbs": 40},
        "clients": [{"name": "low", "priority": "low", "steps": 10}, {"name": "high", "priority": "high"}],
        "events": [{"client": "low", "at": 0, "run": 1000}, {"client": "high", "at": 250, "run": 100}],
    }
    result = plan(scenario)
    transfer = 4 * MIB / 40 / 1000
    low = result.to_json()["clients"]["low"]
    released = 300 + transfer + 26
    assert [s["state"] for s in low] == ["running", "paused", "running"]
    assert low[0]["end"] == pytest.approx(released, abs=0.01)
    assert low[1]["end"] == pytest.approx(released + 100, abs=0.01)
    assert low[2]["end"] == pytest.approx(released + 100 + transfer + 700, abs=0.01)
    assert result["high"].waiting_max == pytest.approx(50 + transfer + 26, abs=0.01)
    assert result["low"].yields == 1


def test_a_window_keeps_only_its_part():
    scenario = {
        "device": DEVICE,
        "clients": [{"name": "a"}],
        "events": [{"client": "a", "every": 10, "run": 4, "count": 100}],
    }
    result = plan(scenario, window=(200, 300))
    starts = [s["start"] for s in result.to_json()["clients"]["a"]]
    assert starts == list(range(200, 300, 10))
    assert result["a"].runs == 100
    assert plan(scenario, detail=False).to_json()["resources"] == []


def test_two_cores_have_columns_each():
    scenario = {
        "device": {**DEVICE, "cores": 2},
        "clients": [{"name": "a"}, {"name": "b", "core": 1}],
        "events": [{"client": "a", "at": 0, "run": 5}, {"client": "b", "at": 0, "run": 5}],
    }
    row = plan(scenario).to_json()["resources"][0]
    assert row == {
        "t": 0,
        "HMX0": "a",
        "HVX0": "a",
        "VTCM0": "a",
        "core1.HMX0": "b",
        "core1.HVX0": "b",
        "core1.VTCM0": "b",
    }


def test_windows_does_not_look_at_priorities():
    clients = [{"name": "low", "priority": "low"}, {"name": "high", "priority": "high"}]
    events = [{"client": "low", "at": 0, "run": 50}, {"client": "high", "at": 20, "run": 30}]
    for platform, waits in (("android", 10), ("windows", 30)):
        device = {**DEVICE, "platform": platform}
        result = plan({"device": device, "clients": clients, "events": events})
        assert result["high"].waiting_max == waits


def test_percentiles_are_nearest_rank():
    assert percentile([], 50) is None
    assert percentile([7], 99) == 7
    assert percentile(list(range(1, 101)), 50) == 50
    assert percentile(list(range(1, 101)), 99) == 99
    assert percentile([1, 2, 3], 50) == 2


def test_requests_at_an_instant_come_before_answers_at_it():
    # The low one is about to get the core at 10 when a high one asks at 10: no eviction is needed.
    clients = [{"name": "a"}, {"name": "low", "priority": "low"}, {"name": "high", "priority": "high"}]
    events = [
        {"client": "a", "at": 0, "run": 10},
        {"client": "low", "at": 5, "run": 10},
        {"client": "high", "at": 10, "run": 10},
    ]
    result = run(clients, events)
    assert result["high"].max == 10
    assert result["low"].yields == 0


@pytest.mark.bench
def test_speed_of_the_virtual_loop():
    """At least 200,000 scheduling events per second on one core; needs a quiet machine."""
    import time

    loop = VirtualLoop(Scheduler(DeviceResources()), keep_log=False)
    for client, priority in ((1, 200), (2, 150), (3, 100), (4, 0)):
        loop.at(ClientAdded(t=0, client=client, priority=priority, vtcm_bytes=8 * MIB))
    for index in range(20_000):
        for client in (1, 2, 3, 4):
            submitted = Submitted(t=index * 33_000 + client, job=4 * index + client, client=client)
            loop.at(submitted, Pace(step_ns=(6_000,), yield_every_ns=100, save_ns=140, restore_ns=140))
    began = time.process_time()
    handled = loop.run_until()
    assert handled / (time.process_time() - began) >= 200_000


@pytest.mark.bench
def test_speed_of_one_idle_execution():
    """Submitted and StepDone on an idle scheduler: less than 6 us together."""
    import statistics
    import time

    scheduler = Scheduler(DeviceResources())
    scheduler.handle(ClientAdded(t=0, client=1, priority=100, vtcm_bytes=8 * MIB))
    rounds = []
    job = 0
    for _ in range(15):
        began = time.perf_counter()
        for _ in range(5_000):
            job += 1
            start = scheduler.handle(Submitted(t=job, job=job, client=1))[-1]
            scheduler.handle(StepDone(t=job, job=job, token=start.token))
        rounds.append((time.perf_counter() - began) / 5_000)
    assert statistics.median(rounds) < 6e-6


def test_progress_is_told_and_changes_nothing() -> None:
    text = """
    duration: 1000
    device: {hvx: 4, hmx: 1, vtcm_mb: 8}
    clients: [{name: a, run: 7}, {name: b, priority: high, run: 3}]
    events: [{client: a, closed: 1}, {client: b, every: 10}]
    """
    parts: list[float] = []
    told = simulate(parse_scenario(text), progress=parts.append)
    silent = simulate(parse_scenario(text))
    assert parts == sorted(parts)
    assert parts[-1] == 1.0
    assert [client.latencies_ns for client in told.clients] == [client.latencies_ns for client in silent.clients]
    assert told.events == silent.events


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("soc", sorted(soc.name for soc in catalog().values()))
def test_a_plan_has_the_units_of_the_live_device(soc, parallel):
    live = DeviceConfig(soc=soc, parallel_graphs=parallel).resources()
    text = f"""
        device: {{soc: {soc}, parallel_graphs: {str(parallel).lower()}}}
        clients: [{{name: a}}]
        events: [{{client: a, at: 0, run: 1}}]
    """
    assert parse_scenario(text).device == live


@pytest.mark.parametrize("device", ["soc: SM8650", "hvx: 4, vtcm_mb: 8"])
def test_parallel_graphs_run_side_by_side(device):
    result = plan(
        parse_scenario(
            f"""
            device: {{{device}, parallel_graphs: true}}
            clients:
              - {{name: a, hvx: 2, vtcm_mb: 4}}
              - {{name: b, hvx: 2, vtcm_mb: 4}}
              - {{name: c, hvx: 2, vtcm_mb: 4}}
            events: [{{client: a, at: 0, run: 10}}, {{client: b, at: 0, run: 10}}, {{client: c, at: 0, run: 10}}]
            """
        )
    )
    assert [result[name].max for name in "abc"] == [10, 10, 20]
    assert [lane for group, lane in result.lanes() if group == "HMX"] == ["HMX0", "HMX1"]


def test_an_hmx_count_that_is_given_stays():
    text = "{device: {soc: SM8650, hmx: 1, parallel_graphs: true}, clients: [{name: a}], events: []}"
    assert parse_scenario(text).device.hmx == 1


def test_runs_that_are_queued_back_to_back_have_a_better_rate() -> None:
    """A client that works half a millisecond on each result: one at a time, and with the next ones queued."""

    def end_us(under_way: int) -> float:
        events = [{"client": "a", "closed": under_way, "think": 500, "count": 20, "run": 1000}]
        clients = [{"name": "a", "vtcm_mb": 4}]
        scenario = {"unit": "us", "device": {"soc": "SM8650"}, "clients": clients, "events": events}
        return plan(scenario).run.end_ns / 1000

    assert (end_us(1), end_us(10)) == (29_500, 20_000)


@pytest.mark.parametrize(
    ("calls", "end_us", "why"),
    [
        ({"tensors": "registered", "profiling": "basic"}, 20_000, ""),
        ({"tensors": "raw"}, 29_500, "its tensors do not lie in registered memory"),
        ({"profiling": "detailed"}, 29_500, "profiling at level detailed is above basic"),
    ],
)
def test_raw_tensors_and_high_levels_gain_nothing_from_a_queue(
    calls: dict[str, str], end_us: int, why: str
) -> None:
    events = [{"client": "a", "closed": 10, "think": 500, "count": 20, "run": 1000}]
    clients = [{"name": "a", "vtcm_mb": 4, **calls}]
    planned = plan({"unit": "us", "device": {"soc": "SM8650"}, "clients": clients, "events": events})
    assert planned.run.end_ns / 1000 == end_us
    notes = [note for note in planned.scenario.notes if "a queue gains nothing" in note]
    assert bool(notes) is bool(why)
    assert all(why in note for note in notes)
