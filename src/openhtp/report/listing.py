"""Profile logs as text, in the layout of the documents' listings: sections, underlined, values indented."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from openhtp.core.foreign_text import printable
from openhtp.core.version import VERSION
from openhtp.records.profile import Message, Method, ProfileEvent, ProfileLogContent

EXECUTED = (Method.EXECUTE, Method.EXECUTE_ASYNC)
_WHOLE = (100, 300, 400, 500, 9001)  # what the host saw of a call
_CRITICAL, _WAIT_FIRST, _RESOURCES = 6001, 5001, 5004
# Linting tells what the accelerator did, and no more.
_LINTED = (3001, 3002, 3009, 3010, 3011, _CRITICAL)
_DOCUMENTED = (8001, 3001, 3002, 3009, 3010, 3011, 3003, _CRITICAL, 3004, 3012, 400)
_SECTIONS = (
    ("Init Stats", (Method.CREATE_FROM_BINARY,)),
    ("Compose Graphs Stats", (Method.COMPOSE,)),
    ("Finalize Stats", (Method.FINALIZE,)),
    ("Apply Binary Section Stats", (Method.APPLY_BINARY_SECTION,)),
    ("De-Init Stats", (Method.DEINIT,)),
)
_Pick = Callable[[Sequence[int]], int]


def log_to_text(log: ProfileLogContent, where: str, *, every_run: bool = False) -> str:
    """The listing: aggregates of all runs, or ``every_run`` by itself."""
    lines = _head(log, where)
    for title, methods in _SECTIONS:
        found = [message for message in log.messages if message.method in methods]
        if found:
            lines += ["", *underlined(f"{title}:")]
            for index, message in enumerate(found):
                if message.graph:
                    lines.append(f"Graph {index} ({printable(message.graph)}):")
                lines += _rows(message.events, whole_us(message))
    runs = [message for message in log.messages if message.method in EXECUTED]
    if every_run:
        for number, run in enumerate(runs):
            lines += ["", *underlined(f"Execute Stats (Run {number}):"), *_execute(run.events, whole_us(run))]
    elif runs:
        for title, pick in (("Average", _mean), ("Min", min), ("Max", max)):
            lines += ["", *underlined(f"Execute Stats ({title}):")]
            for graph, of_graph in _by_graph(runs):
                if graph:
                    lines.append(f"Graph ({graph}):")
                events = aggregated([run.events for run in of_graph], pick)
                lines += _execute(events, pick([whole_us(run) for run in of_graph]))
    if runs:
        lines += ["", *underlined("Execute Stats (Overall):"), f"    {_per_second(log, runs)}"]
    return "\n".join(lines) + "\n"


def whole_us(message: Message) -> int:
    """How long the call took its caller: by the caller's own clock, else the event for the whole of it."""
    wholes = (event.value for event in message.events if event.type in _WHOLE)
    return message.app_us or next(wholes, 0)


def aggregated(trees: Sequence[tuple[ProfileEvent, ...]], pick: _Pick) -> tuple[ProfileEvent, ...]:
    """One tree out of those of several runs, value by value. What not all have is taken from those that do."""
    groups: dict[tuple[int, str], list[ProfileEvent]] = {}
    for tree in trees:
        for event in tree:
            groups.setdefault((event.type, event.name), []).append(event)
    return tuple(
        msgspec.structs.replace(
            events[0],
            value=pick([event.value for event in events]),
            events=aggregated([event.events for event in events], pick),
        )
        for events in groups.values()
    )


def underlined(title: str) -> list[str]:
    """A heading and its line."""
    return [title, "-" * len(title)]


def _mean(values: Sequence[int]) -> int:
    return sum(values) // len(values)


def _head(log: ProfileLogContent, where: str) -> list[str]:
    created = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(min(log.created_us // 10**6, 1 << 36)))
    title = "Qnn Init/Prepare/Finalize/De-Init/Execute Statistics:"
    return [
        f"Input Log File Location: {printable(where)}",
        f"Log File Created: {created} UTC",
        f"Generated using: {printable(log.app)} {printable(log.version)}; viewer: openhtp {VERSION}",
        f"Cycles are modelled for {printable(log.soc)}; all other values are measured on the computer that ran"
        " it.",
        "",
        *underlined(title),
    ]


def _execute(events: tuple[ProfileEvent, ...], whole: int) -> list[str]:
    linted = any(event.type == _CRITICAL for event in events)
    order = _LINTED if linted else _DOCUMENTED
    known = sorted((event for event in events if event.type in order), key=lambda event: order.index(event.type))
    ours = [] if linted else [event for event in events if event.type not in order]
    return [*underlined("Total Inference Time:"), *_rows((*known, *ours), whole)]


def _rows(events: Iterable[ProfileEvent], whole: int) -> list[str]:
    lines = [f"   NetRun:  {whole} us"]
    for event in events:
        lines.append(f"   Backend ({printable(event.name)}): {event.value}  {event.unit}")
        for part in event.events:
            lines.append(f"      {printable(part.name)}: {part.value}  {part.unit}")
            lines += [line for detail in part.events for line in _details(detail)]
    return lines


def _details(event: ProfileEvent) -> list[str]:
    if event.type == _RESOURCES:
        return [f"            Resources: {printable(event.text)}".rstrip()]
    names = [f"               {printable(name.name)}" for name in event.events]
    return [f"            {printable(event.name)}: {event.value}  {event.unit}", *names]


def _by_graph(runs: Sequence[Message]) -> list[tuple[str, list[Message]]]:
    """Runs by graph; the name stays empty if there is only one."""
    groups: dict[str, list[Message]] = {}
    for run in runs:
        groups.setdefault(run.graph, []).append(run)
    return [(printable(graph) if len(groups) > 1 else "", found) for graph, found in groups.items()]


def _per_second(log: ProfileLogContent, runs: Sequence[Message]) -> str:
    told = {event.name: event.value for m in log.messages if m.method is Method.IPS for event in m.events}
    count = told.get("numInferences", len(runs))
    duration = told.get("duration", sum(whole_us(run) for run in runs))
    rate = count * 1e6 / duration if duration else 0.0
    return f"NetRun IPS (includes IO and misc. time): {rate:.4f} inf/sec"
