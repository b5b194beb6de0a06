"""Qualcomm's library as a device: the emulator's own queue and scheduler, with the library computing the steps.

The library refuses asynchronous execution, signals and registered memory off QNX. Here they work because the
queue is ours: a loop on a thread of this process takes executions in, and one at a time goes to the library's
process, whose end is the device's end.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import platform
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from openhtp.core import status as st
from openhtp.core.errors import DeviceLost, QnnError, UnsupportedFeature
from openhtp.device.build import DeviceConfig
from openhtp.device.clock import WallClock
from openhtp.device.core import DeviceCore
from openhtp.device.loading import Loader
from openhtp.device.outlet import Outlet
from openhtp.device.runner import BesideRunner
from openhtp.device.tasks import Task
from openhtp.hw.catalog import find_soc
from openhtp.rpc import channel
from openhtp.rpc import messages as ms
from openhtp.rpc.frames import Record
from openhtp.runtime.calls.execution import Execution, block, complete, complete_from, leave
from openhtp.runtime.calls.queue import Places
from openhtp.runtime.links.link import Interrupted, Sent, Undo, raise_reply
from openhtp.sched.policy import policy_named
from openhtp.sched.scheduler import Scheduler
from openhtp.vendor.engine import VendorEngine
from openhtp.vendor.worker import VendorProcess

log = logging.getLogger(__name__)

_T = TypeVar("_T")

# Where the library is a simulator, which has to be told what chip it is; elsewhere the chip is what it is.
_SIMULATED_ON = ("x86_64", "AMD64")


class VendorLink:
    """One process of the library and the loop that feeds it. When that process goes, the link is over."""

    supports_async = True
    now = staticmethod(time.monotonic_ns)

    def __init__(self, library: str, config: DeviceConfig, on_lost: Callable[[VendorLink], None]) -> None:
        self._on_lost = on_lost
        self._process = _start(library, config)
        self.pid = self._process.pid or 0
        self._jobs = itertools.count(1)
        self._lock = threading.Lock()
        self._over = self._closing = False
        self._pending: dict[int, Execution] = {}
        self._posted: deque[Callable[[], None]] = deque()
        self._waiting: set[Future[Any]] = set()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._life = os.pidfd_open(self.pid)
        self._poller = select.poll()
        for fd in (self._wake, self._life):
            self._poller.register(fd, select.POLLIN)
        self._loader = Loader(self._post_if_open)
        self._engine = VendorEngine(self._process, lambda: self._session.memories, self._later)
        clock = WallClock()
        self._core = DeviceCore(
            scheduler=Scheduler(config.resources(), policy_named(config.policy)),
            clock=clock,
            target=self._engine,
            make_runner=lambda jobs: BesideRunner(jobs, clock.now, self._loader.submit),
        )
        self._session = self._core.open_session(pid=os.getpid(), label="vendor")
        self._outlet = Outlet(self._on_news)
        self._thread = threading.Thread(target=self._serve, name="openhtp-vendor", daemon=True)
        self._thread.start()
        # Registered after the process's own tidying and so done before it, which else looks like a crash.
        atexit.register(self.close)

    # Requests

    def request(
        self, message: ms.Request, descriptors: tuple[int, ...] = (), undo: Undo | None = None
    ) -> ms.Reply:
        """Ask the core on the loop's thread. Descriptors are duplicated: the core owns what it is given."""
        if isinstance(message, (ms.AddApp, ms.SetPace)):
            raise UnsupportedFeature(
                "apps and paced executions are modelled; the vendor's library only computes. Use the emulator",
                st.QNN_COMMON_ERROR_NOT_SUPPORTED,
            )
        owned = [os.dup(fd) for fd in descriptors]
        session, core = self._session, self._core
        try:
            answer = self._on_loop(lambda: core.request(session, message, owned))
            if isinstance(answer, Task):
                answer.run()
                answer = self._on_loop(answer.conclude)
        finally:
            channel.close_all(owned)
        assert isinstance(answer, ms.Reply)
        reply = raise_reply(answer)
        if isinstance(message, (ms.DeregisterMemory, ms.FreeContext)):
            self._on_loop(self._engine.forget_memory)
        if isinstance(message, ms.Inspect):
            reply.info.update(self._describe())
        return reply

    def tell(self, message: ms.Request) -> None:
        """Ask for something whose outcome does not matter."""

        def work() -> None:
            with contextlib.suppress(QnnError):
                self._core.request(self._session, message, [])

        self._post_if_open(work)

    def read_trace(self) -> bytes:
        """What the core recorded."""
        return self._on_loop(self._core.recording.take)

    def pack_graph(self, graph: int) -> bytes:
        """Nothing: the library's own binaries are not ours to carry."""
        return b""

    def _describe(self) -> dict[str, object]:
        info = self._process.info
        return {"pid": self.pid, "library": info.path, "library_version": info.build_id}

    # Executions

    def next_job(self) -> int:
        """A job number for an execution."""
        return next(self._jobs)

    def submit(self, execution: Execution, frame: bytes, sent: Sent) -> None:
        """Queue an execution."""
        with self._lock:
            self._refuse_if_over()
            self._pending[execution.job] = execution
            self._posted.append(lambda: self._core.executions.execute(self._session, self._outlet, frame))
            os.eventfd_write(self._wake, 1)
        sent(execution.job)

    def run(self, execution: Execution, frame: bytes, sent: Sent) -> None:
        """Queue an execution and wait for its end."""
        self.submit(execution, frame, sent)
        block(execution, None)

    def settle(self, execution: Execution) -> bool:
        """Make an execution end that may have been queued before an interrupt came."""
        job = execution.job
        if job not in self._pending:
            return False

        def end() -> None:
            if job in self._session.jobs:
                self._core.executions.cancel(self._session, job)
            elif self._pending.pop(job, None) is not None:
                self._end_early(execution, st.QNN_GRAPH_ERROR_ABORTED.code, "interrupted before it was queued")

        self._post_if_open(end)
        return True

    def cancel(self, job: int) -> None:
        """Ask for an execution's early end."""
        self._post_if_open(lambda: self._core.executions.cancel(self._session, job))

    def wait_for(self, execution: Execution, timeout: float | None) -> bool:
        """Wait until an execution is over."""
        return block(execution, timeout)

    def take_place(self, places: Places, holder: object, until_ns: int | None, interrupted: Interrupted) -> None:
        """Take a place in a context's queue."""
        if not places.try_take(holder):
            places.take(holder, until_ns, interrupted)

    # The loop's thread and what others ask of it

    def _post(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._refuse_if_over()
            self._posted.append(call)
            os.eventfd_write(self._wake, 1)

    def _post_if_open(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(DeviceLost):
            self._post(call)

    def _on_loop(self, call: Callable[[], _T]) -> _T:
        answer: Future[_T] = Future()

        def work() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)

        with self._lock:
            self._waiting.add(answer)
        try:
            self._post(work)
            return answer.result()
        finally:
            with self._lock:
                self._waiting.discard(answer)

    def _later(self, chore: Callable[[], None]) -> None:
        """Do something with the library once it is idle; what is lost with its process needs no tidying."""

        def work() -> Callable[[], None]:
            with contextlib.suppress(QnnError):
                chore()
            return lambda: None

        self._loader.submit(work)

    def _serve(self) -> None:
        try:
            while not self._over:
                self._core.loop.turn(self)
        except Exception:
            log.exception("the loop of the vendor device ended")
            self._over = True
        self._end()

    def poll(self, timeout_ns: int | None) -> None:
        """The loop's inbox: wait for what other threads post, or for the end of the library's process."""
        for fd, _ in self._poller.poll(None if timeout_ns is None else timeout_ns / 1e6):
            if fd == self._life:
                self._over = True
                return
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._posted and not self._over:
            self._posted.popleft()()

    def flush(self) -> None:
        """Completions are handed over at once."""

    def _on_news(self) -> None:
        for packet in self._outlet.packets():
            complete_from(packet, self._pending)

    # The end

    def leave_to_parent(self, error: QnnError) -> None:
        """In the child of a fork: the loop, its thread and the library's process are the parent's."""
        self._over = self._closing = True  # so that close does nothing
        self._lock = threading.Lock()
        pending, self._pending = self._pending, {}
        for execution in pending.values():
            leave(execution, error)

    def close(self) -> None:
        """End the loop, then the library's process; a call under way in it is cut short. Twice does nothing."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        atexit.unregister(self.close)
        self._post_if_open(self._stop)
        self._thread.join()
        self._loader.close()
        self._process.close()
        self._engine.close()
        for fd in (self._wake, self._life):
            os.close(fd)

    def _stop(self) -> None:
        self._over = True

    def _refuse_if_over(self) -> None:
        if self._over:
            raise DeviceLost(self._last_words())

    def _last_words(self) -> str:
        return "the device was closed" if self._closing else f"the vendor's process {self.pid} went away"

    def _end(self) -> None:
        """Whatever anyone still waits for ends now, each of it once."""
        with self._lock:
            self._over = True
            pending, waiting = list(self._pending.values()), list(self._waiting)
            self._pending.clear()
            self._posted.clear()
        if not self._closing:
            # First of all: who is notified of the loss below may at once ask for a new context.
            try:
                self._on_lost(self)
            except BaseException:
                log.exception("the loss of the vendor's process %d", self.pid)
        for execution in pending:
            self._end_early(execution, st.QNN_COMMON_ERROR_SYSTEM_COMMUNICATION.code, self._last_words())
        for answer in waiting:
            if not answer.done():
                answer.set_exception(DeviceLost(self._last_words()))
        self._core.close_session(self._session)

    def _end_early(self, execution: Execution, status: int, text: str) -> None:
        now = self.now()
        complete(execution, Record(execution.job, status, 0, now, now, now, 0, 0, 0), text)


def _start(library: str, config: DeviceConfig) -> VendorProcess:
    """Start the library's process, as the chip that was asked for where it is a simulator."""
    if platform.machine() not in _SIMULATED_ON:
        return VendorProcess(library)
    soc = find_soc(config.soc)
    process = VendorProcess(library, soc=soc.soc_model)
    simulated = [device.soc_model for device in process.info.devices]
    if soc.soc_model in simulated:
        return process
    process.close()
    raise UnsupportedFeature(
        f"the vendor's library cannot simulate {soc.name} (SoC model {soc.soc_model});"
        " a newer library may know it",
        st.QNN_DEVICE_ERROR_INVALID_CONFIG,
    )
