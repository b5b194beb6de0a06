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
from openhtp.capi.votes import waiting
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, WrongState
from openhtp.core.option_numbers import CUSTOM, DeviceOption, GlobalOption, HtpDeviceOption
from openhtp.core.precision import Precision
from openhtp.hw.catalog import catalog, find_soc
from openhtp.options.device import TRANSPORTS
from openhtp.runtime.backend import Backend
from openhtp.runtime.device import Device

TRANSPORT_VARIABLE = "OPENHTP_TRANSPORT"
SOC_VARIABLE = "OPENHTP_SOC"
NAME_VARIABLE = "OPENHTP_DEVICE"
NPU_VARIABLE = "OPENHTP_NPU"
_FIRST_SOC = "SM8650"
_FIRST_HALF_ARCH = 69
_default = {"soc": ""}


def place_of_npus() -> dict[str, Any]:
    """Options that say where emulated NPUs live and who shares them.

    By default on a thread of this process, and all clients of the process that name the same chip share one, as on
    a phone. A device with a name is shared with other processes, and lives in one of its own.
    """
    name = os.environ.get(NAME_VARIABLE)
    word = _word(TRANSPORT_VARIABLE, ("auto", *TRANSPORTS))
    npu = _word(NPU_VARIABLE, ("shared", "private"))
    if name:
        return {"name": name, "host": "process", "npu": npu}
    return {"host": "thread" if word == "auto" else TRANSPORTS[word], "npu": npu}


def _word(variable: str, words: tuple[str, ...]) -> str:
    """What an environment variable says; the first of its words if it says nothing."""
    word = os.environ.get(variable, "") or words[0]
    if word not in words:
        raise InvalidArgument(
            f"{variable} is {word!r}; expected one of {', '.join(words)}", st.QNN_DEVICE_ERROR_INVALID_CONFIG
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
    """A client's way to an NPU, made when something first needs it."""

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
        self._place = place_of_npus()
        self._made: Device | None = None
        self._lock = threading.Lock()

    def device(self) -> Device:
        """The device."""
        with self._lock:
            if self._made is None:
                self._made = self._backend.create_device(soc=self.soc, **self._place)
                while waiting:
                    waiting.pop(0).stand_on(self._made)
            return self._made

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
    handles.give(out, DeviceHeld(_soc_of(config)))


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
