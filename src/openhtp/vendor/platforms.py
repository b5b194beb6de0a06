"""What the library says about the hardware."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from openhtp.abi.numbers import VERSION_1
from openhtp.abi.structs import struct

_ON_CHIP = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformDevice:
    """One HTP. ``arch`` is 68 for v68; a device without the HTP part of its description has None there."""

    device_id: int
    cores: int
    soc_model: int | None = None
    arch: int | None = None
    vtcm_mb: int | None = None
    signed_pd: bool | None = None
    dlbc: bool | None = None


def read_platform(address: int | None) -> tuple[PlatformDevice, ...]:
    """Copy a platform description out of the library's memory."""
    if not address:
        return ()
    info = struct("PlatformInfo").from_address(address)
    if info.version != VERSION_1 or not info.devices:
        return ()
    devices = (struct("HardwareDeviceInfo") * info.count).from_address(info.devices)
    return tuple(_device(device) for device in devices if device.version == VERSION_1)


def _device(device: ctypes.Structure) -> PlatformDevice:
    if device.extension:
        htp = struct("HtpDeviceInfo").from_address(device.extension)
        if htp.kind == _ON_CHIP:
            return PlatformDevice(
                device_id=device.device_id,
                cores=device.num_cores,
                soc_model=htp.soc_model,
                arch=htp.arch,
                vtcm_mb=htp.vtcm_mb,
                signed_pd=bool(htp.signed_pd),
                dlbc=bool(htp.dlbc),
            )
    return PlatformDevice(device_id=device.device_id, cores=device.num_cores)
