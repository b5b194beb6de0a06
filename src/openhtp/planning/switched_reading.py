"""Which clients of a scenario are graphs that are switched."""

from __future__ import annotations

from collections.abc import Sequence

from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.units import MIB, bytes_in_words
from openhtp.core.validating import WrittenFields, WrittenValue
from openhtp.planning import keys
from openhtp.planning.ranges import ranged
from openhtp.planning.scenario import ClientSpec, Switched
from openhtp.sched.events import ClientKind


def read_switching(value: WrittenValue | None, clients: Sequence[ClientSpec]) -> tuple[Switched, ...]:
    """The contexts of the key ``switching``; a client is in one of them at most."""
    found: list[Switched] = []
    taken: set[int] = set()
    for item in value.items() if value is not None else ():
        fields = item.fields(keys.SWITCHING)
        graphs = [_client(name, clients) for name in fields["graphs"].items()]
        for name, number in zip(fields["graphs"].items(), graphs, strict=True):
            if number in taken or graphs.count(number) > 1:
                name.fail(f"{clients[number].name!r} is switched twice; each graph is in one context, once")
        taken.update(graphs)
        room = ranged(fields, "room_mb")
        room_bytes = SESSION_LIMIT_BYTES if room is None else round(room * MIB)
        for name, number in zip(fields["graphs"].items(), graphs, strict=True):
            if clients[number].size_bytes > room_bytes:
                name.fail(f"{clients[number].name!r} does not fit into {bytes_in_words(room_bytes)}")
        found.append(
            Switched(graphs=tuple(graphs), room_bytes=room_bytes, retained=_retained(fields, graphs, clients))
        )
        if sum(clients[number].size_bytes for number in found[-1].retained) > room_bytes:
            fields["retained"].fail(f"these do not fit into {bytes_in_words(room_bytes)} together; retain fewer")
    return tuple(found)


def _retained(fields: WrittenFields, graphs: Sequence[int], clients: Sequence[ClientSpec]) -> tuple[int, ...]:
    if "retained" not in fields:
        return ()
    retained = []
    for name in fields["retained"].items():
        number = _client(name, clients)
        if number not in graphs:
            name.fail(f"{clients[number].name!r} is not among the graphs of this context")
        retained.append(number)
    return tuple(dict.fromkeys(retained))


def _client(value: WrittenValue, clients: Sequence[ClientSpec]) -> int:
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
