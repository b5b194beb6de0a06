"""A log of events and actions: the proof of what a scheduler did, on disk and replayed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from openhtp.core.errors import FormatError
from openhtp.sched.actions import Action
from openhtp.sched.events import Event
from openhtp.sched.policy import STRICT, Policy
from openhtp.sched.resources import DeviceResources
from openhtp.sched.scheduler import Scheduler

LogEntry = tuple[Event, list[Action]]

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[LogEntry] = msgspec.json.Decoder(LogEntry)


def replay(log: Iterable[LogEntry], resources: DeviceResources, policy: Policy = STRICT) -> int | None:
    """Feed the events to a fresh scheduler; return the index of the first entry whose actions differ.

    None means that all are equal, as they must be.
    """
    scheduler = Scheduler(resources, policy)
    for index, (event, actions) in enumerate(log):
        if scheduler.handle(event) != actions:
            return index
    return None


def log_to_bytes(log: Iterable[LogEntry]) -> bytes:
    """One line of JSON per event with its actions."""
    return b"".join(_encoder.encode(entry) + b"\n" for entry in log)


def log_from_bytes(data: bytes) -> list[LogEntry]:
    """Read what ``log_to_bytes`` wrote.

    Raises:
        FormatError: a line is not a log entry; the message names it.
    """
    log: list[LogEntry] = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            log.append(_decoder.decode(line))
        except msgspec.MsgspecError as error:
            raise FormatError(f"line {number} of the log is no event with its actions: {error}") from error
    return log
