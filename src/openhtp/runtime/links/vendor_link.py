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
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from openhtp.core import status as st
from openhtp.core.errors import DeviceLost, QnnError, UnsupportedFeature
from openhtp.device.build import build_beside
from openhtp.device.config import DeviceConfig
from openhtp.device.loading import Loader
from openhtp.device.loop_thread import LoopOver, LoopThread
from openhtp.device.outlet import Outlet
from openhtp.device.tasks import Task
from openhtp.hw.catalog import find_soc
from openhtp.hw.perf_profiles import find_perf_profile
from openhtp.rpc import channel, messages as ms
from openhtp.rpc.frames import Record
from openhtp.runtime.calls.execution import Execution, block, complete, complete_from, leave
from openhtp.runtime.calls.long_call import Stop, do_task
from openhtp.runtime.calls.queue import PlaceHolder, Places
from openhtp.runtime.links.link import Interrupted, Sent, Undo, raise_reply
from openhtp.vendor.engine import VendorEngine
from openhtp.vendor.worker import VendorProcess

log = logging.getLogger(__name__)

_T = TypeVar("_T")

# Where the library is a simulator, which has to be told what chip it is; elsewhere the chip is what it is.
_SIMULATED_ON = ("x86_64", "AMD64")


class VendorLink:
    """One process of the library and the loop that feeds it. When that process goes, the link is over."""

    now = staticmethod(time.monotonic_ns)

    def __init__(self, library: str, config: DeviceConfig, on_lost: Callable[[VendorLink], None]) -> None:
        self._on_lost = on_lost
        self._process = _start(library, config)
        self.pid = self._process.pid or 0
        self._jobs = itertools.count(1)
        self._lock = threading.Lock()
        self._closing = False
        self._pending: dict[int, Execution] = {}
        self._life = os.pidfd_open(self.pid)
        self._loop = LoopThread("openhtp-vendor", self._life)
        self._loader = Loader(self._loop.post_if_open)
        self._engine = VendorEngine(self._process, lambda: self._session.memories, self._later)
        self._core = build_beside(config, self._engine, self._loader.submit)
        self._session = self._core.open_session(pid=os.getpid(), label="vendor")
        self._outlet = Outlet(self._on_news)
        self._loop.start(self._core.loop, self._end)
        # Registered after the process's own tidying and so done before it, which else looks like a crash.
        atexit.register(self.close)

    # Requests

    def request(
        self,
        message: ms.Request,
        descriptors: tuple[int, ...] = (),
        undo: Undo | None = None,
        stop: Stop | None = None,
    ) -> ms.Reply:
        """Ask the core on the loop's thread. Descriptors are duplicated: the core owns what it is given."""
        if isinstance(message, (ms.AddApp, ms.SetPace)):
            raise UnsupportedFeature(
                "apps and paced executions are modelled; the vendor's library only computes. Use the emulator",
                st.QNN_COMMON_ERROR_NOT_SUPPORTED,
            )
        if isinstance(message, ms.SetPowerConfig) and message.hmx is not None:
            raise UnsupportedFeature(
                "HMX votes are not handed on to the vendor's library; use the emulator",
                st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_UNSUPPORTED,
            )
        owned = [os.dup(fd) for fd in descriptors]
        session, core = self._session, self._core
        try:
            answer = self._ask(lambda: core.request(session, message, owned))
            if isinstance(answer, Task):
                answer = do_task(answer, self._conclude, stop, lambda made: self._take_back(made, undo))
        finally:
            channel.close_all(owned)
        assert isinstance(answer, ms.Reply)
        reply = raise_reply(answer)
        if isinstance(message, (ms.DeregisterMemory, ms.FreeContext)):
            self._ask(self._engine.forget_memory)
        if isinstance(message, ms.Inspect):
            reply.info.update(self._describe())
        if isinstance(message, ms.SetPowerConfig):
            self._vote(message)
        return reply

    def _conclude(self, task: Task[Any]) -> ms.Reply:
        reply = self._ask(task.conclude)
        assert isinstance(reply, ms.Reply)
        return reply

    def _take_back(self, reply: ms.Reply, undo: Undo | None) -> None:
        if undo is not None and not reply.error:
            self.tell(undo(reply))

    def _vote(self, message: ms.SetPowerConfig) -> None:
        """Hand votes on to the library. It has one set of them; a profile's stand for as long as it is set."""
        dcvs = message.dcvs
        if message.profile is not None:
            dcvs = find_perf_profile(message.profile).dcvs
        if dcvs is None and message.rpc_control_latency_us is None and message.rpc_polling_us is None:
            return
        self._process.vote(
            dcvs=dcvs,
            rpc_latency_us=message.rpc_control_latency_us,
            rpc_polling_us=message.rpc_polling_us,
        )

    def set_polling(self, polling_us: int | None, adaptive_us: int) -> None:
        """The library polls on its own way to the chip; the one to its process is asked of nobody."""

    def tell(self, message: ms.Request) -> None:
        """Ask for something whose outcome does not matter."""

        def work() -> None:
            with contextlib.suppress(QnnError):
                self._core.request(self._session, message, [])

        self._loop.post_if_open(work)

    def read_trace(self) -> bytes:
        """What the core recorded."""
        return self._ask(self._core.recording.take)

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
        self._pending[execution.job] = execution
        try:
            self._loop.post(lambda: self._core.executions.execute(self._session, self._outlet, frame))
        except LoopOver:
            # Whoever takes it out of the table decides: the end of the loop may have completed it already.
            if self._pending.pop(execution.job, None) is not None:
                raise DeviceLost(self._last_words()) from None
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

        self._loop.post_if_open(end)
        return True

    def run_here(self, execution: Execution, frame: bytes) -> bool:
        """All that is computed is queued."""
        return False

    def shortcut(self, graph: int, arrays: object) -> None:
        """All that is computed is queued."""

    def cancel(self, job: int) -> None:
        """Ask for an execution's early end."""
        self._loop.post_if_open(lambda: self._core.executions.cancel(self._session, job))

    def wait_for(self, execution: Execution, timeout: float | None) -> bool:
        """Wait until an execution is over."""
        return block(execution, timeout)

    def take_place(
        self, places: Places, holder: PlaceHolder, until_ns: int | None, interrupted: Interrupted
    ) -> None:
        """Take a place in a context's queue."""
        if not places.try_take(holder):
            places.take(holder, until_ns, interrupted)

    def _ask(self, call: Callable[[], _T]) -> _T:
        try:
            return self._loop.ask(call)
        except LoopOver:
            raise DeviceLost(self._last_words()) from None

    def _later(self, chore: Callable[[], None]) -> None:
        """Do something with the library once it is idle; what is lost with its process needs no tidying."""

        def work() -> Callable[[], None]:
            with contextlib.suppress(QnnError):
                chore()
            return lambda: None

        self._loader.submit(work)

    def _on_news(self) -> None:
        for packet in self._outlet.packets():
            complete_from(packet, self._pending)

    # The end

    def leave_to_parent(self, error: QnnError) -> None:
        """In the child of a fork: the loop, its thread and the library's process are the parent's."""
        self._closing = True  # so that close does nothing
        self._lock = threading.Lock()
        self._loop.leave_to_parent()
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
        self._loop.stop()
        self._loader.close()
        self._process.close()
        self._engine.close()
        os.close(self._life)

    def _last_words(self) -> str:
        return "the device was freed" if self._closing else f"the vendor's process {self.pid} went away"

    def _end(self) -> None:
        """The loop is over: what is under way ends now, each of it once."""
        if not self._closing:
            # First of all: who is notified of the loss below may at once ask for a new context.
            try:
                self._on_lost(self)
            except BaseException:
                log.exception("the loss of the vendor's process %d", self.pid)
        while self._pending:
            with contextlib.suppress(KeyError):
                _, execution = self._pending.popitem()
                self._end_early(execution, st.QNN_COMMON_ERROR_SYSTEM_COMMUNICATION.code, self._last_words())
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
