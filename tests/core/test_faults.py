"""The words that order faults, and which calls they meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from openhtp.core.errors import InvalidArgument
from openhtp.core.faults import POINTS, FaultKind, FaultPlan, parse_faults


def test_the_documented_order() -> None:
    text = "ssr@graphExecute:3, slow@notify:50ms, oom@contextCreate:2, fail@memRegister, corrupt@binary"
    found = parse_faults(text)
    assert [(fault.kind, fault.point.name, fault.first, fault.last) for fault in found] == [
        (FaultKind.SSR, "graphExecute", 3, 3),
        (FaultKind.SLOW, "notify", 1, None),
        (FaultKind.OOM, "contextCreate", 2, 2),
        (FaultKind.FAIL, "memRegister", 1, None),
        (FaultKind.CORRUPT, "binary", 1, None),
    ]
    assert found[1].delay_ns == 50_000_000


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("fail@graphExecute", [1, 2, 3, 4, 5, 6]),
        ("fail@graphExecute:3", [3]),
        ("fail@graphExecute:3+", [3, 4, 5, 6]),
        ("fail@graphExecute:2-4", [2, 3, 4]),
        ("FAIL@GraphExecute:2:QNN_GRAPH_ERROR_ABORTED", [2]),
        ("slow@graphExecute:5:1.5ms", [5]),
    ],
)
def test_which_calls_meet_it(text: str, met: list[int]) -> None:
    plan = FaultPlan(parse_faults(text))
    for t in range(6):
        plan.reached("graphExecute", t)
        plan.reached("notify", t)
    assert [one.call for one in plan.met] == met


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("ssr", "character 1: 'ssr' does not say where"),
        ("ssr@graphExecute, srs@graphExecute", "character 19: 'srs' is no fault; did you mean ssr?"),
        ("ssr@graphExceute", "did you mean graphExecute?"),
        ("ssr@graphExecute:0", "counted from 1"),
        ("ssr@graphExecute:4-2", "no range of calls"),
        ("ssr@graphExecute:third", "'third' is none of a call (3)"),
        ("ssr@notify", "ssr cannot happen at notify; expected one of contextCreate"),
        ("slow@notify", "does not say how slow"),
        ("slow@notify:2h", "'2h' is none of"),
        ("slow@notify:999999s", "up to an hour"),
        ("fail@graphExecute:QNN_NO_SUCH", "a status"),
        ("corrupt@graphExecute", "expected one of binary"),
    ],
)
def test_a_wrong_order_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse_faults(text, "OPENHTP_FAULTS")
    assert said in refused.value.message
    assert "OPENHTP_FAULTS" in refused.value.message


def test_every_point_can_fail_in_a_way_that_has_a_status() -> None:
    for point in POINTS.values():
        assert FaultKind.FAIL not in point.kinds or point.failed is not None
        assert FaultKind.OOM not in point.kinds or point.no_memory is not None


def test_the_page_has_all_points_and_kinds() -> None:
    page = (Path(__file__).parents[2] / "docs/tools.md").read_text()
    for point in POINTS.values():
        kinds = ", ".join(kind.value for kind in point.kinds)
        assert f"| `{point.name}` |" in page
        assert next(line for line in page.splitlines() if f"| `{point.name}` |" in line).endswith(f"| {kinds} |")
    assert all(f"| `{kind.value}` |" in page for kind in FaultKind)
