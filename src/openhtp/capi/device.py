"""Devices: which chip, where it computes, and the power votes that stand on it."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import gc
import logging
import os
import threading
from collections.abc import Iterable
from typing import Any

from openhtp.abi import memory
from openhtp.abi.structs import struct
from openhtp.capi import handles
from openhtp.capi.backend import BackendHeld
from openhtp.capi.chip_choice import read_wish
from openhtp.capi.client_backend import ClientBackend
from openhtp.capi.entries import answers
from openhtp.capi.handles import HandleEntry
from openhtp.capi.logs import LogHeld
from openhtp.capi.native_calls import natives
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, QnnError, WrongState
from openhtp.core.option_numbers import GlobalOption
from openhtp.core.precision import FloatPrecision
from openhtp.hw.catalog import find_soc
from openhtp.hw.power import DcvsVote
from openhtp.hw.soc import SocSpec
from openhtp.ops._packages import OpPackage
from openhtp.options.device import TRANSPORTS
from openhtp.runtime.calls.long_call import CallStop
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.power import PowerConfig

log = logging.getLogger("openhtp.capi")

TRANSPORT_VARIABLE = "OPENHTP_TRANSPORT"
SOC_VARIABLE = "OPENHTP_SOC"
NAME_VARIABLE = "OPENHTP_DEVICE"
NPU_VARIABLE = "OPENHTP_NPU"
_FIRST_SOC = "SM8650"
_FIRST_HALF_ARCH = 69
_default = {"soc": ""}


waiting: list[StandingVotes] = []
"""Votes that were made before there was a device to vote on."""


def place_of_npus() -> dict[str, Any]:
    """Options that say where emulated NPUs live and who shares them.

    By default an NPU lives on a thread of this process, and all clients of the process that name the same chip
    share it, as on a phone. A device with a name is shared with other processes, and lives in a process of its
    own.
    """
    name = os.environ.get(NAME_VARIABLE)
    word = _environment_word(TRANSPORT_VARIABLE, ("auto", *TRANSPORTS))
    npu = _environment_word(NPU_VARIABLE, ("shared", "private"))
    if name:
        return {"name": name, "host": "process", "npu": npu}
    return {"host": "thread" if word == "auto" else TRANSPORTS[word], "npu": npu}


def _environment_word(variable: str, words: tuple[str, ...]) -> str:
    """The word in an environment variable; the first of the allowed words if it is not set."""
    word = os.environ.get(variable, "") or words[0]
    if word not in words:
        raise InvalidArgument(
            f"{variable} is {word!r}; expected one of {', '.join(words)}", st.QNN_DEVICE_ERROR_INVALID_CONFIG
        )
    return word


def set_default_soc(option: int, model: int) -> None:
    """Choose the chip of devices that name none; must come before any other call."""
    if option != GlobalOption.SOC_MODEL:
        raise InvalidArgument(f"global option {option} is unknown; expected {int(GlobalOption.SOC_MODEL)}")
    if handles.of_kind(BackendHeld):
        raise WrongState("the chip must be chosen before a backend is created")
    _default["soc"] = find_soc(model).name


class StandingVotes:
    """The votes under one number. Devices come and go, and the votes stand on each of them."""

    def __init__(self, core: int) -> None:
        self._core = core
        self._standing: dict[str, Any] = {}
        self._configs: list[PowerConfig] = []

    def stand_on(self, device: Device) -> None:
        """Repeat the votes so far on one more device; devices that are gone are forgotten."""
        config = device.create_power_config(self._core)
        if self._standing:
            config.set(**self._standing)
        self._configs = [*(one for one in self._configs if one.alive), config]

    def change(self, votes: dict[str, Any]) -> None:
        """Vote on all devices or, if one refuses, on none."""
        for config in self._configs:
            if config.alive or config is self._configs[-1]:  # if all are lost, the last one says so
                config.set(**votes)
        old = self._standing.get("dcvs")
        self._standing |= votes
        if isinstance(old, DcvsVote) and "dcvs" in votes:
            self._standing["dcvs"] = votes["dcvs"].over(old)

    def withdraw(self) -> None:
        """Take all votes back; those on devices that are gone went with them."""
        with contextlib.suppress(ValueError):
            waiting.remove(self)
        for config in self._configs:
            if config.alive:
                config.destroy()


class DeviceHeld(HandleEntry):
    """A client's device, made when something first needs it."""

    word, invalid = "device", st.QNN_DEVICE_ERROR_INVALID_HANDLE

    def __init__(
        self, soc: str = "", backend: BackendHeld | None = None, vtcm_mb: int = 0, *, signed_pd: bool = False
    ) -> None:
        """``backend`` is given if the device ends with it; a client's own devices belong to no backend.

        ``vtcm_mb`` is how much of its VTCM the client wants, 0 for all; ``signed_pd`` its kind of process domain.
        """
        super().__init__(backend)
        self._backend = ClientBackend()
        named = soc or _named_soc()
        self.soc = named or _FIRST_SOC
        self.spec = _with_vtcm(find_soc(self.soc), vtcm_mb)
        # As in the vendor's library on a host: a chip that nobody named computes floats in full precision.
        self.precision = (
            FloatPrecision.FLOAT16
            if named and find_soc(named).arch >= _FIRST_HALF_ARCH
            else FloatPrecision.FLOAT32
        )
        self.is_freed = False
        self.contexts = 0
        self._place = place_of_npus()
        self._pd_session = "signed" if signed_pd else "unsigned"
        self._made: Device | None = None
        self._lock = threading.Lock()

    def device(self) -> Device:
        """The device."""
        with self._lock:
            if self._made is None:
                self._made = self._backend.create_device(soc=self.soc, pd_session=self._pd_session, **self._place)
                spare_collector()
                self._take_waiting_votes(self._made)
            return self._made

    def device_unless(self, stop: CallStop | None) -> Device:
        """The device, for a call that a signal may end before there is one; the device is made all the same.

        The first device of a process imports all that computes, and nothing ends that early.
        """
        if stop is None or self._made is not None:
            return self.device()
        return stop.run(self.device)

    def take_packages(self, packages: Iterable[OpPackage]) -> None:
        """Let graphs here have operators of packages that were registered with the backend of their context."""
        own = self._backend.op_packages
        for package in packages:
            if own.find(package.name) is not package:
                own.register(package)

    def await_device(self) -> None:
        """Wait for a device that is being made."""
        with self._lock:
            pass

    def _take_waiting_votes(self, device: Device) -> None:
        """Apply votes that were made before the chip was known; the context is made even if a vote fails."""
        while waiting:
            try:
                waiting.pop(0).stand_on(device)
            except QnnError as error:
                log.error("votes that were made before there was a device do not stand on %s: %s", self.soc, error)

    def free(self) -> None:
        """Free the device, if it was made."""
        self.is_freed = True
        self._backend.free()


