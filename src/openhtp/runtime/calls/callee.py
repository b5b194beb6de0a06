"""What is called: all that the calls of one finalized graph need of it and of its context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openhtp.core import status as st
from openhtp.core.errors import UnsupportedFeature
from openhtp.core.locks import make_lock

if TYPE_CHECKING:
    from openhtp.runtime.calls.arguments import Ports
    from openhtp.runtime.calls.bindings import Bindings
    from openhtp.runtime.calls.call import Call
    from openhtp.runtime.calls.notify import Notifier
    from openhtp.runtime.calls.queue import Places
    from openhtp.runtime.links.link import Link
    from openhtp.runtime.objects.modelled import Modelled


class Callee:
    """A finalized graph as its calls see it, and which of them are under way.

    ``number`` is the graph's on the device, ``places`` the queue of its context, ``modelled`` what profiles tell
    about it on the chip.
    """

    __slots__ = (
        "_lock",
        "_under_way",
        "bindings",
        "hvx_threads",
        "link",
        "modelled",
        "name",
        "notifier",
        "number",
        "places",
        "ports",
    )

    def __init__(
        self,
        name: str,
        number: int,
        *,
        ports: Ports,
        bindings: Bindings,
        hvx_threads: int,
        places: Places,
        link: Link,
        notifier: Notifier,
        modelled: Modelled | None = None,
    ) -> None:
        self.name = name
        self.number = number
        self.ports = ports
        self.bindings = bindings
        self.hvx_threads = hvx_threads
        self.places = places
        self.link = link
        self.notifier = notifier
        self.modelled = modelled
        self._lock = make_lock("graph")
        self._under_way: dict[bool, set[Call]] = {True: set(), False: set()}  # by ``synchronous``

    def begin_call(self, call: Call) -> None:
        """Note an execution under way; the two ways of executing one graph exclude each other."""
        synchronous = call.synchronous
        with self._lock:
            if self._under_way[not synchronous]:
                other = "asynchronous" if synchronous else "synchronous"
                raise UnsupportedFeature(
                    f"graph {self.name!r} has {other} executions under way; executing one graph both ways at the"
                    " same time is not supported",
                    st.QNN_GRAPH_ERROR_UNSUPPORTED_FEATURE,
                )
            self._under_way[synchronous].add(call)

    def end_call(self, call: Call) -> None:
        """It is over; twice does nothing."""
        self._under_way[call.synchronous].discard(call)

    def calls_under_way(self) -> set[Call]:
        """Those accepted and not over."""
        return self._under_way[True] | self._under_way[False]
