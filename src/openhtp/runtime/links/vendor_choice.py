"""Choosing the vendor's library for a backend's devices; loads nothing of it until a device is created."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

from openhtp.core import status as st
from openhtp.core.checks import path_of, shown
from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.options import OptionValues
from openhtp.runtime.links.device_process import DeviceOptions
from openhtp.runtime.links.emulated_choice import chosen_host
from openhtp.runtime.links.rpc_link import RpcLink
from openhtp.runtime.objects.device import Connect

VENDOR = "vendor"


def vendor_library(library: str | os.PathLike[str]) -> Path:
    """The file that ``Backend(library=...)`` means. Raises with advice if it is missing or no library."""
    from openhtp.vendor.library import check_file, require_library

    given = path_of(library)
    if given is None:
        raise InvalidArgument(
            f"library is {shown(library)}; expected the path of a libQnnHtp.so, or {VENDOR!r}",
            st.QNN_BACKEND_ERROR_INVALID_ARGUMENT,
        )
    path = require_library() if str(given) == VENDOR else given
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
    }
    for what, given in refusals.items():
        if given:
            raise UnsupportedFeature(
                f"the vendor device does not take {what}", st.QNN_DEVICE_ERROR_UNSUPPORTED_FEATURE
            )
    reached = dataclasses.replace(options, config=config)
    return lambda on_lost: RpcLink(reached, on_lost)
