"""Backend and device of the vendor's library: which chip it simulates, and what it can answer."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from openhtp.abi.numbers import VERSION_1
from openhtp.abi.structs import pointer_list, struct
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
from openhtp.core.errors import InvalidArgument, QnnError, ResourceError
from openhtp.core.opcall import OpCall
from openhtp.core.option_numbers import HtpDeviceOption
from openhtp.core.shared_library import WHAT_TO_DO
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.hw.catalog import catalog
from openhtp.options import DEVICE
from openhtp.vendor.forms import custom_config, dense_tensor
from openhtp.vendor.handles import Owner
from openhtp.vendor.library import VendorLibrary
from openhtp.vendor.profile import LibraryProfile

_ON_CHIP = 0


# How a board's kernel offers the DSP: upstream, and as Qualcomm ships it.
DSP_NODES = ("/dev/fastrpc-cdsp", "/dev/fastrpc-cdsp-secure", "/dev/adsprpc-smd")
# Words of the library, and the advice for each; the first that fits is the cause of the others.
_CURES = (
    (
        re.compile(r"No Snapdragon SOC detected"),
        "the library reads the chip's number in /sys/devices/soc0/soc_id and finds none that it knows: run it on a"
        " Snapdragon, and let a container see /sys",
    ),
    (
        re.compile(r"Unsupported SoC model"),
        "this build of the library is not for this chip: take the one of the SDK for it",
    ),
    (
        re.compile(r"libcdsprpc\.so: cannot open"),
        "install the FastRPC library of the board's system, and let LD_LIBRARY_PATH name its folder if it is not a"
        " usual one",
    ),
    (
        re.compile(r"undefined symbol: (remote_|fastrpc_|dspqueue_)"),
        "another libcdsprpc.so comes before the board's: take its folder out of LD_LIBRARY_PATH",
    ),
    (
        re.compile(r"(Stub|Skel)\.so: cannot open"),
        "the library's parts for this chip must be in its folder (ADSP_LIBRARY_PATH for those of the DSP):"
        " reinstall it",
    ),
)


# How the library answers where the machine lacks something: it cannot start, no such chip, no permission.
_CANNOT_BEGIN = (st.QNN_BACKEND_ERROR_CANNOT_INITIALIZE.code, st.QNN_DEVICE_ERROR_INVALID_CONFIG.code, 14004)


@contextmanager
def beginning(*, chosen: bool) -> Iterator[None]:
    """Say what to do if the library cannot begin. Unless a chip was ``chosen``, no caller is to blame."""
    try:
        yield
    except QnnError as error:
        if chosen or error.code not in _CANNOT_BEGIN:
            raise
        raise ResourceError(
            f"{cause_in(error.message)}{WHAT_TO_DO}{cure_of(error.message)}",
            st.QNN_COMMON_ERROR_SYSTEM_COMMUNICATION,
        ) from error


def cause_in(said: str) -> str:
    """What the library said up to the line that names the cause; the lines behind it are consequences."""
    lines = said.split("; ")
    for words, _ in _CURES:
        for number, line in enumerate(lines):
            if words.search(line):
                return "; ".join(lines[: number + 1])
    return said


def cure_of(said: str, nodes: Sequence[str] = DSP_NODES) -> str:
    """The advice for the library's words: what to install, or which permission to give."""
    for words, cure in _CURES:
        if words.search(said):
            return cure
    present = [node for node in nodes if os.path.exists(node)]
    if not present:
        return (
            f"the kernel offers no DSP (none of {', '.join(nodes)}): boot the board's own kernel, or give the"
            f" container the device (--device {nodes[0]})"
        )
    if not any(os.access(node, os.R_OK | os.W_OK) for node in present):
        return (
            f"this user may not open {present[0]}: give the user's group the right to read and write it, by a udev"
            f" rule (chmod g+rw {present[0]} until the next start)"
        )
    return "look whether the DSP runs (/sys/class/remoteproc/*/state) and its firmware is installed"


@dataclass(frozen=True, slots=True)
class LibraryOperation:
    """An operation that the library offers."""

    package: str
    name: str
    target: str


