"""Graph switching in a plan: which clients are switched, in which order, and how long loading takes.

The order on the virtual clock is decided as on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.units import MIB, bytes_in_words
from openhtp.core.validating import WrittenFields, WrittenValue
from openhtp.memory.switching import Turns, loaded_first
from openhtp.planning import keys
from openhtp.planning.keys import ranged
from openhtp.planning.scenario import ClientSpec, Scenario, Switched
from openhtp.sched.events import ClientKind, Event, HoldChanged
from openhtp.sched.virtual import VirtualLoop


class SwitchingBoard:
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


def read_switching(value: WrittenValue | None, clients: Sequence[ClientSpec]) -> tuple[Switched, ...]:
    """The contexts of the key ``switching``; a client is in one of them at most."""
    contexts: list[Switched] = []
    switched: set[int] = set()
    for item in value.items() if value is not None else ():
        fields = item.fields(keys.SWITCHING)
        graphs = [_switched_client(name, clients) for name in fields["graphs"].items()]
        for name, number in zip(fields["graphs"].items(), graphs, strict=True):
            if number in switched or graphs.count(number) > 1:
                name.fail(f"{clients[number].name!r} is switched twice; each graph is in one context, once")
        switched.update(graphs)
        room = ranged(fields, "room_mb")
        room_bytes = SESSION_LIMIT_BYTES if room is None else round(room * MIB)
        for name, number in zip(fields["graphs"].items(), graphs, strict=True):
            if clients[number].size_bytes > room_bytes:
                name.fail(f"{clients[number].name!r} does not fit into {bytes_in_words(room_bytes)}")
        contexts.append(
            Switched(graphs=tuple(graphs), room_bytes=room_bytes, retained=_retained(fields, graphs, clients))
        )
        if sum(clients[number].size_bytes for number in contexts[-1].retained) > room_bytes:
            fields["retained"].fail(f"these do not fit into {bytes_in_words(room_bytes)} together; retain fewer")
    return tuple(contexts)


def _retained(fields: WrittenFields, graphs: Sequence[int], clients: Sequence[ClientSpec]) -> tuple[int, ...]:
    if "retained" not in fields:
        return ()
    retained = []
    for name in fields["retained"].items():
        number = _switched_client(name, clients)
        if number not in graphs:
            name.fail(f"{clients[number].name!r} is not among the graphs of this context")
        retained.append(number)
    return tuple(dict.fromkeys(retained))


def _switched_client(value: WrittenValue, clients: Sequence[ClientSpec]) -> int:
    wanted = value.text()
    number = next((number for number, client in enumerate(clients) if client.name == wanted), None)
    if number is None:
        value.fail(
            f"client {wanted!r} does not exist; there are {', '.join(client.name for client in clients[:20])}"
        )
    if clients[number].kind is not ClientKind.GRAPH:
        value.fail(f"{wanted!r} is an app; only graphs are switched")
    if clients[number].talk is not None:
        value.fail(f"{wanted!r} is a language model; only clients with `run` or `model` are switched")
    return number
