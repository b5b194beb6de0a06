"""Keeps book of notifications: each accepted execution is notified exactly once, a refused one never."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter

import openhtp as htp
from tests.hostile.tally import LONGEST_CALL, Watch


class Clerk:
    """Gives out tickets to be used as ``notify_param``, with ``notify`` as the callback."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._seen: Counter[int] = Counter()
        self._accepted: dict[int, htp.Execution] = {}
        self._refused: set[int] = set()
        self.strangers = 0

    def ticket(self) -> int:
        """A number for one call."""
        return next(self._numbers)

    def notify(self, ticket: object, status: int) -> None:
        """The callback."""
        with self._lock:
            if isinstance(ticket, int):
                self._seen[ticket] += 1
            else:
                self.strangers += 1

    def accepted(self, ticket: int, execution: htp.Execution) -> None:
        """The call with this ticket returned an execution."""
        self._accepted[ticket] = execution

    def refused(self, ticket: int) -> None:
        """The call with this ticket raised."""
        self._refused.add(ticket)

    @property
    def executions(self) -> list[htp.Execution]:
        """All that were accepted."""
        return list(self._accepted.values())

    def check(self, watch: Watch, patience: float = LONGEST_CALL) -> None:
        """Wait for what is still to come, then report what is missing or came too often; start anew."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            with self._lock:
                if all(self._seen[ticket] for ticket in self._accepted):
                    break
            time.sleep(0.02)
        with self._lock:
            lost = [ticket for ticket in self._accepted if not self._seen[ticket]]
            unfinished = [ticket for ticket, execution in self._accepted.items() if not execution.done()]
            double = [ticket for ticket, times in self._seen.items() if times > 1]
            unasked = [ticket for ticket in self._refused if self._seen[ticket]]
            accepted = len(self._accepted)
            self._seen.clear()
            self._accepted.clear()
            self._refused.clear()
        for kind, tickets, words in (
            ("lost", lost, "never notified"),
            ("lost", unfinished, "never done"),
            ("double", double, "notified more than once"),
            ("double", unasked, "notified though refused"),
        ):
            if tickets:
                watch.found(kind, f"{len(tickets)} of {accepted} executions {words}")
