"""The device as a process: sockets in, sockets out, around one loop."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.device.answers import Answer, error_reply, unexpected, with_log
from openhtp.device.connection import REST_NS, Connection, Entrance, ServedDuct
from openhtp.device.core import DeviceCore
from openhtp.device.intake import ExecutionRow, Intake
from openhtp.device.loop import SchedulerFailed
from openhtp.device.onlookers import Onlookers
from openhtp.device.outbox import Outbox
from openhtp.device.seat import NewsWatch, Seat
from openhtp.device.sessions import Session
from openhtp.device.tasks import Pool, Task
from openhtp.rpc import channel, messages as ms
from openhtp.rpc.channel import Disconnected, ProtocolError
from openhtp.rpc.looking import Looking
from openhtp.rpc.rendezvous import Door
from openhtp.rpc.shm import SharedBuffer
from openhtp.rpc.windows import Window

log = logging.getLogger(__name__)

# Longer waits are cut to this and begun anew: a client may ask for a longer wait than epoll allows.
MAX_WAIT_NS = 3600 * 1_000_000_000
# Sockets that one call of epoll reports, as it makes room for as many; the others have their turn next.
MAX_READY = 64
# How long the loop frees the remains of departed clients before the other clients have their turn.
CLOSING_NS = 1_000_000
# Completions that wait for further ones are sent when none came for so long, and after this time at the latest.
HELD_NS = 8_000
LONGEST_HELD_NS = 200_000
# How long the loop pauses after a failure that concerned no client: the failure may repeat at once.
BACK_OFF_S = 0.01
# Threads of one client that wait for executions of their own at the same time.
MAX_DUCTS = 256


class Server:
    """Serves clients until the last of them has gone (or, if ``keep``, until told to stop)."""

    def __init__(
        self,
        core: DeviceCore,
        *,
        door: Door | None = None,
        keep: bool = False,
        window: Window | None = None,
        about: dict[str, object] | None = None,
        seat: Seat | None = None,
    ) -> None:
        """``window`` is where onlookers may ask; ``about`` is added to the answers.

        ``seat`` is given where the loop runs on a thread of the client's process, whose threads may compute, too.
        """
        self.core = core
        self._seat = seat
        self._door = door
        self._keep = keep
        self._stopping = False
        self._told_to_stop = False
        self._looking = Looking()
        self._epoll = select.epoll()
        self._news = NewsWatch(self._epoll, core.clock.now)
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._connections: dict[int, Connection] = {}
        self._outbox = Outbox(self._epoll, self._guard, self._on_duct_end)
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Closed only when nobody can post any more: the number might be another file's by then.
        weakref.finalize(self, os.close, self._wake).atexit = False
        self._pool = Pool(self._post)
        # Only a device that computes by itself, in its own process, has a row.
        row = ExecutionRow(core) if seat is None and core.library is None else None
        self._intake = Intake(core.executions, row, self._on_duct_end)
        core.executions.on_broken = self._on_broken
        core.post = self._post
        core.loop.attach(self._post, self._epoll.fileno())
        core.run_elsewhere = lambda task, then: self._pool.submit(task, lambda: then(task.conclude()))
        self._watch(self._wake, self._on_wake)
        self._rests_until_ns: int | None = None
        # Until when completions may wait for further ones.
        self._held_until_ns = 0
        if door is not None:
            self._entrance = Entrance(door.listener, self.adopt)
            self._watch(door.listener.fileno(), self._on_connect)
        self._onlookers = (
            None if window is None else Onlookers(window, core, about or {}, self._watch, self._unwatch)
        )

    def run(self) -> None:
        """Serve as a process of its own, which a signal can stop, too."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self.serve()

    def serve(self) -> None:
        """Serve. No failure on the way ends the server, since it serves other clients, too."""
        turn = self.core.loop.turn
        if self._seat is not None:
            self._seat.take()
        while not self._stopping or not self._leave():
            try:
                turn(self)
            except Exception:
                log.exception("a turn of the loop failed")
                select.select([], [], [], BACK_OFF_S)
        self._outbox.flush()
        if self._onlookers is not None:
            self._onlookers.close()
        self._pool.close()

    def dispose(self) -> None:
        """After ``serve``, in a process that goes on: cut off remaining clients, and give everything back."""
        for connection in list(self._connections.values()):
            self._drop(connection)
        while self.core.closing:
            self.core.close_some()
        self.core.settle_owed()

    def leave_to_parent(self) -> None:
        """In the child of a fork: close the copies of the clients' sockets, and nothing else."""
        for connection in self._connections.values():
            for sock in (connection.control, *(duct.sock for duct in connection.ducts)):
                sock.close()

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
        try:
            self.adopt(newcomer)
        except Exception:
            log.exception("a client could not be let in")
            newcomer.close()
        self._stopping = not self._connections
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
        self._watch(control.fileno(), lambda _: self._guard(connection, self._on_control))
        self._connections[control.fileno()] = connection

    # The loop's inbox

    def poll(self, timeout_ns: int | None) -> None:
        """Wait for requests and deliver them."""
        if self.core.closing:
            now = self.core.clock.now
            until_ns = now() + CLOSING_NS
            while self.core.closing and now() < until_ns:
                self.core.close_some()
            timeout_ns = 0
        if self._rests_until_ns is not None:
            timeout_ns = self._rest(self._rests_until_ns, timeout_ns)
        ready: list[tuple[int, int]] = []
        if timeout_ns is None or timeout_ns > 0:
            if self._seat is not None:
                self.flush()
            ready = self._watch_closely(timeout_ns)
        if not ready:
            if timeout_ns != 0:
                self._outbox.flush()
            ready = self._sleep(timeout_ns)
            if not ready:
                return
        self._intake.new_turn()
        for fd, events in ready:
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)
        if self._outbox.pending and self.core.executions.jobs:
            self._outbox.flush()  # a step may follow that takes long

    def _sleep(self, timeout_ns: int | None) -> list[tuple[int, int]]:
        """Wait for the next event; meanwhile one of the client's threads may compute."""
        if timeout_ns is not None:
            timeout_ns = min(timeout_ns, MAX_WAIT_NS)
        seat = self._seat
        if seat is None or timeout_ns == 0:
            return self._epoll.poll(-1 if timeout_ns is None else timeout_ns / 1e9, MAX_READY)
        seat.leave()
        try:
            self._news.wait(timeout_ns)
        finally:
            seat.take()
        return self._epoll.poll(0, MAX_READY)

    def _watch_closely(self, timeout_ns: int | None) -> list[tuple[int, int]]:
        """Keep looking for a moment after work was done, or as long as a client's vote says.

        The next request often follows at once, and waking a process that sleeps takes longer than a short graph
        runs. Never done in the client's own process, whose threads wait for this thread to sleep.
        """
        if self._seat is not None or not self._intake.took_any:
            return []
        self._intake.took_any = False
        patience = self.core.power.polling_ns
        if timeout_ns is not None:
            patience = min(patience, timeout_ns)
        if self._outbox.pending:
            ready = self._look(min(patience, HELD_NS))
            if ready:
                return ready
            self._outbox.flush()
        return self._look(patience)

    def _look(self, patience_ns: int) -> list[tuple[int, int]]:
        looking, poll = self._looking, self._epoll.poll
        look = looking.begin(patience_ns)
        while look:
            ready = poll(0)
            if ready:
                return ready
            look = looking.go_on()
        return []

    def flush(self) -> None:
        """Send completions that were held back.

        While nothing is with the scheduler, those of clients with many under way wait for further ones until
        ``poll`` would sleep, or others have kept the loop busy for a while.
        """
        executions, outbox = self.core.executions, self._outbox
        if outbox.pending:
            now = self.core.clock.now()
            if executions.jobs or now >= self._held_until_ns:
                outbox.flush()
            else:
                outbox.flush_waited()
            if not outbox.pending:
                self._held_until_ns = now + LONGEST_HELD_NS
        if executions.told:
            executions.told = False
            if self._seat is not None and executions.jobs:
                # A waiting thread of this process may have been woken on this core: let it run first.
                os.sched_yield()

    # Connections

    def _on_connect(self, events: int) -> None:
        assert self._door is not None
        if not self._entrance.let_in():
            self._unwatch(self._door.listener.fileno())
            self._rests_until_ns = self.core.clock.now() + REST_NS

    def _rest(self, until_ns: int, timeout_ns: int | None) -> int:
        """Open the door again when its rest is over; returns how long to wait at most."""
        left = until_ns - self.core.clock.now()
        if left > 0:
            return left if timeout_ns is None else min(left, timeout_ns)
        assert self._door is not None
        self._rests_until_ns = None
        self._watch(self._door.listener.fileno(), self._on_connect)
        return 0

    def _guard(self, connection: Connection, act: Callable[[Connection], None]) -> None:
        """Serve a client; an error of that client ends its own connection, and nothing else."""
        if connection.closed:
            return
        try:
            act(connection)
        except Disconnected:
            self._drop(connection)
        except ProtocolError as error:
            log.warning("closing a client's connection: %s", error)
            self._drop(connection)
        except Exception:
            log.exception("closing a client's connection: serving it failed")
            self._drop(connection, broken=True)

    def _on_broken(self, session: Session, error: Exception) -> None:
        """Disconnect a client whose executions are in an unknown state. Done later, not in the midst of them."""
        for connection in list(self._connections.values()):
            if connection.session is session:
                log.error("closing the connection of session %d: %r", session.number, error)
                self._post(lambda gone=connection: self._drop(gone, broken=True))  # type: ignore[misc]

    def _drop(self, connection: Connection, *, broken: bool = False) -> None:
        """Disconnect a client; ``broken`` says that the scheduler's state for it may be wrong."""
        if connection.closed:
            return
        connection.closed = True
        self._connections.pop(connection.control.fileno(), None)
        for duct in connection.ducts:
            duct.closed = True
            self._outbox.forget(duct)
        for sock in (connection.control, *(duct.sock for duct in connection.ducts)):
            self._unwatch(sock.fileno())
            sock.close()
        if connection.session is not None:
            connection.session.broken |= broken
            self.core.start_closing(connection.session)
        # A duct's outlet refers to its duct, and the duct to its connection. Without this, they would wait for the
        # garbage collector.
        connection.ducts.clear()
        connection.session = None
        if not self._connections and not self._keep:
            self._stopping = True

    # Control messages

    def _on_control(self, connection: Connection) -> None:
        try:
            data, descriptors = channel.receive(connection.control)
        except BlockingIOError:
            return
        number = 0
        reply: Answer | None
        try:
            try:
                request = ms.decode_request(data)
                number = request.number
            except ProtocolError as error:
                number = ms.number_of(data)
                if not number:
                    raise
                # A whole request from a client that keeps to the protocol: a mistake, but no reason to disconnect.
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

    def _answer(self, connection: Connection, request: ms.Request, descriptors: list[int]) -> Answer | None:
        """Answer a request, even if it fails; None if a task will answer it later."""
        try:
            result = self.core.request(connection.session, request, descriptors, Visit(self, connection))
        except (QnnError, ProtocolError, Disconnected, SchedulerFailed):
            raise
        except Exception as error:
            log.exception("%s failed", type(request).__name__)
            raise unexpected(type(request).__name__, error) from error
        if isinstance(result, Task):
            self._pool.submit(result, lambda: self._conclude(connection, request.number, result))
            return None
        return result

    def _conclude(self, connection: Connection, number: int, task: Task[Any]) -> None:
        """Answer a request whose slow part is over."""
        try:
            answer = task.conclude()  # even for a client that has gone: it gives back what was loaded
        except SchedulerFailed:
            log.exception("closing a client's connection")
            self._drop(connection, broken=True)
            return
        self._guard(connection, lambda c: self._reply(c, answer, number))

    def add_duct(self, connection: Connection, descriptor: int) -> None:
        """Take executions of a client on this socket, too."""
        try:
            if len(connection.ducts) >= MAX_DUCTS:
                raise ProtocolError(f"more than {MAX_DUCTS} ducts")
            sock = socket.socket(fileno=descriptor)
        except (OSError, ProtocolError) as error:
            os.close(descriptor)
            raise ProtocolError(f"the duct cannot be added: {error}") from error
        sock.setblocking(False)
        duct = ServedDuct(sock, lambda duct: self._outbox.tell(connection, duct))
        connection.ducts.append(duct)
        self._watch(sock.fileno(), lambda events: self._on_duct(connection, duct, events))

    def stop(self, *, now: bool) -> None:
        """End when the last client has gone, or at once."""
        self._keep = False
        self._told_to_stop = self._stopping = now

    def _reply(self, connection: Connection, answer: Answer, number: int) -> None:
        if self.core.library is not None:
            answer = with_log(answer, self.core.library.log)
        try:
            connection.reply(answer, number)
        except BlockingIOError as error:
            raise ProtocolError("the client does not read its replies") from error
        finally:
            if isinstance(answer, SharedBuffer):
                answer.close()

    # Executions

    def _on_duct(self, connection: Connection, duct: ServedDuct, events: int) -> None:
        if events & select.EPOLLOUT:
            self._guard(connection, lambda c: self._outbox.send_unsent(c, duct))
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and not duct.closed:
            self._guard(connection, lambda c: self._intake.serve(c, duct))

    def _on_duct_end(self, connection: Connection, duct: ServedDuct) -> None:
        """The shared duct ends when the client leaves; another duct ends when a thread was interrupted."""
        if duct.closed:
            return
        if duct is connection.ducts[0]:
            raise Disconnected("end of connection")
        duct.closed = True
        connection.ducts.remove(duct)
        self._outbox.forget(duct)
        self._unwatch(duct.sock.fileno())
        duct.sock.close()

    # Plumbing

    def _post(self, call: Callable[[], None]) -> None:
        """Run something on the loop's thread; callable from any thread."""
        self._posted.append(call)
        if self._seat is not None:
            self._seat.want()
        os.eventfd_write(self._wake, 1)

    def _on_wake(self, events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        for _ in range(len(self._posted)):
            try:
                self._posted.popleft()()
            except Exception:
                log.exception("a call posted to the loop failed")

    def _on_signal(self, number: int, frame: object) -> None:
        self._told_to_stop = self._stopping = True
        os.eventfd_write(self._wake, 1)

    def _watch(self, fd: int, handler: Callable[[int], None]) -> None:
        self._epoll.register(fd, select.EPOLLIN)
        self._handlers[fd] = handler

    def _unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(fd)


@dataclass(frozen=True, slots=True)
class Visit:
    """The connection of a request, as the request's handler sees it."""

    _server: Server
    _connection: Connection

    def open_session(self, label: str, *, shares_budget: bool, pd_session: str) -> Session:
        """Let the client in."""
        pid, _ = channel.peer_credentials(self._connection.control)
        core = self._server.core
        session = self._connection.session = core.open_session(
            pid=pid, label=label, shares_budget=shares_budget, pd_session=pd_session
        )
        return session

    def add_duct(self, descriptor: int) -> None:
        """Take executions on another socket, too."""
        self._server.add_duct(self._connection, descriptor)

    def stop(self, *, now: bool) -> None:
        """End the device when the last client has gone, or at once."""
        self._server.stop(now=now)
