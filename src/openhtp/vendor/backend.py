"""Backend and device of the vendor's library, and the questions one can ask them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from openhtp.abi.layout import pointer_list
from openhtp.abi.structs import struct
from openhtp.abi.writing import (
    Array,
    Params,
    given_inputs,
    null_tensor,
    op_config,
    param_value,
    scalar_param,
    tensor_param,
)
from openhtp.core import status as st
from openhtp.core.enumerations import LogLevel, ProfileLevel
from openhtp.core.errors import InvalidArgument
from openhtp.core.opcall import OpCall
from openhtp.core.option_numbers import CUSTOM, HtpDeviceOption
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.options import DEVICE
from openhtp.vendor.forms import dense_tensor
from openhtp.vendor.handles import Owner
from openhtp.vendor.library import VendorLibrary
from openhtp.vendor.platforms import PlatformDevice, read_platform
from openhtp.vendor.profile import Profile
from openhtp.vendor.soc import check_arch, parse_soc


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that the library offers."""

    package: str
    name: str
    target: str


class Backend(Owner):
    """The library in use. One per process is enough."""

    freed_status = st.QNN_BACKEND_ERROR_INVALID_HANDLE

    def __init__(
        self, library: VendorLibrary, *, log_level: LogLevel = LogLevel.WARN, soc: int | str | None = None
    ) -> None:
        """Start the library; ``soc`` makes the simulator that SoC, for the whole process, once and first."""
        self.library = library
        if soc is not None:
            library.set_soc(parse_soc(soc))
        self.log = library.make_log(log_level)
        handle = ctypes.c_void_p()
        library.call("backendCreate", self.log, None, ctypes.addressof(handle))
        super().__init__(handle.value or 0, "backend", None)

    def create_device(self, *, soc: int | str | None = None, arch: int | None = None) -> Device:
        """Open the device; ``soc`` or ``arch`` say what to compile for where no hardware decides it."""
        return Device(self, soc=soc, arch=arch)

    def create_profile(self, level: ProfileLevel = ProfileLevel.BASIC) -> Profile:
        """Make a profile to hand to finalize and execute calls."""
        return Profile(self, level)

    def operations(self) -> tuple[Operation, ...]:
        """The operations that the library offers."""
        count, first = ctypes.c_uint32(), ctypes.c_void_p()
        self.library.call(
            "backendGetSupportedOperations", self.handle, ctypes.addressof(count), ctypes.addressof(first)
        )
        if not first.value:
            return ()
        names = (struct("OperationName") * count.value).from_address(first.value)
        return tuple(Operation(_text(n.package), _text(n.name), _text(n.target)) for n in names)

    def platform(self) -> tuple[PlatformDevice, ...]:
        """The devices of this machine, as the library sees them."""
        info = ctypes.c_void_p()
        self.library.call("deviceGetPlatformInfo", self.log, ctypes.addressof(info))
        try:
            return read_platform(info.value)
        finally:
            self.library.call("deviceFreePlatformInfo", self.log, info)

    def validate_op(self, call: OpCall, params: Params, data: Mapping[str, Array] | None = None) -> None:
        """Ask the library whether it can do a node; raises UnsupportedOp with its reason if not.

        Static tensors without an entry in ``data`` are shown as zeros.
        """
        keep: list[Any] = []
        inputs = [
            null_tensor() if spec is None else dense_tensor(spec, _static_data(spec, data or {}), keep)
            for spec in given_inputs(call)
        ]
        outputs = [dense_tensor(spec, None, keep) for spec in call.outputs]
        made = []
        for name, (value, dtype, form) in params.items():
            if form == "scalar":
                made.append(scalar_param(name, value, dtype, call.name, keep))
            else:
                array = param_value(name, value, dtype, call.name)
                spec = TensorSpec(f"{call.name}:{name}", array.shape, dtype, kind=TensorKind.STATIC)
                made.append(tensor_param(name, dense_tensor(spec, array, keep), call.name, keep))
        config = op_config(call, inputs, outputs, made, keep)
        self.library.call("backendValidateOpConfig", self.handle, config, where=f"{call.op} {call.name!r}")

    def _release(self, handle: int) -> None:
        self.library.call("backendFree", handle)
        self.library.call("logFree", self.log)


def _static_data(spec: TensorSpec, data: Mapping[str, Array]) -> Array | None:
    if not spec.kind.is_static:
        return None
    return data[spec.name] if spec.name in data else np.zeros(spec.shape, spec.dtype.numpy)


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


class Device(Owner):
    """An opened device. The simulator takes any number; hardware has one."""

    freed_status = st.QNN_DEVICE_ERROR_INVALID_HANDLE

    def __init__(self, backend: Backend, *, soc: int | str | None, arch: int | None) -> None:
        if soc is not None and arch is not None:
            raise InvalidArgument(
                f"both SoC {soc!r} and architecture {arch!r} were given; a SoC decides its architecture",
                st.QNN_DEVICE_ERROR_INVALID_CONFIG,
            )
        self.backend = backend
        self.library = backend.library
        # The body sits at another place in newer libraries; a wrong choice reads as another SoC.
        custom = struct("HtpDeviceConfig" if self.library.aligned_device_config else "HtpDeviceConfigOld")()
        configs = []
        if soc is not None:
            custom.option, custom.of.soc_model = DEVICE.number("soc").value, parse_soc(soc)
        if arch is not None:
            custom.option, custom.of.arch.arch = HtpDeviceOption.ARCH, check_arch(arch)
        if soc is not None or arch is not None:
            config = struct("Config")(option=CUSTOM)
            config.of.custom = ctypes.addressof(custom)
            configs.append(config)
        handle = ctypes.c_void_p()
        self.library.call(
            "deviceCreate",
            backend.log,
            pointer_list(configs),
            ctypes.addressof(handle),
            where=f"SoC {soc}, arch {arch}",
        )
        super().__init__(handle.value or 0, "device", backend)

    def _release(self, handle: int) -> None:
        self.library.call("deviceFree", handle)
