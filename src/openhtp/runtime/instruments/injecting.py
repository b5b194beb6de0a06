"""Injects faults: while some are armed, the calls that they concern go through this module, and only those.

A subsystem restart is real where the device has a process of its own: the process is killed. A device in this
process is given up and made anew, with the same consequences. Calls that no fault concerns do not pass here.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, cast

from openhtp.core.errors import DeviceLost, InternalError, OutOfMemory, QnnError, WrongState
from openhtp.core.faults import MOST_KEPT, Fault, FaultKind, FaultPlan, MetFault, parse_faults
from openhtp.core.threads import OwnThread
from openhtp.options import OptionValues
from openhtp.program.binary import ContextBinary, read_binary
from openhtp.program.container import PREAMBLE_BYTES
from openhtp.rpc import messages as ms
from openhtp.rpc.frames import Record
from openhtp.runtime.binaries.load import StoredContext
from openhtp.runtime.calls.call import Call
from openhtp.runtime.calls.execution import Execution, complete
from openhtp.runtime.calls.notify import Notifier
from openhtp.runtime.instruments.instrument import Hook, Instrument
from openhtp.runtime.links.link import Link, Sent
from openhtp.runtime.objects.backend import FAULTS_VARIABLE, Backend
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.device import Device, has_lost, lose_link
from openhtp.runtime.objects.graph import Graph

log = logging.getLogger(__name__)

# How long a device may take to notice that its process is gone.
_PATIENCE_S = 60.0
_LOOK_S = 0.001


_lock = threading.Lock()
_armed: list[FaultPlan] = []
_history: deque[MetFault] = deque(maxlen=MOST_KEPT)


@contextlib.contextmanager
def injected(text: str, source: str = "faults") -> Iterator[FaultPlan]:
    """Let calls of this process meet faults while the block runs; the plan's ``met`` lists those that did."""
    plan = FaultPlan(parse_faults(text, source))
    instrument = _arm(plan)
    try:
        yield plan
    finally:
        instrument.remove()
        _armed.clear()


def arm_for_good(text: str) -> None:
    """Let calls meet faults until the process ends, as the environment asks. A second call does nothing."""
    if not _armed:
        _arm(FaultPlan(parse_faults(text, FAULTS_VARIABLE)))


def met_since(t_ns: int) -> list[MetFault]:
    """Calls that met faults from a time on."""
    return [met for met in list(_history) if met.t_ns >= t_ns]


def _arm(plan: FaultPlan) -> Instrument:
    with _lock:
        if _armed:
            raise WrongState(
                "faults are armed already, by another block or the environment; end that first, or give all in one"
            )
        _armed.append(plan)
    instrument = Instrument(
        {name: functools.partial(hook, plan) for name, (points, hook) in _HOOKS.items() if plan.points & points}
    )
    instrument.install()
    return instrument


# What happens


def _met(plan: FaultPlan, point: str) -> list[Fault]:
    """Count a call. The faults that it meets are logged, and kept for traces."""
    reached = plan.reached(point, time.monotonic_ns())
    _history.extend(reached)
    for met in reached:
        log.warning("fault injected: %s, at call %d", met.fault.text, met.call)
    return [met.fault for met in reached]


def _meet(plan: FaultPlan, point: str, device: Device | None) -> None:
    """Let a call other than an execution meet its faults."""
    for fault in _met(plan, point):
        if fault.kind is FaultKind.SLOW:
            time.sleep(fault.delay_ns / 1e9)
            continue
        if fault.kind is FaultKind.SSR and device is not None:
            restart(device)
        raise _error(fault)


def _error(fault: Fault) -> QnnError:
    kinds: dict[FaultKind, type[QnnError]] = {FaultKind.OOM: OutOfMemory, FaultKind.SSR: DeviceLost}
    return kinds.get(fault.kind, QnnError)(f"injected by {fault.text!r}", fault.status)


def restart(device: Device) -> None:
    """Kill a device's process, and wait until the device has noticed. A shared device must allow faults."""
    link = device.link
    if device.name is not None:
        link.request(ms.Inject())
    if link.pid == os.getpid():
        lose_link(device, link)
        return
    with contextlib.suppress(ProcessLookupError):
        watched = os.pidfd_open(link.pid)
        try:
            os.kill(link.pid, signal.SIGKILL)
            select.select([watched], [], [], _PATIENCE_S)
        finally:
            os.close(watched)
    until = time.monotonic() + _PATIENCE_S
    while not has_lost(device, link):
        if time.monotonic() > until:
            raise InternalError(f"device process {link.pid} was killed, and its device did not notice")
        time.sleep(_LOOK_S)


