"""Where ``libGenie.so`` lies, and a folder in which it finds our libraries.

Genie opens the QNN libraries that lie beside it before any others. So Genie gets a folder of links: to itself, to
our libraries, and to its own libraries that ours do not replace.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from openhtp.capi.identity import lib_dir
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.core.shared_library import check_file
from openhtp.vendor.library import PACKAGE, package_folders

GENIE_NAME = "libGenie.so"
GENIE_VARIABLE = "OPENHTP_GENIE_LIBRARY"
# Reads the file that ``extensions`` of a configuration names: chip, clocks, memory. We have none of our own.
EXTENSIONS_NAME = "libQnnHtpNetRunExtensions.so"
# Beside the package's folder: the libraries that its own were linked with.
_RUNTIME_FOLDER = f"{PACKAGE}.libs"


def find_genie(path: str | os.PathLike[str] | None = None) -> Path | None:
    """The library at ``path`` (or in that folder), otherwise at ``$OPENHTP_GENIE_LIBRARY`` or in the package.

    None if no path is given and there is none. A path that names nothing is an error.
    """
    named = os.environ.get(GENIE_VARIABLE) if path is None else os.fspath(path)
    if named:
        chosen = Path(named)
        chosen = chosen / GENIE_NAME if chosen.is_dir() else chosen
        if not chosen.is_file():
            source = GENIE_VARIABLE if path is None else "the library of Genie"
            raise InvalidArgument(f"{source} is {named!r}, and there is no file {str(chosen)!r}")
        return chosen.absolute()
    return next((folder / GENIE_NAME for folder in package_folders() if (folder / GENIE_NAME).is_file()), None)


def require_genie(path: str | os.PathLike[str] | None = None) -> Path:
    """The path of ``find_genie``, or an error that says how to get the library."""
    chosen = find_genie(path)
    if chosen is None:
        raise UnsupportedFeature(
            f"{GENIE_NAME} is not installed: `pip install openhtp[vendor]` brings it; or give its path, or set"
            f" {GENIE_VARIABLE}",
            st.QNN_COMMON_ERROR_LOADING_BINARIES,
        )
    check_file(chosen)
    return chosen


@contextmanager
def linked_folder(genie: Path) -> Iterator[Path]:
    """A folder of links for as long as the block runs."""
    with TemporaryDirectory(prefix="openhtp-genie-") as root:
        yield link_libraries(genie, Path(root) / "lib")


def link_libraries(genie: Path, folder: Path) -> Path:
    """Make a folder of links: to Genie, to our libraries, and to companions of Genie that we have no library for.

    Genie looks beside the parent of its folder for what it was linked with, so that place gets a link, too.
    """
    ours = sorted(lib_dir().rglob("*.so"))
    companions = [genie.parent / EXTENSIONS_NAME] if (genie.parent / EXTENSIONS_NAME).is_file() else []
    try:
        folder.mkdir(parents=True)
        for library in (genie, *ours, *companions):
            (folder / library.name).symlink_to(library.absolute())
        runtime = genie.parent.parent / _RUNTIME_FOLDER
        if runtime.is_dir() and not (folder.parent / _RUNTIME_FOLDER).exists():
            (folder.parent / _RUNTIME_FOLDER).symlink_to(runtime.absolute())
    except OSError as error:
        raise InvalidArgument(
            f"cannot make the folder of links {str(folder)!r}: {error.strerror}; expected a name that is not taken"
        ) from error
    return folder
