"""Replays a log of events and actions: a fresh scheduler must act the same."""

from __future__ import annotations

from collections.abc import Iterable

from openhtp.sched.actions import Action
from openhtp.sched.events import Event
from openhtp.sched.policy import STRICT, Policy
from openhtp.sched.resources import DeviceResources
from openhtp.sched.scheduler import Scheduler

LogEntry = tuple[Event, list[Action]]


def replay(log: Iterable[LogEntry], resources: DeviceResources, policy: Policy = STRICT) -> int | None:
    """Feed the events to a fresh scheduler; return the index of the first entry whose actions differ.

    None means that all are equal, as they must be.
    """
    scheduler = Scheduler(resources, policy)
    for index, (event, actions) in enumerate(log):
        if scheduler.handle(event) != actions:
            return index
    return None
