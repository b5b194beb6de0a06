"""How a call is interrupted: what a signal is for the call that carries it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from openhtp.core import status as st
from openhtp.core.errors import Aborted, QnnError, QueueFull, TimedOut, WrongState
from openhtp.core.locks import make_lock
from openhtp.runtime.objects.lifecycle import Life, State

if TYPE_CHECKING:
    from openhtp.runtime.links.link import Link


class Waiting(Protocol):
    """Where a call waits that a signal may end."""

    def wake_all(self) -> None:
        """Let everybody who waits look again."""


class Interrupt:
    """Serves one call at a time, from ``begin`` to ``end``."""

    def __init__(self, life: Life, timeout_us: int | None) -> None:
        self.timeout_us = timeout_us
        # The call that carries it.
        self.holder: object = None
        self._life = life
        self._lock = make_lock("signal")
        self._triggered = False
        self._target: tuple[Link, int] | None = None
        self._waiting_at: Waiting | None = None

    def trigger(self) -> None:
        """Abort the call, wherever it is."""
        with self._lock:
            if self.holder is None:
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
        """Serve no more calls; refused while one carries it."""
        with self._lock:
            if self.holder is not None:
                raise WrongState("the signal is in use", st.QNN_SIGNAL_ERROR_SIGNAL_IN_USE)
            self._life.end(State.FREED)

    @property
    def is_triggered(self) -> bool:
        """Whether the call that carries it was aborted."""
        return self._triggered

    def begin(self, holder: object, waiting_at: Waiting) -> None:
        """Serve a call that may have to wait there."""
        self._life.require("use")
        with self._lock:
            if self.holder is not None:
                raise WrongState(
                    "the signal is already in use by another call; create one signal per queued call",
                    st.QNN_GRAPH_ERROR_SIGNAL_IN_USE,
                )
            self._triggered = False
            self._target = None
            self._waiting_at = waiting_at
            self.holder = holder

    def interruption(self, now_ns: int, deadline_ns: int | None) -> QnnError | None:
        """Why the call should not wait for a place any longer, if it should not."""
        if self._triggered:
            return Aborted("aborted by its signal while waiting for a place in the queue")
        if deadline_ns is not None and now_ns >= deadline_ns:
            return TimedOut(f"no place in the queue within {self.timeout_us} us")
        return None

    def attach(self, holder: object, link: Link, job: int) -> None:
        """The call was sent: from now on it can be cancelled on the device."""
        with self._lock:
            if self.holder is not holder:
                return  # it is over already
            self._waiting_at = None
            self._target = (link, job)
            triggered = self._triggered
        if triggered:  # between taking the place and being sent
            link.cancel(job)

    def end(self, holder: object) -> None:
        """Let go of the signal if it is this call's; twice does nothing."""
        with self._lock:
            if self.holder is holder:
                self.holder = self._target = self._waiting_at = None


class Impatience(Interrupt):
    """What a call carries that must not wait at all."""

    def interruption(self, now_ns: int, deadline_ns: int | None) -> QnnError | None:
        """The queue is full: that is enough."""
        return QueueFull("the queue is full, and the call must not wait")
