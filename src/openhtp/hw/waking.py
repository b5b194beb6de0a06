"""How long HVX and HMX take to be ready for a graph. Modelled: two times are published, votes do the rest.

A core that was used a moment ago still has its units powered. Later the HMX is switched off (``hmx_timeout_us``),
and then the core may sleep: as deeply as the votes allow, which bound how long it may take to wake up.
"""

from __future__ import annotations

from collections.abc import Iterable

from openhtp.core.units import US
from openhtp.hw.clocks import StandingVote

WARM_NS = 26 * US
"""Powering and acquiring units of a core in use; published for one chip."""
COLD_NS = 4135 * US
"""The same for the first graph of all, on that chip."""


def power_up_ns(idle_ns: int | None, hmx_timeout_ns: int, standing: Iterable[StandingVote]) -> int:
    """How long it takes to power HVX and HMX up.

    Args:
        idle_ns: how long nothing has run on the core; None if nothing ever has.
        hmx_timeout_ns: how long an idle HMX stays powered.
        standing: the votes that stood meanwhile. The lowest sleep latency wins; without any the core sleeps as
            deeply as it can.
    """
    if idle_ns is not None and idle_ns <= hmx_timeout_ns:
        return WARM_NS
    votes = [each.dcvs for each in standing if each.dcvs is not None]
    if any(vote.sleep_disable for vote in votes):
        return WARM_NS
    latencies = [vote.sleep_latency_us * US for vote in votes if vote.sleep_latency_us is not None]
    return min(COLD_NS, WARM_NS + min(latencies, default=COLD_NS))
