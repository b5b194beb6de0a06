"""A scheduler of one core, and tables of what goes in and what must come out."""

from __future__ import annotations

from openhtp.core.units import MIB
from openhtp.sched.actions import Grant
from openhtp.sched.events import ClientAdded
from openhtp.sched.resources import DeviceResources
from openhtp.sched.scheduler import Scheduler

ONE = DeviceResources(hmx=1, hvx=1, vtcm_bytes=MIB)


def scheduler(*priorities, device=ONE, policy=None):
    s = Scheduler(device, policy) if policy else Scheduler(device)
    for number, priority in enumerate(priorities, 1):
        assert s.handle(ClientAdded(t=0, client=number, priority=priority, vtcm_bytes=MIB)) == []
    return s


def grant(job, core=0):
    return Grant(job, core, (0,), (0,), 0, MIB)


def run(s, *table):
    for event, expected in table:
        assert s.handle(event) == expected, event
        s.check()
