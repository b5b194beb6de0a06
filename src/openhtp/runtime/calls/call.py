"""One call of execute: its sending, its resources while it is under way, and its end."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from openhtp.core import tidying
from openhtp.core.enumerations import ProfileLevel
from openhtp.core.errors import ExecutionError, QnnError
from openhtp.core.telling import is_told, warn_once
from openhtp.rpc import frames
from openhtp.rpc.frames import Record
from openhtp.runtime.calls.arguments import Arguments
from openhtp.runtime.calls.execution import Execution
from openhtp.runtime.calls.notify import own_niceness
from openhtp.runtime.calls.sheet import ExecutedCall

if TYPE_CHECKING:
    from openhtp.runtime.calls.bound_call import Shortcut
    from openhtp.runtime.calls.callee import Callee, Slot, SlotPool
    from openhtp.runtime.calls.data_order import Target
    from openhtp.runtime.calls.execution import Notify
    from openhtp.runtime.calls.long_call import Interrupt
    from openhtp.runtime.calls.notify import Notifier
    from openhtp.runtime.calls.queue import Places
    from openhtp.runtime.calls.sheet import Sheet
    from openhtp.runtime.links.link import Link

log = logging.getLogger(__name__)

# A plain number, as this is compared in every asynchronous call.
_BASIC = int(ProfileLevel.BASIC)
# A client that has more executions under way than this is told of several ends at once.
_MANY = 8
_PACK_HEAD = frames.EXECUTE_HEAD.pack


@dataclass(slots=True, init=False, eq=False, repr=False)
class Call:
    """Created once all arguments are checked. ``finish`` gives back everything it holds; twice does no harm.

    Places, callee, signal, profile and slot each know the call that holds them, so the call keeps no list of them.
    ``caller`` is the object that must live for as long as the call is under way. ``bound`` is set if the arrays of
    the arguments are used where they lie.
    """

    callee: Callee
    arguments: Arguments
    caller: object
    called_ns: int
    deadline_at: int  # 0: none
    profile: Sheet | None
    signal: Interrupt | None
    notify: Notify | None
    notify_param: object
    synchronous: bool
    is_plain: bool  # whether it holds nothing but its graph and a place: that is so for most asynchronous calls
    bound: Shortcut | None
    link: Link
    notifier: Notifier
    niceness: int
    timeout_at: int  # 0: never
    sent_ns: int
    execution: Execution | None
    targets: tuple[Target, ...]  # plain arrays that it writes, as others see them
    _slot: Slot | None
    _pool: SlotPool | None

    def __init__(
        self,
        callee: Callee,
        arguments: Arguments,
        caller: object,
        notify: Notify | None,
        notify_param: object,
        *,
        synchronous: bool = False,
        called_ns: int = 0,
        deadline_at: int = 0,
        profile: Sheet | None = None,
        signal: Interrupt | None = None,
        bound: Shortcut | None = None,
    ) -> None:
        # Written out, as a generated __init__ would need a second function for what follows from the callee.
        self.callee, self.arguments, self.caller = callee, arguments, caller
        self.called_ns, self.deadline_at = called_ns, deadline_at
        self.profile, self.signal = profile, signal
        self.notify, self.notify_param = notify, notify_param
        self.synchronous, self.bound, self.is_plain = synchronous, bound, False
        self.link, self.notifier = callee.link, callee.notifier
        self.niceness = 0 if notify is None else own_niceness()
        self.timeout_at = self.sent_ns = 0
        self.execution = self._slot = self._pool = None
        self.targets = ()

    @property
    def graph_name(self) -> str:
        """For messages."""
        return self.callee.name

    @property
    def graph_number(self) -> int:
        """As the device knows it."""
        return self.callee.number

    def hold_handles(self) -> int:
        """Take the graph, the profile and signal handles, then wait for a place in the queue.

        Returns the time at which a timeout signal ends the call; 0 if there is none.
        """
        self.callee.begin_call(self)
        if self.profile is not None:
            self.profile.begin(self)
        places, signal, link = self.callee.places, self.signal, self.link
        if signal is None:
            link.take_place(places, self, None, _never)
            return 0
        signal.begin(self, places)
        deadline = None if signal.timeout_us is None else self.called_ns + signal.timeout_us * 1000
        link.take_place(places, self, deadline, lambda: signal.interruption(link.now(), deadline))
        self.timeout_at = deadline or 0
        return self.timeout_at

    def hold_memory(self) -> bytes:
        """Take a shared slot for raw data; returns the bindings of all ports for the frame."""
        arguments = self.arguments
        if not arguments.raw_count:
            return self._pack_mixed(None) if arguments.dims else arguments.packed
        pool = self._pool = self.callee.bindings.slot_pool(arguments.batch)
        slot = self._slot = pool.take(self)
        if not arguments.dims and arguments.raw_count == len(slot.offsets):
            return slot.packed
        return self._pack_mixed(slot)

    def copy_inputs(self) -> None:
        """Copy raw inputs into the slot."""
        slot = self._slot
        if slot is not None:
            arrays = self._slot_arrays(slot)
            for port, array in self.arguments.raw_inputs.items():
                arrays[port][...] = array

    def sent(self, job: int) -> None:
        """The device has the execution, or soon will: from now on the signal can reach it."""
        if self.signal is not None:
            self.signal.attach(self, self.link, job)

    def collect_outputs(self) -> dict[str, npt.NDArray[Any]]:
        """Outputs by name: registered ones as they lie, raw ones copied out of the slot."""
        callee, arguments, slot = self.callee, self.arguments, self._slot
        outputs = arguments.registered_outputs(callee.ports) if arguments.registered else {}
        if not arguments.raw_outputs:
            return outputs
        specs, arrays = callee.ports.specs, [] if slot is None else self._slot_arrays(slot)
        for port, target in arguments.raw_outputs.items():
            if self.bound is not None:
                assert target is not None  # a shortcut has all arrays
                outputs[specs[port].name] = target
                continue
            view = arrays[port]
            if target is None:
                outputs[specs[port].name] = view.copy()
            else:
                try:
                    np.copyto(target, view)
                except BaseException as error:
                    if self.synchronous and not isinstance(error, (ValueError, TypeError)):
                        raise  # on the caller's own thread it may be an interrupt
                    raise ExecutionError(
                        f"output {specs[port].name!r} of graph {callee.name!r} cannot be written: {error!r}"
                    ) from error
                outputs[specs[port].name] = target
        return outputs

    def finish(self, record: Record | None, *, untold: bool = False) -> None:
        """Give everything back: slot, handles, place in the queue. ``record`` is None if the call was never sent.

        ``untold``: a notification is still to come, and the queue learns of its return.
        """
        callee, profile = self.callee, self.profile
        if not self.synchronous:  # only others were noted
            order = self.link.data_order
            order.registered.pop(self, None)
            if self.targets:
                order.leave(self)
        if self._pool is not None:
            self._pool.give_back(self, self._slot)
        if self.signal is not None:
            self.signal.end(self)
        if profile is not None:
            if record is not None and profile.holder is self:
                times = (self.called_ns, self.sent_ns, self.link.now(), self.deadline_at)
                about = (callee.hvx_threads, callee.modelled, profile.told)
                profile.fill(ExecutedCall(callee.name, self.synchronous, record, *times, *about))
            profile.abandon(self)
        callee.end_call(self)
        callee.places.give_back(self, untold=untold)

    @property
    def places(self) -> Places:
        """The queue of its context."""
        return self.callee.places

    def settle(self) -> None:
        """After an interrupt, on a thread that gets none: make sure that a call that may have been sent ends."""
        execution = self.execution
        if execution is None or not self.link.settle(execution):
            self.finish(None)
            self.execution = None

    def _pack_mixed(self, slot: Slot | None) -> bytes:
        arguments, specs = self.arguments, self.callee.ports.specs
        bindings = [
            frames.Binding(port, mem.number, offset) for port, (mem, offset, _) in arguments.registered.items()
        ]
        if slot is not None:
            raw = (*arguments.raw_inputs, *arguments.raw_outputs)
            bindings += [frames.Binding(port, slot.memory, slot.offsets[port]) for port in raw]
        if not arguments.dims:
            return frames.pack_bindings(bindings)
        dims = [arguments.dims.get(item.port, specs[item.port].shape) for item in bindings]
        return frames.pack_bindings(bindings, dims)

    def _slot_arrays(self, slot: Slot) -> list[npt.NDArray[Any]]:
        dims = self.arguments.dims
        if not dims:
            return slot.arrays
        # A smaller tensor lies packed at the start of its room in the slot.
        return [
            whole.reshape(-1)[: int(np.prod(dims[port]))].reshape(dims[port]) if port in dims else whole
            for port, whole in enumerate(slot.arrays)
        ]


def send(call: Call, way: Callable[[Call], Execution]) -> Execution:
    """Send a call by ``way``. If that raises, even because of an interrupt, the call holds nothing afterwards."""
    try:
        return way(call)
    except BaseException:
        tidying.post((call.settle, ()))
        tidying.flush()
        raise


# Asynchronous executions that gain nothing by the documents.
_RAW = ("async gain", "of tensors that do not lie in registered memory")
_PROFILED = ("async gain", "with a profile above the basic level")


def _tell_what_gains(key: tuple[str, str]) -> None:
    """Say once that the documents see no gain in such asynchronous executions; here they gain, too."""
    if not is_told(key):
        words = (
            f"on the HTP, asynchronous executions {key[1]} are no faster than synchronous ones; here they may be"
        )
        warn_once(log, key, words, logging.INFO)


def enqueue(call: Call) -> Execution:
    """Take handles, a place and memory for a call, then have it computed."""
    link, profile, arguments = call.link, call.profile, call.arguments
    is_bare = profile is None and call.signal is None and call.bound is None
    if is_bare and not (call.synchronous or arguments.raw_count or arguments.dims):
        return _enqueue_plain(call, link, arguments)
    timeout_at = call.hold_handles()
    level, order, synchronous = 0 if profile is None else profile.level, link.data_order, call.synchronous
    if not synchronous and arguments.raw_count:
        _tell_what_gains(_RAW)
    if not synchronous and level > _BASIC:
        _tell_what_gains(_PROFILED)
    earlier: list[Execution] | None = None
    is_simple = order.is_simple
    if not is_simple or (arguments.raw_inputs and order.registered):
        earlier = order.earlier(call)
    if call.bound is not None:
        if not synchronous:
            order.note(call)
        execution = Execution(link.next_job(), call)
        if earlier:
            _delay(call, earlier, functools.partial(call.bound.submit, execution, call, timeout_at, level))
            return execution
        if profile is not None:
            call.sent_ns = link.now()
        call.bound.submit(execution, call, timeout_at, level)
        return execution
    packed = call.hold_memory()
    execution = Execution(link.next_job(), call)
    head = frames.EXECUTE_HEAD.pack(
        frames.EXECUTE,
        (frames.FLAG_DIMS if arguments.dims else 0) | (frames.FLAG_WAITED if synchronous else 0),
        arguments.count,
        call.callee.number,
        arguments.batch,
        level,
        execution.job,
        timeout_at,
        call.deadline_at,
    )
    frame = head + packed
    if earlier:
        if not synchronous:
            order.note(call)
        _delay(call, earlier, functools.partial(_send_late, call, frame))
        return execution
    if arguments.raw_inputs:
        call.copy_inputs()
    if profile is not None:
        call.sent_ns = link.now()
    if synchronous:
        if profile is not None or call.signal is not None or not link.run_here(execution, frame):
            link.run(execution, frame, call.sent)
    elif not link.run_here(execution, frame, if_short=True):
        if arguments.has_raw_targets or not is_simple:
            order.note(call)
        elif arguments.written:
            order.registered[call] = None  # the same, for most calls
        link.submit(execution, frame, call.sent)
    return execution


def _enqueue_plain(call: Call, link: Link, arguments: Arguments) -> Execution:
    """Enqueue an asynchronous call on registered memory, with nothing else to heed."""
    callee = call.callee
    callee.begin_call(call)
    if not callee.places.try_take(call):
        link.take_place(callee.places, call, None, _never)
    call.is_plain = True
    order = link.data_order
    is_simple = order.is_simple
    earlier = None if is_simple else order.earlier(call)
    job = link.next_job()
    execution = Execution(job, call)
    flags = frames.FLAG_MANY if callee.places.used > _MANY else 0
    head = _PACK_HEAD(
        frames.EXECUTE, flags, arguments.count, callee.number, arguments.batch, 0, job, 0, call.deadline_at
    )
    frame = head + arguments.packed
    if earlier:
        order.note(call)
        _delay(call, earlier, functools.partial(_send_late, call, frame))
    elif not link.run_here(execution, frame, if_short=True):
        if not is_simple:
            order.note(call)
        elif arguments.written:
            order.registered[call] = None  # the same, for most calls
        link.submit(execution, frame, _sent_without_signal)
    return execution


def _sent_without_signal(job: int) -> None:
    """Nothing: no signal has to reach the call."""


def _delay(call: Call, earlier: list[Execution], send_late: Callable[[], None]) -> None:
    """Have a call sent when the data of these executions are there; a synchronous one is waited for here."""
    link, execution = call.link, call.execution
    assert execution is not None
    link.data_order.delay(call, earlier, send_late)
    if call.synchronous:
        link.wait_for(execution, None)


def _send_late(call: Call, frame: bytes) -> None:
    """Send a call that was delayed, on a thread of ours."""
    assert isinstance(call.execution, Execution)
    call.copy_inputs()
    call.sent_ns = call.link.now()
    call.link.forward(call.execution, frame, call.sent)


def _never() -> QnnError | None:
    """None: nothing interrupts a call without a signal."""
    return None
