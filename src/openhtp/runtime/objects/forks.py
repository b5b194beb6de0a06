"""What a fork means: the child has copies of every object, but the devices are the parent's.

In the child all handles answer with an error that says so, copies of sockets are closed without a word to the
device, and nothing is waited for, ended or deleted. A Backend made in the child is as good as any.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

from openhtp.core import status as st, tidying
from openhtp.runtime.calls import execution
from openhtp.runtime.links import thread_npus
from openhtp.runtime.objects import lifecycle
from openhtp.runtime.objects.lifecycle import State, foreign_error

if TYPE_CHECKING:
    from openhtp.runtime.binaries.creation import Creation
    from openhtp.runtime.links.link import Link
    from openhtp.runtime.objects.backend import Backend
    from openhtp.runtime.objects.context import Context

# What is open in this process. Links also while they are being made or replaced.
backends: weakref.WeakSet[Backend] = weakref.WeakSet()
links: weakref.WeakSet[Link] = weakref.WeakSet()
creations: weakref.WeakSet[Creation] = weakref.WeakSet()

_pid = os.getpid()


def _leave_to_parent() -> None:
    """Runs in the child, on its only thread, first of all. Locks may be held by threads that are no more."""
    global _pid
    lifecycle.parent_pid, _pid = _pid, os.getpid()
    execution.renew_lock()
    tidying.start_anew()
    for backend in list(backends):
        backend._life.end(State.FOREIGN)
        for device in list(backend._devices):
            device._life.end(State.FOREIGN)
            device._votes.leave_to_parent()
            for context in list(device._contexts):
                _leave_context(context)
    error = foreign_error("the execution", st.QNN_GRAPH_ERROR_INVALID_HANDLE)
    for link in list(links):
        link.leave_to_parent(error)
    thread_npus.leave_to_parent()
    for creation in list(creations):
        creation._leave()
    backends.clear()
    links.clear()
    creations.clear()


def _leave_context(context: Context) -> None:
    context._life.end(State.FOREIGN)
    for graph in list(context._graphs.values()):
        graph._life.end(State.FOREIGN)
    for mem in context._memory.all():
        mem._life.end(State.FOREIGN)


os.register_at_fork(after_in_child=_leave_to_parent)
