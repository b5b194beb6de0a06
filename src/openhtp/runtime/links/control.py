"""Requests to the device's process and their answers, matched by number.

A separate thread reads the answers. It is never interrupted, so an answer is never lost half-way, and its
descriptors are closed if nobody wants them. A caller that is interrupted while it waits leaves the connection
intact.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import socket
import threading
import time
from typing import TYPE_CHECKING

from openhtp.core import status as st, tidying
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.locks import make_lock
from openhtp.core.threads import OwnThread
from openhtp.rpc import channel, messages as ms
from openhtp.rpc.channel import Disconnected
from openhtp.rpc.messages import read_reply
from openhtp.runtime.links.link import Undo, raise_reply

if TYPE_CHECKING:
    from openhtp.runtime.calls.long_call import CallStop

log = logging.getLogger(__name__)

# After a signal ended the waiting, the caller stays this long, so that the device can give back what it made.
GRACE_S = 0.03


class NoAnswer(Disconnected):
    """No answer came in the allotted time."""


class _Question:
    """One request under way."""

    __slots__ = ("answered", "data", "forsaken", "news", "reply", "undos")

    def __init__(self, undo: Undo | None) -> None:
        self.answered = False
        self.news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.reply: ms.Reply | None = None
        self.data = b""  # came beside the reply
        self.forsaken = False
        self.undos = [] if undo is None else [undo]

    def answer(self) -> None:
        """Let the waiting thread go on."""
        self.answered = True
        self.news.put(None)

    def wait(self, patience_s: float | None) -> bool:
        """Wait for the answer; False if the time ran out."""
        until_s = None if patience_s is None else time.monotonic() + patience_s
        while not self.answered:
            left_s = None if until_s is None else until_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            with contextlib.suppress(queue.Empty):
                self.news.get(timeout=left_s)
        return True


class Control:
    """The client's end of a control socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._turn = make_lock("control")
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Question] = {}
        self._over = False
        self._thread = OwnThread(self._read, name="openhtp-replies")
        self._thread.start()

    def ask(
        self,
        message: ms.Request,
        descriptors: tuple[int, ...] = (),
        undo: Undo | None = None,
        patience_s: float | None = None,
        stop: CallStop | None = None,
    ) -> ms.Reply:
        """Send a request and wait for its answer; raises the error in it, or Disconnected."""
        return self._ask(message, descriptors, _Question(undo), patience_s, stop)

    def fetch(self, message: ms.Request, descriptors: tuple[int, ...] = ()) -> bytes:
        """Ask for something that comes in shared memory."""
        question = _Question(None)
        self._ask(message, descriptors, question)
        return question.data

    def tell(self, message: ms.Request) -> None:
        """Send a request without waiting; its answer is thrown away."""
        with contextlib.suppress(Disconnected, OSError):
            channel.send(self.sock, self._encode(message, next(self._numbers)), ())

    def shut(self) -> None:
        """End the connection; waiting threads are woken."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the socket back, once nothing reads from it."""
        self.shut()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self.sock.close()

    def leave_to_parent(self) -> None:
        """In the child of a fork: close only this copy of the socket."""
        self._over = True
        self._turn = make_lock("control")
        self._asked = {}
        self.sock.close()

    def _ask(
        self,
        message: ms.Request,
        descriptors: tuple[int, ...],
        question: _Question,
        patience_s: float | None = None,
        stop: CallStop | None = None,
    ) -> ms.Reply:
        number = next(self._numbers)
        data = self._encode(message, number)
        try:
            with self._turn:
                self._asked[number] = question
                if self._over:
                    raise Disconnected("the connection is over")
                channel.send(self.sock, data, descriptors)
            if stop is not None:
                self._wait_or_stop(number, question, stop)
            elif not question.wait(patience_s):
                raise NoAnswer(f"no answer within {patience_s} s")
            reply = question.reply
            if reply is None:
                raise Disconnected("end of connection")
            # The last step here: a caller that is interrupted later has the reply in hand.
            return raise_reply(reply)
        except BaseException:
            tidying.post((self._forsake, (number, question)))
            raise

    def _wait_or_stop(self, number: int, question: _Question, stop: CallStop) -> None:
        """Wait for the answer. If the call should end before the answer comes, the device's work ends, too."""
        try:
            stop.wait(question.news, lambda: question.answered)
        except QnnError:
            self.tell(ms.Cancel(request=number))
            question.wait(GRACE_S)
            raise

    @staticmethod
    def _encode(message: ms.Request, number: int) -> bytes:
        """Bytes of a request that the device will be able to read, or an error before anything is sent."""
        # Devices of any version read a greeting; numbers came later.
        message.number = 0 if isinstance(message, ms.Hello) else number
        kind = type(message).__name__
        try:
            data = ms.encode(message)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidArgument(f"{kind} cannot be sent: {error}") from error
        if len(data) > channel.MAX_MESSAGE:
            raise InvalidArgument(
                f"{kind} of {len(data)} bytes; a request has at most {channel.MAX_MESSAGE}: use shorter names",
                st.QNN_COMMON_ERROR_INVALID_ARGUMENT,
            )
        return data

    # On threads that are never interrupted

    def _forsake(self, number: int, question: _Question) -> None:
        """Nobody waits for this answer any more: undo what the request made, now or when the answer comes."""
        question.forsaken = True
        if question.reply is not None:
            self._take_back(question)
        elif number in self._asked:
            self.tell(ms.Cancel(request=number))

    def _take_back(self, question: _Question) -> None:
        reply = question.reply
        assert reply is not None
        try:
            undo = question.undos.pop()
        except IndexError:
            return
        if not reply.error:
            self.tell(undo(reply))

    def _read(self) -> None:
        try:
            while True:
                self._deliver(*channel.receive(self.sock))
        except Disconnected:
            pass
        except BaseException:
            log.exception("reading the device's answers")
            self.shut()
        self._over = True
        while self._asked:
            with contextlib.suppress(KeyError):
                self._asked.popitem()[1].answer()

    def _deliver(self, packet: bytes, descriptors: list[int]) -> None:
        reply, data = read_reply(packet, descriptors)
        # The first answer is the reply to the greeting, which has no number.
        question = self._asked.pop(reply.number or 1, None)
        if question is None:
            return
        question.data = data
        question.reply = reply
        question.answer()
        if question.forsaken:
            self._take_back(question)
