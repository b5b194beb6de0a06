"""Signals: a handle on one call, to abort it or to bound its time."""

from __future__ import annotations

from openhtp.core import status as st
from openhtp.core.errors import WrongState
from openhtp.core.limits import MAX_WAIT_US
from openhtp.runtime.calls.long_call import Impatience, Interrupt
from openhtp.runtime.instruments.instrument import hooked
from openhtp.runtime.objects.argument_checks import check_count
from openhtp.runtime.objects.lifecycle import Life, State


@hooked(trigger="signal_trigger", free="free")
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
        self.interrupt = Interrupt(self._life, timeout_us)

    @property
    def in_use(self) -> bool:
        """Whether a call carries it now."""
        return self.interrupt.holder is not None

    def trigger(self) -> None:
        """Abort the call that carries this signal. The execution that runs may still finish."""
        self._life.require("use")
        if self.timeout_us is not None:
            raise WrongState(
                "a timeout signal triggers itself; create a signal without timeout_us to abort",
                st.QNN_SIGNAL_ERROR_INCOMPATIBLE_SIGNAL_TYPE,
            )
        self.interrupt.trigger()

    def free(self) -> None:
        """Give the signal back; refused while a call carries it."""
        self._life.require("free")
        self.interrupt.free()

    def __repr__(self) -> str:
        kind = "abort" if self.timeout_us is None else f"timeout of {self.timeout_us} us"
        state = "in use" if self.in_use else "idle" if self._life.state is State.LIVE else self._life.state.value
        return f"<Signal: {kind}, {state}>"


class AtOnce(Signal):
    """Carried by a call that must not wait: it raises QueueFull if the queue has no free place."""

    def __init__(self) -> None:
        super().__init__()
        self.interrupt = Impatience(self._life, None)
