"""The C core plays every scenario as Python does: the same events, the same actions, the same figures."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.capi.conftest import ROOT, build_script

from openhtp.core.enumerations import Priority
from openhtp.core.errors import OutOfMemory
from openhtp.core.units import MIB
from openhtp.planning import native, parse_scenario
from openhtp.planning.scenario import ClientSpec, Conversation, Pattern, RequestSource, Scenario
from openhtp.planning.simulate import simulate
from openhtp.sched.actions import Action, ArmTimer, AskYield, Finish, Grant, Outcome, Release, Start
from openhtp.sched.events import ClientKind, Event, StepDone, StepYielded, Submitted, TimerFired
from openhtp.sched.policy import STRICT, EarliestDeadline, Fair
from openhtp.sched.resources import DeviceResources, units_of
from openhtp.sched.virtual import Log

EVENT_WORDS, ACTION_WORDS = 7, 7


@pytest.fixture(scope="module")
def library_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C core, compiled from its source as it is now."""
    folder = tmp_path_factory.mktemp("plans")
    if not build_script().compile_plans(ROOT, folder):
        pytest.skip("there is no C compiler")
    return folder


@pytest.fixture
def core(library_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Plans are made by the C core."""
    monkeypatch.setattr(native, "FOLDER", library_folder)
    monkeypatch.delenv(native.SWITCH, raising=False)
    native.plan_core.cache_clear()
    assert native.plan_core() is not None
    yield native
    native.plan_core.cache_clear()


def random_scenario(seed: int) -> Scenario:
    """A device, clients and sources of all kinds, close together in time so that they meet."""
    r = random.Random(seed)
    device = DeviceResources(
        cores=r.choice((1, 1, 1, 2)),
        hmx=r.randint(1, 2),
        hvx=r.randint(1, 6),
        vtcm_bytes=r.choice((2, 4, 8)) * MIB,
        sharing=r.random() < 0.8,
        windowing=r.random() < 0.5,
        parallel_graphs=r.random() < 0.4,
        flat_priorities=r.random() < 0.1,
    )
    kind = r.random()
    if kind < 0.25:
        device = replace(device, cores=1, hvx=6, sharing=True, windowing=True)
        clients = tuple(_small_app(r, device, number) for number in range(r.randint(3, 8)))
    elif kind < 0.4:
        device = replace(device, cores=1, hmx=2, hvx=6, sharing=True, windowing=True, parallel_graphs=True)
        clients = tuple(_graph_in_company(r, device, number) for number in range(r.randint(3, 7)))
    else:
        only_graphs = r.random() < 0.3
        clients = tuple(_random_client(r, device, number, only_graphs) for number in range(r.randint(1, 7)))
    sources = tuple(_random_source(r, r.randrange(len(clients)), len(clients)) for _ in range(r.randint(1, 9)))
    return Scenario(
        name=f"random {seed}",
        device=device,
        clients=clients,
        sources=sources,
        policy=r.choice((STRICT, EarliestDeadline(), Fair(window_ns=r.choice((0, 50, 400))))),
        eviction_ns=r.choice((None, None, 0, 3, 40)),
        # So that moving a megabyte takes about as long as other things do here.
        dma_gbs=r.choice((MIB / 2, MIB / 15)),
        duration_ns=r.choice((600, 2000, 5000)),
    )


def _random_client(r: random.Random, device: DeviceResources, number: int, only_graphs: bool) -> ClientSpec:
    is_graph = only_graphs or r.random() < 0.5
    vtcm = r.randint(0, device.vtcm_bytes // MIB) * MIB
    talks = is_graph and r.random() < 0.15
    return ClientSpec(
        name=f"c{number}",
        kind=ClientKind.GRAPH if is_graph else ClientKind.APP,
        priority=r.choice(list(Priority)),
        pd=r.randint(1, 2),
        core=r.randrange(device.cores),
        hmx=1 if is_graph else r.randint(0, 1),
        hvx=r.randint(0, device.hvx),
        vtcm_bytes=vtcm,
        page_bytes=r.choice((None, None, vtcm, r.randint(0, device.vtcm_bytes // MIB) * MIB)),
        deadline_ns=r.choice((None, 20, 90, 300)),
        depth=r.choice((1, 2, 25)),
        steps=r.choice((1, 4, 64)),
        timeout_ns=r.choice((None, None, 0, 60, 400)),
        talk=Conversation(
            prompt_runs=r.randint(1, 3),
            prompt_ns=r.randint(1, 60),
            token_runs=r.randint(0, 6),
            token_ns=r.randint(1, 20),
            tokens=r.randint(1, 6),
        )
        if talks
        else None,
    )


def _small_app(r: random.Random, device: DeviceResources, number: int) -> ClientSpec:
    """Several of them run side by side, and one that takes more has to evict several."""
    takes_more = r.random() < 0.3
    return ClientSpec(
        name=f"app{number}",
        kind=ClientKind.APP,
        priority=Priority.HIGH if takes_more else r.choice((Priority.LOW, Priority.NORMAL)),
        hmx=r.random() < 0.1,
        hvx=r.randint(3, device.hvx) if takes_more else r.randint(1, 2),
        vtcm_bytes=r.randint(0, 1) * MIB,
        deadline_ns=r.choice((None, 90)),
        steps=r.choice((1, 4)),
    )


def _graph_in_company(r: random.Random, device: DeviceResources, number: int) -> ClientSpec:
    """Two of them run side by side if their threads allow it."""
    return ClientSpec(
        name=f"graph{number}",
        priority=r.choice((Priority.LOW, Priority.NORMAL, Priority.NORMAL)),
        hvx=r.choice((1, 2, 5)),
        vtcm_bytes=device.vtcm_bytes // 2,
        deadline_ns=r.choice((None, 90)),
        steps=r.choice((1, 4)),
    )


def _random_source(r: random.Random, client: int, clients: int) -> RequestSource:
    pattern = r.choice(list(Pattern))
    return RequestSource(
        client=client,
        pattern=pattern,
        run_ns=r.choice((0, 1, r.randint(2, 120))),
        start_ns=r.choice((0, 0, r.randint(0, 300))),
        gap_ns=0 if pattern is Pattern.AT else r.choice((5, 40, r.randint(1, 200))),
        count=_random_count(r, pattern),
        until_ns=r.choice((None, None, r.randint(0, 1500))),
        burst=r.randint(1, 4) if pattern is Pattern.BURST else 1,
        in_flight=r.randint(1, 3) if pattern is Pattern.CLOSED else 1,
        seed=r.choice((r.randint(0, 9), (r.randint(0, 9) << 80) + 5)),
        after=r.randrange(clients) if pattern is Pattern.AFTER else None,
    )


def _random_count(r: random.Random, pattern: Pattern) -> int | None:
    if pattern is Pattern.AT:
        return 1
    # Sources that follow each other double without it.
    return r.randint(0, 30) if pattern is Pattern.AFTER or r.random() < 0.3 else None


def log_of(scenario: Scenario) -> Log:
    """What happens in the C core, in the words of the scheduler."""
    with native.in_core(scenario, keep_log=True) as plan:
        assert plan is not None, scenario
        plan.run_until()
        words = plan.log()
    log: Log = []
    added = scenario.introductions()
    at = 0
    while at < len(words):
        kind, t, a, b, c, d, count = words[at : at + EVENT_WORDS]
        at += EVENT_WORDS
        event: Event
        if kind == 0:
            event = added[a]
        elif kind == 1:
            event = Submitted(t, a, b, 1, None if c < 0 else c, None if d < 0 else d)
        elif kind == 4:
            event = TimerFired(t=t, timer=a)
        else:
            event = (StepDone if kind == 2 else StepYielded)(t, a, b)
        actions = [_action(words[at + n * ACTION_WORDS : at + (n + 1) * ACTION_WORDS]) for n in range(count)]
        at += count * ACTION_WORDS
        log.append((event, actions))
    return log


def _action(words: list[int]) -> Action:
    kind, job, value, hmx, hvx, start, nbytes = words
    actions: tuple[Action, ...] = (
        Start(job, 0, value),
        AskYield(job, value),
        Finish(job, Outcome.TIMED_OUT if value else Outcome.DONE),
        ArmTimer(job, value),
        Grant(job, value, units_of(hmx), units_of(hvx), start, nbytes),
        Release(job, bool(value)),
    )
    return actions[kind]


def check_equal(seed: int) -> int:
    """Compare the two on one scenario; returns how many events there were."""
    scenario = random_scenario(seed)
    expected = simulate(scenario, keep_log=True)
    for number, (ours, theirs) in enumerate(zip(log_of(scenario), expected.log, strict=True)):
        assert ours == theirs, f"seed {seed}, event {number}"
    run = simulate(scenario)
    assert not run.log
    assert run == replace(expected, log=[]), f"seed {seed}"
    return expected.events


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_random_scenarios_go_alike_event_by_event(core: ModuleType, first: int) -> None:
    assert sum(check_equal(seed) for seed in range(first, first + 100)) > 10_000


@pytest.mark.slow
def test_ten_thousand_random_scenarios_go_alike(core: ModuleType) -> None:
    assert sum(check_equal(seed) for seed in range(10_000)) > 1_000_000


SCENARIO = """
duration: 4000
device: {soc: SM8650}
clients: [{name: a, run: 5, vtcm_mb: 1, deadline: 6}, {name: b, run: 5, vtcm_mb: 1, priority: high}]
events: [{client: a, poisson: 10}, {client: b, every: 11}]
"""


@pytest.fixture
def python_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plans are made by Python."""
    monkeypatch.setenv(native.SWITCH, "0")
    native.plan_core.cache_clear()
    assert native.plan_core() is None
    yield
    native.plan_core.cache_clear()


def in_core(scenario: Scenario) -> bool:
    with native.in_core(scenario) as plan:
        return plan is not None


def test_python_plays_where_the_core_is_switched_off(python_only: None) -> None:
    scenario = parse_scenario(SCENARIO)
    assert not in_core(scenario)
    run = simulate(scenario)
    assert run == replace(simulate(scenario, keep_log=True), log=[])
    assert run.events > 1000


def test_a_core_of_other_sources_is_left_alone(
    core: ModuleType, library_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Longer(ctypes.Structure):
        _fields_ = (("demand", native.CoreDemand), ("more", ctypes.c_int64 * 40))

    monkeypatch.setattr(native, "_CoreClient", Longer)
    with pytest.raises(OSError, match="made from other sources: install openhtp again"):
        native.PlanCore(library_folder / native.LIBRARY)
    native.plan_core.cache_clear()
    assert native.plan_core() is None


def test_progress_is_told_alike(core: ModuleType) -> None:
    scenario = parse_scenario(SCENARIO)
    assert in_core(scenario)
    told: list[float] = []
    run = simulate(scenario, progress=told.append)
    assert told == [part / 100 for part in range(1, 101)]
    assert run == simulate(scenario)


def test_a_client_that_never_fits_is_refused_in_the_same_words(core: ModuleType) -> None:
    scenario = parse_scenario(SCENARIO)
    (first, second) = scenario.clients
    scenario = replace(scenario, clients=(first, replace(second, vtcm_bytes=64 * MIB)))
    with pytest.raises(OutOfMemory) as by_python:
        simulate(scenario, keep_log=True)
    with pytest.raises(OutOfMemory, match="the device has 8") as by_core:
        simulate(scenario)
    assert str(by_core.value) == str(by_python.value)


@pytest.mark.parametrize(
    "change",
    [{"start_ns": 1 << 70}, {"run_ns": (1 << 57) + 1}, {"start_ns": 1 << 57, "gap_ns": 1 << 57}],
    ids=["a time that is too large", "an end that is too late", "gaps that add up"],
)
def test_times_that_the_core_cannot_tell_are_left_to_python(core: ModuleType, change: dict[str, int]) -> None:
    scenario = parse_scenario(SCENARIO)
    sources = tuple(replace(source, count=30, until_ns=None, **change) for source in scenario.sources)
    scenario = replace(scenario, sources=sources, duration_ns=None)
    run = simulate(scenario)
    assert run.end_ns > native.LARGEST
    assert run == replace(simulate(scenario, keep_log=True), log=[])


@pytest.mark.parametrize(
    "more",
    [
        "device: {soc: SM8650}\nswitching: [{graphs: [a, b], room_mb: 8}]",
        "device: {soc: SM8650, perf_profile: balanced}",
        "device: {hvx: 80, hmx: 1, vtcm_mb: 8}",
    ],
    ids=["switched graphs", "votes", "more threads than bits"],
)
def test_what_the_core_does_not_know_is_left_to_python(core: ModuleType, more: str) -> None:
    scenario = parse_scenario(SCENARIO.replace("device: {soc: SM8650}\n", "") + more)
    assert not in_core(scenario)
    assert simulate(scenario).events > 1000


def test_a_plan_by_the_core_can_be_made_on_several_threads(core: ModuleType) -> None:
    from concurrent.futures import ThreadPoolExecutor

    scenarios = [parse_scenario(SCENARIO).with_seed(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(simulate, scenarios))
    assert [run.clients for run in runs] == [simulate(scenario).clients for scenario in scenarios]


def test_an_interrupt_behind_the_call_that_makes_a_plan_leaves_none(core: ModuleType) -> None:
    """A plan has C memory that no garbage collector finds; Python hears a Ctrl-C when a call into C is over."""
    functions = core.plan_core()
    assert functions is not None
    make, free = functions.make, functions.free
    made: list[int] = []
    freed: list[int] = []

    def interrupted(kept: Any, *description: Any) -> None:
        make(kept, *description)
        made.append(kept._obj.value)
        raise KeyboardInterrupt

    def noted(plan: ctypes.c_void_p) -> None:
        freed.append(plan.value or 0)
        free(plan)

    functions.make, functions.free = interrupted, noted
    with pytest.raises(KeyboardInterrupt), native.in_core(parse_scenario(SCENARIO)):
        pass
    assert made == freed
    assert all(made)
    functions.free(ctypes.c_void_p())  # and of none there is nothing to free


@pytest.mark.usefixtures("core")
def test_a_library_of_other_sources_is_not_used_and_a_warning_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "plan.c").write_text("/* pulled */")
    monkeypatch.setattr(native, "SOURCES", tmp_path)
    native.plan_core.cache_clear()
    assert native.plan_core() is None
    (warning,) = caplog.messages
    assert "compiled from other C sources than those that are here. What to do: compile it again" in warning
