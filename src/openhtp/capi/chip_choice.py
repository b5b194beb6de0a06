"""The chip that a client's configuration of a device means. A SoC wins over an architecture, in any order."""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass
from typing import Any

from openhtp.abi import memory
from openhtp.abi.structs import struct
from openhtp.capi import identity
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument
from openhtp.core.option_numbers import CUSTOM, DeviceOption, HtpDeviceOption
from openhtp.hw.catalog import catalog, find_soc

log = logging.getLogger("openhtp.capi")

# From this version of the HTP's part on, what follows the option in a custom configuration is aligned to 8 bytes.
_FIRST_ALIGNED = (5, 47, 0)
_ON_CHIP = 0
_MOST_DEVICES = 64


@dataclass(slots=True)
class ChipWish:
    """The content of a configuration. A field is 0 if the configuration does not mention it."""

    soc_model: int = 0
    arch: int = 0
    vtcm_mb: int = 0
    signed_pd: bool = False

    def chip(self, chosen: str) -> str:
        """The name of the chip, empty if the configuration names none; ``chosen`` is the chip of such devices."""
        if self.soc_model in _models():
            soc = find_soc(self.soc_model)
            if self.arch not in (0, soc.arch):
                log.warning("%s is v%d, and not v%d: the SoC counts", soc.name, soc.arch, self.arch)
            return soc.name
        if not self.arch and not self.soc_model:
            return ""
        arches = {soc.arch: soc.name for soc in reversed(catalog().values())}
        if self.arch not in arches:
            known = ", ".join(f"v{number}" for number in sorted(arches))
            what = (
                f"SoC model {self.soc_model} and architecture v{self.arch} are"
                if self.arch
                else (f"SoC model {self.soc_model} is")
            )
            raise _bad(f"{what} unknown; expected the model of a known SoC, or an architecture: {known}")
        name = chosen if find_soc(chosen).arch == self.arch else arches[self.arch]
        if self.soc_model:
            log.warning(
                "SoC model %d is unknown; the device is %s, as its architecture is v%d",
                self.soc_model,
                name,
                self.arch,
            )
        return name


def read_wish(address: int) -> ChipWish:
    """Read a device's configuration list; of several entries for one setting the strongest counts."""
    by_option, by_platform = ChipWish(), ChipWish()
    for entry in memory.pointers(address, "the device's configuration"):
        config = memory.structure(struct("Config"), entry, "the device's configuration")
        if config.option == CUSTOM:
            _note_custom(config.of.custom or 0, by_option)
        elif config.option == DeviceOption.PLATFORM_INFO:
            by_platform = _of_platform(config.of.custom or 0)
        else:
            raise _bad(
                f"device option {config.option} is unknown; expected {int(DeviceOption.PLATFORM_INFO)} or custom"
            )
    if by_option.soc_model:
        by_platform.soc_model = by_option.soc_model
    by_platform.arch = by_platform.arch or by_option.arch
    by_platform.signed_pd = by_option.signed_pd
    return by_platform


def _models() -> frozenset[int]:
    return frozenset(soc.soc_model for soc in catalog().values())


def _bad(message: str) -> InvalidArgument:
    return InvalidArgument(message, st.QNN_DEVICE_ERROR_INVALID_CONFIG)


def _note_custom(address: int, wish: ChipWish) -> None:
    option, at_4, at_8 = memory.array(ctypes.c_uint32, 3, address, "the device's custom configuration")
    if option == HtpDeviceOption.SOC:
        wish.soc_model = _model(address, at_4, at_8)
    elif option == HtpDeviceOption.ARCH:
        wish.arch = _arch(address, at_8)
    elif option == HtpDeviceOption.SIGNED_PD:
        wish.signed_pd = bool(at_8 & 0xFF if _is_old(address) else _byte_behind(address))
    else:
        raise _bad(
            f"HTP device option {option} is unknown or not supported; expected SoC (0), architecture (1), signed"
            " process domains (2)"
        )


def _is_old(address: int) -> bool:
    """Whether the body of a custom configuration certainly follows its option without alignment."""
    return bool(address % 8) or identity.htp_api() < _FIRST_ALIGNED


def _model(address: int, at_4: int, at_8: int) -> int:
    """The model, read in either layout. Nothing says which layout it is, but mostly only one makes sense."""
    known = _models()
    if _is_old(address) or (at_8 not in known and at_4 in known):
        model = at_4
    else:
        model = at_8
        if at_4 in known and at_4 != at_8:
            log.warning(
                "a device's custom configuration says SoC model %d if it is of HTP API 5.47 or later, and %d if it"
                " is older: the former is taken; set %s=5.39.0 for a client that is older",
                at_8,
                at_4,
                identity.HTP_VARIABLE,
            )
    if model not in known:
        raise _bad(f"SoC model {model} is unknown")
    return int(model)


def _arch(address: int, at_8: int) -> int:
    arches = {soc.arch for soc in catalog().values()}
    if _is_old(address) or at_8 in arches:
        arch = at_8
    else:
        (arch,) = memory.array(ctypes.c_uint32, 1, address + 12, "the device's architecture")
    if arch not in arches:
        known = ", ".join(f"v{number}" for number in sorted(arches))
        raise _bad(f"architecture v{arch} is unknown; expected one of {known}")
    return int(arch)


def _byte_behind(address: int) -> bool:
    return memory.read(address + 12, 1, "the device's custom configuration") != b"\0"


def _of_platform(address: int) -> ChipWish:
    info = memory.structure(struct("PlatformInfo"), address, "the platform's description")
    if not 0 < info.count <= _MOST_DEVICES:
        raise _bad(f"a platform of {info.count} devices; expected 1 to {_MOST_DEVICES}")
    device = memory.structure(struct("HardwareDeviceInfo"), info.devices or 0, "the hardware's description")
    if not device.extension:
        return ChipWish()
    htp: Any = memory.structure(struct("HtpDeviceInfo"), device.extension, "the HTP's description")
    if htp.kind != _ON_CHIP:
        raise _bad(
            f"a device of type {htp.kind}; expected one on the chip ({_ON_CHIP}): there is none on a PCIe bus"
        )
    return ChipWish(htp.soc_model, htp.arch, htp.vtcm_mb)
