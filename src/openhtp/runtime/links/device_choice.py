"""Decides once what a new device is: an emulated NPU or the vendor's library, in which process, by which driver.

Nothing of the vendor's library is loaded until a device is created.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openhtp.core import status as st
from openhtp.core.checks import path_of, shown
from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.hw.catalog import catalog
from openhtp.hw.soc import SocSpec
from openhtp.options import OptionValues
from openhtp.options.device import TRANSPORTS
from openhtp.runtime.binaries.opening import version_numbers
from openhtp.runtime.links.device_process import DeviceOptions
from openhtp.runtime.links.rpc_link import RpcLink

if TYPE_CHECKING:
    from openhtp.runtime.objects.device import Connect

log = logging.getLogger(__name__)

# The first version that programs of any other version can use.
OLDEST_DRIVER = (2, 22, 2)
# What a program has in its folder that brings the libraries of the platform.
_BUNDLED = "QnnHtpV*Stub.dll"
# What the vendor's library has before its lines.
_PREFIX = "QnnDsp <W>"

VENDOR = "vendor"


def chosen_host(chosen: OptionValues) -> str:
    """``process`` or ``thread``, by the option host or transport."""
    by_transport = None if chosen.transport is None else TRANSPORTS[chosen.transport]
    if chosen.host and by_transport and chosen.host != by_transport:
        raise InvalidArgument(
            f"host={chosen.host!r} and transport={chosen.transport!r} contradict each other; give one of them",
            st.QNN_DEVICE_ERROR_INVALID_CONFIG,
        )
    host: str = chosen.host or by_transport or "process"
    return host


def emulated_connect(options: DeviceOptions, chosen: OptionValues) -> Connect:
    """How to reach the NPU that is wanted."""
    shared = chosen.npu == "shared"
    if chosen_host(chosen) == "process":
        # A name that only this process knows makes its devices clients of one process.
        target = options
        if shared and options.name is None:
            name = f"npu-of-{os.getpid()}-{options.config.soc}-{options.config.device_id}"
            target = dataclasses.replace(options, name=name, allow_faults=True)
        return lambda on_lost: RpcLink(target, on_lost, shares_budget=shared)
    if options.name is not None:
        raise InvalidArgument(
            f"device {options.name!r} is shared with other processes, so its host is a process; leave out host",
            st.QNN_DEVICE_ERROR_INVALID_CONFIG,
        )
    from openhtp.runtime.links.thread_link import ThreadLink  # imports everything that a device needs

    return lambda on_lost: ThreadLink(options, on_lost, shared=shared)


def vendor_library(library: str | os.PathLike[str]) -> Path:
    """The file that ``Backend(library=...)`` means. Raises with advice if the file is missing or no library."""
    from openhtp.core.shared_library import check_file
    from openhtp.vendor.library import require_library

    requested = path_of(library)
    if requested is None:
        raise InvalidArgument(
            f"library is {shown(library)}; expected the path of a libQnnHtp.so, or {VENDOR!r}",
            st.QNN_BACKEND_ERROR_INVALID_ARGUMENT,
        )
    path = require_library() if str(requested) == VENDOR else requested
    check_file(path)
    return path


def check_one_set(library: Path, others: Iterable[Path | None]) -> None:
    """Refuse a second copy of the library in one process, from another folder or under another name.

    Libraries of two sets would find each other's parts; the vendor supports one set for each process.
    """
    for other in others:
        if other is not None and not os.path.samefile(library, other):
            raise UnsupportedFeature(
                f"this process uses {str(other)!r} already, and {str(library)!r} is another copy; only one set of"
                " the vendor's libraries can be used by a process: free the first backend, or use its library",
                st.QNN_COMMON_ERROR_LOADING_BINARIES,
            )


def vendor_connect(library: Path, options: DeviceOptions, chosen: OptionValues) -> Connect:
    """How to reach the library's process. Raises UnsupportedFeature for what only the emulator can do."""
    config = dataclasses.replace(options.config, library=str(library.absolute()))
    refusals = {
        "a name: the library serves the process that loaded it": options.name is not None,
        "host='thread' (transport='inprocess'): a crash of the library would be the client's": chosen_host(chosen)
        == "thread",
        "npu='shared': each device is a process of the library": chosen.npu == "shared",
        "threads: the library decides them": config.threads != 1,
        "parallel_graphs: the library runs one graph at a time": config.parallel_graphs,
        "vtcm_windowing: the library manages its VTCM": config.vtcm_windowing,
        "device_id: the library has one device": config.device_id != 0,
        "pd_session: it is not handed on to the library": options.pd_session != "unsigned",
    }
    for refusal, applies in refusals.items():
        if applies:
            raise UnsupportedFeature(
                f"the vendor device does not take {refusal}", st.QNN_DEVICE_ERROR_UNSUPPORTED_FEATURE
            )
    target = dataclasses.replace(options, config=config)
    return lambda on_lost: RpcLink(target, on_lost)


