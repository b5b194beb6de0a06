"""The device as a process: sockets in, sockets out, around one loop."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.device.connection import Answer, Connection, Lane
from openhtp.device.core import DeviceCore, error_reply
from openhtp.device.loading import Loader
from openhtp.rpc import channel, frames
from openhtp.rpc import messages as ms
from openhtp.rpc.channel import Disconnected, ProtocolError
from openhtp.rpc.rendezvous import Door
from openhtp.rpc.shm import SharedBuffer

log = logging.getLogger(__name__)

# Frames taken from one client before the others have their turn.
FRAMES_PER_TURN = 64
# Completions that may share one packet.
RECORDS_PER_PACKET = 8
# A client that does not read its completions is given this much before it is let go.
MAX_UNSENT_PACKETS = 100_000
# How long an idle device looks for the next request before it goes to sleep.
SPIN_NS = 60_000
# Threads of one client that wait for executions of their own at the same time.
MAX_LANES = 256


class Server:
    """Serves clients until the last of them has gone (or, if ``keep``, until told to stop)."""

    def __init__(self, core: DeviceCore, *, door: Door | None = None, keep: bool = False) -> None:
        self.core = core
        self._door = door
        self._keep = keep
        self._stopping = False
        self._told_to_stop = False
        self._busy = False
        self._may_spin = len(os.sched_getaffinity(0)) > 1  # with one core, whoever waits must let go of it
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._connections: dict[int, Connection] = {}
        self._pending: dict[Lane, Connection] = {}
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loader = Loader(self._post)
        self._frame = bytearray(channel.MAX_MESSAGE)
        self._view = memoryview(self._frame)
        self._watch(self._wake, self._on_wake)
        if door is not None:
            door.listener.setblocking(False)
            self._watch(door.listener.fileno(), self._on_connect)

    def run(self) -> None:
        """Serve."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        turn = self.core.loop.turn
        while not self._stopping or not self._leave():
            turn(self)
        self._loader.close()

    def _leave(self) -> bool:
        """Close the door behind the last client, unless another has just come in."""
        if self._door is None:
            return True
        if self._told_to_stop:
            self._door.close()
            return True
        newcomer = self._door.close_unless_called()
        if newcomer is None:
            return True
        self._stopping = False
        self.adopt(newcomer)
        return False

    def adopt(self, control: socket.socket) -> None:
        """Serve a client over a socket that is already connected."""
        _, uid = channel.peer_credentials(control)
        if uid != os.getuid():
            log.warning("refused a client of user %d", uid)
            control.close()
            return
        channel.enlarge(control)
        control.setblocking(False)
        connection = Connection(control)
        self._connections[control.fileno()] = connection
        self._watch(control.fileno(), lambda _: self._guard(connection, self._on_control))

    # The loop's inbox

    def poll(self, timeout_ns: int | None) -> None:
        """Wait for requests and deliver them."""
        ready: list[tuple[int, int]] = []
        if timeout_ns is None or timeout_ns > 0:
            self.flush()
            ready = self._watch_closely()
        if not ready:
            ready = self._epoll.poll(-1 if timeout_ns is None else timeout_ns / 1e9)
        for fd, events in ready:
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)

    def _watch_closely(self) -> list[tuple[int, int]]:
        """Keep looking for a moment after work was done: the next request often follows at once.

        Waking a process that sleeps takes longer than a short graph runs.
        """
        if not self._busy:
            return []
        self._busy = False
        now, poll = self.core.clock.now, self._epoll.poll
        until = now() + SPIN_NS
        while now() < until:
            ready = poll(0)
            if ready:
                return ready
        return []

    def flush(self) -> None:
        """Send all completions that were held back."""
        while self._pending:
            lane, connection = self._pending.popitem()
            self._guard(connection, lambda c, lane=lane: self._send_news(c, lane))  # type: ignore[misc]

    def _on_news(self, connection: Connection, lane: Lane) -> None:
        outlet = lane.outlet
        if len(outlet.records) >= RECORDS_PER_PACKET or outlet.extras:
            self._pending.pop(lane, None)
            self._guard(connection, lambda c: self._send_news(c, lane))
        else:
            self._pending[lane] = connection

    def _send_news(self, connection: Connection, lane: Lane) -> None:
        for packet in lane.outlet.packets():
            if not lane.closed:
                self._send(connection, lane, packet)

    def _send(self, connection: Connection, lane: Lane, packet: bytes) -> None:
        if lane.unsent:
            lane.unsent.append(packet)
            if len(lane.unsent) > MAX_UNSENT_PACKETS:
                raise ProtocolError("the client does not read its completions")
            return
        try:
            lane.sock.send(packet)
        except BlockingIOError:
            # A client that sleeps must not put the device to sleep: go on when it reads again.
            lane.unsent.append(packet)
            self._epoll.modify(lane.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
        except OSError:
            self._close_lane(connection, lane)

    def _send_unsent(self, connection: Connection, lane: Lane) -> None:
        while lane.unsent:
            try:
                lane.sock.send(lane.unsent[0])
            except BlockingIOError:
                return
            except OSError:
                self._close_lane(connection, lane)
                return
            lane.unsent.popleft()
        self._epoll.modify(lane.sock.fileno(), select.EPOLLIN)

    # Connections

    def _on_connect(self, events: int) -> None:
        assert self._door is not None
        with contextlib.suppress(BlockingIOError, OSError):
            control, _ = self._door.listener.accept()
            self.adopt(control)

    def _guard(self, connection: Connection, act: Callable[[Connection], None]) -> None:
        """Whatever a client does wrong ends its own connection, and nothing else."""
        if connection.closed:
            return
        try:
            act(connection)
        except Disconnected:
            self._drop(connection)
        except ProtocolError as error:
            log.warning("closing a client's connection: %s", error)
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        connection.closed = True
        self._connections.pop(connection.control.fileno(), None)
        for lane in connection.lanes:
            self._pending.pop(lane, None)
        for sock in (connection.control, *(lane.sock for lane in connection.lanes)):
            self._unwatch(sock.fileno())
            sock.close()
        if connection.session is not None:
            self.core.close_session(connection.session)
        if not self._connections and not self._keep:
            self._stopping = True

    # Control messages

    def _on_control(self, connection: Connection) -> None:
        try:
            data, descriptors = channel.receive(connection.control)
        except BlockingIOError:
            return
        number = 0
        try:
            try:
                request = ms.decode_request(data)
                number = request.number
            except ProtocolError as error:
                number = ms.number_of(data)
                if not number:
                    raise
                # One whole request, from someone who keeps to the protocol: a mistake, and no reason to part.
                channel.close_all(descriptors)
                raise InvalidArgument(f"the device cannot read the request: {error}") from error
            reply = self._answer(connection, request, descriptors)
        except QnnError as error:
            reply = error_reply(error)
        except BaseException:
            channel.close_all(descriptors)
            raise
        if reply is not None:
            self._reply(connection, reply, number)

    def _answer(self, connection: Connection, request: ms.Request, descriptors: list[int]) -> ms.Reply | None:
        number = request.number
        if isinstance(request, ms.Hello):
            return self._hello(connection, request, descriptors)
        session = connection.session
        if session is None:
            raise ProtocolError("the first message must be Hello")
        if isinstance(request, ms.AddLane):
            self._add_lane(connection, descriptors)
            return ms.Reply()
        if isinstance(request, ms.LoadGraph):
            self._answer_later(connection, number, self.core.start_loading(session, request, descriptors))
            return None
        if isinstance(request, ms.PackGraph):
            self._answer_later(connection, number, self.core.start_packing(session, request))
            return None
        if isinstance(request, ms.ReadTrace):
            with contextlib.closing(SharedBuffer.holding([self.core.recording.take()])) as records:
                self._reply(connection, records, number)
            return None
        if isinstance(request, ms.Shutdown):
            self._keep = False
            self._told_to_stop = self._stopping = request.now
            return ms.Reply()
        return self.core.request(session, request, descriptors)

    def _answer_later(self, connection: Connection, number: int, slow: Callable[[], Callable[[], Answer]]) -> None:
        def work() -> Callable[[], None]:
            finish = slow()

            def then() -> None:
                answer = finish()  # even for a client that has gone: it gives back what was loaded
                self._guard(connection, lambda c: self._reply(c, answer, number))
                if isinstance(answer, SharedBuffer):
                    answer.close()

            return then

        self._loader.submit(work)

    def _hello(self, connection: Connection, request: ms.Hello, descriptors: list[int]) -> ms.Reply:
        if connection.session is not None:
            raise ProtocolError("Hello twice")
        if request.version != ms.PROTOCOL_VERSION:
            return ms.Reply(
                error=f"the client speaks protocol {request.version}, the device {ms.PROTOCOL_VERSION};"
                " both must come from the same openhtp version",
                status_name="QNN_COMMON_ERROR_INCOMPATIBLE_BINARIES",
                status_code=1008,
            )
        self._add_lane(connection, descriptors)
        pid, _ = channel.peer_credentials(connection.control)
        connection.session = self.core.open_session(pid=pid, label=request.label)
        return ms.Reply(value=connection.session.number, info={"pid": os.getpid()})

    def _add_lane(self, connection: Connection, descriptors: list[int]) -> None:
        if len(descriptors) != 1 or len(connection.lanes) >= MAX_LANES:
            raise ProtocolError("a lane without its one socket, or too many lanes")
        try:
            sock = socket.socket(fileno=descriptors[0])
        except OSError as error:
            raise ProtocolError("the descriptor of a lane is not a socket") from error
        descriptors.clear()  # the socket owns it now
        sock.setblocking(False)
        lane = Lane(sock, lambda lane: self._on_news(connection, lane))
        connection.lanes.append(lane)
        self._watch(sock.fileno(), lambda events: self._on_lane(connection, lane, events))

    def _reply(self, connection: Connection, answer: Answer, number: int) -> None:
        try:
            connection.reply(answer, number)
        except BlockingIOError as error:
            raise ProtocolError("the client does not read its replies") from error

    # Executions

    def _on_lane(self, connection: Connection, lane: Lane, events: int) -> None:
        if events & select.EPOLLOUT:
            self._guard(connection, lambda c: self._send_unsent(c, lane))
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and not lane.closed:
            if lane is not connection.lanes[0]:
                # What a thread queued before it began to wait on its own lane came first, and stays first.
                self._guard(connection, lambda c: self._read_lane(c, c.lanes[0]))
            self._guard(connection, lambda c: self._read_lane(c, lane))

    def _close_lane(self, connection: Connection, lane: Lane) -> None:
        """The end of the shared lane is the client's; that of another only means that a thread was interrupted."""
        if lane.closed:
            return
        if lane is connection.lanes[0]:
            raise Disconnected("end of connection")
        lane.closed = True
        connection.lanes.remove(lane)
        self._pending.pop(lane, None)
        self._unwatch(lane.sock.fileno())
        lane.sock.close()

    def _read_lane(self, connection: Connection, lane: Lane) -> None:
        session = connection.session
        if session is None:
            raise ProtocolError("an execution before Hello")
        executions, view, receive = self.core.executions, self._view, lane.sock.recv_into
        for _ in range(FRAMES_PER_TURN):
            try:
                count = receive(view)
            except BlockingIOError:
                return
            except OSError:
                count = 0
            if count == 0:
                self._close_lane(connection, lane)
                return
            self._busy = self._may_spin
            kind = view[0]
            if kind == frames.EXECUTE:
                executions.execute(session, lane.outlet, bytes(view[:count]))
            elif kind == frames.CANCEL and count >= frames.EXECUTE_HEAD.size:
                head = frames.EXECUTE_HEAD.unpack_from(view)
                self._cancel(connection, lane, head[6], wants_answer=bool(head[1] & frames.FLAG_ANSWER))
            else:
                raise ProtocolError(f"frame of kind {kind} and {count} bytes")

    def _cancel(self, connection: Connection, lane: Lane, job: int, *, wants_answer: bool) -> None:
        session = connection.session
        assert session is not None
        if job not in session.jobs:
            # Sent before its cancel, but perhaps on a lane that was not looked at yet.
            for other in list(connection.lanes):
                if other is not lane:
                    self._read_lane(connection, other)
        if wants_answer and job not in session.jobs:
            now = self.core.clock.now()
            record = frames.Record(job, st.QNN_GRAPH_ERROR_ABORTED.code, 0, now, now, now, 0, 0, 0)
            lane.outlet.report_failure(record, "interrupted before it was sent, or when it was over")
            return
        self.core.executions.cancel(session, job)

    # Plumbing

    def _post(self, call: Callable[[], None]) -> None:
        """Run something on the loop's thread; callable from any thread."""
        self._posted.append(call)
        os.eventfd_write(self._wake, 1)

    def _on_wake(self, events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while self._posted:
            self._posted.popleft()()

    def _on_signal(self, number: int, frame: object) -> None:
        self._told_to_stop = self._stopping = True
        os.eventfd_write(self._wake, 1)

    def _watch(self, fd: int, handler: Callable[[int], None]) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def _unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(fd)
