"""Signals: handles by which a call is cut short."""

from __future__ import annotations

from openhtp.abi import memory
from openhtp.abi.structs import struct
from openhtp.capi import handles
from openhtp.capi.backend import BackendHeld
from openhtp.capi.entries import answers
from openhtp.capi.handles import HandleEntry
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, WrongState
from openhtp.core.option_numbers import SignalOption
from openhtp.runtime.objects.signal import Signal


class SignalHeld(HandleEntry):
    """A signal."""

    word, invalid = "signal", st.QNN_SIGNAL_ERROR_INVALID_HANDLE

    def __init__(self, backend: BackendHeld, timeout_us: int | None) -> None:
        super().__init__(backend)
        self.signal: Signal = backend.backend.create_signal(timeout_us)


def signal_at(handle: int) -> Signal | None:
    """The signal that a call carries; NULL stands for none."""
    return handles.find(SignalHeld, handle).signal if handle else None


def _timeout(config: int) -> int | None:
    """The timeout of a configuration; None for an abort signal, which is the default."""
    timeout: int | None = None
    for address in memory.pointers(config, "the signal's configuration"):
        entry = memory.structure(struct("Config"), address, "the signal's configuration")
        if entry.option == SignalOption.TIMEOUT:
            timeout = entry.of.number64
        elif entry.option != SignalOption.ABORT:
            raise InvalidArgument(f"signal option {entry.option} is unknown; expected abort (1) or timeout (2)")
    return timeout


@answers("signalCreate")
def signal_create(backend: int, config: int, out: int) -> None:
    """An abort signal, or one that triggers itself."""
    owner = handles.find(BackendHeld, backend)
    handles.require_place(out, "signal")
    handles.give(out, SignalHeld(owner, _timeout(config)))


@answers("signalSetConfig")
def signal_set_config(signal: int, config: int) -> None:
    """Change the kind of a signal that no call carries."""
    entry = handles.find(SignalHeld, signal)
    if entry.signal.in_use:
        raise WrongState("the signal is in use", st.QNN_SIGNAL_ERROR_SIGNAL_IN_USE)
    assert isinstance(entry.parent, BackendHeld)
    entry.signal = entry.parent.backend.create_signal(_timeout(config))


@answers("signalTrigger")
def signal_trigger(signal: int) -> None:
    """Cut short the call that carries the signal."""
    handles.find(SignalHeld, signal).signal.trigger()


@answers("signalFree")
def signal_free(signal: int) -> None:
    """Free a signal; refused while a call carries it."""
    entry = handles.find(SignalHeld, signal)
    entry.signal.free()
    handles.remove(entry)
