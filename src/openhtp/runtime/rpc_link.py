"""A device in its own process: starting it, talking to it, and noticing when it is gone."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from openhtp.core import interpreter
from openhtp.core import status as st
from openhtp.core.errors import DeviceLost, QnnError, ResourceError
from openhtp.device.build import DeviceConfig
from openhtp.rpc import channel, frames, rendezvous
from openhtp.rpc import messages as ms
from openhtp.rpc.channel import Disconnected, ProtocolError
from openhtp.rpc.frames import Record
from openhtp.rpc.shm import SharedBuffer
from openhtp.runtime.execution import Execution, complete_from
from openhtp.runtime.lane import Lane
from openhtp.runtime.link import Sent, raise_reply
from openhtp.runtime.queue import Places

log = logging.getLogger(__name__)

# How often a device that is just going away is met before we give up.
_MEETINGS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOptions:
    """How a device process is started; a named one that already runs keeps what it was started with."""

    config: DeviceConfig = field(default_factory=DeviceConfig)
    name: str | None = None
    keep: bool = False
    allow_faults: bool = False

    def check(self) -> None:
        """Raise for values that no device process would start with."""
        self.config.check()
        if self.name is not None:
            rendezvous.socket_path(self.name)

    def arguments(self) -> list[str]:
        """Options of the device's command line."""
        words = ["--config", json.dumps(dataclasses.asdict(self.config))]
        if self.keep:
            words.append("--keep")
        if self.allow_faults:
            words.append("--allow-faults")
        return words


