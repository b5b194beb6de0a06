"""Plans by the C core (``native/plan.c``), where that part of the package was compiled.

It plays a scenario as ``sched`` and ``simulate.py`` do, event by event, and much faster (decision 035). Votes on
clocks, switched graphs and times beyond nine years are left to Python, and so are plans of which a record is kept.
"""

from __future__ import annotations

import ctypes
import logging
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_int, c_int64, c_void_p, sizeof
from functools import cache
from pathlib import Path
from typing import Any

from openhtp.core.shared_library import OUTDATED, RENEW, is_outdated
from openhtp.planning.scenario import ClientSpec, Pattern, RequestSource, Scenario
from openhtp.planning.sources import random_gap
from openhtp.sched.events import ClientAdded
from openhtp.sched.policy import EarliestDeadline, Fair, Strict
from openhtp.sched.resources import Demand, verify_demand
from openhtp.sched.timed import Pace

log = logging.getLogger(__name__)

LIBRARY = "libopenhtp_plan.so"
SWITCH = "OPENHTP_NATIVE_PLANS"
"""An environment variable: ``0`` has all plans made by Python."""
FOLDER = Path(__file__).absolute().parent / "lib"
SOURCES = FOLDER.with_name("native")

_POLICIES: dict[type, int] = {Strict: 0, EarliestDeadline: 1, Fair: 2}
_FINISHED, _GAPS_WANTED, _PAUSE, _TOO_LARGE, _NO_MEMORY = range(5)
_NEVER = -1
_LATEST = (1 << 63) - 1
LARGEST = 1 << 58
_MOST_UNITS = 62  # bits of a mask
# A fraction of a second: a Ctrl-C is not noticed before the C core comes back.
_TURNS_AT_ONCE = 200_000
_FIRST_GAPS, _MOST_GAPS = 16, 4096


def _int64_fields(*names: str) -> list[tuple[str, Any]]:
    return [(name, c_int64) for name in names]


class _CoreDevice(ctypes.Structure):
    _fields_ = _int64_fields("cores", "hmx", "hvx", "vtcm", "sharing", "windowing", "parallel_graphs", "policy")


class CoreDemand(ctypes.Structure):
    """A client's demand, as the C core reads it."""

    _fields_ = _int64_fields("is_graph", "pd", "priority", "hmx", "hvx", "vtcm", "page", "overmap", "lonely")


class _CoreClient(ctypes.Structure):
    _fields_ = (
        ("demand", CoreDemand),
        *_int64_fields("core", "rank", "depth", "deadline_ns", "timeout_ns"),
    )


class _CoreWork(ctypes.Structure):
    _fields_ = _int64_fields("step_ns", "eviction_ns", "yield_every_ns", "save_ns", "wake_ns", "restore_ns")


class _CoreSource(ctypes.Structure):
    _fields_ = (
        ("work", _CoreWork),
        ("token_work", _CoreWork),
        *_int64_fields("client", "is_closed", "is_random", "start_ns", "gap_ns", "until_ns", "count", "burst"),
        *_int64_fields("in_flight", "after", "prompt_runs", "runs", "tokens"),
    )


_FIGURES = (
    *("waits_total_ns", "waits_max_ns", "yields", "missed", "not_done", "busy_ns"),
    *("worst_ns", "worst_job", "worst_ended_ns", "tokens", "writing_ns"),
)


class _CoreFigures(ctypes.Structure):
    _fields_ = _int64_fields(*_FIGURES)


class BeyondTheCore(Exception):
    """The C core does not play this scenario; Python does."""