def spare_collector() -> None:
    """Where Python is ours alone, the garbage collector skips objects that exist when the first device is made.

    Otherwise an execution now and then waits for the collector, for longer than many a graph takes.
    """
    if not gc.get_freeze_count() and any(native.owns_python for native in natives):
        gc.freeze()


@atexit.register
def _finish_making() -> None:
    """Wait at the end of the program for devices in the making: their libraries are just being loaded."""
    for entry in handles.of_kind(DeviceHeld):
        entry.await_device()


def _with_vtcm(soc: SocSpec, vtcm_mb: int) -> SocSpec:
    """A chip with as much VTCM as a client wants of it."""
    if vtcm_mb > soc.vtcm_mb:
        log.warning(
            "%s has %d MB of VTCM, and not the %d MB of the platform given", soc.name, soc.vtcm_mb, vtcm_mb
        )
    return dataclasses.replace(soc, vtcm_mb=min(vtcm_mb or soc.vtcm_mb, soc.vtcm_mb))


def default_device(backend: BackendHeld) -> DeviceHeld:
    """The device of a context that names none."""
    for child in backend.children.values():
        if isinstance(child, DeviceHeld):
            return child
    entry = DeviceHeld(backend=backend)
    handles.add(entry)
    return entry


def chosen_soc() -> str:
    """The chip of devices that name none."""
    return _named_soc() or _FIRST_SOC


