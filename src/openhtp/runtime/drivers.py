"""Which way a Windows device is driven: by libraries of the program, or by the system's driver (HNRD)."""

from __future__ import annotations

import logging
import re

from openhtp.core import status as st
from openhtp.core.checks import shown
from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.options import Values

log = logging.getLogger(__name__)

# The first version that programs of any other version can use.
OLDEST_DRIVER = (2, 22, 2)


def choose_driver(chosen: Values) -> None:
    """Check the choice, and say in the log what the vendor's library says of it."""
    if chosen.driver_path == "traditional":
        if chosen.driver_version is not None:
            raise InvalidArgument(
                "driver_version is given, but driver_path is traditional; only the system's driver (hnrd) has one",
                st.QNN_DEVICE_ERROR_INVALID_CONFIG,
            )
        return
    if chosen.platform != "windows":
        raise UnsupportedFeature(
            f"driver_path hnrd on platform {chosen.platform}; the Hexagon NPU runtime driver is for windows",
            st.QNN_DEVICE_ERROR_UNSUPPORTED_FEATURE,
        )
    log.warning("Traditional path not available. Switching to user driver path")
    if chosen.driver_version is not None and _numbers(chosen.driver_version) < OLDEST_DRIVER:
        oldest = ".".join(map(str, OLDEST_DRIVER))
        raise UnsupportedFeature(
            f"the driver has version {chosen.driver_version}; at least {oldest} is needed: install a newer HNRD",
            st.QNN_COMMON_ERROR_LOADING_BINARIES,
        )
    log.warning("HTP user driver is loaded. Switched to user driver path")


def _numbers(version: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6}){1,3}", version):
        raise InvalidArgument(
            f"driver_version is {shown(version)}; expected numbers with dots, as 2.22.2",
            st.QNN_DEVICE_ERROR_INVALID_CONFIG,
        )
    return tuple(map(int, version.split(".")))
