"""Every documented scheduling figure, cell by cell, on the virtual clock.

Times are plain numbers (1 = 1 ns here; the figures have no unit). VTCM in MB.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.sched.replaying import replay

from openhtp.core.enumerations import Priority
from openhtp.core.units import MIB
from openhtp.records.phases import Phase, Phases, client_phases
from openhtp.sched.actions import AskYield
from openhtp.sched.events import ClientAdded, ClientKind, Submitted
from openhtp.sched.recorder import ScheduleRecorder
from openhtp.sched.resources import DeviceResources
from openhtp.sched.scheduler import Scheduler
from openhtp.sched.timed import Pace
from openhtp.sched.virtual import VirtualLoop

LOW, MEDIUM, HIGH = Priority.LOW, Priority.NORMAL, Priority.HIGH
W, R, P = Phase.WAITING, Phase.RUNNING, Phase.PAUSED


@dataclass
class C:
    name: str
    priority: int
    hmx: int = 1
    hvx: int = 1
    vtcm: int = 1
    page: int | None = None
    pd: int = 1
    kind: ClientKind = ClientKind.GRAPH


def app(name, priority, *, hmx=0, hvx=1, vtcm=1, page=None, pd=1):
    return C(name, priority, hmx, hvx, vtcm, page, pd, ClientKind.APP)


class Result:
    def __init__(self, device, clients, requests, eviction):
        self.names = {number: client.name for number, client in enumerate(clients, 1)}
        numbers = {client.name: number for number, client in enumerate(clients, 1)}
        self.device = device
        self.history = Phases()
        recorder = ScheduleRecorder(self.history.add)
        scheduler = Scheduler(device)

        def observe(event, actions):
            scheduler.check()
            recorder(event, actions)

        self.loop = VirtualLoop(scheduler, observe=observe)
        for number, client in enumerate(clients, 1):
            self.loop.at(
                ClientAdded(
                    t=0,
                    client=number,
                    priority=client.priority,
                    kind=client.kind,
                    pd=client.pd,
                    hmx=client.hmx,
                    hvx=client.hvx,
                    vtcm_bytes=client.vtcm * MIB,
                    page_bytes=None if client.page is None else client.page * MIB,
                )
            )
        self.job_client = {}
        for job, (name, at, run) in enumerate(requests, 1):
            self.job_client[job] = name
            submitted = Submitted(t=at, job=job, client=numbers[name])
            self.loop.at(submitted, Pace(step_ns=(run,), eviction_ns=eviction))
        self.loop.run_until()
        assert replay(self.loop.log, device) is None

    @property
    def phases(self):
        return {
            self.names[client]: [(i.phase, i.start_ns, i.end_ns) for i in intervals]
            for client, intervals in client_phases(self.history.intervals).items()
        }

    def cells(self, t):
        """Who holds HMX, each HVX and each MB of VTCM just after ``t``."""
        vtcm_cells = self.device.vtcm_bytes // MIB
        row = [None] * (self.device.hmx + self.device.hvx + vtcm_cells)
        for interval in self.history.intervals:
            grant = interval.grant
            if grant is None or not interval.start_ns <= t < interval.end_ns:
                continue
            held = [*grant.hmx, *(self.device.hmx + unit for unit in grant.hvx)]
            start = grant.vtcm_start // MIB
            first = self.device.hmx + self.device.hvx + start
            held += range(first, first + grant.vtcm_bytes // MIB)
            for cell in held:
                assert row[cell] is None, f"two holders of cell {cell} at {t}"
                row[cell] = self.names[interval.client]
        return row

    @property
    def asked(self):
        """Who was asked to yield, and when."""
        return [
            (event.t, self.job_client[action.job])
            for event, actions in self.loop.log
            for action in actions
            if isinstance(action, AskYield)
        ]


ONE_RESOURCE = DeviceResources(hmx=1, hvx=1, vtcm_bytes=MIB)

BASE_CASES = {
    "1.1 same priority": (
        [C("A", MEDIUM), C("B", MEDIUM)],
        [("A", 0, 30), ("B", 10, 30)],
        10,
        {"A": [(R, 0, 30)], "B": [(W, 10, 30), (R, 30, 60)]},
    ),
    "1.2 B lower": (
        [C("A", MEDIUM), C("B", LOW)],
        [("A", 0, 30), ("B", 10, 30)],
        10,
        {"A": [(R, 0, 30)], "B": [(W, 10, 30), (R, 30, 60)]},
    ),
    "1.3 B higher": (
        [C("A", LOW), C("B", HIGH)],
        [("A", 0, 50), ("B", 20, 30)],
        10,
        {"A": [(R, 0, 30), (P, 30, 60), (R, 60, 80)], "B": [(W, 20, 30), (R, 30, 60)]},
    ),
    "1.3 with an eviction of 20": (
        [C("A", LOW), C("B", HIGH)],
        [("A", 0, 50), ("B", 10, 30)],
        20,
        {"A": [(R, 0, 30), (P, 30, 60), (R, 60, 80)], "B": [(W, 10, 30), (R, 30, 60)]},
    ),
    "1.4 complex": (
        [app("App", MEDIUM, hmx=1), C("Graph 2", LOW), C("Graph 1", HIGH)],
        [("App", 0, 60), ("Graph 2", 10, 30), ("Graph 1", 20, 30)],
        10,
        {
            "App": [(R, 0, 30), (P, 30, 60), (R, 60, 90)],
            "Graph 2": [(W, 10, 90), (R, 90, 120)],
            "Graph 1": [(W, 20, 30), (R, 30, 60)],
        },
    ),
}


@pytest.mark.parametrize("case", BASE_CASES)
def test_base_case(case):
    clients, requests, eviction, expected = BASE_CASES[case]
    assert Result(ONE_RESOURCE, clients, requests, eviction).phases == expected


def test_base_1_3_asks_when_the_higher_one_arrives():
    clients, requests, eviction, _ = BASE_CASES["1.3 B higher"]
    assert Result(ONE_RESOURCE, clients, requests, eviction).asked == [(20, "A")]


FIGURE_DEVICE = DeviceResources(hmx=1, hvx=2, vtcm_bytes=4 * MIB)
G1, G2, A, _ = "Graph 1", "Graph 2", "App", None


def test_same_pd():
    result = Result(
        FIGURE_DEVICE,
        [C(G1, HIGH, vtcm=3), app(A, MEDIUM), C(G2, LOW, vtcm=2)],
        [(G1, 0, 30), (A, 10, 50), (G2, 10, 40), (G1, 40, 20)],
        10,
    )
    assert result.phases == {
        G1: [(R, 0, 30), (W, 40, 50), (R, 50, 70)],
        A: [(R, 10, 60)],
        G2: [(W, 10, 30), (R, 30, 50), (P, 50, 70), (R, 70, 90)],
    }
    table = {
        0: [G1, G1, _, _, G1, G1, G1],
        10: [G1, G1, A, A, G1, G1, G1],
        30: [G2, G2, A, A, _, G2, G2],
        50: [G1, G1, A, A, G1, G1, G1],
        60: [G1, G1, _, _, G1, G1, G1],
        70: [G2, G2, _, _, _, G2, G2],
        90: [_] * 7,
    }
    assert {t: result.cells(t) for t in table} == table
    assert result.asked == [(40, G2)]


TWO_PDS = (
    FIGURE_DEVICE,
    [C(G1, HIGH, vtcm=3, pd=1), app(A, LOW, pd=1), C(G2, MEDIUM, vtcm=2, pd=2)],
    [(G1, 0, 30), (A, 10, 60), (G2, 10, 60), (G1, 60, 20)],
    10,
)


def test_two_pds():
    result = Result(*TWO_PDS)
    assert result.phases == {
        G1: [(R, 0, 30), (W, 60, 70), (R, 70, 90)],
        A: [(R, 10, 40), (P, 40, 70), (R, 70, 100)],
        G2: [(W, 10, 40), (R, 40, 70), (P, 70, 100), (R, 100, 130)],
    }
    table = {
        0: [G1, G1, _, _, G1, G1, G1],
        10: [G1, G1, A, A, G1, G1, G1],
        30: [_, _, A, A, _, _, _],
        40: [G2, G2, _, _, _, G2, G2],
        70: [G1, G1, A, A, G1, G1, G1],
        90: [_, _, A, A, _, _, _],
        100: [G2, G2, _, _, _, G2, G2],
        130: [_] * 7,
    }
    assert {t: result.cells(t) for t in table} == table
    assert result.asked == [(30, A), (60, G2), (90, A)]


def test_windowing_lets_two_pds_share():
    device = DeviceResources(hmx=1, hvx=2, vtcm_bytes=4 * MIB, windowing=True)
    result = Result(device, *TWO_PDS[1:])
    # Graph 2 takes over from Graph 1 at 30 beside the App of the other PD, which is never disturbed.
    assert result.phases[A] == [(R, 10, 70)]
    assert result.phases[G2] == [(W, 10, 30), (R, 30, 70), (P, 70, 90), (R, 90, 110)]


V73 = DeviceResources(hmx=1, hvx=4, vtcm_bytes=8 * MIB)


def vtcm(result, t):
    return result.cells(t)[5:]


def test_sharing_two_graphs_same_pd():
    result = Result(
        V73,
        [C("QNN1", LOW, vtcm=6, page=8), app("C1", HIGH, vtcm=2, page=1), C("QNN2", MEDIUM, vtcm=6, page=8)],
        [("QNN1", 0, 100), ("C1", 10, 200), ("QNN2", 20, 50)],
        10,
    )
    assert result.asked == [(20, "QNN1")]
    assert result.phases == {
        "QNN1": [(R, 0, 30), (P, 30, 80), (R, 80, 150)],
        "C1": [(R, 10, 210)],
        "QNN2": [(W, 20, 30), (R, 30, 80)],
    }
    assert vtcm(result, 10) == ["C1"] * 2 + ["QNN1"] * 6
    assert vtcm(result, 30) == ["C1"] * 2 + ["QNN2"] * 6
    assert vtcm(result, 80) == ["C1"] * 2 + ["QNN1"] * 6


def test_sharing_other_pd_higher():
    result = Result(
        V73,
        [
            C("QNN", LOW, vtcm=6, page=8, pd=1),
            app("C1", LOW, vtcm=2, page=1, pd=1),
            C("PD2", HIGH, vtcm=6, page=8, pd=2),
        ],
        [("QNN", 0, 100), ("C1", 10, 100), ("PD2", 20, 50)],
        10,
    )
    assert sorted(result.asked) == [(20, "C1"), (20, "QNN")]
    assert result.phases == {
        "QNN": [(R, 0, 30), (P, 30, 80), (R, 80, 150)],
        "C1": [(R, 10, 30), (P, 30, 80), (R, 80, 160)],
        "PD2": [(W, 20, 30), (R, 30, 80)],
    }
    assert vtcm(result, 30) == [None] * 2 + ["PD2"] * 6
    assert vtcm(result, 80) == ["C1"] * 2 + ["QNN"] * 6


def test_sharing_other_pd_lower_than_one():
    result = Result(
        V73,
        [
            C("QNN", LOW, vtcm=6, page=8, pd=1),
            app("C1", HIGH, vtcm=2, page=1, pd=1),
            C("PD2", MEDIUM, vtcm=6, page=8, pd=2),
        ],
        [("QNN", 0, 200), ("C1", 10, 40), ("PD2", 20, 100), ("C1", 80, 20)],
        10,
    )
    # Nobody is asked before C1 releases by itself at 50; then QNN; then C1 comes back and PD2 is asked.
    assert [row for row in result.asked if row[0] <= 80] == [(50, "QNN"), (80, "PD2")]
    assert result.phases["PD2"][:3] == [(W, 20, 60), (R, 60, 90), (P, 90, 120)]
    assert result.phases["C1"] == [(R, 10, 50), (W, 80, 90), (R, 90, 110)]
    assert vtcm(result, 60) == [None] * 2 + ["PD2"] * 6
    assert vtcm(result, 90)[:2] == ["C1"] * 2


def test_no_sharing_before_v73():
    device = DeviceResources(hmx=1, hvx=4, vtcm_bytes=8 * MIB, sharing=False)
    result = Result(
        device,
        [C("QNN", MEDIUM, vtcm=6, page=8), app("C1", MEDIUM, vtcm=2, page=1)],
        [("QNN", 0, 50), ("C1", 10, 20)],
        10,
    )
    assert result.asked == []
    assert result.phases == {"QNN": [(R, 0, 50)], "C1": [(W, 10, 50), (R, 50, 70)]}


def test_a_graph_below_half_of_the_vtcm_does_not_share():
    clients = [C("QNN", MEDIUM, vtcm=3), app("C1", MEDIUM, vtcm=2)]
    result = Result(V73, clients, [("QNN", 0, 50), ("C1", 10, 20)], 10)
    assert result.phases["C1"] == [(W, 10, 50), (R, 50, 70)]


@pytest.mark.parametrize(("page", "shares"), [(1, True), (2, True), (4, False)])
def test_the_other_page_must_fit_into_the_overmap(page, shares):
    clients = [C("QNN", MEDIUM, vtcm=6, page=8), app("C1", MEDIUM, vtcm=2, page=page)]
    for requests in ([("QNN", 0, 50), ("C1", 0, 50)], [("C1", 0, 50), ("QNN", 0, 50)]):
        result = Result(V73, clients, requests, 10)
        both_at_once = all(phases == [(R, 0, 50)] for phases in result.phases.values())
        assert both_at_once is shares


def test_an_app_with_the_hmx_makes_a_graph_wait():
    clients = [app("C1", MEDIUM, hmx=1, vtcm=1), C("QNN", MEDIUM, vtcm=6)]
    result = Result(V73, clients, [("C1", 0, 40), ("QNN", 10, 20)], 10)
    assert result.phases["QNN"] == [(W, 10, 40), (R, 40, 60)]


EXPECTED_THREAD_PRIORITIES = {
    "LOW": (0, 0xC5),
    "NORMAL_LOW": (None, 0xC3),
    "NORMAL": (100, 0xC0),
    "NORMAL_HIGH": (150, 0xBD),
    "HIGH": (200, 0xBB),
    "HIGH_PLUS": (None, 0xB6),
    "CRITICAL": (None, 0xB1),
    "CRITICAL_PLUS": (None, 0xAC),
}


def test_the_eight_priorities_pre_empt_in_the_order_of_their_threads():
    for name, (number, thread) in EXPECTED_THREAD_PRIORITIES.items():
        level = Priority[name]
        assert level.thread_priority == thread
        assert number is None or level == number
    levels = sorted(Priority, key=lambda level: -level.thread_priority)
    # Each arrives one after the other, each more urgent: everyone is asked but the last.
    clients = [C(level.name, level) for level in levels]
    requests = [(level.name, 20 * index, 1000) for index, level in enumerate(levels)]
    result = Result(ONE_RESOURCE, clients, requests, 10)
    assert [name for _t, name in result.asked] == [level.name for level in levels[:-1]]


def test_windows_maps_all_priorities_to_one():
    device = DeviceResources(hmx=1, hvx=1, vtcm_bytes=MIB, flat_priorities=True)
    result = Result(device, [C("A", LOW), C("B", HIGH)], [("A", 0, 50), ("B", 20, 30)], 10)
    assert result.asked == []
    assert result.phases == {"A": [(R, 0, 50)], "B": [(W, 20, 50), (R, 50, 80)]}


PARALLEL = DeviceResources(hmx=2, hvx=4, vtcm_bytes=8 * MIB, parallel_graphs=True)


def test_parallel_graphs_take_two_of_the_first_three():
    clients = [C(name, MEDIUM, hvx=2, vtcm=size) for name, size in [("a", 6), ("b", 6), ("c", 2), ("d", 2)]]
    result = Result(PARALLEL, clients, [(name, 0, 50) for name in "abcd"], 10)
    # a starts; b does not fit beside it; c does and is within the first three; d is not.
    assert result.phases["a"] == [(R, 0, 50)]
    assert result.phases["c"] == [(R, 0, 50)]
    assert result.phases["b"] == [(W, 0, 50), (R, 50, 100)]
    assert vtcm(result, 0)[1:] == ["c"] * 2 + ["a"] * 6
    assert result.phases["d"] == [(W, 0, 50), (R, 50, 100)]


def test_parallel_graphs_do_not_look_behind_the_third():
    clients = [C(name, MEDIUM, hvx=2, vtcm=size) for name, size in [("a", 6), ("b", 6), ("c", 6), ("d", 2)]]
    result = Result(PARALLEL, clients, [(name, 0, 50) for name in "abcd"], 10)
    assert result.phases["d"][0] == (W, 0, 50)
    assert result.phases["b"] == [(W, 0, 50), (R, 50, 100)]


def test_parallel_graphs_need_equal_priority_and_the_switch():
    clients = [C("a", MEDIUM, hvx=2, vtcm=4), C("b", LOW, hvx=2, vtcm=4)]
    requests = [("a", 0, 50), ("b", 0, 50)]
    assert Result(PARALLEL, clients, requests, 10).phases["b"][0] == (W, 0, 50)
    clients[1].priority = MEDIUM
    assert Result(PARALLEL, clients, requests, 10).phases["b"] == [(R, 0, 50)]
    without = DeviceResources(hmx=2, hvx=4, vtcm_bytes=8 * MIB)
    assert Result(without, clients, requests, 10).phases["b"][0] == (W, 0, 50)
