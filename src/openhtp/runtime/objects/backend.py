"""The backend: where everything starts, and the owner of the thread that notifies."""

from __future__ import annotations

import atexit
import logging
import os
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from openhtp.core import status as st, tidying
from openhtp.core.checks import type_in_words
from openhtp.core.enumerations import LogLevel, ProfileLevel
from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.device.config import DeviceConfig
from openhtp.ops._packages import OpPackage
from openhtp.options import BACKEND, DEVICE, PROFILE
from openhtp.runtime.calls.notify import Notifier
from openhtp.runtime.instruments.instrument import hooked
from openhtp.runtime.links.device_choice import (
    check_one_set,
    choose_driver,
    emulated_connect,
    vendor_connect,
    vendor_library,
)
from openhtp.runtime.links.device_process import DeviceOptions
from openhtp.runtime.objects import forks, property as properties
from openhtp.runtime.objects.chosen_options import DOCUMENTED_SOC, ExtensionsConfig
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.lifecycle import Life, State
from openhtp.runtime.objects.log import Log
from openhtp.runtime.objects.op_packages import BackendPackages, PackageSource
from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.signal import Signal

if TYPE_CHECKING:
    from openhtp.config import Source
    from openhtp.options._arguments import DeviceArguments, ProfileArguments

log = logging.getLogger(__name__)

# How long a program that ends without freeing its backends waits for callbacks that are still to run.
EXIT_PATIENCE_S = 5.0

FAULTS_VARIABLE = "OPENHTP_FAULTS"
"""Faults that the calls of this process are to meet; see ``openhtp.core.faults``."""

SAVER_VARIABLE = "OPENHTP_SAVER"
"""The folder in which the calls of this process are recorded; see ``openhtp.runtime.instruments.saving_calls``."""


_backends: weakref.WeakSet[Backend] = weakref.WeakSet()


def open_backends() -> list[Backend]:
    """Backends of this process that were not freed."""
    return list(_backends)


