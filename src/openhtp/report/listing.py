"""Profile logs as text in the layout of the documents' listings, and as CSV and JSON in the vendor's words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from openhtp.core.foreign_text import printable
from openhtp.core.version import VERSION
from openhtp.records.profile import EVENT_NAMES, Message, Method, ProfileEvent, ProfileLogContent

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
        calls = [message for message in log.messages if message.method in methods]
        if calls:
            lines += ["", *underlined(f"{title}:")]
            for index, message in enumerate(calls):
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
    """How long the call took its caller: by the caller's own clock, or by the event for the whole call."""
    wholes = (event.value for event in message.events if event.type in _WHOLE)
    return message.app_us or next(wholes, 0)


def aggregated(trees: Sequence[tuple[ProfileEvent, ...]], pick: _Pick) -> tuple[ProfileEvent, ...]:
    """One tree out of the trees of several runs, value by value. Not every run needs to have every value."""
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
    return [(printable(graph) if len(groups) > 1 else "", of_graph) for graph, of_graph in groups.items()]


def _per_second(log: ProfileLogContent, runs: Sequence[Message]) -> str:
    counted = {event.name: event.value for m in log.messages if m.method is Method.IPS for event in m.events}
    count = counted.get("numInferences", len(runs))
    duration = counted.get("duration", sum(whole_us(run) for run in runs))
    rate = count * 1e6 / duration if duration else 0.0
    return f"NetRun IPS (includes IO and misc. time): {rate:.4f} inf/sec"


COLUMNS = (
    "Msg Timestamp",
    "Message",
    "Time",
    "Unit of Measurement",
    "Timing Source",
    "Event Level",
    "Event Identifier",
)
_CSV_UNITS = {unit: unit.upper() for unit in ("us", "count", "cycles", "bytes", "object")}
_JSON_UNITS = _CSV_UNITS | {"us": "MICROSEC"}
_MESSAGES = {type_: EVENT_NAMES[type_].replace("_", " ") for type_ in (100, 300, 400, 404, 405, 406, 407, 408)}
_MESSAGES[500] = "DE-INIT"
_FIRST_OF_BACKEND = 1000
_TYPES = {type_: EVENT_NAMES[type_] for type_ in (100, 300, 400, 404, 500)}


def csv_rows(events: tuple[ProfileEvent, ...], stamp_us: int, level: str = "ROOT") -> Iterator[list[str | int]]:
    """One row for each event of a tree, parents first."""
    for event in events:
        backend = "BACKEND" if event.type >= _FIRST_OF_BACKEND else "UNKNOWN"
        yield [
            stamp_us,
            _MESSAGES.get(event.type, backend),
            event.value,
            _CSV_UNITS.get(event.unit, "UNKNOWN"),
            "BACKEND",
            level,
            event.name or "NULL",
        ]
        yield from csv_rows(event.events, stamp_us, "SUB-EVENT")


def log_to_json(log: ProfileLogContent, *, standardized: bool = False) -> dict[str, Any]:
    """The log as the JSON reader tells it; ``standardized`` adds the header that viewers know files by."""
    document: dict[str, Any] = {}
    if standardized:
        document["header"] = header("QNN_PROFILE", "2.0.0")
    document["metadata"] = {
        "appName": log.app,
        "appVersion": log.version,
        "backendVersion": log.version,
        "qnnProfileViewerVersion": VERSION,
        "soc": log.soc,
    }
    document["messages"] = [
        {
            "method": message.method.value,
            "graph": message.graph,
            "timestamp": message.stamp_us,
            "profilingEvents": [_event(event) for event in message.events],
        }
        for message in log.messages
    ]
    return document


def header(artifact: str, version: str) -> dict[str, Any]:
    """The head of a file, by which viewers recognise it."""

    def parts(dotted: str) -> dict[str, int]:
        return dict(zip(("major", "minor", "patch"), map(int, dotted.split(".")), strict=True))

    return {"header_version": parts("1.0.0"), "version": parts(version), "artifact_type": artifact}


def metadata(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    """The event of a Chrome trace that names a process or a thread."""
    return {"ph": "M", "cat": "__metadata", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def _event(event: ProfileEvent) -> dict[str, Any]:
    document: dict[str, Any] = {
        "identifier": event.name,
        "unit": _JSON_UNITS.get(event.unit, "NONE"),
        "type": _TYPES.get(event.type, ""),
        "value": event.value,
        "source": "modelled" if event.modelled else "measured",
    }
    if event.text and event.text != event.name:
        document["text"] = event.text
    if event.events:
        document["sub-events"] = [_event(part) for part in event.events]
    return document