class RpcLink:
    """One connection to one device process. When the process goes, the link is over; the Device makes another."""

    supports_async = True
    now = staticmethod(time.monotonic_ns)

    def __init__(self, options: DeviceOptions, on_lost: Callable[[RpcLink], None]) -> None:
        self._options = options
        self._on_lost = on_lost
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: int | None = None
        self._closing = False
        self._lost = False
        self._control_lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._jobs = itertools.count(1)
        self._pending: dict[int, Execution] = {}
        self._lanes: list[Lane] = []
        reply = self._meet()
        self.session = reply.value
        self.pid = int(str(reply.info["pid"]))
        self._reader = threading.Thread(target=self._read, name="openhtp-completions", daemon=True)
        self._reader.start()

    # Starting

    def _meet(self) -> ms.Reply:
        """Connect and say hello. A named device may be about to go when we come: then meet its successor."""
        for attempt in range(_MEETINGS):
            self._control = self._connect()
            self._data, theirs = channel.socket_pair()
            try:
                hello = ms.Hello(version=ms.PROTOCOL_VERSION, pid=os.getpid())
                return self._greet(hello, theirs.fileno())
            except DeviceLost:
                started_here = self._process is not None
                self._dispose()
                if self._options.name is None or started_here or attempt == _MEETINGS - 1:
                    raise
            except QnnError:
                self._dispose()
                raise
            finally:
                theirs.close()
        raise AssertionError("unreachable")

    def _greet(self, hello: ms.Hello, data_fd: int) -> ms.Reply:
        """Say hello. What listens under a name may be anything, so its answer is not waited for without end."""
        name, control = self._options.name, self._control
        if name is None:
            return self.request(hello, (data_fd,))
        control.settimeout(rendezvous.PATIENCE_S)
        try:
            reply = self.request(hello, (data_fd,))
        except DeviceLost as error:
            if select.select([control], [], [], 0)[0]:
                raise  # it did not keep silent but hung up
            raise rendezvous.mute(name) from error
        control.settimeout(None)
        return reply

    def _connect(self) -> socket.socket:
        name = self._options.name
        if name is None:
            ours, theirs = channel.socket_pair()
            with theirs:
                try:
                    self._start(["--fd", str(theirs.fileno())], theirs.fileno())
                except BaseException:
                    ours.close()
                    raise
            return ours
        with rendezvous.locked():
            sock = rendezvous.connect(name)
            if sock is None:
                # The door is opened here and handed over, so there is no waiting for the device to be ready.
                with rendezvous.listen(name) as listener:
                    try:
                        self._start(["--name", name, "--listen-fd", str(listener.fileno())], listener.fileno())
                    except BaseException:
                        rendezvous.socket_path(name).unlink(missing_ok=True)
                        raise
                    sock = rendezvous.connect(name)
        if sock is None:
            raise ResourceError(f"device {name!r} cannot be reached", st.QNN_COMMON_ERROR_SYSTEM_COMMUNICATION)
        return sock

    def _start(self, words: list[str], fd: int) -> None:
        command = interpreter.command("-m", "openhtp.device", *words, *self._options.arguments())
        self._errors = os.memfd_create("openhtp-device-log", os.MFD_CLOEXEC)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=interpreter.environment(),
                pass_fds=(fd,),
                start_new_session=True,  # an interrupt typed at the client is not meant for the device
            )
        except OSError as error:
            os.close(self._errors)
            raise ResourceError(
                f"cannot start the device process: {error}", st.QNN_COMMON_ERROR_SYSTEM_COMMUNICATION_FATAL
            ) from error

    # Requests

    def request(self, message: ms.Request, descriptors: tuple[int, ...] = ()) -> ms.Reply:
        """Ask and wait for the answer."""
        reply, received = self._exchange(message, descriptors)
        channel.close_all(received)
        return raise_reply(reply)

    def _exchange(self, message: ms.Request, descriptors: tuple[int, ...]) -> tuple[ms.Reply, list[int]]:
        try:
            with self._control_lock:
                channel.send(self._control, ms.encode(message), descriptors)
                data, received = channel.receive(self._control)
            return ms.decode_reply(data), received
        except (Disconnected, ProtocolError, OSError) as error:
            raise self._gone(f"the device process went away during {type(message).__name__}") from error

    def read_trace(self) -> bytes:
        """What the device recorded."""
        return self._fetch(ms.ReadTrace())

    def pack_graph(self, graph: int) -> bytes:
        """A loaded graph with its prepared form."""
        return self._fetch(ms.PackGraph(graph=graph))

    def _fetch(self, message: ms.Request) -> bytes:
        """Ask for something that comes in shared memory."""
        reply, received = self._exchange(message, ())
        raise_reply(reply)
        if not received:
            return b""
        buffer = SharedBuffer.attach(received[0])
        data = bytes(buffer.view[: reply.value])
        buffer.close()
        return data

    # Executions

    def next_job(self) -> int:
        """A job number for an execution."""
        return next(self._jobs)

    def submit(self, execution: Execution, frame: bytes, sent: Sent) -> None:
        """Send an execution on its way."""
        job = execution.job
        with self._send_lock:
            if self._lost:
                raise self._gone("the device process went away")
            self._pending[job] = execution
            try:
                self._data.send(frame)
            except OSError as error:
                # Whoever takes it out of the table decides: the reader may have completed it already.
                if self._pending.pop(job, None) is not None:
                    raise self._gone("the device process went away") from error
        sent(job)

    def run(self, execution: Execution, frame: bytes, sent: Sent) -> None:
        """Send an execution and wait for it on a lane of this thread's own, with no other thread between."""
        lane = self._take_lane()
        mine = {execution.job: execution}
        try:
            lane.sock.send(frame)
            sent(execution.job)
            while mine:
                complete_from(lane.receive(), mine)
        except (OSError, Disconnected):
            lane.sock.close()
            if mine:
                self._fail(execution)
            return
        except BaseException:
            # An interrupt came while waiting: the lane still owes us a report, so it cannot be used again.
            lane.sock.close()
            self.cancel(execution.job)
            execution._abandon()
            raise
        self._lanes.append(lane)

    def _take_lane(self) -> Lane:
        try:
            return self._lanes.pop()
        except IndexError:
            ours, theirs = channel.socket_pair()
            with theirs:
                self.request(ms.AddLane(), (theirs.fileno(),))
            return Lane(ours)

    def under_way(self) -> list[Execution]:
        """Executions that were submitted and are not over."""
        return list(self._pending.copy().values())

    def cancel(self, job: int) -> None:
        """Ask for an execution's early end."""
        frame = frames.EXECUTE_HEAD.pack(frames.CANCEL, 0, 0, 0, 0, 0, job, 0, 0)
        with self._send_lock, contextlib.suppress(OSError):
            self._data.send(frame)

    def wait_for(self, execution: Execution, timeout: float | None) -> bool:
        """Wait until an execution is over."""
        return execution._block(timeout)

    def take_place(self, places: Places, until_ns: int | None, interrupted: Callable[[], QnnError | None]) -> None:
        """Take a place in a context's queue."""
        if not places.try_take():
            places.take(until_ns, interrupted)

    # The end

    def close(self) -> None:
        """Let the device go; it ends by itself when its last client has gone."""
        self._closing = True
        for sock in (self._data, self._control, *(lane.sock for lane in self._lanes)):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._reader:
            self._reader.join(timeout=5)
        self._dispose()

    def _dispose(self) -> None:
        for sock in (self._control, self._data, *(lane.sock for lane in self._lanes)):
            sock.close()
        if self._process is not None:
            # A device of our own has nobody left to serve (the starter of a named one ended long ago).
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._errors is not None:
            os.close(self._errors)
            self._errors = None

    def _gone(self, message: str) -> DeviceLost:
        return DeviceLost(f"{message}{self._last_words()}")

    def _last_words(self) -> str:
        """The end of what the device wrote before it died, if that was a failure of its own."""
        if self._errors is None:
            return ""
        with contextlib.suppress(OSError):
            size = os.fstat(self._errors).st_size
            tail = os.pread(self._errors, 2000, max(0, size - 2000)).decode(errors="replace").strip()
            return f"; it wrote: {tail}" if tail else ""
        return ""

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
                complete_from(buffer[:count], self._pending)
            except Exception:
                log.exception("completion frame")
        self._end()

    def _end(self) -> None:
        with self._send_lock:
            self._lost = True
            pending = list(self._pending.values())
            self._pending.clear()
        # The device first: whoever is told of its loss may build a context at once, on the fresh process.
        if not self._closing:
            self._on_lost(self)
        for execution in pending:
            try:
                self._fail(execution)
            except Exception:
                log.exception("completing execution %d", execution.job)

    def _fail(self, execution: Execution) -> None:
        now = self.now()
        status = st.QNN_COMMON_ERROR_SYSTEM_COMMUNICATION.code
        text = "the device was closed" if self._closing else f"the device process went away{self._last_words()}"
        execution._complete(Record(execution.job, status, 0, now, now, now, 0, 0, 0), text)
