"""Signals: a handle on one call, to abort it or to bound its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openhtp.core import status as st
from openhtp.core.errors import Aborted, QnnError, QueueFull, TimedOut, WrongState
from openhtp.core.limits import MAX_WAIT_US
from openhtp.runtime.lifecycle import Life, State
from openhtp.runtime.locks import make_lock
from openhtp.runtime.options import check_count

if TYPE_CHECKING:
    from openhtp.runtime.calls.queue import Places
    from openhtp.runtime.links.link import Link


# A day: longer than any execution, and well within what a poll of the device can wait.


class Signal:
    """An abort signal, or a timeout signal if ``timeout_us`` (a day at most) is given. Serves one call at a time.

    States: *idle*, *in use* from a call that carries it until that call's end. It can then be used again.
    """

    def __init__(self, timeout_us: int | None = None) -> None:
        if timeout_us is not None:
            timeout_us = check_count(
                "timeout_us", timeout_us, MAX_WAIT_US, status=st.QNN_SIGNAL_ERROR_INVALID_ARGUMENT
            )
        self.timeout_us = timeout_us
        self._life = Life("signal", "")
        self._lock = make_lock("signal")
        # The call that carries it.
        self._holder: object = None
        self._triggered = False
        self._target: tuple[Link, int] | None = None
        self._waiting_at: Places | None = None

    @property
    def in_use(self) -> bool:
        """Whether a call carries it now."""
        return self._holder is not None

    def trigger(self) -> None:
        """Abort the call that carries this signal. The execution that runs may still finish."""
        self._life.require("use")
        if self.timeout_us is not None:
            raise WrongState(
                "a timeout signal triggers itself; create a signal without timeout_us to abort",
                st.QNN_SIGNAL_ERROR_INCOMPATIBLE_SIGNAL_TYPE,
            )
        with self._lock:
            if self._holder is None:
                raise WrongState(
                    "no call carries this signal, so there is nothing to abort",
                    st.QNN_SIGNAL_ERROR_SIGNAL_IDLE,
                )
            self._triggered = True
            target, waiting_at = self._target, self._waiting_at
        if waiting_at is not None:
            waiting_at.wake_all()
        if target is not None:
            target[0].cancel(target[1])

    def free(self) -> None:
        """Give the signal back; refused while a call carries it."""
        self._life.require("free")
        with self._lock:
            if self._holder is not None:
                raise WrongState("the signal is in use", st.QNN_SIGNAL_ERROR_SIGNAL_IN_USE)
            self._life.become(State.FREED)

    # What the call that carries it does

    def _begin(self, holder: object, places: Places) -> None:
        self._life.require("use")
        with self._lock:
            if self._holder is not None:
                raise WrongState(
                    "the signal is already in use by another call; create one signal per queued call",
                    st.QNN_GRAPH_ERROR_SIGNAL_IN_USE,
                )
            self._triggered = False
            self._target = None
            self._waiting_at = places
            self._holder = holder

    def _interruption(self, now_ns: int, deadline_ns: int | None) -> QnnError | None:
        """Why the call should not wait for a place any longer, if it should not."""
        if self._triggered:
            return Aborted("aborted by its signal while waiting for a place in the queue")
        if deadline_ns is not None and now_ns >= deadline_ns:
            return TimedOut(f"no place in the queue within {self.timeout_us} us")
        return None

    def _attach(self, holder: object, link: Link, job: int) -> None:
        with self._lock:
            if self._holder is not holder:
                return  # it is over already
            self._waiting_at = None
            self._target = (link, job)
            triggered = self._triggered
        if triggered:  # between taking the place and being sent
            link.cancel(job)

    def _end(self, holder: object) -> None:
        """Let go of the signal if it is this call's; twice does nothing."""
        with self._lock:
            if self._holder is holder:
                self._holder = self._target = self._waiting_at = None

    def __repr__(self) -> str:
        kind = "abort" if self.timeout_us is None else f"timeout of {self.timeout_us} us"
        state = "in use" if self.in_use else "idle" if self._life.state is State.LIVE else self._life.state.value
        return f"<Signal: {kind}, {state}>"


class AtOnce(Signal):
    """Carried by a call that must not wait: without a free place in the queue it raises QueueFull."""

    def _interruption(self, now_ns: int, deadline_ns: int | None) -> QnnError | None:
        return QueueFull("the queue is full, and the call must not wait")
