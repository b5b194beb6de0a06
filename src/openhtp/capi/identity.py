"""The library's versions and its place. Clients refuse versions that are older than themselves.

A client checks the versions of the SDK that it was built with, so a new release of a client may ask for a higher
one. The variables change the versions without a new release of openhtp.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from openhtp.abi.numbers import LIBRARY_NAME, SYSTEM_NAME
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.core.shared_library import FOREIGN_WHEEL, check_file

Version = tuple[int, int, int]

_VERSION = re.compile(r"\d+(\.\d+){1,2}")
_BUILD = re.compile(r"v\d+\.\d+\.\d+\.\d+\S*")

CORE_VARIABLE = "OPENHTP_CORE_API"
HTP_VARIABLE = "OPENHTP_HTP_API"
SYSTEM_VARIABLE = "OPENHTP_SYSTEM_API"
BUILD_VARIABLE = "OPENHTP_BUILD_ID"

# Also in the C stub, which returns them before Python is loaded: see tools/gen_capi_entries.py.
CORE_API, HTP_API, SYSTEM_API = "2.40.0", "5.51.0", "1.15.0"
PROVIDER_NAME = "HTP_QTI_AISW"
SYSTEM_PROVIDER_NAME = "SYSTEM_QTI_AISW"
BLOB_VERSION: Version = (4, 0, 6)


FOLDER = Path(__file__).absolute().parent / "lib"


def core_api() -> Version:
    """The version of the core interface."""
    return _version(CORE_VARIABLE, CORE_API)


def htp_api() -> Version:
    """The version of the HTP's part."""
    return _version(HTP_VARIABLE, HTP_API)


def build_id() -> str:
    """The SDK whose behaviour clients may expect: some look at its number and switch features by it."""
    return _text(BUILD_VARIABLE, "v2.51.0.260000000000_openhtp", _BUILD, "v2.51.0.260000000000")


def _version(variable: str, default: str) -> Version:
    major, minor, *patch = (int(part) for part in _text(variable, default, _VERSION, default).split("."))
    return major, minor, patch[0] if patch else 0


def _text(variable: str, default: str, form: re.Pattern[str], example: str) -> str:
    text = os.environ.get(variable, "") or default
    if not form.fullmatch(text):
        raise InvalidArgument(f"{variable} is {text!r}; expected a version such as {example}")
    return text


def lib_dir() -> Path:
    """The folder of all our libraries; an error says what to do if they were not built."""
    if not (FOLDER / LIBRARY_NAME).is_file():
        raise UnsupportedFeature(
            f"{FOLDER / LIBRARY_NAME} is missing: it is compiled when openhtp is built, and then there was no C"
            " compiler. Install a wheel, or install gcc and run `pip install --force-reinstall --no-deps openhtp`",
            st.QNN_COMMON_ERROR_LOADING_BINARIES,
        )
    check_file(FOLDER / LIBRARY_NAME, FOREIGN_WHEEL)
    return FOLDER


def backend_path() -> str:
    """Absolute path of our ``libQnnHtp.so``: what a QNN client is given as its backend."""
    return str(lib_dir() / LIBRARY_NAME)


def system_path() -> str:
    """Absolute path of our ``libQnnSystem.so``."""
    return str(lib_dir() / SYSTEM_NAME)
