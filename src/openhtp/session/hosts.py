"""The emulated HTPs that sessions run on: one per kind, shared, so that sessions contend as on a phone."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openhtp.core import status as st, tidying
from openhtp.core.errors import QnnError, UnsupportedFeature
from openhtp.core.threads import finish
from openhtp.runtime.instruments.saving_calls import stop_saving
from openhtp.runtime.objects.backend import Backend
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.op_packages import found_packages

if TYPE_CHECKING:
    from openhtp.runtime.objects.context import Context
    from openhtp.runtime.objects.power import PowerConfig
    from openhtp.session.options import SessionRequest


@dataclass(frozen=True, slots=True)
class HostKind:
    """The settings with which a device is started."""

    soc: str
    threads: int
    transport: str
    # Path of the vendor's library, when that is the device.
    library: str | None = None
    # Under which processes share it; None for this process's own.
    name: str | None = None


def host_kind(request: SessionRequest) -> HostKind:
    """The device that is asked for."""
    # A CPU backend has no half precision and no device of its own.
    transport = "inprocess" if request.options.backend == "cpu" else request.transport
    threads = max(1, request.sess_options.intra_op_num_threads)
    return HostKind(request.soc, threads, transport, request.options.library, request.device_name)


class _Host:
    """A device, and a claim for each session that stays on it. Claims are a set, so leaving twice does no harm."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.stays: set[_Claim] = set()


class _Claim:
    """The resources of a stay."""

    def __init__(self, kind: HostKind) -> None:
        self.kind = kind
        self.context: Context | None = None
        # Under which other stays have the same context; empty if it is this stay's own.
        self.shared_as = ""
        self.power: PowerConfig | None = None
        self.saves: list[bool] = []


_lock = threading.Lock()
_backends: dict[str | None, Backend] = {}
devices: dict[HostKind, _Host] = {}
# Contexts that sessions share, by device and source, each with the claims of its sessions.
_shared: dict[tuple[HostKind, str], tuple[Context, set[_Claim]]] = {}


class Stay:
    """One session's stay on a device, with what the session has there. Make it, then begin it.

    It ends with ``end``, at the latest when it is dropped.
    """

    def __init__(self, kind: HostKind) -> None:
        self.kind = kind
        self.claim = _Claim(kind)
        # For finalizers, which the garbage collector may run on any thread: end the stay soon, and wait for
        # nothing.
        self.leave = weakref.finalize(self, tidying.post, (_end, (self.claim,)))
        self.leave.atexit = False  # backends are freed then

    def begin(self) -> Device:
        """The device of this kind, started if no session has it yet."""
        kind = self.kind
        with _lock:
            host = devices.get(kind)
            if host is None:
                host = devices[kind] = finish(
                    functools.partial(_started, kind), name="openhtp-host", discard=lambda late: late.device.free()
                )
            host.stays.add(self.claim)
            return host.device

    def share(self, key: str, make: Callable[[], Context]) -> Context:
        """The context that stays on this device share under a key: made for the first, freed with the last."""
        fresh: Context | None = None
        while True:
            with _lock:
                context, claims = _shared.get((self.kind, key), (fresh, set()))
                if context is not None and context.is_usable:
                    claims.add(self.claim)
                    self.claim.context, self.claim.shared_as = context, key
                    _shared[self.kind, key] = context, claims
                    break
                _shared.pop((self.kind, key), None)  # its device went away, and the claims free it
            fresh = make()
        if fresh is not None and fresh is not context:
            fresh.free()  # another session was quicker
        return context

    def end(self) -> None:
        """Give everything back; the device ends with its last session. A second call does nothing."""
        tidying.post((_end, (self.claim,)))
        tidying.flush()


def _backend_of(library: str | None) -> Backend:
    if library not in _backends:
        _backends[library] = Backend(library)
    return _backends[library]


def lend_packages(library: str | None, sources: Iterable[object]) -> Callable[[], None]:
    """Let sessions of this process use op packages; return the function that ends the use."""
    packages = found_packages(sources)
    if packages and library is not None:
        raise UnsupportedFeature(
            "op_packages are for the emulator; the vendor's library takes packages of Hexagon code only",
            st.QNN_BACKEND_ERROR_NOT_SUPPORTED,
        )
    with contextlib.ExitStack() as undoing, _lock:
        for package in packages:
            undoing.callback(_backend_of(None).op_packages.lend(package))
        return undoing.pop_all().close


def _started(kind: HostKind) -> _Host:
    backend = _backend_of(kind.library)
    # The vendor's library has its own idea of threads.
    threads = kind.threads if kind.library is None else 1
    return _Host(backend.create_device(soc=kind.soc, name=kind.name, threads=threads, transport=kind.transport))


def _end(claim: _Claim) -> None:
    """On a thread that is never interrupted."""
    context, claim.context = claim.context, None
    if context is not None and claim.shared_as and not _was_last(claim, context):
        context = None
    power, claim.power = claim.power, None
    # Either may be gone already, with its device.
    with contextlib.suppress(QnnError):
        if power is not None:
            power.destroy()
    with contextlib.suppress(QnnError):
        if context is not None:
            context.free()
    if claim.saves:
        claim.saves.clear()
        stop_saving()
    with _lock:
        host = devices.get(claim.kind)
        if host is None:
            return
        host.stays.discard(claim)
        if host.stays:
            return
        del devices[claim.kind]
    with contextlib.suppress(QnnError):  # the backend was freed at exit, and the device with it
        host.device.free()


def _was_last(claim: _Claim, context: Context) -> bool:
    """Give up the claim on a shared context; return whether no other stay has one."""
    with _lock:
        shared, claims = _shared.get((claim.kind, claim.shared_as), (None, set()))
        if shared is not context:
            return True  # it went with its device, and was replaced
        claims.discard(claim)
        if not claims:
            del _shared[claim.kind, claim.shared_as]
        return not claims


def _start_anew() -> None:
    """In the child of a fork: the devices in the tables are the parent's."""
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _backends.clear()
    devices.clear()
    _shared.clear()


os.register_at_fork(after_in_child=_start_anew)