def chip_of(chosen: SocSpec, platform: Sequence[Mapping[str, Any]], *, named: bool) -> SocSpec:
    """The chip that a library says it is, of the platform that it describes.

    Raises InvalidArgument if the caller ``named`` another one: a board cannot be it.
    """
    model, arch = (platform[0].get(field) if platform else None for field in ("soc_model", "arch"))
    if model is None or model == chosen.soc_model:
        return chosen
    twin = next((soc for soc in catalog().values() if soc.soc_model == model), None)
    words = f"SoC model {model}, v{arch}" if twin is None else f"{twin.name} (SoC model {model})"
    if named:
        raise InvalidArgument(
            f"soc is {chosen.name}, and the vendor's library says that this chip is {words}; leave soc out",
            st.QNN_DEVICE_ERROR_INVALID_CONFIG,
        )
    if twin is not None:
        return twin
    nearest = next((soc for soc in catalog().values() if soc.arch == arch), chosen)
    log.warning(
        "the chip is %s, which the catalog does not have: graphs are checked as for %s", words, nearest.name
    )
    return nearest


def choose_driver(chosen: OptionValues) -> str:
    """Check the choice, and log what the vendor's library logs about it.

    Returns the version of the system's driver; empty if the driver is not used or no version was given.
    """
    by_itself = chosen.driver_path is None and chosen.platform == "windows"
    if by_itself and (chosen.driver_version is None or _brings_libraries()):
        return ""
    if not by_itself and chosen.driver_path != "hnrd":
        if chosen.driver_version is not None:
            raise InvalidArgument(
                "driver_version is given, but driver_path is traditional; only the system's driver (hnrd) has one",
                st.QNN_DEVICE_ERROR_INVALID_CONFIG,
            )
        return ""
    if chosen.platform != "windows":
        raise UnsupportedFeature(
            f"driver_path hnrd on platform {chosen.platform}; the Hexagon NPU runtime driver is for windows",
            st.QNN_DEVICE_ERROR_UNSUPPORTED_FEATURE,
        )
    version: str = chosen.driver_version or ""
    if version and not version_numbers(version):
        raise InvalidArgument(
            f"driver_version is {shown(version)}; expected numbers with dots, as 2.22.2",
            st.QNN_DEVICE_ERROR_INVALID_CONFIG,
        )
    log.warning("%s Traditional path not available. Switching to user driver path", _PREFIX)
    if version and version_numbers(version) < OLDEST_DRIVER:
        oldest = ".".join(map(str, OLDEST_DRIVER))
        raise UnsupportedFeature(
            f"the driver has version {version}; at least {oldest} is needed: install a newer HNRD",
            st.QNN_COMMON_ERROR_LOADING_BINARIES,
        )
    log.warning("%s HTP user driver is loaded. Switched to user driver path", _PREFIX)
    return version


def _brings_libraries() -> bool:
    """Whether the program has libraries of the platform in its folder: they come before the system's driver."""
    folder = Path(sys.argv[0] if sys.argv else "").absolute().parent
    return any(folder.glob(_BUNDLED))