class PlanCore:
    """The functions of the C core."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if it cannot be loaded, or was made from other sources."""
        library = ctypes.CDLL(str(path))
        numbers, pointer = POINTER(c_int64), c_void_p
        description = (pointer, pointer, c_int64, pointer, c_int64, c_int)
        self.make = _function(library.openhtp_plan_make, None, pointer, *description)
        self.free = _function(library.openhtp_plan_free, None, pointer)
        self.give_gaps = _function(library.openhtp_plan_give_gaps, c_int, pointer, c_int64, numbers, c_int64)
        self.run = _function(library.openhtp_plan_run, c_int, pointer, c_int64, c_int64, numbers)
        self.totals = _function(library.openhtp_plan_totals, None, pointer, numbers, numbers)
        self.figures = _function(library.openhtp_plan_figures, POINTER(_CoreFigures), pointer, c_int64)
        self.latencies = _function(library.openhtp_plan_latencies, numbers, pointer, c_int64, numbers)
        self.first_tokens = _function(library.openhtp_plan_first_tokens, numbers, pointer, c_int64, numbers)
        self.log = _function(library.openhtp_plan_log, numbers, pointer, numbers)
        layout = (c_int64 * 4)()
        _function(library.openhtp_plan_layout, None, numbers)(layout)
        if list(layout) != [sizeof(kind) for kind in (_CoreDevice, _CoreClient, _CoreSource, _CoreFigures)]:
            raise OSError(f"{path} was made from other sources: install openhtp again")


