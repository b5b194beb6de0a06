"""Where the sessions of one binary are made: on several threads, within a budget of memory, equal ones once."""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from openhtp.core import machine
from openhtp.core.latches import Promise
from openhtp.core.machine import give_back_freed

if TYPE_CHECKING:
    from openhtp.engine.native import SharedForms
    from openhtp.engine.sessions import SegmentSession

Array = npt.NDArray[Any]

# Sessions are made on this many threads unless more are asked for. One of them is the thread that wants them.
_THREADS = 2
# Where that is all processors, only if it takes a few milliseconds: threads that compute must not starve.
# See decision 024.
_SHORT = 6_000_000
# A session takes as long as reading so many bytes even if it has none.
_SESSION_COST = 60_000
# The data of a part is there twice while its session is made: as it was read, and as the runtime copied it.
_COPIES = 2


# Bytes of data whose copies, freed but kept by the C library for later, are worth giving back to the system.
_WORTH_TRIMMING = 32 << 20


def give_back_copies(nbytes: int) -> None:
    """Give memory of copies that are no longer needed back to the system, if ``nbytes`` bytes are worth it."""
    if nbytes >= _WORTH_TRIMMING:
        give_back_freed()


@dataclass(frozen=True, slots=True)
class Making:
    """How a session is made: what tells it from others, bytes of data that are read for it, and the work.

    ``starts_threads``: on which processors these may be is what they inherit.
    """

    key: Hashable
    nbytes: int
    make: Callable[[], SegmentSession]
    starts_threads: bool = False

    @property
    def cost(self) -> int:
        """How long it takes, in bytes."""
        return self.nbytes + _SESSION_COST


@cache
def _helpers() -> ThreadPoolExecutor:
    """Threads that help all workshops of the process; they stay, as starting some takes as long as a session."""
    return ThreadPoolExecutor(machine.processor_count(), thread_name_prefix="openhtp-sessions")


class _Busy:
    """How many workshops of the process are at work."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Forget all workshops, in the child of a fork."""
        self._lock = threading.Lock()
        self.count = 0

    def __enter__(self) -> None:
        with self._lock:
            self.count += 1

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self.count -= 1


_busy = _Busy()


class Workshop:
    """Makes sessions for the graphs of one binary.

    ``budget_bytes`` is how much data may be read at once and not yet be given back; None for no limit. A part that
    has more by itself is made alone. Graphs that have a part in common, with the same data, get the same session:
    sessions may run at the same time, and hold the weights. Parts that are not equal still share the weights that
    are read where they lie and, if it ``shares_forms``, what the kernels make of the others. (The runtime makes
    such forms one after the other, so it is not for a graph by itself.)
    """

    def __init__(
        self, *, budget_bytes: int | None = None, all_threads: bool = False, shares_forms: bool = False
    ) -> None:
        self._all_threads = all_threads
        self._budget = budget_bytes
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._taken = 0
        self._made: dict[Hashable, Promise[SegmentSession]] = {}
        self._held: dict[Hashable, Promise[Array]] = {}
        self._used: Counter[Hashable] = Counter()
        self.shares_forms = shares_forms
        self._forms: SharedForms | None = None

    def __enter__(self) -> Workshop:
        return self

    def __exit__(self, *exc: object) -> None:
        self._made.clear()
        self._held.clear()
        self._forms = None

    def forms(self) -> SharedForms | None:
        """The forms of weights that the sessions made here share."""
        if not self.shares_forms:
            return None
        from openhtp.engine.native import (
            SharedForms,
            native,
        )  # the runtime, which only a device that computes must load

        side = native()
        with self._lock:
            if self._forms is None and side is not None:
                self._forms = SharedForms(side)
            return self._forms

    def hold(self, key: Hashable, make: Callable[[], Array], uses: int | None = None) -> Array:
        """Data that sessions read where it lies, made once for all sessions.

        It is kept until all sessions are made, or until so many ``uses``.
        """
        with self._lock:
            promise = self._held.get(key)
            mine = promise is None
            if promise is None:
                promise = self._held[key] = Promise()
        if mine:
            promise.settle(make)
        array = promise.result()
        if uses is not None:
            with self._lock:
                self._used[key] += 1
                if self._used[key] >= uses:
                    self._held.pop(key, None)
                    del self._used[key]
        return array

    def make(self, makings: Sequence[Making]) -> list[SegmentSession]:
        """All sessions, in this order. Long ones are begun first, so that no thread is left with one at the end.

        Raises what the first that failed raised, when none of them is under way any more.
        """
        todo: list[tuple[Making, Promise[SegmentSession]]] = []
        promises = []
        with self._lock:
            for making in makings:
                promise = self._made.get(making.key)
                if promise is None:
                    promise = self._made[making.key] = Promise()
                    todo.append((making, promise))
                promises.append(promise)
        self._do(deque(sorted(todo, key=lambda one: -one[0].nbytes)))
        failed = [error for promise in promises if (error := promise.exception()) is not None]
        give_back_copies(sum(making.nbytes for making in makings))
        if failed:
            raise failed[0]
        return [promise.result() for promise in promises]

    def _do(self, todo: deque[tuple[Making, Promise[SegmentSession]]]) -> None:
        """Work here and on idle threads until all is done.

        Where other workshops are busy, too, as for a list of contexts, they have the other processors.
        """
        with _busy:
            count = min(self._threads(todo) - 1, len(todo) - 1, machine.processor_count() - _busy.count)
            processor = -1 if any(making.starts_threads for making, _ in todo) else machine.current_processor()
            helping = [_helpers().submit(self._help, todo, processor) for _ in range(count)]
            self._do_next(todo)
            for helper in helping:
                if not helper.cancel():  # it has begun
                    helper.result()

    def _threads(self, todo: Iterable[tuple[Making, Promise[SegmentSession]]]) -> int:
        available = machine.processor_count()
        if self._all_threads:
            return available
        is_short = sum(making.cost for making, _ in todo) <= _SHORT
        return _THREADS if is_short or available > _THREADS else 1

    def _help(self, todo: deque[tuple[Making, Promise[SegmentSession]]], whose: int) -> None:
        with machine.away_from(whose):
            self._do_next(todo)

    def _do_next(self, todo: deque[tuple[Making, Promise[SegmentSession]]]) -> None:
        while (taken := self._take(todo)) is not None:
            making, promise = taken
            try:
                promise.settle(making.make)
            finally:
                self._leave(making)

    def _take(
        self, todo: deque[tuple[Making, Promise[SegmentSession]]]
    ) -> tuple[Making, Promise[SegmentSession]] | None:
        """The next one, when there is room for its data; None if another thread took the last.

        A thread that waits for room has taken none yet: parts of one whole would otherwise be made far apart, and
        the whole be held for so long.
        """
        if self._budget is None:
            try:
                return todo.popleft()
            except IndexError:
                return None
        with self._room:
            while todo:
                needed = todo[0][0].nbytes * _COPIES
                if not self._taken or self._taken + needed <= self._budget:
                    self._taken += needed
                    return todo.popleft()
                self._room.wait()
        return None

    def _leave(self, making: Making) -> None:
        """Its data are no longer needed."""
        if self._budget is None:
            return
        give_back_freed()
        with self._room:
            self._taken -= making.nbytes * _COPIES
            self._room.notify_all()
