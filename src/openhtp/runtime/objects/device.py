"""A device: an emulated HTP in its own process (or, for debugging, in this one), or the vendor's library."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from openhtp.core import status as st, tidying
from openhtp.core.checks import shown
from openhtp.core.errors import DeviceLost, InvalidArgument, error_context
from openhtp.core.latches import Latch
from openhtp.core.locks import make_lock
from openhtp.core.threads import OwnThread, finish
from openhtp.hw.catalog import find_soc
from openhtp.options import ContextOrigin, OptionValues
from openhtp.options.context import CONCURRENT
from openhtp.program.binary import ContextBinary
from openhtp.program.packed import check_packages
from openhtp.records.profile import Method
from openhtp.records.trace import Trace, trace_from_bytes
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import DspHeap, find_heap
from openhtp.runtime.binaries.creation import Creation, CreationNotify, list_wanted
from openhtp.runtime.binaries.data_provider import ClientBuffers, DmaBufferCallback, check_callback
from openhtp.runtime.binaries.load import StoredContext, open_stored
from openhtp.runtime.binaries.opening import (
    BinarySummary,
    Given,
    check_fit,
    go_on,
    open_for_context,
    open_given,
    validate,
)
from openhtp.runtime.calls.long_call import OF_CONTEXT, CallStop, carrying
from openhtp.runtime.calls.queue import Places, PlacesInTurn
from openhtp.runtime.calls.sheet import Fill, NotedCall
from openhtp.runtime.instruments.instrument import hooked, news
from openhtp.runtime.links.device_choice import chip_of
from openhtp.runtime.links.device_process import DeviceOptions
from openhtp.runtime.links.link import Link, serving
from openhtp.runtime.links.rpc_link import RpcLink
from openhtp.runtime.objects import forks
from openhtp.runtime.objects.argument_checks import check_callable, check_handle
from openhtp.runtime.objects.chosen_options import (
    CALLBACK_PLATFORMS,
    ExtensionsConfig,
    check_platform,
    create_message,
    enabled_graphs,
    read_options,
)
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.lifecycle import Life, State
from openhtp.runtime.objects.open_context import OpenContext
from openhtp.runtime.objects.power import PowerConfig, Votes
from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.profile_events import held_bytes, load_events
from openhtp.runtime.objects.signal import Signal

if TYPE_CHECKING:
    from openhtp.options._arguments import ContextArguments
    from openhtp.runtime.objects.backend import Backend

log = logging.getLogger(__name__)

# Makes a link to a device; the link calls the function that it is given when the device goes away.
Connect = Callable[[Callable[[Link], None]], Link]


@hooked(
    create_context="context_create",
    _open_context="context_open",
    _restore_context="context_restore",
    validate_binary="binary_validate",
    create_power_config="power_config_create",
    set_perf_profile="perf_profile_set",
    free="free",
)
class Device:
    """Made by ``Backend.create_device``. Ends with its last client, or with ``free()``.

    If its process dies, that is a subsystem restart: pending executions are notified, contexts, graphs and
    memory become stale, and this object starts a fresh process, on which contexts can be built anew.
    """

    def __init__(
        self,
        backend: Backend,
        options: DeviceOptions,
        connect: Connect | None = None,
        extensions: ExtensionsConfig | None = None,
        driver: str = "",
        *,
        soc_named: bool = False,
    ) -> None:
        self.backend = backend
        self.extensions = extensions or ExtensionsConfig(None)
        self.soc = find_soc(options.config.soc).name
        self.cores = options.config.resources().cores
        self.name = options.name
        self.restarts = 0
        self.platform = options.config.platform
        self.driver = driver
        # Memory that the DSP behind the vendor's library can map, where there is a DSP.
        self.heap: DspHeap | None = None
        self._life = Life("device", options.name or "")
        self._lock = make_lock("device")
        self.contexts: set[Context] = set()
        self._votes = Votes(self.platform)
        self._failure: Exception | None = None
        self._ready = Latch()  # open unless a restart is under way
        self._connect: Connect = connect or (lambda on_lost: RpcLink(options, on_lost))
        self._link_now = self._make_link()
        self._ready.unlock()
        if backend.library is not None:
            self._take_chip(options, named=soc_named)
            self.heap = find_heap()
        backend.devices.add(self)
        forks.on_fork(self, Device._leave_to_parent)
        news.device_made(self)

    def _take_chip(self, options: DeviceOptions, *, named: bool) -> None:
        """Be the chip that the library says it is: a board's own, whatever the default is."""
        platform: Any = self._link_now.request(ms.Inspect()).info.get("platform", ())
        chip = chip_of(find_soc(self.soc), platform, named=named)
        self.soc = chip.name
        self.cores = replace(options.config, soc=chip.name).resources().cores

    def _make_link(self) -> Link:
        """A fresh link, which does not keep this object alive; only executions under way do.

        If the object is dropped without being freed, the link is closed and its process ends.
        """
        me = weakref.ref(self)

        def on_lost(link: Link) -> None:
            device = me()
            if device is not None:
                device._on_lost(link)

        connect = functools.partial(self._connect, on_lost)
        link = finish(connect, name="openhtp-connect", discard=lambda late: late.close())
        try:
            forks.links.add(link)
            # Not here and now: the garbage collector may run on any thread.
            self._end_of_link = weakref.finalize(self, tidying.post, (link.close, ()))
            self._end_of_link.atexit = False  # the backend frees its devices then
        except BaseException:
            tidying.post((link.close, ()))
            raise
        return link

    @property
    def pid(self) -> int:
        """Process that computes. Killing it is a subsystem restart."""
        return self.link.pid

    @property
    def link(self) -> Link:
        """The link to the device, for tools of this package; waits for a restart that is under way."""
        self._life.require("use")
        self._ready.wait()
        if self._failure is not None:
            raise DeviceLost(
                f"the device process went away and could not be started again: {self._failure}",
                st.QNN_COMMON_ERROR_SYSTEM_COMMUNICATION_FATAL,
            ) from self._failure
        return self._link_now

    def create_context(self, **options: Unpack[ContextArguments]) -> Context:
        """Open a context.

        ``queue_depth``, 1 to 300, is fixed for its life; ``priority`` holds for graphs without one of their own.
        """
        self._life.require("use")
        chosen = self._read_options(options, ContextOrigin.COMPOSED)
        return self._open_context(chosen)

    def _read_options(self, options: ContextArguments, origin: ContextOrigin) -> OptionValues:
        """The chosen options of a context on this device."""
        wanted = self.extensions.context(options, origin)
        return read_options(wanted, origin, find_soc(self.soc), self.platform)

    def _open_context(
        self,
        chosen: OptionValues,
        source: StoredContext | None = None,
        stop: CallStop | None = None,
        list_number: int = 0,
    ) -> Context:
        """Make a context on the device, with the graphs of a binary if there is a ``source``."""
        link = self.link
        context = Context(self, link, chosen, self.contexts, source)
        opened = context.opened
        if chosen.share_resources and chosen.share_resources_optimization_type != CONCURRENT:
            opened.list_number = list_number
            opened.places = PlacesInTurn(chosen.queue_depth, lambda: self._places_of_list(list_number))
        message = create_message(
            chosen, int(opened.priority), opened.binary, list_number=list_number, number_of=self._number_of
        )
        try:
            if source is None:
                opened.make_on_device(message, stop)
            else:
                open_stored(opened, source, message, stop)
            self.contexts.add(context)
            forks.on_fork(opened, OpenContext.leave_to_parent)
            if not self._ready.is_open or self._link_now is not link:
                opened.lose()  # contexts may have been notified of the loss before this one was there
        except BaseException:
            tidying.post((opened.discard, ()))
            tidying.flush()
            raise
        return context

    def _places_of_list(self, number: int) -> list[Places]:
        """The queues of the contexts of a list that share buffers in turn."""
        return [each.opened.places for each in list(self.contexts) if each.opened.list_number == number]

    def create_context_from_binary(
        self,
        binary: Given,
        *,
        signal: Signal | CallStop | None = None,
        profile: Profile | None = None,
        callback: DmaBufferCallback | None = None,
        **options: Unpack[ContextArguments],
    ) -> Context:
        """Open a context from a binary of ``Context.get_binary``: bytes, or a file by path or descriptor.

        A binary for another SoC is compiled again for this one, and the log says so; with
        ``compatibility="strict"`` it is refused as QNN_CONTEXT_ERROR_BINARY_SUBOPTIMAL, and one of another
        architecture is refused on a device whose platform was named. A binary carries no
        ``queue_depth``: give it here, or the default holds. Graphs not named in ``enable_graphs`` (if given)
        cannot be executed; a ``priority`` replaces that of each graph. ``signal`` may end the call early: then
        nothing of the context is left. ``profile`` has its cost. With a ``callback`` the weights are not read
        from the binary but asked of the client, in buffers that the device uses where they lie
        (createFromBinaryWithCallback).
        """
        self._life.require("use")
        if not isinstance(signal, CallStop):
            check_handle("signal", signal, Signal)
        check_handle("profile", profile, Profile)
        chosen = self._read_options(options, ContextOrigin.BINARY)
        buffers = check_callback(callback, chosen)
        if buffers is not None:
            check_platform("a context with a callback", CALLBACK_PLATFORMS, self.platform, logging.INFO)

        def create(fill: Fill | None, stop: CallStop | None) -> Context:
            stop_check = go_on if stop is None else stop.check
            parsed = open_for_context(binary, chosen.file_read_memory_budget_in_mb, stop_check)
            if fill is None:
                return self._restore_context(parsed, chosen, stop, client_buffers=buffers)
            # Only the first context reports the device's memory, as documented.
            first = not any(context.is_usable for context in list(self.contexts))
            link = self.link
            begin = link.now()
            heap = held_bytes(self.info()) if chosen.dsp_memory_profiling_enabled and first else None
            asked = link.now()
            with serving() as served:
                context = self._restore_context(parsed, chosen, stop, client_buffers=buffers)
            events = load_events((begin, asked, link.now()), served, heap)
            fill(NotedCall(Method.CREATE_FROM_BINARY, "", events))
            return context

        return carrying(profile, signal, "creating a context from a binary", OF_CONTEXT, create)

    def create_contexts_from_binaries(
        self,
        binaries: Iterable[Given],
        *,
        notify: CreationNotify | None = None,
        notify_param: object = None,
        signal: Signal | CallStop | None = None,
        configs: Sequence[ContextArguments] | None = None,
        **options: Unpack[ContextArguments],
    ) -> Creation:
        """Begin to open a context from each binary, side by side, and return at once.

        ``notify(context, graph, graph_name, notify_type, notify_param, status)`` is called on a thread of the
        backend, for each graph and then for its context, in the order in which contexts are ready or have failed;
        handles are None where they failed. ``notify_param`` is the binary's place in the list unless given.
        ``options`` hold for every context and for the list as a whole; ``configs`` adds those of single contexts.
        ``signal`` ends the contexts that are not ready yet.
        """
        self._life.require("use")
        check_callable("notify", notify, "(context, graph, graph_name, notify_type, notify_param, status)")
        if not isinstance(signal, CallStop):
            check_handle("signal", signal, Signal)
        wanted = list_wanted(binaries, configs, options, notify_param, self._read_options)
        creation = Creation(self, wanted, self._restore_context, notify, signal)
        creation.start()
        return creation

    def _number_of(self, context: object) -> int:
        """The number of the context that leads a group."""
        if not isinstance(context, Context) or context.device is not self:
            raise InvalidArgument(
                f"the first of a group is {shown(context)}; expected a context of this device",
                st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
            )
        context.opened.life.require("use")
        return context.opened.number

    def _restore_context(
        self,
        parsed: ContextBinary,
        chosen: OptionValues,
        stop: CallStop | None,
        list_number: int = 0,
        client_buffers: ClientBuffers | None = None,
    ) -> Context:
        enabled = enabled_graphs(chosen, parsed)
        self._check_packages(parsed, enabled)
        misfit = check_fit(parsed, find_soc(self.soc), self.driver, chosen.compatibility, self.platform)
        if misfit is not None:
            log.warning("the context binary %s: %s", misfit.why, misfit.so)
        return self._open_context(chosen, StoredContext(parsed, enabled, client_buffers), stop, list_number)

    def _check_packages(self, binary: ContextBinary, names: Iterable[str]) -> None:
        """Refuse graphs with operators of packages that the backend does not have, or has in other versions."""
        for name in names:
            with error_context(graph=name):
                check_packages(binary.packed(name).packages, self.backend.op_packages.find)

    def validate_binary(
        self, binary: Given, *, compatibility: str = "permissive", check_data: bool = False
    ) -> BinarySummary:
        """Check that ``create_context_from_binary`` could make a context of a binary; the error says why not.

        ``check_data`` reads every byte; without it only the header is read, however large the file is.
        """
        self._life.require("use")
        chosen = self._read_options({"compatibility": compatibility}, ContextOrigin.BINARY)
        opened = open_given(binary)
        self._check_packages(opened, opened.graph_names)
        soc, compatibility = find_soc(self.soc), chosen.compatibility
        return validate(opened, soc, self.driver, compatibility, self.platform, data_too=check_data)

    def create_power_config(self, core: int = 0) -> PowerConfig:
        """An id under which to vote on clocks, sleep and polling of a core. The highest of all votes wins."""
        self._life.require("use")
        return self._votes.create(self.link, core)

    def set_perf_profile(
        self,
        name: str,
        *,
        rpc_polling_us: int | None = None,
        rpc_control_latency_us: int | None = None,
        adaptive_polling_us: int | None = None,
        hmx_timeout_us: int | None = None,
    ) -> None:
        """Vote as a perf profile says, while graphs are made ready, run and freed; less in between.

        ``name`` is burst, sustained_high_performance, high_performance, balanced, low_balanced, high_power_saver,
        power_saver, low_power_saver, extreme_power_saver or system_settings. Times are the profile's unless given.
        The profile holds until another is set, also after a restart of the device's process.
        """
        self._life.require("use")
        self._votes.set_profile(
            self.link,
            name,
            rpc_polling_us=rpc_polling_us,
            rpc_control_latency_us=rpc_control_latency_us,
            adaptive_polling_us=adaptive_polling_us,
            hmx_timeout_us=hmx_timeout_us,
        )

    @property
    def perf_profile(self) -> str | None:
        """The perf profile in force, if one was set."""
        return self._votes.profile

    def info(self) -> dict[str, Any]:
        """The device and all its sessions: process, clients, graphs, bytes, pending executions, clocks, votes."""
        return {"soc": self.soc, "name": self.name, **self.link.request(ms.Inspect()).info}

    def start_trace(self) -> None:
        """Record what the device does until ``stop_trace``."""
        self.link.request(ms.SetTrace(enabled=True))

    def stop_trace(self) -> Trace:
        """Stop recording; returns what the device recorded, for ``openhtp.report``."""
        link = self.link
        link.request(ms.SetTrace(enabled=False))
        return trace_from_bytes(link.fetch(ms.ReadTrace()))

    def free(self) -> None:
        """Free the device and its contexts; its process ends with its last client."""
        self._life.require("free")
        self._ready.wait()
        news.device_leaves(self)
        for context in list(self.contexts):
            if context.opened.life.state is not State.FREED:
                context.free()
        try:
            with self._lock:
                self._life.end(State.FREED)
            self._votes.free()
            self.backend.devices.discard(self)
            self._end_of_link.detach()
            finish(self._link_now.close, name="openhtp-close")
        except BaseException:
            tidying.post((self._link_now.close, ()))
            raise

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._life.state not in (State.FREED, State.FOREIGN):
            self.free()

    def _on_lost(self, link: Link) -> None:
        """React to a lost device, on the link's own thread, before pending executions are notified."""
        if self._ready.is_open:  # otherwise a restart is under way, and callers wait for it
            self._ready = Latch()
        self._votes.lose()
        for context in list(self.contexts):
            try:
                context.opened.lose()
            except Exception:
                log.exception("telling %r of the loss of its device", context)
        log.warning("device process %d went away; starting a fresh one", link.pid)
        try:
            OwnThread(self._restart, link, name="openhtp-restart").start()
        except RuntimeError as error:  # no more threads to be had
            self._give_up(error)

    def _restart(self, old: Link) -> None:
        try:
            self._end_of_link.detach()
            old.close()
            if self._was_freed():
                self._ready.unlock()
                return
            fresh = self._make_link()
            self._votes.restore(fresh)
        except Exception as error:
            self._give_up(error)
            return
        with self._lock:
            self._link_now = fresh
            self.restarts += 1
            freed = self._was_freed()
        self._ready.unlock()
        if freed:
            self._end_of_link.detach()
            fresh.close()
        else:
            news.device_made(self)

    def _was_freed(self) -> bool:
        return self._life.state is State.FREED

    def _give_up(self, error: Exception) -> None:
        """Answer callers that wait for the restart: it failed."""
        log.error("the device process could not be started again: %s", error)
        self._failure = error
        self._ready.unlock()

    def _leave_to_parent(self) -> None:
        """Leave the device to the parent, in the child of a fork."""
        self._life.end(State.FOREIGN)
        self._votes.leave_to_parent()

    def __repr__(self) -> str:
        return f"<Device {self.name or 'unnamed'} {self.soc}, {self._life.state.value}>"


# For injected faults; users do not need it.


def lose_link(device: Device, link: Link) -> None:
    """Behave as if the process behind this link had gone away."""
    device._on_lost(link)


def has_lost(device: Device, link: Link) -> bool:
    """Whether the device has noticed that the process behind this link is gone."""
    return device._link_now is not link or not device._ready.is_open
