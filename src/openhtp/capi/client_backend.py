"""Backends of clients in C: their functions are called without the interpreter's lock (``native/delivery.h``).

If a client's thread and its notifications both needed that lock, they would hand it over twice in every execution.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import queue
from collections import deque
from collections.abc import Callable
from typing import Any

from openhtp.capi.native_calls import natives
from openhtp.runtime.calls.call import Call
from openhtp.runtime.calls.notify import EndedCall, Notification, Notifier, Posted
from openhtp.runtime.calls.queue import CallbackReturn, Places
from openhtp.runtime.objects.backend import Backend

_NOTIFY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)
_MOST_KEPT = 64
# Why the delivery of notifications comes back to Python, as in native/delivery.h.
_PYTHONS_TURN, _AWAITED, _SLOW = range(3)
_NICENESS_OF_CALLER = 99


class ClientFunction:
    """A client's function that is notified of the end of an execution, and its argument."""

    __slots__ = ("address", "param")

    def __init__(self, address: int, param: int) -> None:
        self.address = address
        self.param = param

    def __call__(self, _: object, status: int) -> None:
        """Call the function from Python, for ends at which Python has work to do first."""
        _called(self.address)(self.param, status)

    def __repr__(self) -> str:
        return f"<function of the client at {self.address:#x}>"


@functools.lru_cache(maxsize=_MOST_KEPT)
def _called(address: int) -> Any:
    return _NOTIFY(address)


class NativeDelivery:
    """A queue of notices in C."""

    def __init__(self) -> None:
        self._calls = natives[0].delivery
        self._queue = self._calls.make()
        if not self._queue:
            raise MemoryError("no memory for a queue of notifications")
        self._counts = (ctypes.c_uint64 * 5).from_address(self._queue)
        self.put = functools.partial(self._calls.put, self._queue)
        self.deliver = functools.partial(self._calls.deliver, self._queue)
        self.await_returns = functools.partial(self._calls.await_returns, self._queue)
        self.drop = functools.partial(self._calls.drop, self._queue)

    def returned(self) -> tuple[int, int]:
        """How many clients' functions have returned, and when the last one did."""
        counts = self._counts
        return counts[0], counts[1]

    def expect(self, at_ns: int) -> None:
        """The next notice is expected then."""
        self._counts[4] = at_ns

    def slow(self) -> tuple[int, int]:
        """The function that took long, and how long."""
        return self._counts[2], self._counts[3]

    def __del__(self) -> None:
        if self._queue:
            self._calls.free(self._queue)


class ClientNotifier(Notifier):
    """A notifier whose thread is outside the interpreter, except for work that has to be done in Python."""

    def __init__(self) -> None:
        super().__init__()
        self._delivery = NativeDelivery()
        self._last_number = 0
        self._awaiting: set[Places] = set()
        # Where there is one processor, whoever looks keeps from working whom it looks for.
        self._looks = len(os.sched_getaffinity(0)) > 1

    def returned(self) -> tuple[int, int]:
        """The number of the last client's function that has returned, and when that was."""
        return self._delivery.returned()

    def await_return(self, number: int, places: Places) -> int:
        """Have places look again when this function has returned; the number of the last that has."""
        self._awaiting.add(places)
        last: int = self._delivery.await_returns(number)
        return last

    def expect(self, at_ns: int) -> None:
        """The next notification is expected then: be awake for it."""
        if self._looks:
            self._delivery.expect(at_ns)

    def tell(self, function: Callable[..., object], status: int, after: Callable[[], object]) -> None:
        """Run a function soon, with the urgency of this thread; a client's function is queued in C."""
        if type(function) is ClientFunction and type(after) is CallbackReturn:
            self._put_notice(function, status, _NICENESS_OF_CALLER, after)
            if self.thread is None:
                self._ensure_thread()
        else:
            super().tell(function, status, after)

    def post_ends(self, calls: deque[EndedCall]) -> None:
        """Notify of each by itself: a client's functions are called in C."""
        for call in calls:
            assert isinstance(call, Call)
            notification = Notification(call.notify, call.niceness, 0, call.link.now)  # type: ignore[arg-type]
            self.post(notification, call.notify_param, 0, after=CallbackReturn(call.places, call))

    def _put(self, item: Posted | None) -> None:
        if item is not None:
            notification, arguments, after = item
            if (
                isinstance(notification, Notification)
                and isinstance(notification.function, ClientFunction)
                and isinstance(after, CallbackReturn)
                and not notification.timeout_at
            ):
                self._put_notice(notification.function, arguments[1], notification.niceness, after)
                return
        self._queue.put(item)
        self._delivery.put(None, None, 0, 0)

    def _put_notice(self, function: ClientFunction, status: object, niceness: int, after: CallbackReturn) -> None:
        number = self._delivery.put(function.address, function.param, status, niceness)
        if not number:
            raise MemoryError("no memory for a notification")
        self._last_number = number
        after.places.noticed(after.holder, number, self)

    def _next(self) -> Posted | deque[EndedCall] | None:
        while True:
            why = self._delivery.deliver()
            if why == _SLOW:
                address, took_ns = self._delivery.slow()
                self._report_slow(ClientFunction(address, 0), took_ns)
            if why != _PYTHONS_TURN:
                return self._wake, (), None
            with contextlib.suppress(queue.Empty):  # if it was dropped
                return self._queue.get_nowait()

    def _wake(self) -> None:
        awaiting, self._awaiting = self._awaiting, set()
        for places in awaiting:
            places.look_again()

    def _is_empty(self) -> bool:
        # Functions that have not returned are awaited: then the thread comes back, and may end.
        return super()._is_empty() and self._delivery.await_returns(self._last_number) >= self._last_number

    def _drop(self) -> int:
        return super()._drop() + int(self._delivery.drop())


class ClientBackend(Backend):
    """A backend that the C library makes for its client."""

    _notifier_kind = ClientNotifier
