"""Votes in plans: they rise and fall with what clients do, and times and traces follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from openhtp.core.units import MS, US
from openhtp.estimation import estimate
from openhtp.hw.clocks import COLD_NS, WARM_NS, StandingVote, clocks_for
from openhtp.hw.perf_profiles import PERF_PROFILES, SUSTAIN_US
from openhtp.hw.power import DcvsVote
from openhtp.planning import BadScenario, plan
from openhtp.planning.parsing import parse_scenario
from openhtp.report.lanes import Counter, TimelineSpan

MODEL = "zoo:tiny_mlp"
FULL_US = estimate(MODEL, "SM8650").total_us


def scenario(*clients: dict[str, Any], events: list[dict[str, Any]], **device: Any) -> dict[str, Any]:
    return {"device": {"soc": "SM8650", **device}, "clients": list(clients), "events": events}


def profile_us(name: str) -> float:
    return estimate(MODEL, "SM8650", perf_profile=name).total_us


def clocks_of(result: Any) -> list[tuple[str, float, float]]:
    return [
        (str(mark.args["core_corner"]), mark.start_ns / US, mark.end_ns / US)
        for mark in result.marks()
        if isinstance(mark, TimelineSpan) and mark.category == "clocks"
    ]


def test_a_profile_sustains_its_vote_after_the_last_run() -> None:
    """Another client, which votes low, is fast for as long as the burst vote stands."""
    late = SUSTAIN_US + 10_000
    result = plan(
        scenario(
            {"name": "quick", "model": MODEL, "perf_profile": "burst"},
            {"name": "slow", "model": MODEL, "perf_profile": "power_saver"},
            events=[{"client": "slow", "at": [10, late]}, {"client": "quick", "at": 1}],
        )
    )
    quick, slow = result.run.clients
    assert quick.latencies_ns == [pytest.approx(FULL_US * 1000, abs=2)]
    # By the second run the timer has run out; the relaxed vote of the other is as high as power_saver's own.
    first, second = slow.latencies_ns
    assert first < 2 * FULL_US * 1000
    wake = 2000 * US  # asleep as the relaxed state allows
    assert second == pytest.approx(profile_us("power_saver") * 1000 + wake, rel=1e-6)


def test_votes_fall_between_the_runs_of_a_profile_that_does_not_sustain() -> None:
    result = plan(
        scenario(
            {"name": "a", "model": MODEL, "perf_profile": "high_performance"},
            events=[{"client": "a", "every": 2000, "count": 2}],
        )
    )
    corners = [corner for corner, *_ in clocks_of(result)]
    assert corners == ["TURBO", "SVS", "TURBO"]
    rows = result.to_json()["clocks"]
    assert [row["corners"]["bus"] for row in rows] == corners
    assert rows[0]["end"] == rows[1]["start"] > rows[0]["start"] == 0
    assert result.run.clients[0].latencies_ns == [pytest.approx(profile_us("high_performance") * 1000, abs=2)] * 2


def test_what_is_under_way_slows_down_when_a_vote_falls() -> None:
    """The long run is fast while the other runs beside it, and goes as its relaxed vote says afterwards."""
    result = plan(
        scenario(
            {
                "name": "long",
                "model": "zoo:small_cnn",
                "perf_profile": "low_power_saver",
                "hvx": 2,
                "vtcm_mb": 4,
            },
            {"name": "app", "kind": "app", "run": 20, "perf_profile": "high_performance", "vtcm_mb": 0},
            events=[{"client": "long", "at": 0}, {"client": "app", "at": 0}],
        )
    )
    alone = estimate("zoo:small_cnn", "SM8650", perf_profile="power_saver").total_us
    fast = estimate("zoo:small_cnn", "SM8650", perf_profile="high_performance").total_us
    (took,) = result.run.clients[0].latencies_ns
    done = 20 / fast  # part of it that was done at the higher clocks
    assert 0 < done < 1
    assert took / 1000 == pytest.approx(20 + (1 - done) * alone, rel=0.01)


def test_a_core_that_was_idle_for_long_has_to_wake_up() -> None:
    result = plan(
        scenario(
            {"name": "a", "model": MODEL, "votes": {"core": "turbo", "bus": "turbo"}},
            events=[{"client": "a", "at": [0, 1_000_000]}],
        )
    )
    first, second = result.run.clients[0].latencies_ns
    assert second - first == COLD_NS - WARM_NS  # nobody voted for a sleep latency


def test_votes_that_always_stand() -> None:
    corners = DcvsVote(core="svs", bus="nom")
    found = parse_scenario(
        str(
            scenario(
                {"name": "a", "model": MODEL, "votes": {"core": "svs", "bus": "nom", "hmx": "tur"}},
                events=[{"client": "a", "at": 0}],
            )
        )
    )
    votes = found.clients[0].votes
    assert votes is not None
    assert votes.dcvs is not None
    assert (votes.dcvs.core, votes.dcvs.bus) == (corners.core, corners.bus)
    assert found.sources[0].times == ()  # they cannot change
    assert " by votes: modelled" in " ".join(found.notes)
    assert clocks_for([StandingVote(dcvs=corners)]).core < 1


def test_traces_of_plans_have_the_clocks_as_counters() -> None:
    result = plan(
        scenario({"name": "a", "model": MODEL, "perf_profile": "balanced"}, events=[{"client": "a", "at": 500}])
    )
    counters = [mark for mark in result.marks() if isinstance(mark, Counter) and mark.name.startswith("core MHz")]
    assert [round(mark.values["value"]) for mark in counters] == [684, 1296]
    assert counters[1].at_ns == 500 * US


def test_a_language_model_follows_the_bus_and_the_hmx() -> None:
    llm = {"preset": "llama-3.2-1b", "prompt": 128, "generate": 3}
    times = {}
    for name in ("burst", "power_saver"):
        result = plan(
            scenario({"name": "chat", "llm": llm, "perf_profile": name}, events=[{"client": "chat", "at": 0}])
        )
        times[name] = result.run.clients[0].latencies_ns
    slow = PERF_PROFILES["power_saver"].clocks()
    ratios = [a / b for a, b in zip(times["power_saver"], times["burst"], strict=True)]
    assert ratios[0] == pytest.approx(1 / slow.hmx, rel=0.01)
    assert ratios[1:] == [pytest.approx(1 / slow.bus, rel=0.01)] * 2
    assert min(times["burst"]) > MS


@pytest.mark.parametrize(
    ("client", "words"),
    [
        ({"votes": {"core": "fast"}}, r"clients\[0\].votes.core: .*fast"),
        ({"votes": {"cores": "turbo"}}, r"clients\[0\].votes: unknown key 'cores'"),
        ({"votes": {"hmx": "tur"}}, "an HMX vote needs a core vote"),
        ({"votes": {"core": "disable", "hmx": "tur"}}, "an HMX vote needs a core vote"),
        ({"votes": {}}, "expected some of core, bus, hmx"),
        ({"votes": {"core": "turbo"}, "perf_profile": "burst"}, "not both"),
    ],
)
def test_bad_votes_are_told_with_their_place(client: dict[str, Any], words: str) -> None:
    with pytest.raises(BadScenario, match=words):
        plan(scenario({"name": "a", "run": 5, **client}, events=[{"client": "a", "at": 0}]))
    if "hmx" in client["votes"]:
        old = scenario({"name": "a", "run": 5, "votes": {"core": "turbo", "hmx": "tur"}}, events=[])
        old["device"]["soc"] = "SM8550"
        with pytest.raises(BadScenario, match="HMX votes need v75 or newer; SM8550 is v73"):
            plan(old)


def test_the_example_of_the_docs() -> None:
    result = plan(Path(__file__).parents[2] / "examples" / "perf-profiles.yaml")
    early, *_, late = result.run.clients[1].latencies_ns
    assert late > 1.8 * early
    fast, slow = result.to_json()["clocks"]
    last_frame = 99_000 + result["camera"].max
    assert fast["end"] == slow["start"] == pytest.approx(last_frame + SUSTAIN_US, abs=1)
