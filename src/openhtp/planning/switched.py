"""Graph switching on the virtual clock: whose turn it is, as on the device, and how long loading takes."""

from __future__ import annotations

from functools import partial

from openhtp.memory.switching import Turns, loaded_first
from openhtp.planning.scenario import Scenario, Switched
from openhtp.sched.events import Event, HoldChanged
from openhtp.sched.virtual import VirtualLoop


class Board:
    """One switched context of a plan. Its clients are held, and let in one at a time."""

    def __init__(self, scenario: Scenario, switched: Switched, loop: VirtualLoop) -> None:
        self.load_times_ns: dict[int, int] = dict.fromkeys(switched.graphs, 0)
        self.loads: dict[int, int] = dict.fromkeys(switched.graphs, 0)
        self._loop = loop
        self._room = switched.room_bytes
        self._load_ns = {number: scenario.load_ns(scenario.clients[number]) for number in switched.graphs}
        sizes = {str(number): scenario.clients[number].size_bytes for number in switched.graphs}
        self._turns = Turns(sizes, [str(number) for number in switched.retained])
        first = loaded_first([str(number) for number in switched.graphs], self._turns.retained)
        self._turns.loaded = dict.fromkeys(first)
        for number in switched.graphs:
            loop.at(HoldChanged(t=0, client=number, held=True))

    def asked(self, job: int, client: int, now: int) -> None:
        """A job is about to be queued."""
        self._turns.asked(job, str(client))
        self._loop.call_at(now, self._advance)

    def ended(self, job: int, now: int) -> None:
        """A job is over."""
        self._turns.ended(job)
        self._loop.call_at(now, self._advance)

    def _advance(self, now: int) -> Event | None:
        turns = self._turns
        left = self._room - sum(turns.sizes[name] for name in turns.loaded)
        turn = turns.next(left)
        if turn is None:
            return None
        client, start = int(turn.graph), now
        if turn.unload is not None:
            for name in turn.unload:
                del turns.loaded[name]
            turns.loaded[turn.graph] = None
            start += self._load_ns[client]
            self.loads[client] += 1
            self.load_times_ns[client] += self._load_ns[client]
        self._loop.call_at(start, partial(_hold, client, False))
        self._loop.call_at(start, partial(_hold, client, True))
        return None


def _hold(client: int, held: bool, now: int) -> Event | None:
    return HoldChanged(t=now, client=client, held=held)