def _function(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype, function.argtypes = result, arguments
    return function


@cache
def plan_core() -> PlanCore | None:
    """The C core of this process; None where it was not compiled, is switched off or cannot be loaded."""
    path = FOLDER / LIBRARY
    if os.environ.get(SWITCH) == "0" or not path.is_file():
        return None
    if is_outdated(path, SOURCES):
        log.warning("plans are made by Python, which is slower, as %s. What to do: %s", OUTDATED, RENEW)
        return None
    try:
        return PlanCore(path)
    except (OSError, AttributeError) as error:
        log.info("plans are made by Python: %s", error)
        return None


class CorePlan:
    """One scenario in the C core."""

    def __init__(self, core: PlanCore, plan: int, scenario: Scenario) -> None:
        self._core = core
        self._plan = plan
        self._draws = {
            number: random.Random(source.seed)
            for number, source in enumerate(scenario.sources)
            if source.pattern is Pattern.POISSON
        }
        self._means = [source.gap_ns for source in scenario.sources]
        self._gaps = dict.fromkeys(self._draws, _FIRST_GAPS)

    def run_until(self, t: int | None = None) -> None:
        """Go on up to and including time ``t``, to the end if None.

        Raises:
            BeyondTheCore: a time has become too large for it.
        """
        source = c_int64()
        until = _LATEST if t is None else min(t, _LATEST)
        while (status := self._core.run(self._plan, until, _TURNS_AT_ONCE, byref(source))) != _FINISHED:
            if status == _GAPS_WANTED:
                status = self._give_gaps(source.value)
            if status == _TOO_LARGE:
                raise BeyondTheCore
            if status == _NO_MEMORY:
                raise MemoryError

    def _give_gaps(self, source: int) -> int:
        count = self._gaps[source]
        self._gaps[source] = min(2 * count, _MOST_GAPS)
        drawn, mean_ns = self._draws[source], self._means[source]
        gaps = [random_gap(drawn, mean_ns) for _ in range(count)]
        if max(gaps) >= LARGEST:
            return _TOO_LARGE
        status: int = self._core.give_gaps(self._plan, source, (c_int64 * count)(*gaps), count)
        return status

    def totals(self) -> tuple[int, int]:
        """How many events there were, and when the last run ended."""
        events, end_ns = c_int64(), c_int64()
        self._core.totals(self._plan, byref(events), byref(end_ns))
        return events.value, end_ns.value

    def figures(self, client: int) -> dict[str, Any]:
        """The figures of one client, by the names of ``ClientFigures``."""
        figures = self._core.figures(self._plan, client).contents
        seen = {name: getattr(figures, name) for name in _FIGURES}
        seen["worst_job"] = seen["worst_job"] or None
        seen["latencies_ns"] = self._numbers(self._core.latencies, client)
        seen["first_tokens_ns"] = self._numbers(self._core.first_tokens, client)
        return seen

    def log(self) -> list[int]:
        """Events and actions as the numbers that ``note`` of the C core writes."""
        return self._numbers(self._core.log)

    def _numbers(self, read: Any, *client: int) -> list[int]:
        count = c_int64()
        numbers = read(self._plan, *client, byref(count))
        return numbers[: count.value] if count.value else []


@contextmanager
def in_core(scenario: Scenario, *, keep_log: bool = False) -> Iterator[CorePlan | None]:
    """The scenario in the C core; None if Python has to play it.

    Raises:
        QnnError: a client asks for more than the device has.
    """
    core = plan_core()
    described = None if core is None else _described(scenario)
    if core is None or described is None:
        yield None
        return
    device, clients, sources = described
    # The C core writes it here itself: an interrupt after the call finds it, and gives it back.
    kept = c_void_p()
    try:
        core.make(byref(kept), byref(device), clients, len(clients), sources, len(sources), keep_log)
        if not kept.value:
            raise MemoryError
        yield CorePlan(core, kept.value, scenario)
    finally:
        core.free(kept)


def _described(scenario: Scenario) -> tuple[Any, Any, Any] | None:
    """The scenario in the structures of the C core; None if that does not play it."""
    device, policy = scenario.device, _POLICIES.get(type(scenario.policy))
    if scenario.switching or scenario.has_votes or policy is None or max(device.hmx, device.hvx) > _MOST_UNITS:
        return None
    try:
        described = _CoreDevice(
            cores=device.cores,
            hmx=device.hmx,
            hvx=device.hvx,
            vtcm=_number(device.vtcm_bytes),
            sharing=device.sharing,
            windowing=device.windowing,
            parallel_graphs=device.parallel_graphs,
            policy=policy,
        )
        pairs = zip(scenario.clients, scenario.introductions(), strict=True)
        clients = [_client(scenario, client, added) for client, added in pairs]
        sources = [_source(scenario, source) for source in scenario.sources]
    except BeyondTheCore:
        return None
    return described, (_CoreClient * len(clients))(*clients), (_CoreSource * len(sources))(*sources)


def _number(value: int | None) -> int:
    """A number as the C core takes it; None is never, or no limit."""
    if value is None:
        return _NEVER
    if not 0 <= value < LARGEST:
        raise BeyondTheCore
    return value


def _client(scenario: Scenario, client: ClientSpec, added: ClientAdded) -> _CoreClient:
    device, policy = scenario.device, scenario.policy
    verify_demand(added, device)
    demand = Demand(added, device)
    # With the deadline at 0 only the part of the rank is left that orders equal deadlines.
    rank = policy.rank(demand.priority, 0, 0)
    if abs(rank) >= LARGEST:
        raise BeyondTheCore
    return _CoreClient(
        demand=CoreDemand(
            is_graph=demand.is_graph,
            pd=_number(demand.pd),
            priority=demand.priority,
            hmx=demand.hmx,
            hvx=demand.hvx,
            vtcm=demand.vtcm,
            page=_number(demand.page),
            overmap=demand.overmap,
            lonely=demand.lonely,
        ),
        core=client.core,
        rank=rank,
        depth=_number(client.depth),
        deadline_ns=_number(client.deadline_ns),
        timeout_ns=_number(client.timeout_ns),
    )


def _source(scenario: Scenario, source: RequestSource) -> _CoreSource:
    client = scenario.clients[source.client]
    talk = client.talk
    work = scenario.work_for(client, source.run_ns if talk is None else talk.prompt_ns)
    token_work = work if talk is None else scenario.work_for(client, talk.token_ns)
    return _CoreSource(
        work=_work(work),
        token_work=_work(token_work),
        client=source.client,
        is_closed=source.pattern is Pattern.CLOSED,
        is_random=source.pattern is Pattern.POISSON,
        start_ns=_number(source.start_ns),
        gap_ns=_number(source.gap_ns),
        until_ns=_number(scenario.ends_ns(source)),
        count=_number(source.count),
        burst=_number(source.burst),
        in_flight=_number(source.in_flight),
        after=_number(source.after),
        prompt_runs=0 if talk is None else _number(talk.prompt_runs),
        runs=0 if talk is None else _number(talk.runs),
        tokens=0 if talk is None else _number(talk.tokens),
    )


def _work(pace: Pace) -> _CoreWork:
    (step_ns,) = pace.step_ns
    return _CoreWork(
        step_ns=_number(step_ns),
        eviction_ns=_number(pace.eviction_ns),
        yield_every_ns=_number(pace.yield_every_ns),
        save_ns=_number(pace.save_ns),
        wake_ns=_number(pace.wake_ns),
        restore_ns=_number(pace.restore_ns),
    )
