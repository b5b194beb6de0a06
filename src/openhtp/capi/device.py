"""Devices: which chip, and where it computes."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

from openhtp.abi import memory
from openhtp.abi.structs import struct
from openhtp.capi import handles
from openhtp.capi.backend import BackendHeld
from openhtp.capi.entries import answers
from openhtp.capi.handles import Held
from openhtp.capi.logs import LogHeld
from openhtp.capi.votes import StandingVotes
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, WrongState
from openhtp.core.option_numbers import CUSTOM, DeviceOption, GlobalOption, HtpDeviceOption
from openhtp.core.precision import Precision
from openhtp.hw.catalog import catalog, find_soc
from openhtp.runtime.backend import Backend
from openhtp.runtime.device import Device

TRANSPORT_VARIABLE = "OPENHTP_TRANSPORT"
SOC_VARIABLE = "OPENHTP_SOC"
NAME_VARIABLE = "OPENHTP_DEVICE"
_TRANSPORTS = ("auto", "rpc", "inprocess")
_FIRST_SOC = "SM8650"
_FIRST_HALF_ARCH = 69
_default = {"soc": ""}


def transport() -> str:
    """Where graphs are computed.

    ``auto``: in the host's own process, which is the quickest, until something is asked that needs a device of its
    own: asynchronous execution, a queue depth, or a device with a name.
    """
    word = os.environ.get(TRANSPORT_VARIABLE, "") or "auto"
    if word not in _TRANSPORTS:
        raise InvalidArgument(
            f"{TRANSPORT_VARIABLE} is {word!r}; expected one of {', '.join(_TRANSPORTS)}",
            st.QNN_DEVICE_ERROR_INVALID_CONFIG,
        )
    return word


def set_default_soc(option: int, model: int) -> None:
    """Every device that is not told otherwise is this chip; must come first of all."""
    if option != GlobalOption.SOC_MODEL:
        raise InvalidArgument(f"global option {option} is unknown; expected {int(GlobalOption.SOC_MODEL)}")
    if handles.of_kind(BackendHeld):
        raise WrongState("the chip must be chosen before a backend is created")
    _default["soc"] = find_soc(model).name


class DeviceHeld(Held):
    """A device, made when something first needs it: one in this process, one in its own, or both."""

    word, invalid = "device", st.QNN_DEVICE_ERROR_INVALID_HANDLE

    def __init__(self, soc: str = "", backend: BackendHeld | None = None) -> None:
        """``backend`` is given where the device goes with it; a client's own devices are no backend's."""
        super().__init__(backend)
        self._backend = Backend()
        named = soc or _named_soc()
        self.soc = named or _FIRST_SOC
        # As in the vendor's library on a host: a chip that nobody named computes floats in full precision.
        self.precision = (
            Precision.FLOAT16 if named and find_soc(named).arch >= _FIRST_HALF_ARCH else Precision.FLOAT32
        )
        self.is_freed = False
        self.contexts = 0
        # Power votes by configuration number.
        self.votes: dict[int, StandingVotes] = {}
        self._made: dict[str, Device] = {}
        self._lock = threading.Lock()

    def device(self, *, alone: bool = False) -> Device:
        """The device; ``alone`` for what only a device in its own process does."""
        kind = transport()
        name = os.environ.get(NAME_VARIABLE) or None
        if kind == "auto":
            kind = "rpc" if alone or name else "inprocess"
        with self._lock:
            if kind not in self._made:
                options: dict[str, Any] = {"soc": self.soc, "transport": kind}
                if name and kind == "rpc":
                    options["name"] = name
                made = self._backend.create_device(**options)
                for votes in list(self.votes.values()):
                    votes.stand_on(made)
                self._made[kind] = made
            return self._made[kind]

    def free(self) -> None:
        """Let go of what was made."""
        self.is_freed = True
        self._backend.free()


def default_device(backend: BackendHeld) -> DeviceHeld:
    """For a context that is given none."""
    for child in backend.children.values():
        if isinstance(child, DeviceHeld):
            return child
    held = DeviceHeld(backend=backend)
    handles.add(held)
    return held


def chosen_soc() -> str:
    """The chip of devices that are not told."""
    return _named_soc() or _FIRST_SOC


def _named_soc() -> str:
    given = os.environ.get(SOC_VARIABLE, "")
    return find_soc(given).name if given else _default["soc"]


def present_arch() -> int:
    """The architecture of the device that was made last, which validations are about: they name none."""
    devices = handles.of_kind(DeviceHeld)
    return find_soc(devices[-1].soc if devices else chosen_soc()).arch


@answers("deviceCreate")
def device_create(log: int, config: int, out: int) -> None:
    """Note which chip it is; it starts when a context is made on it."""
    handles.require_place(out, "device")
    handles.find_or_none(LogHeld, log)
    soc = _soc_of(config)
    transport()  # now rather than when the first context is made
    handles.give(out, DeviceHeld(soc))


def _soc_of(config: int) -> str:
    soc = ""
    for place in memory.pointers(config, "the device's configuration"):
        given = memory.structure(struct("Config"), place, "the device's configuration")
        if given.option == CUSTOM:
            soc = _custom(given.of.custom) or soc
        elif given.option == DeviceOption.PLATFORM_INFO:
            soc = _from_platform(given.of.custom) or soc
        else:
            raise InvalidArgument(f"device option {given.option} is unknown", st.QNN_DEVICE_ERROR_INVALID_CONFIG)
    return soc


def _custom(address: int) -> str:
    """A custom option of either layout; nothing in it says which, but only one of them makes sense."""
    option, at_4, at_8 = memory.array(ctypes.c_uint32, 3, address, "the device's custom configuration")
    if option == HtpDeviceOption.SOC:
        known = {soc.soc_model for soc in catalog().values()}
        model = at_8 if at_8 in known else at_4
        if model in known:
            return find_soc(int(model)).name
        raise InvalidArgument(f"SoC model {model} is unknown", st.QNN_DEVICE_ERROR_INVALID_CONFIG)
    if option == HtpDeviceOption.ARCH:
        arches = {soc.arch: soc for soc in reversed(catalog().values())}
        arch = at_8
        if arch not in arches:
            (arch,) = memory.array(ctypes.c_uint32, 1, address + 12, "the device's architecture")
        if arch not in arches:
            known_words = ", ".join(f"v{number}" for number in sorted(arches))
            raise InvalidArgument(
                f"architecture v{arch} is unknown; expected one of {known_words}",
                st.QNN_DEVICE_ERROR_INVALID_CONFIG,
            )
        chosen = chosen_soc()
        return chosen if find_soc(chosen).arch == arch else arches[int(arch)].name
    return ""


def _from_platform(address: int) -> str:
    info = memory.structure(struct("PlatformInfo"), address, "the platform's description")
    if not 0 < info.count <= 64:
        raise InvalidArgument(f"a platform of {info.count} devices", st.QNN_DEVICE_ERROR_INVALID_CONFIG)
    device = memory.structure(struct("HardwareDeviceInfo"), info.devices, "the hardware's description")
    if not device.extension:
        return ""
    model = memory.structure(struct("HtpDeviceInfo"), device.extension, "the HTP's description").soc_model
    return find_soc(model).name if model in {soc.soc_model for soc in catalog().values()} else ""


@answers("deviceSetConfig")
def device_set_config(device: int, config: int) -> None:
    """What a device is cannot be changed; naming it again changes nothing."""
    held = handles.find(DeviceHeld, device)
    if memory.pointers(config, "the device's configuration") and _soc_of(config) not in ("", held.soc):
        raise WrongState("a device stays the chip that it was created as", st.QNN_DEVICE_ERROR_INVALID_CONFIG)


def _platform(owner: Held, socs: list[str]) -> int:
    """The description of a platform, kept with its owner."""
    devices = (struct("HardwareDeviceInfo") * len(socs))()
    for number, (made, name) in enumerate(zip(devices, socs, strict=True)):
        soc = find_soc(name)
        core = struct("CoreInfo")(version=1, core_id=0)
        extension = struct("HtpDeviceInfo")(
            kind=0, vtcm_mb=soc.vtcm_mb, soc_model=soc.soc_model, signed_pd=1, dlbc=1, arch=soc.arch
        )
        made.version, made.device_id, made.num_cores = 1, number, 1
        made.cores, made.extension = ctypes.addressof(core), ctypes.addressof(extension)
        owner.keep += [core, extension]
    info = struct("PlatformInfo")(version=1, count=len(socs), devices=ctypes.addressof(devices))
    owner.keep += [devices, info]
    return ctypes.addressof(info)


_platforms: dict[int, Held] = {}


@answers("deviceGetPlatformInfo")
def device_get_platform_info(log: int, out: int) -> None:
    """What devices there are, to be given back by the client."""
    handles.require_place(out, "platform")
    owner = Held()
    address = _platform(owner, [chosen_soc()])
    _platforms[address] = owner
    memory.write_number(out, address)


@answers("deviceFreePlatformInfo")
def device_free_platform_info(log: int, info: int) -> None:
    """Take such a description back."""
    if _platforms.pop(info, None) is None:
        raise InvalidArgument(f"{info:#x} is no platform description of this library, or was freed")


@answers("deviceGetInfo")
def device_get_info(device: int, out: int) -> None:
    """What this device is; the description lives as long as the device."""
    held = handles.find(DeviceHeld, device)
    handles.require_place(out, "platform")
    memory.write_number(out, _platform(held, [held.soc]))


@answers("deviceFree")
def device_free(device: int) -> None:
    """Let it go; refused while contexts are on it."""
    held = handles.find(DeviceHeld, device)
    if held.contexts:
        raise WrongState(
            f"{held.contexts} contexts are on the device; free them first",
            st.QNN_DEVICE_ERROR_ASSOCIATED_TO_CONTEXT,
        )
    handles.remove(held)
    held.free()
