"""How long HVX and HMX take to be ready: warm, asleep by votes, cold."""

from __future__ import annotations

import pytest

from openhtp.core.units import MS, US
from openhtp.hw.clocks import COLD_NS, WARM_NS, StandingVote, power_up_ns
from openhtp.hw.perf_profiles import PERF_PROFILES, RELAXED, RELEASED
from openhtp.hw.power import DcvsVote

TIMEOUT = 300 * MS
LONG_AGO = TIMEOUT + 1


@pytest.mark.parametrize(
    ("idle_ns", "votes", "expected_ns"),
    [
        (0, [], WARM_NS),
        (TIMEOUT, [RELEASED], WARM_NS),
        (LONG_AGO, [], COLD_NS),
        (None, [], COLD_NS),
        (LONG_AGO, [PERF_PROFILES["burst"].dcvs], WARM_NS + 40 * US),
        (LONG_AGO, [RELAXED], WARM_NS + 2000 * US),
        (LONG_AGO, [RELEASED], COLD_NS),
        (LONG_AGO, [RELEASED, RELAXED], WARM_NS + 2000 * US),
        (None, [RELAXED], WARM_NS + 2000 * US),
        (LONG_AGO, [RELEASED, DcvsVote(sleep_disable=True)], WARM_NS),
        (LONG_AGO, [DcvsVote(core="turbo")], COLD_NS),
        (LONG_AGO, [None], COLD_NS),
    ],
)
def test_power_up(idle_ns: int | None, votes: list[DcvsVote | None], expected_ns: int) -> None:
    assert power_up_ns(idle_ns, TIMEOUT, [StandingVote(dcvs=vote) for vote in votes]) == expected_ns