class _FaultyLink:
    """The link of one execution, on which the execution meets its fault."""

    def __init__(self, link: Link, fault: Fault, device: Device) -> None:
        self._link = link
        self._fault = fault
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def submit(self, execution: Execution, frame: bytes, sent: Sent) -> None:
        """Send the execution late, or let it end before it is sent."""
        if not self._happens(execution):
            self._link.submit(execution, frame, sent)

    def forward(self, execution: Execution, frame: bytes, sent: Sent) -> None:
        """Submit a delayed execution on a thread that may wait: the present thread completes executions."""
        OwnThread(self.submit, execution, frame, sent, name="openhtp-fault").start()

    def run_here(self, execution: Execution, frame: bytes, *, if_short: bool = False) -> bool:
        """An execution meets its fault where it is sent."""
        return False

    def run(self, execution: Execution, frame: bytes, sent: Sent) -> None:
        """Send an execution late and wait for it, or let it end before it is sent."""
        if not self._happens(execution):
            self._link.run(execution, frame, sent)

    def _happens(self, execution: Execution) -> bool:
        fault = self._fault
        if fault.kind is FaultKind.SLOW:
            time.sleep(fault.delay_ns / 1e9)
            return False
        if fault.kind is FaultKind.SSR:
            restart(self._device)
        assert fault.status is not None
        now = self._link.now()
        record = Record.of_moment(execution.job, fault.status.code, now)
        complete(execution, record, f"injected by {fault.text!r}")
        return True


# Where it happens


def _creating_devices(plan: FaultPlan, proceed: Hook, self: Backend, **options: Any) -> Device:
    _meet(plan, "deviceCreate", None)
    return cast(Device, proceed(self, **options))


def _opening_contexts(
    plan: FaultPlan,
    proceed: Hook,
    self: Device,
    chosen: OptionValues,
    source: StoredContext | None = None,
    *rest: Any,
) -> Context:
    _meet(plan, "contextCreate", self)
    if source is not None:
        _meet(plan, "contextCreateFromBinary", self)
    return cast(Context, proceed(self, chosen, source, *rest))


def _finalizing(plan: FaultPlan, proceed: Hook, self: Graph, **options: Any) -> None:
    self.life.require("finalize")
    _meet(plan, "graphFinalize", self.context.device)
    proceed(self, **options)


def _registering(plan: FaultPlan, proceed: Hook, self: Context, *args: Any, **options: Any) -> Any:
    self.opened.life.require("use")
    _meet(plan, "memRegister", self.device)
    return proceed(self, *args, **options)


def _executing(plan: FaultPlan, proceed: Hook, self: Graph, call: Call) -> Execution:
    faults = _met(plan, "graphExecute")
    if not call.synchronous:
        faults += _met(plan, "graphExecuteAsync")
    for fault in faults:
        call.link = cast(Link, _FaultyLink(call.link, fault, self.context.device))
    return cast(Execution, proceed(self, call))


def _notifying(
    plan: FaultPlan,
    proceed: Hook,
    self: Notifier,
    function: Callable[..., object],
    *args: object,
    after: Callable[[], object] | None = None,
) -> None:
    faults = _met(plan, "notify")
    if faults:
        proceed(self, _late, faults, function, args, after=after)
    else:
        proceed(self, function, *args, after=after)


def _late(faults: list[Fault], function: Callable[..., object], args: tuple[object, ...]) -> None:
    time.sleep(sum(fault.delay_ns for fault in faults) / 1e9)
    function(*args)


def _restoring(
    plan: FaultPlan, proceed: Hook, self: Device, parsed: ContextBinary, *args: Any, **rest: Any
) -> Context:
    if _met(plan, "binary"):
        data = bytearray(parsed.source.read(0, parsed.source.nbytes))
        data[PREAMBLE_BYTES] ^= 0xFF
        parsed = read_binary(bytes(data))
    return cast(Context, proceed(self, parsed, *args, **rest))


# Hooks, and the points that calls reach in them.
_HOOKS: dict[str, tuple[set[str], Callable[..., Any]]] = {
    "device_create": ({"deviceCreate"}, _creating_devices),
    "context_open": ({"contextCreate", "contextCreateFromBinary"}, _opening_contexts),
    "context_restore": ({"binary"}, _restoring),
    "graph_finalize": ({"graphFinalize"}, _finalizing),
    "execution_begin": ({"graphExecute", "graphExecuteAsync"}, _executing),
    "memory_register": ({"memRegister"}, _registering),
    "notification": ({"notify"}, _notifying),
}
