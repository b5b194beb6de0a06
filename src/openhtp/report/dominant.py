"""Who has the say at every instant: the op of highest rank among those that run.

Matrix ops come before vector ops, these before what reads from DDR, what writes there, checkpoints and syncs.
Linting's main thread, QHAS' dominant path and idle cycles are all read off this one timeline.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from openhtp.records.schematic import ChipEngine, HtpOp, OpRole

_RANK_OF_ROLE = {OpRole.READ: 2, OpRole.WRITE: 3, OpRole.SET: 4, OpRole.WAIT: 4, OpRole.SYNC: 5}


@dataclass(frozen=True, slots=True)
class Stretch:
    """From ``start`` to ``end`` nothing changes: ``op`` has the say (None: nobody runs)."""

    start: int
    end: int
    op: HtpOp | None

    @property
    def cycles(self) -> int:
        """How long."""
        return self.end - self.start


def rank(op: HtpOp) -> int:
    """0 has the most to say."""
    if op.role is OpRole.COMPUTE:
        return 0 if op.engine is ChipEngine.HMX else 1
    return _RANK_OF_ROLE.get(op.role, 5)


def dominant_path(ops: Iterable[HtpOp]) -> list[Stretch]:
    """The timeline of one core from first begin to last end, without holes; equal neighbours are joined."""
    found: list[Stretch] = []
    for start, end, running in instants(ops):
        op = min(running, key=lambda each: (rank(each), each.start, each.serial), default=None)
        if found and found[-1].op is op:
            found[-1] = Stretch(found[-1].start, end, op)
        else:
            found.append(Stretch(start, end, op))
    return found


def instants(ops: Iterable[HtpOp]) -> Iterator[tuple[int, int, Sequence[HtpOp]]]:
    """Stretches of time in which the same ops run, and those ops. Ops without length take no part."""
    waiting = sorted((op for op in ops if op.cycles > 0), key=lambda op: (op.start, op.serial), reverse=True)
    running: list[tuple[int, int, HtpOp]] = []
    at = waiting[-1].start if waiting else 0
    while waiting or running:
        while waiting and waiting[-1].start <= at:
            op = waiting.pop()
            heapq.heappush(running, (op.end, op.serial, op))
        ends = [running[0][0]] if running else []
        begins = [waiting[-1].start] if waiting else []
        until = min(ends + begins)
        yield at, until, [op for _, _, op in running]
        at = until
        while running and running[0][0] <= at:
            heapq.heappop(running)