@hooked(
    create_device="device_create",
    create_signal="signal_create",
    create_profile="profile_create",
    create_log="log_create",
    has_capability="capability_ask",
    free="free",
)
class Backend:
    """Creates devices, signals, profiles and logs.

    Examples:
        >>> backend = Backend()
        >>> backend.has_capability("GRAPH_SUPPORT_ASYNC_EXECUTION")
        True
        >>> backend.free()
    """

    _notifier_kind: type[Notifier] = Notifier

    def __init__(self, library: str | os.PathLike[str] | None = None, *, defaults: str = "openhtp") -> None:
        """``library`` is Qualcomm's: the path of its ``libQnnHtp.so``, or ``"vendor"`` to find it.

        ``defaults="document"`` gives its devices the defaults of the vendor's pages (``docs/options.md``).
        """
        self._defaults: str = BACKEND.read({"defaults": defaults}).defaults
        _heed_environment()
        self._library = None if library is None else vendor_library(library)
        self._life = Life("backend", "")
        self.notifier = self._notifier_kind()
        self.devices: set[Device] = set()
        self.op_packages = BackendPackages()
        weakref.finalize(self, self.op_packages.drop_all).atexit = False
        # If a backend is dropped without being freed, its devices end their processes.
        self._end_of_notifier = weakref.finalize(self, self.notifier.stop)
        self._end_of_notifier.atexit = False
        tidying.start()
        _backends.add(self)
        forks.on_fork(self, Backend._leave_to_parent)

    @property
    def library(self) -> Path | None:
        """The vendor's library behind its devices; None for emulated devices."""
        return None if self._library is None else Path(self._library)

    def create_device(self, *, config: Source | None = None, **options: Unpack[DeviceArguments]) -> Device:
        """Start an emulated HTP, or join the named one that already runs (and keeps its own settings).

        With ``Backend(library=...)`` it is the vendor's library, which simulates ``soc`` on a PC and is itself
        on a Snapdragon; of the other settings only ``policy`` and ``platform`` apply.

        Args:
            config: a backend extensions config (a file, or its content), which then holds for the device, its
                votes, contexts and graphs, wherever a call does not say otherwise; ``docs/config.md``.
            defaults: ``document`` for the defaults of the vendor's pages; the backend's choice unless given.
            soc: which chip, by name (``SM8650``), marketing name or SoC model number.
            name: share the device with other processes under this name; None for a private device.
            platform: ``windows`` gives all priorities equal standing, as there the OS decides.
            policy: ``strict`` (the chip's), ``edf`` or ``fair``.
            threads: CPU threads that compute one step.
            parallel_graphs: let two graphs of equal priority run side by side.
            vtcm_windowing: let clients of different sessions share VTCM.
            pd_session: ``signed`` for process domains apart from this process's ``unsigned`` ones.
            device_id: which of several equal chips that are shared within the process.
            host: ``process``, or ``thread`` to keep it in this process.
            npu: ``shared`` makes one NPU of all devices of this process that say so and name the same chip.
            transport: other words for ``host``: ``rpc`` and ``inprocess``.
        """
        self._life.require("use")
        defaults = DEVICE.read({"defaults": options.get("defaults")}).defaults or self._defaults
        extensions = ExtensionsConfig(config, documented=defaults == "document")
        wished = extensions.device(options)
        chosen = DEVICE.read(wished)
        if "soc" not in wished:
            log.info("no chip was named: this is an %s; by the documents it is an %s", chosen.soc, DOCUMENTED_SOC)
        driver = choose_driver(chosen)
        wanted = DeviceOptions(config=DeviceConfig.chosen(chosen), name=chosen.name, pd_session=chosen.pd_session)
        wanted.check()
        if self._library is not None:
            check_one_set(self._library, [other._library for other in _backends if other.devices])
            connect = vendor_connect(self._library, wanted, chosen)
        else:
            connect = emulated_connect(wanted, chosen)
        device = Device(self, wanted, connect, extensions, driver, soc_named="soc" in wished)
        try:
            extensions.vote(device)
        except BaseException:
            tidying.post((device.free, ()))
            tidying.flush()
            raise
        return device

    def register_op_package(self, package: PackageSource) -> OpPackage:
        """Let graphs of this backend have operators of a package: ``add_node(..., package="my.ops")``.

        ``package`` is an ``OpPackage``, or where one is: ``module:attribute`` in Python, ``library.so:provider``
        for a C interface of the CPU kind. ``docs/op-packages.md`` says where its functions run.
        """
        self._life.require("use")
        if self._library is not None:
            raise UnsupportedFeature(
                "packages are for emulated devices; this backend's devices are the vendor's library, which takes"
                " packages of Hexagon code only",
                st.QNN_BACKEND_ERROR_NOT_SUPPORTED,
            )
        return self.op_packages.register(package)

    def create_signal(self, timeout_us: int | None = None) -> Signal:
        """An abort signal, or a timeout signal if ``timeout_us`` is given."""
        self._life.require("use")
        return Signal(timeout_us)

    def create_profile(
        self, level: ProfileLevel | str | int = ProfileLevel.BASIC, **options: Unpack[ProfileArguments]
    ) -> Profile:
        """A profile handle for one call at a time.

        Args:
            level: ``basic`` (times), ``detailed`` (and cycles of every node), ``linting`` (and what each waited
                for and what ran beside it), or ``optrace`` (detailed, and every op on the chip).
            max_events: events of a call that are kept; None for all.
            optrace: the same as the level ``optrace``; only with ``detailed``.
        """
        self._life.require("use")
        chosen = PROFILE.read(options)
        named = isinstance(level, str) and level.lower() == "optrace"
        parsed = ProfileLevel.DETAILED if named else ProfileLevel.parse(level)
        optrace = named or chosen.optrace
        if optrace and parsed is not ProfileLevel.DETAILED:
            raise InvalidArgument(
                f"optrace with the level {parsed.name.lower()}; expected detailed",
                st.QNN_PROFILE_ERROR_INVALID_ARGUMENT,
            )
        return Profile(parsed, optrace=optrace, max_events=chosen.max_events)

    def create_log(self, level: LogLevel | str | int, callback: Callable[[LogLevel, int, str], object]) -> Log:
        """Hand log messages up to a level to ``callback(level, timestamp_ns, text)``."""
        self._life.require("use")
        if not callable(callback):
            raise InvalidArgument(
                f"callback is {type_in_words(callback)}; expected a function of (level, timestamp_ns, text)",
                st.QNN_LOG_ERROR_INVALID_ARGUMENT,
            )
        return Log(LogLevel.parse(level), callback)

    def has_capability(self, key: str | int) -> bool:
        """Whether a property of the API is supported; unknown keys raise."""
        self._life.require("use")
        return properties.has_capability(key, vendor=self._library is not None)

    def free(self) -> None:
        """Free the backend and every device of it. Returns when the last notification was delivered.

        A call from within a notification waits neither for that notification nor for those behind it.
        """
        self._life.require("free")
        self._free(None)

    def _free(self, patience_s: float | None) -> None:
        for device in list(self.devices):
            if device._life.state is not State.FREED:
                device.free()
        try:
            self._life.end(State.FREED)
            self.op_packages.drop_all()
            self._end_of_notifier.detach()
            self.notifier.close(patience_s)
            _backends.discard(self)
        except BaseException:
            tidying.post((self.notifier.stop, ()))
            raise

    def _leave_to_parent(self) -> None:
        """Leave the backend to the parent, in the child of a fork."""
        self._life.end(State.FOREIGN)
        _backends.discard(self)

    def __enter__(self) -> Backend:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._life.state not in (State.FREED, State.FOREIGN):
            self.free()

    def __repr__(self) -> str:
        library = "" if self._library is None else f"{str(self._library)!r}, "
        return f"<Backend of {len(self.devices)} devices, {library}{self._life.state.value}>"


def _heed_environment() -> None:
    """Install the instruments that the environment asks for."""
    faults = os.environ.get(FAULTS_VARIABLE)
    if faults:
        from openhtp.runtime.instruments.injecting import arm_for_good

        arm_for_good(faults)
    folder = os.environ.get(SAVER_VARIABLE)
    if folder:
        from openhtp.runtime.instruments.saving_calls import save_for_good

        save_for_good(folder)


@atexit.register
def _free_all() -> None:
    """Free all backends at exit: device processes would end by themselves, but later than this process."""
    until = time.monotonic() + EXIT_PATIENCE_S
    for backend in open_backends():
        if backend._life.state is State.LIVE:
            backend._free(max(0.0, until - time.monotonic()))