def _named_soc() -> str:
    name = os.environ.get(SOC_VARIABLE, "")
    return find_soc(name).name if name else _default["soc"]


def present_arch() -> int:
    """The architecture of the device that was made last: validations name no device and go by this one."""
    devices = handles.of_kind(DeviceHeld)
    return find_soc(devices[-1].soc if devices else chosen_soc()).arch


@answers("deviceCreate")
def device_create(log: int, config: int, out: int) -> None:
    """Note which chip it is; it starts when a context is made on it."""
    handles.require_place(out, "device")
    handles.find_or_none(LogHeld, log)
    wish = read_wish(config)
    handles.give(out, DeviceHeld(wish.chip(chosen_soc()), vtcm_mb=wish.vtcm_mb, signed_pd=wish.signed_pd))


@answers("deviceSetConfig")
def device_set_config(device: int, config: int) -> None:
    """Refuse to change the chip of a device; naming the same chip again is accepted."""
    entry = handles.find(DeviceHeld, device)
    if read_wish(config).chip(entry.soc) not in ("", entry.soc):
        raise WrongState("a device stays the chip that it was created as", st.QNN_DEVICE_ERROR_INVALID_CONFIG)


# Where the vendor's library reports it.
_SIGNED_PD = frozenset({"SC8380XP"})


def _platform(owner: HandleEntry, soc: SocSpec) -> int:
    """The description of a platform of one chip, kept with its owner."""
    cores = (struct("CoreInfo") * soc.cores)(*[(1, 0, number) for number in range(soc.cores)])
    extension = struct("HtpDeviceInfo")(
        kind=0,
        vtcm_mb=soc.vtcm_mb,
        soc_model=soc.soc_model,
        signed_pd=soc.name in _SIGNED_PD,
        dlbc=1,
        arch=soc.arch,
    )
    hardware = struct("HardwareDeviceInfo")(
        version=1,
        num_cores=soc.cores,
        cores=ctypes.addressof(cores),
        extension=ctypes.addressof(extension),
    )
    info = struct("PlatformInfo")(version=1, count=1, devices=ctypes.addressof(hardware))
    owner.keep += [cores, extension, hardware, info]
    return ctypes.addressof(info)


_platforms: dict[int, HandleEntry] = {}


@answers("deviceGetPlatformInfo")
def device_get_platform_info(log: int, out: int) -> None:
    """The description of all devices, which the client gives back."""
    handles.require_place(out, "platform")
    owner = HandleEntry()
    address = _platform(owner, find_soc(chosen_soc()))
    _platforms[address] = owner
    memory.write_number(out, address)


@answers("deviceFreePlatformInfo")
def device_free_platform_info(log: int, info: int) -> None:
    """Take a platform description back."""
    if _platforms.pop(info, None) is None:
        raise InvalidArgument(f"{info:#x} is no platform description of this library, or was freed")


@answers("deviceGetInfo")
def device_get_info(device: int, out: int) -> None:
    """Describe this device; the description lives as long as the device."""
    entry = handles.find(DeviceHeld, device)
    handles.require_place(out, "platform")
    memory.write_number(out, _platform(entry, entry.spec))


@answers("deviceFree")
def device_free(device: int) -> None:
    """Free a device; refused while contexts are on it."""
    entry = handles.find(DeviceHeld, device)
    if entry.contexts:
        raise WrongState(
            f"{entry.contexts} contexts are on the device; free them first",
            st.QNN_DEVICE_ERROR_ASSOCIATED_TO_CONTEXT,
        )
    handles.remove(entry)
    entry.free()
