"""Forks: the child has copies of every object, but the devices are the parent's.

In the child all handles answer with an error that says so, copies of sockets are closed without a message to the
device, and nothing is waited for, ended or deleted. A Backend that is made in the child works as any other.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from openhtp.core import status as st, tidying
from openhtp.runtime.calls import execution
from openhtp.runtime.objects import lifecycle
from openhtp.runtime.objects.lifecycle import foreign_error

_T = TypeVar("_T")

if TYPE_CHECKING:
    from openhtp.runtime.links.link import Link

# Links that are open in this process, also while they are being made or replaced.
links: weakref.WeakSet[Link] = weakref.WeakSet()
_heirs: weakref.WeakKeyDictionary[Any, Callable[[Any], object]] = weakref.WeakKeyDictionary()

_pid = os.getpid()


def on_fork(thing: _T, leave: Callable[[_T], object]) -> None:
    """Call ``leave(thing)`` in the child of a fork, as long as the thing lives."""
    _heirs[thing] = leave


def _leave_to_parent() -> None:
    """Leave everything to the parent. Runs first in the child; threads that are gone may hold locks."""
    global _pid
    lifecycle.parent_pid, _pid = _pid, os.getpid()
    execution.renew_lock()
    tidying.start_anew()
    heirs = list(_heirs.items())
    _heirs.clear()
    for thing, leave in heirs:
        leave(thing)
    error = foreign_error("the execution", st.QNN_GRAPH_ERROR_INVALID_HANDLE)
    for link in list(links):
        link.leave_to_parent(error)
    links.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
