"""Which way a Windows device is driven: by libraries of the program, or by the system's driver (HNRD)."""

from __future__ import annotations

import logging
import re

from openhtp.core import status as st
from openhtp.core.checks import shown
from openhtp.core.errors import BadBinary, InvalidArgument, UnsupportedFeature
from openhtp.options import OptionValues
from openhtp.program.binary import BinaryInfo

log = logging.getLogger(__name__)

# The first version that programs of any other version can use.
OLDEST_DRIVER = (2, 22, 2)


def choose_driver(chosen: OptionValues) -> str:
    """Check the choice, and say in the log what the vendor's library says of it.

    Returns the version of the system's driver; empty if it is not used, or its version was not said.
    """
    if chosen.driver_path == "traditional":
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
    if version and not _numbers(version):
        raise InvalidArgument(
            f"driver_version is {shown(version)}; expected numbers with dots, as 2.22.2",
            st.QNN_DEVICE_ERROR_INVALID_CONFIG,
        )
    log.warning("Traditional path not available. Switching to user driver path")
    if version and _numbers(version) < OLDEST_DRIVER:
        oldest = ".".join(map(str, OLDEST_DRIVER))
        raise UnsupportedFeature(
            f"the driver has version {version}; at least {oldest} is needed: install a newer HNRD",
            st.QNN_COMMON_ERROR_LOADING_BINARIES,
        )
    log.warning("HTP user driver is loaded. Switched to user driver path")
    return version


def made_by_older(info: BinaryInfo, version: str) -> str:
    """Why a binary of an older driver is not at its best with this one; empty if it is.

    One of a newer driver cannot be loaded. What was made, or is used, without the system's driver is left alone.
    """
    if not info.driver or not version:
        return ""
    made = _numbers(info.driver)
    if not made:
        raise BadBinary(f"the context binary was made by a driver of version {shown(info.driver)}, which is none")
    words = f"was made by version {info.driver} of the Hexagon NPU runtime driver; this system has {version}"
    if made > _numbers(version):
        raise BadBinary(f"the context binary {words}: make it again from its model, or install a newer HNRD")
    return words if made < _numbers(version) else ""


def _numbers(version: str) -> tuple[int, ...]:
    """As four numbers, 2.30 as 2.30.0.0; none if it is no version."""
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6}){1,3}", version):
        return ()
    given = tuple(map(int, version.split(".")))
    return given + (0,) * (4 - len(given))
