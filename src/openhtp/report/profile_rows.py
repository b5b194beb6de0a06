"""Events of a profile as rows of CSV and as JSON, in the columns and words of the vendor's readers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from openhtp.core.version import VERSION
from openhtp.records.profile import ProfileEvent, ProfileLogContent

COLUMNS = (
    "Msg Timestamp",
    "Message",
    "Time",
    "Unit of Measurement",
    "Timing Source",
    "Event Level",
    "Event Identifier",
)
_CSV_UNITS = {"us": "US", "count": "COUNT", "cycles": "CYCLES", "bytes": "BYTES", "object": "OBJECT"}
_JSON_UNITS = {"us": "MICROSEC", "count": "COUNT", "cycles": "CYCLES", "bytes": "BYTES", "object": "OBJECT"}
_MESSAGES = {
    100: "INIT",
    300: "FINALIZE",
    400: "EXECUTE",
    404: "NODE",
    405: "EXECUTE QUEUE WAIT",
    406: "EXECUTE PREPROCESS",
    407: "EXECUTE DEVICE",
    408: "EXECUTE POSTPROCESS",
    500: "DE-INIT",
}
_FIRST_OF_BACKEND = 1000
_TYPES = {100: "INIT", 300: "FINALIZE", 400: "EXECUTE", 404: "NODE", 500: "DEINIT"}


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
    """What stands at the begin of a file, by which viewers tell what it is."""

    def parts(dotted: str) -> dict[str, int]:
        return dict(zip(("major", "minor", "patch"), map(int, dotted.split(".")), strict=True))

    return {"header_version": parts("1.0.0"), "version": parts(version), "artifact_type": artifact}


def _event(event: ProfileEvent) -> dict[str, Any]:
    found: dict[str, Any] = {
        "identifier": event.name,
        "unit": _JSON_UNITS.get(event.unit, "NONE"),
        "type": _TYPES.get(event.type, ""),
        "value": event.value,
        "source": "modelled" if event.modelled else "measured",
    }
    if event.text and event.text != event.name:
        found["text"] = event.text
    if event.events:
        found["sub-events"] = [_event(part) for part in event.events]
    return found


# Puts spans on lanes so that none overlaps another: a trace viewer would draw them into each other.


class Lanes:
    """Lanes of several things; spans of each must come by their begin."""

    def __init__(self) -> None:
        self._free: dict[object, list[int]] = defaultdict(list)

    def place(self, thing: object, start: int, end: int) -> int:
        """The first lane of a thing that is free from ``start`` on; it is taken until ``end``."""
        lanes = self._free[thing]
        for lane, free in enumerate(lanes):
            if free <= start:
                lanes[lane] = end
                return lane
        lanes.append(end)
        return len(lanes) - 1

    def used(self, thing: object) -> int:
        """How many lanes a thing has got."""
        return len(self._free[thing])
