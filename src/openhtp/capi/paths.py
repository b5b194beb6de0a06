"""Where our libraries are, for clients that load them by path."""

from __future__ import annotations

from pathlib import Path

from openhtp.abi.numbers import LIBRARY_NAME, SYSTEM_NAME
from openhtp.core import status as st
from openhtp.core.errors import UnsupportedFeature

_FOLDER = Path(__file__).absolute().parent / "lib"


def lib_dir() -> Path:
    """The folder of all our libraries; an error says what to do if they were not built."""
    if not (_FOLDER / LIBRARY_NAME).is_file():
        raise UnsupportedFeature(
            f"{_FOLDER / LIBRARY_NAME} is missing: it is compiled when openhtp is built, and then there was no C"
            " compiler. Install a wheel, or install gcc and run `pip install --force-reinstall --no-deps openhtp`",
            st.QNN_COMMON_ERROR_LOADING_BINARIES,
        )
    return _FOLDER


def backend_path() -> str:
    """Absolute path of our ``libQnnHtp.so``: what a QNN client is given as its backend."""
    return str(lib_dir() / LIBRARY_NAME)


def system_path() -> str:
    """Absolute path of our ``libQnnSystem.so``."""
    return str(lib_dir() / SYSTEM_NAME)
