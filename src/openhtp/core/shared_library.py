"""The faults of a shared library, in words: the dynamic loader would only hint at them."""

from __future__ import annotations

import hashlib
import platform
import re
import stat
from pathlib import Path

from openhtp.core import status as st
from openhtp.core.errors import FormatError, UnsupportedFeature
from openhtp.core.files import kind_in_words

REINSTALL = "pip install --force-reinstall --no-deps openhtp"
FOREIGN_WHEEL = f": openhtp comes from a wheel for another machine; {REINSTALL}"

WHAT_TO_DO = ". What to do: "
"""Between the cause and the cure in the message of a library that cannot be used here."""

OUTDATED = "its library was compiled from other C sources than those that are here"
"""The cause if an installation from a checkout was not renewed when the checkout was."""
RENEW = "compile it again with pip install -e . (or make .venv/.installed)"

_MACHINES = {62: "x86_64", 183: "aarch64", 3: "i686", 40: "arm", 243: "riscv64", 164: "Hexagon (the DSP)"}
_NEWER_GLIBC = re.compile(r"version [`'\"]?GLIBC_(?P<needed>[\d.]+)")


def is_outdated(library: Path, sources: Path) -> bool:
    """Whether this folder has our C sources, and the library was compiled from others (``hatch_build.py``)."""
    files = sorted(sources.glob("*.[ch]"))
    if not files:
        return False
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    return digest.encode() not in library.read_bytes()


def check_file(path: Path, cure: str = f"{WHAT_TO_DO}take the build of it for this machine") -> None:
    """Refuse a file that cannot be loaded here: unreadable, no library, or for another machine."""
    try:
        mode = path.stat().st_mode
        # Opening a pipe would wait for its writer, and some devices never end.
        if not stat.S_ISREG(mode):
            raise UnsupportedFeature(
                f"{str(path)!r} is {kind_in_words(mode)}; expected a shared library",
                st.QNN_COMMON_ERROR_LOADING_BINARIES,
            )
        with path.open("rb") as file:
            head = file.read(20)
    except OSError as error:
        raise UnsupportedFeature(
            f"{str(path)!r} cannot be read: {error.strerror}", st.QNN_COMMON_ERROR_LOADING_BINARIES
        ) from error
    if head[:4] != b"\x7fELF" or len(head) < 20:
        raise FormatError(f"{str(path)!r} is not a shared library (no ELF header)")
    machine = int.from_bytes(head[18:20], "little")
    built_for, here = _MACHINES.get(machine, f"ELF machine {machine}"), platform.machine()
    if built_for != here:
        raise FormatError(
            f"{str(path)!r} is built for {built_for}, and this Python runs on {here}{cure}",
            st.QNN_COMMON_ERROR_PLATFORM_NOT_SUPPORTED,
        )


def loading_failure(path: Path, error: OSError) -> FormatError:
    """The error for a library that the loader refused; an old C library is called by its name."""
    newer = _NEWER_GLIBC.search(str(error))
    if newer is None:
        return FormatError(f"{str(path)!r} cannot be loaded: {error}")
    _, here = platform.libc_ver()
    return FormatError(
        f"{str(path)!r} needs glibc {newer['needed']} or later, and this system has {here or 'an older one'}"
        f"{WHAT_TO_DO}use a newer system, or a build of the library for an older one",
        st.QNN_COMMON_ERROR_PLATFORM_NOT_SUPPORTED,
    )
