"""The emulated HTPs that sessions run on: one per kind, shared, so that sessions contend as on a phone."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from openhtp.core.errors import QnnError
from openhtp.runtime.backend import Backend
from openhtp.runtime.device import Device


@dataclass(frozen=True, slots=True)
class HostKind:
    """What a device is started with."""

    soc: str
    threads: int
    transport: str
    # Path of the vendor's library, when that is the device.
    library: str | None = None
    # Under which processes share it; None for this process's own.
    name: str | None = None


_lock = threading.Lock()
_backends: dict[str | None, Backend] = {}
_devices: dict[HostKind, tuple[Device, int]] = {}


def acquire(kind: HostKind) -> Device:
    """The device of this kind, started if no session has it yet."""
    with _lock:
        held = _devices.get(kind)
        if held is None:
            if kind.library not in _backends:
                _backends[kind.library] = Backend(kind.library)
            backend = _backends[kind.library]
            # The vendor's library has its own idea of threads.
            threads = kind.threads if kind.library is None else 1
            held = (
                backend.create_device(soc=kind.soc, name=kind.name, threads=threads, transport=kind.transport),
                0,
            )
        _devices[kind] = (held[0], held[1] + 1)
        return held[0]


def _start_anew() -> None:
    """In the child of a fork: what is in the tables is the parent's."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _backends.clear()
    _devices.clear()


os.register_at_fork(after_in_child=_start_anew)


def release(kind: HostKind) -> None:
    """A session is over; the device ends with its last."""
    with _lock:
        held = _devices.get(kind)
        if held is None:
            return
        device, users = held
        if users > 1:
            _devices[kind] = (device, users - 1)
            return
        del _devices[kind]
    try:
        device.free()
    except QnnError:
        # The backend was freed at exit, and the device with it.
        return
