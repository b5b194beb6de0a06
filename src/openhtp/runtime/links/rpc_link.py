"""A device in its own process: starting it, talking to it, and noticing when it is gone."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from openhtp.core import status as st, tidying
from openhtp.core.errors import DeviceLost, QnnError
from openhtp.core.latches import Latch
from openhtp.core.locks import make_lock
from openhtp.core.threads import OwnThread, finish
from openhtp.ops import op_names
from openhtp.program.binary import BinaryInfo, pack_graphs
from openhtp.program.packed import PackedGraph
from openhtp.rpc import channel, frames, messages as ms, rendezvous
from openhtp.rpc.channel import Disconnected
from openhtp.rpc.frames import Record
from openhtp.rpc.shm import unchangeable_whole
from openhtp.runtime.calls.data_order import DataOrder, on_a_safe_thread
from openhtp.runtime.calls.execution import Execution, block, complete, complete_from, complete_together, leave
from openhtp.runtime.calls.queue import PlaceHolder, Places
from openhtp.runtime.links.control import Control, NoAnswer
from openhtp.runtime.links.device_process import DeviceOptions, DeviceProcess, Serving, connect
from openhtp.runtime.links.link import HandedGraph, Interrupted, Link, Sent, Undo
from openhtp.runtime.links.polling import Duct, Polling

if TYPE_CHECKING:
    from openhtp.runtime.calls.bound_call import RehearsedRun, Shortcut
    from openhtp.runtime.calls.long_call import CallStop

log = logging.getLogger(__name__)

# After so many meetings with a device that is just going away we give up.
_MEETINGS = 20
# A thread that hears of the loss waits until another one has notified the Device. It goes on should that one be
# held up, for example in a log handler of the user's that waits for this very thread.
_LONGEST_NOTICE_S = 1.0


class RpcLink:
    """One connection to one device process. When the process goes, the link is over; the Device makes another."""

    now = staticmethod(time.monotonic_ns)

    def __init__(
        self, options: DeviceOptions, on_lost: Callable[[Link], None], *, shares_budget: bool = False
    ) -> None:
        """All links of this process with ``shares_budget`` have one budget on their device."""
        self._shares_budget = shares_budget
        self._options = options
        self._process: Serving | None = None
        self._closing = False
        self._lost = False
        self._went_away = False  # by itself; the Device, once notified, closes this link, too
        # The thread that pops it notifies the Device of the loss; there is one entry.
        self._to_be_told = [on_lost]
        self._told = Latch()
        self._teller: int | None = None
        self._foreign = False
        self._send_lock = make_lock("send")
        self._jobs = itertools.count(1)
        self._pending: dict[int, Execution] = {}
        # Unused ducts, and those on which a synchronous execution is awaited.
        self._ducts: list[Duct] = []
        self._running: dict[Execution, Duct] = {}
        self.polling = Polling()
        self.set_polling = self.polling.set
        self._reader: OwnThread | None = None
        tidying.start()
        reply = self._meet()
        try:
            self.session = reply.value
            self.pid = int(str(reply.info["pid"]))
            self.data_order = DataOrder(in_order=reply.info["graphs_at_once"] == 1, do=on_a_safe_thread)
            self._reader = OwnThread(self._read, name="openhtp-completions")
            self._reader.start()
        except BaseException:
            tidying.post((self.close, ()))
            raise

    # Starting

    def _meet(self) -> ms.Reply:
        """Connect and say hello. A named device may be about to go when we come: then meet its successor."""
        for attempt in range(_MEETINGS):
            self._data, theirs = channel.socket_pair()
            try:
                sock, self._process = self._reach()
            except BaseException:
                self._data.close()
                theirs.close()
                raise
            self._control = Control(sock)
            try:
                if isinstance(self._process, DeviceProcess):
                    op_names()  # while the process starts, the operators are imported: graphs will need them
                hello = ms.Hello(
                    version=ms.PROTOCOL_VERSION,
                    pid=os.getpid(),
                    shares_budget=self._shares_budget,
                    pd_session=self._options.pd_session,
                )
                return self._greet(hello, theirs.fileno())
            except DeviceLost:
                started_here = self._process is not None
                self._dispose()
                if self._options.name is None or started_here or attempt == _MEETINGS - 1:
                    raise
            except BaseException:
                self._dispose()
                raise
            finally:
                theirs.close()
        raise AssertionError("unreachable")

    def _reach(self) -> tuple[socket.socket, Serving | None]:
        """A control socket, and the server that has to be ended with the link."""
        return connect(self._options)

    def _greet(self, hello: ms.Hello, data_fd: int) -> ms.Reply:
        """Say hello. Anything may listen under a name, so the wait for its answer is limited."""
        name = self._options.name
        try:
            return self._control.ask(hello, (data_fd,), patience_s=None if name is None else rendezvous.PATIENCE_S)
        except NoAnswer as error:
            assert name is not None
            raise rendezvous.mute(name) from error
        except Disconnected as error:
            raise self._gone(" during Hello") from error

    # Requests

    @contextlib.contextmanager
    def handing_over(self, packed: PackedGraph) -> Iterator[HandedGraph]:
        """Hand over a binary of this graph alone, in memory that nobody can change any more."""
        parts = pack_graphs([packed], BinaryInfo())
        with contextlib.closing(unchangeable_whole(parts)) as memory:
            yield HandedGraph(sum(map(len, parts)), (memory.number,))

    def request(
        self,
        message: ms.Request,
        descriptors: tuple[int, ...] = (),
        undo: Undo | None = None,
        stop: CallStop | None = None,
    ) -> ms.Reply:
        """Ask and wait for the answer."""
        try:
            return self._control.ask(message, descriptors, undo, stop=stop)
        except Disconnected as error:
            raise self._lost_during(message) from error

    def _lost_during(self, message: ms.Request) -> DeviceLost:
        self._await_notice_of_loss()
        return self._gone(f" during {type(message).__name__}")

    def tell(self, message: ms.Request) -> None:
        """Ask without waiting for the answer."""
        self._control.tell(message)

    def fetch(self, message: ms.Request, descriptors: tuple[int, ...] = ()) -> bytes:
        """Ask for something that comes in shared memory."""
        try:
            return self._control.fetch(message, descriptors)
        except Disconnected as error:
            raise self._lost_during(message) from error

    # Executions

    def next_job(self) -> int:
        """A job number for an execution."""
        return next(self._jobs)

    def submit(self, execution: Execution, frame: bytes, sent: Sent) -> None:
        """Send an execution on its way."""
        job = execution.job
        with self._send_lock:
            is_gone = self._lost
            if not is_gone:
                self._pending[job] = execution
                try:
                    self._data.send(frame)
                except OSError as error:
                    if error.errno is None:
                        raise  # not the system's but a signal handler's, and perhaps after it was sent
                    # The thread that takes it out of the table decides: the reader may have completed it already.
                    is_gone = self._pending.pop(job, None) is not None
        if is_gone:
            refusal = self._gone()  # its words now: a device that hears of the loss closes this link
            self._await_notice_of_loss()
            raise refusal
        sent(job)

    def forward(self, execution: Execution, frame: bytes, sent: Sent) -> None:
        """Send an execution that was delayed."""
        self.submit(execution, frame, sent)

    def run(self, execution: Execution, frame: bytes, sent: Sent) -> None:
        """Send an execution and wait for it on a duct of this thread's own, with no other thread in between."""
        duct = self._take_duct(execution)
        mine = {execution.job: execution}
        try:
            duct.sock.send(frame)
            sent(execution.job)
            polling = self.polling
            while mine:
                packet = polling.receive(duct, frame) if polling.polling_ns else duct.receive()
                complete_from(packet, mine)
        except (OSError, Disconnected) as error:
            if isinstance(error, OSError) and error.errno is None:
                raise  # not the system's but a signal handler's
            duct.sock.close()
            del self._running[execution]
            why = self._end_words()  # now: a device that hears of the loss closes this link
            self._await_notice_of_loss()
            self._fail(execution, why)
            return
        # No interrupt comes between the two: the duct always belongs to somebody.
        del self._running[execution]
        self._ducts.append(duct)
        if self._lost or self._closing:
            self._close_ducts()  # the thread that ended the link may have looked before this one was there

    def _take_duct(self, execution: Execution) -> Duct:
        try:
            # One call into C: the duct is the execution's before an interrupt can come.
            self._running.update(zip((execution,), iter(self._ducts.pop, None), strict=False))
        except IndexError:
            self._running[execution] = finish(
                self._make_duct, name="openhtp-duct", discard=lambda late: late.sock.close()
            )
        return self._running[execution]

    def _make_duct(self) -> Duct:
        ours, theirs = channel.socket_pair()
        try:
            with theirs:
                duct = Duct(ours)
                self.request(ms.AddDuct(), (theirs.fileno(),))
            return duct
        except BaseException:
            ours.close()
            raise

    def settle(self, execution: Execution) -> bool:
        """End an execution that may have been sent before an interrupt came."""
        if self.data_order.cancel(execution.job):
            return True
        duct = self._running.pop(execution, None)
        if duct is not None:
            OwnThread(self._drain, duct, execution, name="openhtp-interrupted").start()
            return True
        with self._send_lock:
            if execution.job not in self._pending:
                return False
            with contextlib.suppress(OSError):  # the device is gone: the reader ends pending executions
                self._data.send(frames.cancel_frame(execution.job, frames.FLAG_ANSWER))
        return True

    def _drain(self, duct: Duct, execution: Execution) -> None:
        """Wait for the end of an execution whose caller was interrupted. The duct is closed, as more may come."""
        mine = {execution.job: execution}
        try:
            duct.sock.send(frames.cancel_frame(execution.job, frames.FLAG_ANSWER))
            while mine:
                complete_from(duct.receive(), mine)
        except (OSError, Disconnected):
            self._fail(execution)
        finally:
            duct.sock.close()

    def run_here(self, execution: Execution, frame: bytes, *, if_short: bool = False) -> bool:
        """False: nothing is computed in this process."""
        return False

    def shortcut(self, graph: int, arrays: Mapping[str, npt.NDArray[Any]]) -> Shortcut | None:
        """Every execution is queued."""
        return None

    def rehearsed(self, graph: int) -> RehearsedRun | None:
        """Every execution is queued."""
        return None

    def cancel(self, job: int) -> None:
        """Ask for an execution's early end."""
        if self.data_order.cancel(job):
            return
        with self._send_lock, contextlib.suppress(OSError):
            self._data.send(frames.cancel_frame(job))

    def awaits(self, execution: Execution, running: Collection[int]) -> bool:
        """Whether an execution was sent and will soon be over: its results may just be copied."""
        return execution.job in self._pending and execution.job not in running

    def wait_for(self, execution: Execution, timeout: float | None) -> bool:
        """Wait until an execution is over."""
        return block(execution, timeout)

    def take_place(
        self, places: Places, holder: PlaceHolder, until_ns: int | None, interrupted: Interrupted
    ) -> None:
        """Take a place in a context's queue."""
        if not places.try_take(holder):
            places.take(holder, until_ns, interrupted)

    # The end

    def close(self) -> None:
        """Let the device go; it ends by itself when its last client has gone."""
        if self._foreign:
            return
        self._closing = True
        self._shut()
        if self._reader is not None and threading.current_thread() is not self._reader:
            self._reader.join()
        self._dispose()

    def leave_to_parent(self, error: QnnError) -> None:
        """In the child of a fork: close only the copies of the sockets."""
        self._foreign = self._closing = self._lost = True
        self._send_lock = make_lock("send")
        pending, self._pending = self._pending, {}
        for execution in (*pending.values(), *self.data_order.take_all()):
            leave(execution, error)
        self._control.leave_to_parent()
        for sock in self._data_sockets():
            sock.close()
        self._running = {}
        if self._process is not None:
            self._process.leave_to_parent()

    def _data_sockets(self) -> list[socket.socket]:
        ducts = (*self._ducts, *list(self._running.values()))
        return [self._data, *(duct.sock for duct in ducts)]

    def _shut(self) -> None:
        """Wake all threads that read from a socket: the link is over."""
        for sock in self._data_sockets():
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._control.shut()

    def _dispose(self) -> None:
        self._control.close()
        self._data.close()
        self._close_ducts()
        if self._process is not None:
            self._process.end()

    def _close_ducts(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                self._ducts.pop().sock.close()

    def _gone(self, during: str = "") -> DeviceLost:
        return DeviceLost(self._end_words(during))

    def _last_words(self) -> str:
        return "" if self._process is None else self._process.last_words()

    def _read(self) -> None:
        data = self._data
        buffer = memoryview(bytearray(channel.MAX_MESSAGE))
        while True:
            try:
                count = data.recv_into(buffer)
            except OSError:
                count = 0
            if count == 0:
                break
            try:
                complete_together(buffer[:count], self._pending)
            except BaseException:
                log.exception("completion frame")
        self._end()

    def _end(self) -> None:
        with self._send_lock:
            self._lost = True
            pending = list(self._pending.values())
            self._pending.clear()
        self._shut()  # one of the sockets is dead, so all are: no thread may wait at another
        why = self._end_words()  # now: a device that hears of the loss closes this link
        # The Device first: a client that hears of the loss may build a context at once, on the fresh process.
        self._tell_of_loss()
        for execution in (*pending, *self.data_order.take_all()):
            self._fail(execution, why)

    def _tell_of_loss(self) -> None:
        """Notify the Device once, on the thread that found out first."""
        if self._closing:
            return
        self._went_away = True
        try:
            notify = self._to_be_told.pop()
        except IndexError:
            return
        self._teller = threading.get_ident()
        try:
            notify(self)
        except BaseException:
            log.exception("the loss of device process %d", self.pid)
        finally:
            self._told.unlock()

    def _await_notice_of_loss(self) -> None:
        """Return when the Device knows: who hears of the loss may build anew at once, on the fresh process."""
        finish(self._tell_of_loss, name="openhtp-loss")
        if not self._closing and self._teller != threading.get_ident():
            self._told.wait(_LONGEST_NOTICE_S)

    def _end_words(self, during: str = "") -> str:
        if self._closing and not self._went_away:
            return f"the device was freed{during}"
        return f"the device process went away{during}{self._last_words()}"

    def _fail(self, execution: Execution, why: str | None = None) -> None:
        now = self.now()
        status = st.QNN_COMMON_ERROR_SYSTEM_COMMUNICATION.code
        text = self._end_words() if why is None else why
        complete(execution, Record.of_moment(execution.job, status, now), text)
