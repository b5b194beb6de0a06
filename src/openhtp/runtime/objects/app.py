"""A client of the NPU that is no graph: a camera pipeline, an audio filter, whatever takes VTCM and HVX.

It computes nothing here. It stands beside graphs in the device's queue with a priority of its own, holds its
resources for as long as it runs, and gives them up when a more urgent client asks, as a real one does.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from openhtp.core import status as st, tidying
from openhtp.core.checks import real_number, shown
from openhtp.core.enumerations import Priority
from openhtp.core.errors import InvalidArgument
from openhtp.hw.catalog import find_soc
from openhtp.rpc import frames, messages as ms
from openhtp.rpc.frames import Record
from openhtp.runtime.calls.execution import Execution, Notify, Outputs
from openhtp.runtime.calls.notify import own_niceness
from openhtp.runtime.objects.argument_checks import check_callable, check_handle, deadline_from
from openhtp.runtime.objects.signal import Signal

if TYPE_CHECKING:
    from openhtp.runtime.calls.long_call import Interrupt
    from openhtp.runtime.calls.notify import Notifier
    from openhtp.runtime.calls.queue import Places
    from openhtp.runtime.calls.sheet import Sheet
    from openhtp.runtime.objects.open_context import OpenContext


log = logging.getLogger(__name__)

_FIRST_WITHOUT_THREAD_PRIORITIES = 81


class AppRun:
    """One run of an app while it is under way, as a Call is one of a graph."""

    profile: Sheet | None = None
    synchronous = False
    is_plain = False
    graph_number: int | None = None

    def __init__(
        self, app: App, context: OpenContext, notify: Notify | None, notify_param: object, signal: Interrupt | None
    ) -> None:
        self.signal = signal
        self.timeout_at = 0  # 0: never
        self.context = context
        self.link = context.link
        self.graph_name = app.name
        self.notifier: Notifier = context.device.backend.notifier
        self.notify = notify
        self.notify_param = notify_param
        self.niceness = own_niceness()
        self.execution: Execution | None = None

    def collect_outputs(self) -> Outputs:
        """Do nothing: an app has no outputs."""
        return {}

    def finish(self, record: Record | None, *, untold: bool = False) -> None:
        """Free the place in the queue; ``untold``: a notification is still due."""
        if self.signal is not None:
            self.signal.end(self)
        self.context.places.give_back(self, untold=untold)

    def take_place(self) -> None:
        """Take the signal, then a place in the queue, waiting for one."""
        places, signal, link = self.context.places, self.signal, self.link
        if signal is None:
            link.take_place(places, self, None, lambda: None)
            return
        until = None if signal.timeout_us is None else link.now() + signal.timeout_us * 1000
        signal.begin(self, places)
        link.take_place(places, self, until, lambda: signal.interruption(link.now(), until))
        self.timeout_at = until or 0

    def sent(self, job: int) -> None:
        """Note that the device has the run, or will have it: from now on the signal can reach it."""
        if self.signal is not None:
            self.signal.attach(self, self.link, job)

    @property
    def places(self) -> Places:
        """The queue of its context."""
        return self.context.places

    def settle(self) -> None:
        """End a run that may have been sent, after an interrupt."""
        execution = self.execution
        if execution is None or not self.link.settle(execution):
            self.finish(None)


class App:
    """Made by ``Context.create_app``."""

    def __init__(
        self,
        context: OpenContext,
        name: str,
        *,
        priority: Priority,
        hmx: int,
        hvx: int,
        vtcm_bytes: int,
        page_bytes: int | None = None,
        core: int = 0,
    ) -> None:
        self.context = context.handle
        self._of = context
        self.name = name
        self.priority = priority
        arch = find_soc(context.device.soc).arch
        if arch >= _FIRST_WITHOUT_THREAD_PRIORITIES:
            log.warning(
                "app %r has priority %s; on a v%d an application cannot set that of its threads (%#04x) itself",
                name,
                priority.name.lower(),
                arch,
                priority.thread_priority,
            )
        request = ms.AddApp(
            context=context.number,
            name=name,
            priority=int(priority),
            hmx=hmx,
            hvx=hvx,
            vtcm_bytes=vtcm_bytes,
            page_bytes=page_bytes,
            core=core,
        )
        self.number = context.link.request(request).value

    def run_async(
        self,
        duration_us: float,
        *,
        eviction_us: float = 0,
        deadline_us: int | None = None,
        notify: Notify | None = None,
        notify_param: object = None,
        signal: Signal | None = None,
    ) -> Execution:
        """Ask for the app's resources and hold them for a time; ``eviction_us`` is how long it takes to let go.

        ``deadline_us`` is as in ``Graph.execute_async``. ``signal`` ends the wait for the resources, and the run,
        when it is triggered or its time is over.
        """
        self._of.life.require("execute")
        runs, stops = real_number(duration_us), real_number(eviction_us)
        if runs is None or stops is None or not 0 < runs < 1e9 or not 0 <= stops < 1e9:
            raise InvalidArgument(
                f"an app that runs for {shown(duration_us)} us and takes {shown(eviction_us)} us to stop; expected"
                " positive times below 1000 s",
                st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
            )
        check_callable("notify", notify, "(param, status)")
        check_handle("signal", signal, Signal)
        link = self._of.link
        deadline_at = 0 if deadline_us is None else deadline_from(link.now(), deadline_us)
        run = AppRun(self, self._of, notify, notify_param, None if signal is None else signal.interrupt)
        length = frames.APP_RUN.pack(round(runs * 1000), round(stops * 1000))
        try:
            run.take_place()
            execution = Execution(link.next_job(), run)
            head = frames.EXECUTE_HEAD.pack(
                frames.EXECUTE, 0, 0, self.number, 1, 0, execution.job, run.timeout_at, deadline_at
            )
            link.submit(execution, head + length, run.sent)
        except BaseException:
            tidying.post((run.settle, ()))
            tidying.flush()
            raise
        return execution
