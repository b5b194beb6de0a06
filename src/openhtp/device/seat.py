"""The seat decides which thread works with a device in the client's own process: the loop's, or a caller's.

The loop has the seat whenever it is awake. A caller takes the seat while the loop sleeps and nothing is under way,
computes step by step, and gives the seat up at the end of a step if the loop waits. The rest of its execution is
then a job like any other, and the loop takes that job in before anything that came later.

A more urgent caller may be the guest of a caller that sits. At the end of a step the guest computes on its own
thread, while its host sleeps. The loop takes no part in that: it waits for the host, and not for the guest.

A caller may be interrupted anywhere (decision 027). So there is no lock: taking the seat and noting its holder are
one step, and giving the seat up twice, for example while tidying up, does no harm.
"""

from __future__ import annotations

import os
import queue
import select
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from openhtp.device.clock import nap

if TYPE_CHECKING:
    from openhtp.engine.native import NativeWatch

# How long a caller looks for a free seat: about as long as it takes to hand an execution to another thread.
PATIENCE_NS = 100_000
# How often a host looks whether its guest has gone. The guest does not wake it, since a thread that wakes another
# may lose its processor to that one, which would compute there for long.
_SHORTEST_NAP_S, _LONGEST_NAP_S = 20e-6, 500e-6


class Seat:
    """One at a time may sit; the loop is never kept waiting for longer than a step."""

    __slots__ = (
        "_left_over",
        "_loop_waits",
        "_news",
        "_now",
        "_sitting",
        "client",
        "guests",
        "soon_free",
        "wanted",
    )

    def __init__(self, now: Callable[[], int]) -> None:
        """``now`` is the device's clock."""
        self._now = now
        # The loop has work: a caller that computes is to leave at the end of its step.
        self.wanted = False
        # Whether the holder leaves within a moment: a caller says so when it sits down; the loop always does.
        self.soon_free = True
        # At most one, the loop or a caller: ``setdefault`` is one step.
        self._sitting: dict[None, object] = {}
        # At most one: a guest, or a caller that waits to be one, with the queue in which it learns whether it is.
        self.guests: dict[None, tuple[object, queue.SimpleQueue[bool]]] = {}
        # The graph that the caller computes, or the last one that a caller computed, by its number.
        self.client = 0
        self._loop_waits = False
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._left_over: deque[Callable[[], None]] = deque()

    # The loop's part

    def take(self) -> None:
        """Sit down; a caller that computes leaves at the end of its step. Takes in the rest of its execution."""
        if self._sitting.setdefault(None, self) is not self:
            self.wanted = self._loop_waits = True
            while self._sitting.setdefault(None, self) is not self:
                self._news.get()
            self._loop_waits = False
        self.wanted = False
        self.soon_free = True
        while self._left_over:
            self._left_over.popleft()()

    def leave(self) -> None:
        """Get up, before going to sleep."""
        self.wanted = False
        del self._sitting[None]

    # Everybody's part

    def want(self) -> None:
        """Work comes for the loop: free the seat for when the loop is awake. To be followed by a wake-up."""
        self.wanted = True

    # A caller's part

    def try_take(self, caller: object) -> bool:
        """Sit down if the seat is free, or about to be, and the loop does not wait for it.

        A caller that got the seat has to ``give_up``, whatever happens.
        """
        if self._loop_waits:
            return False
        if self._sitting.setdefault(None, caller) is caller:
            return True
        if not self.soon_free:
            return False
        until_ns = self._now() + PATIENCE_NS
        while self.soon_free and not self._loop_waits and self._now() < until_ns:
            os.sched_yield()
            if self._sitting.setdefault(None, caller) is caller:
                return True
        return False

    def visit(self, caller: object) -> bool:
        """Wait for the end of a step of the caller that sits, to be its guest; take the seat if it has gone.

        For a caller that is more urgent than the one that sits. If this returns True, the caller may compute, and
        it has to ``give_up``, whatever happens. False if the loop has the seat, or there is a guest already.
        """
        news: queue.SimpleQueue[bool] = queue.SimpleQueue()
        guest = (caller, news)
        if self._loop_waits or self.guests.setdefault(None, guest) is not guest:
            return False
        if self._sitting.get(None, self) is not self and news.get():
            return True
        self.guests.pop(None, None)
        return self.try_take(caller)

    def entertain(self, caller: object) -> None:
        """Let the guest compute, and wait until it has gone. Does nothing for a caller that is a guest itself."""
        guest = self.guests.get(None)
        if guest is None or self._sitting.get(None) is not caller:
            return
        guest[1].put(True)
        nap_s, interrupt = _SHORTEST_NAP_S, None
        while self.guests.get(None) is guest:
            try:
                nap(nap_s)
            except BaseException as error:  # of a signal handler: two must not compute at once
                interrupt = error
            nap_s = min(2 * nap_s, _LONGEST_NAP_S)
        if interrupt is not None:
            raise interrupt

    def give_up(self, caller: object) -> None:
        """Get up, or end a visit. Does nothing for a caller that does not sit and is nobody's guest."""
        if self._sitting.get(None) is caller:
            del self._sitting[None]
            if self.guests and (guest := self.guests.get(None)) is not None:
                guest[1].put(False)
        elif (guest := self.guests.get(None)) is not None and guest[0] is caller:
            self.guests.pop(None, None)
        if self._loop_waits:
            self._news.put(None)

    def leave_over(self, rest: Callable[[], None]) -> None:
        """Have the loop do ``rest`` as soon as it sits. For a caller that sits, and then calls ``give_up``."""
        self._left_over.append(rest)