class LibraryBackend(Owner):
    """The library in use. One per process is enough."""

    freed_status = st.QNN_BACKEND_ERROR_INVALID_HANDLE

    def __init__(
        self, library: VendorLibrary, *, log_level: LogLevel = LogLevel.WARN, soc: int | str | None = None
    ) -> None:
        """Start the library. ``soc`` makes the simulator that SoC for the whole process; it must come first."""
        self.library = library
        if soc is not None:
            library.set_soc(parse_soc(soc))
        with beginning(chosen=soc is not None):
            self.log = library.make_log(log_level)
            handle = library.make("backendCreate", self.log, None)
        super().__init__(handle, "backend", None)

    def create_device(self, *, soc: int | str | None = None, arch: int | None = None) -> LibraryDevice:
        """Open the device; ``soc`` or ``arch`` say what to compile for where no hardware decides it."""
        return LibraryDevice(self, soc=soc, arch=arch)

    def create_profile(self, level: ProfileLevel = ProfileLevel.BASIC) -> LibraryProfile:
        """Make a profile to hand to finalize and execute calls."""
        return LibraryProfile(self, level)

    def operations(self) -> tuple[LibraryOperation, ...]:
        """The operations that the library offers."""
        count, first = ctypes.c_uint32(), ctypes.c_void_p()
        self.library.call(
            "backendGetSupportedOperations", self.handle, ctypes.addressof(count), ctypes.addressof(first)
        )
        if not first.value:
            return ()
        names = (struct("OperationName") * count.value).from_address(first.value)
        return tuple(LibraryOperation(_text(n.package), _text(n.name), _text(n.target)) for n in names)

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
        structs = []
        for name, (value, dtype, form) in params.items():
            if form == "scalar":
                structs.append(scalar_param(name, value, dtype, call.name, keep))
            else:
                array = param_value(name, value, dtype, call.name)
                spec = TensorSpec(f"{call.name}:{name}", array.shape, dtype, kind=TensorKind.STATIC)
                structs.append(tensor_param(name, dense_tensor(spec, array, keep), call.name, keep))
        config = op_config(call, inputs, outputs, structs, keep)
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


class LibraryDevice(Owner):
    """An opened device. The simulator takes any number; hardware has one."""

    freed_status = st.QNN_DEVICE_ERROR_INVALID_HANDLE

    def __init__(self, backend: LibraryBackend, *, soc: int | str | None, arch: int | None) -> None:
        if soc is not None and arch is not None:
            raise InvalidArgument(
                f"both SoC {soc!r} and architecture {arch!r} were given; a SoC decides its architecture",
                st.QNN_DEVICE_ERROR_INVALID_CONFIG,
            )
        self.backend = backend
        self.library = backend.library
        # The body sits at another place in newer libraries; a wrong choice reads as another SoC.
        custom = struct("HtpDeviceConfig" if self.library.aligned_device_config else "HtpDeviceConfigOld")()
        if soc is not None:
            custom.option, custom.of.soc_model = DEVICE.number("soc").value, parse_soc(soc)
        if arch is not None:
            custom.option, custom.of.arch.arch = HtpDeviceOption.ARCH, check_arch(arch)
        keep: list[Any] = []
        configs = [] if soc is None and arch is None else [custom_config(custom, keep)]
        where = f"SoC {soc}, arch {arch}" if configs else "the chip of this machine"
        with beginning(chosen=bool(configs)):
            handle = self.library.make("deviceCreate", backend.log, pointer_list(configs), where=where)
        super().__init__(handle, "device", backend)

    def _release(self, handle: int) -> None:
        self.library.call("deviceFree", handle)


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
    about: dict[str, Any] = {}
    htp = struct("HtpDeviceInfo").from_address(device.extension) if device.extension else None
    if htp is not None and htp.kind == _ON_CHIP:
        about = {name: getattr(htp, name) for name in ("soc_model", "arch", "vtcm_mb")}
        about |= {name: bool(getattr(htp, name)) for name in ("signed_pd", "dlbc")}
    return PlatformDevice(device_id=device.device_id, cores=device.num_cores, **about)


def parse_soc(value: int | str) -> int:
    """Accept a model number, a SoC's name in any case, or an architecture such as ``"v73"``.

    The first SoC of the catalog stands for its architecture; the library picks the same ones.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    socs = catalog()
    if isinstance(value, str):
        word = value.strip().upper()
        if word in socs:
            return socs[word].soc_model
        arch = re.fullmatch(r"V(\d+)", word)
        first = next((soc for soc in socs.values() if arch and soc.arch == int(arch[1])), None)
        if first is not None:
            return first.soc_model
    raise InvalidArgument(
        f"SoC {value!r} is unknown; expected a model number, one of {', '.join(socs)},"
        f" or one of {', '.join(f'v{arch}' for arch in _archs())}",
        st.QNN_DEVICE_ERROR_INVALID_CONFIG,
    )


def check_arch(value: int) -> int:
    """Refuse an architecture that we do not know: the library takes any number, and then compiles for v68."""
    if value not in _archs():
        raise InvalidArgument(
            f"architecture {value!r} is unknown; expected one of {', '.join(map(str, _archs()))}",
            st.QNN_DEVICE_ERROR_INVALID_CONFIG,
        )
    return value


def _archs() -> list[int]:
    return sorted({soc.arch for soc in catalog().values()})