# Where threads of clients in C and the loop take turns with the interpreter's lock: ``engine/native/sessions.c``.
turns: list[int] = []
# How long the loop looks for news before it sleeps: longer than a client takes between two tokens of a small
# language model. It does so if the last news came soon; where all have to be woken, that takes longer.
LOOK_NS = 500_000
SOON_NS = 1_000_000
# How many times it just sleeps after it looked in vain, or lost its processor to somebody else: more each time,
# until it has found something as often. Who sleeps gets a busy processor sooner than who used it up by looking.
_AFTER_VAIN, _AFTER_LOSS, _MOST_RESTS = 2, 8, 1024


class NewsWatch:
    """How the loop waits for news: asleep, or looking for a moment if work has been coming soon.

    A thread whose processor sleeps is woken late, and finds the caches cold. So a loop whose last work came soon
    looks for the next, at first, without the interpreter's lock. If it looks in vain, or somebody else needs its
    processor, it just sleeps for some times, and for more and more. Where there is one processor it never looks.
    """

    def __init__(self, epoll: select.epoll, now: Callable[[], int]) -> None:
        """``now`` is the device's clock."""
        self._epoll = epoll
        self._now = now
        self._looks = len(os.sched_getaffinity(0)) > 1
        self._native: NativeWatch | None = None
        self._came_soon = False
        self._rests_left = 0
        self._rests = _AFTER_VAIN
        self._found = 0

    def wait(self, timeout_ns: int | None) -> None:
        """Wait until there is something to read, at most so long."""
        if self._native is None:
            began_ns = self._now()
            self._epoll.poll(-1 if timeout_ns is None else timeout_ns / 1e9, 1)
            self.came(self._now() - began_ns)
            if self._came_soon and self._looks:
                self._begin_to_look()
            return
        patience_ns = self.patience_ns()
        waited_ns, was_taken = self._native.wait(timeout_ns, patience_ns)
        if patience_ns:
            self.looked(found=waited_ns <= patience_ns, was_taken=was_taken)
        self.came(waited_ns)

    def _begin_to_look(self) -> None:
        from openhtp.engine.native import NativeWatch, native  # whatever computes has loaded it

        side = native()
        self._looks = side is not None
        if side is not None:
            self._native = NativeWatch(side, self._epoll.fileno(), turns[0] if turns else 0)

    def patience_ns(self) -> int:
        """How long to look before the next sleep."""
        if not self._came_soon:
            return 0
        if self._rests_left:
            self._rests_left -= 1
            return 0
        return LOOK_NS

    def came(self, waited_ns: int) -> None:
        """News came so long after the last work was done."""
        self._came_soon = waited_ns <= SOON_NS

    def looked(self, *, found: bool, was_taken: bool = False) -> None:
        """It looked, and found something or not; perhaps somebody else had the processor meanwhile."""
        if found and not was_taken:
            self._found += 1
            if self._found >= self._rests:
                self._rests = _AFTER_VAIN
            return
        rests = max(self._rests, _AFTER_LOSS) if was_taken else self._rests
        self._rests_left, self._found = rests, 0
        self._rests = min(2 * rests, _MOST_RESTS)
