"""Opens a caller's context binaries (bytes, paths or descriptors), and checks whether they fit a device."""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from openhtp.core import status as st
from openhtp.core.checks import shown, type_in_words
from openhtp.core.errors import BadBinary, InvalidArgument, UsageError, error_context
from openhtp.core.files import open_file
from openhtp.core.telling import warn_once
from openhtp.hw.soc import ANY_PLATFORM, SocSpec
from openhtp.program.binary import BinaryInfo, ContextBinary, open_binary, read_binary
from openhtp.program.packed import GraphInfo
from openhtp.program.sources import BinarySource, FileSource
from openhtp.rpc.shm import unchangeable

log = logging.getLogger(__name__)

# How much of a binary is copied between two checks of whether the call should go on.
_CHUNK_BYTES = 4 << 20

Check = Callable[[], None]
"""Raises the error of a call that should not go on."""


def go_on() -> None:
    """The check of a call that nothing ends early."""


@runtime_checkable
class LentBinary(Protocol):
    """A binary in memory that is not Python's."""

    def lent_source(self, check: Check) -> BinarySource:
        """The source of its bytes from now on, for as long as a context of it lives."""

    @property
    def is_mapped(self) -> bool:
        """Whether that source is a file that is mapped there."""


Given = bytes | bytearray | memoryview | mmap.mmap | str | os.PathLike[str] | int | LentBinary


@dataclass(frozen=True, slots=True, kw_only=True)
class BinarySummary:
    """What ``Device.validate_binary`` returns: the chip and maker of the binary, its size, and its graphs.

    ``suboptimal`` says why it would not run at its best on the device; empty if it would.
    """

    info: BinaryInfo
    nbytes: int
    graphs: tuple[GraphInfo, ...]
    suboptimal: str


def check_given(binary: object) -> None:
    """Refuse an object that cannot be a binary; its content is checked when it is opened."""
    if isinstance(binary, bool) or not (
        isinstance(binary, (str, os.PathLike, int, LentBinary)) or in_memory(binary)
    ):
        raise InvalidArgument(
            f"binary is {type_in_words(binary)}; expected bytes, or the path or descriptor of a file",
            st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
        )


def open_given(binary: Given, check: Check = go_on) -> ContextBinary:
    """Open a binary: its header is read and checked, nothing else.

    Memory that the caller may change is copied; a file is read piece by piece, when a piece is needed.
    """
    check_given(binary)
    if isinstance(binary, LentBinary):
        return open_binary(binary.lent_source(check))
    if isinstance(binary, int):
        return open_binary(FileSource(_own_copy(binary)))
    if isinstance(binary, bytes):
        return read_binary(binary)
    if not isinstance(binary, (str, os.PathLike)):
        view = memoryview(binary)
        view = view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
        return open_binary(copied(view.nbytes, lambda begin, end: view[begin:end], check))
    opened = open_file(binary, most=None, what="a context binary", error=BadBinary)
    with opened as (fd, _), error_context(file=os.fspath(binary)):
        return open_binary(FileSource(os.dup(fd)))


def open_for_context(binary: Given, budget_mb: int, check: Check = go_on) -> ContextBinary:
    """Open a binary that a context is made of, read in pieces of ``budget_mb``, or all at once if that is 0."""
    opened = open_given(binary, check)
    if budget_mb and not _is_mapped(binary):
        warn_once(
            log,
            ("read budget of unmapped memory",),
            "file_read_memory_budget_in_mb is for binaries in files and mapped memory; for others the documents do"
            " not define what it does. This one is copied first, and the copy is read in pieces",
        )
    return opened


def _is_mapped(binary: Given) -> bool:
    if isinstance(binary, LentBinary):
        return binary.is_mapped
    return isinstance(binary, str | os.PathLike | int | mmap.mmap)


def copied(nbytes: int, read: Callable[[int, int], memoryview], check: Check) -> FileSource:
    """A copy of ``nbytes`` bytes, which the device uses where it lies: no process can write to it any more."""
    memory = unchangeable(nbytes, chunks(0, nbytes, read, check))
    try:
        return FileSource(os.dup(memory.number))
    finally:
        memory.close()


def chunks(
    begin: int, end: int, read: Callable[[int, int], memoryview], check: Check
) -> Iterator[tuple[int, memoryview]]:
    """These bytes in pieces with their offsets. Each is read in its turn, unless the call ends before."""
    while begin < end:
        check()
        piece_end = min(begin + _CHUNK_BYTES, end)
        yield begin, read(begin, piece_end)
        begin = piece_end
    check()


def in_memory(binary: object) -> bool:
    """Whether an object has its bytes in memory, one after the other: bytes, a mapped file, an array."""
    try:
        return memoryview(binary).ndim > 0  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):  # no buffer, or one that was closed or released
        return False


def _own_copy(fd: int) -> int:
    """A descriptor of our own for the same file, which must be readable at any offset."""
    try:
        mode, flags = os.fstat(fd).st_mode, fcntl.fcntl(fd, fcntl.F_GETFL)
        readable = flags & os.O_ACCMODE != os.O_WRONLY and not flags & os.O_PATH
        if stat.S_ISREG(mode) and readable:
            return os.dup(fd)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidArgument(
            f"binary is descriptor {shown(fd)}: {reason}; expected that of a file or memory with a context binary",
            st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
        ) from error
    wrong = "was not opened for reading" if stat.S_ISREG(mode) else "is no regular file"
    raise InvalidArgument(
        f"binary is descriptor {shown(fd)}, which {wrong}; expected that of a file or memory with a"
        " context binary",
        st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
    )


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a binary is not at its best on a device, and the consequence."""

    why: str
    so: str


def check_fit(
    binary: ContextBinary, soc: SocSpec, driver: str, compatibility: str, platform: str
) -> Misfit | None:
    """Why a binary is not at its best on this SoC and driver; None if it is. Under ``strict`` that is an error.

    A device whose platform was named stands for one that cannot compile a binary again: another architecture's is
    refused.
    """
    misfit = _misfit(binary.info, soc, driver)
    if misfit is not None and platform != ANY_PLATFORM and binary.info.arch not in (0, soc.arch):
        raise UsageError(
            f"the context binary {misfit.why}: its results would not be determined on {platform}; make it again"
            f" for {soc.name} from its model, or leave platform out, and it is compiled again",
            st.QNN_CONTEXT_ERROR_CREATE_FROM_BINARY,
        )
    if misfit is not None and compatibility == "strict":
        raise UsageError(
            f"the context binary {misfit.why}: it would run, but not at its best; make it again for {soc.name}"
            " from its model, or load it with compatibility='permissive'",
            st.QNN_CONTEXT_ERROR_BINARY_SUBOPTIMAL,
        )
    return misfit


def _misfit(info: BinaryInfo, soc: SocSpec, driver: str) -> Misfit | None:
    older = _made_by_older(info, driver)
    if info.soc not in ("", soc.name):
        why = (
            f"was made for {shown(info.soc)} (v{info.arch}, {info.vtcm_mb} MB of VTCM); this device is {soc.name}"
            f" ({soc.arch_name}, {soc.vtcm_mb} MB)"
        )
    elif 0 < info.vtcm_mb < soc.vtcm_mb:
        why = f"was made for {info.vtcm_mb} MB of VTCM; this {soc.name} has {soc.vtcm_mb} MB"
    else:
        return Misfit(older, "it runs, but not at its best; make it again from its model") if older else None
    return Misfit(why, "it is compiled again, which takes longer")


def _made_by_older(info: BinaryInfo, version: str) -> str:
    """Why a binary of an older driver is not at its best with this one; empty if it is.

    A binary of a newer driver cannot be loaded. Without the system's driver, there or here, nothing is compared.
    """
    if not info.driver or not version:
        return ""
    maker = version_numbers(info.driver)
    if not maker:
        raise BadBinary(f"the context binary was made by a driver of version {shown(info.driver)}, which is none")
    words = f"was made by version {info.driver} of the Hexagon NPU runtime driver; this system has {version}"
    if maker > version_numbers(version):
        raise BadBinary(f"the context binary {words}: make it again from its model, or install a newer HNRD")
    return words if maker < version_numbers(version) else ""


def version_numbers(version: str) -> tuple[int, ...]:
    """The version of a driver as four numbers, 2.30 as 2.30.0.0; empty if it is no version."""
    if not re.fullmatch(r"\d{1,6}(\.\d{1,6}){1,3}", version):
        return ()
    numbers = tuple(map(int, version.split(".")))
    return numbers + (0,) * (4 - len(numbers))


def check_data(binary: ContextBinary) -> None:
    """Check every byte of all graphs. Raises BadBinary with the first damaged place."""
    for name in binary.graph_names:
        graph = binary.packed(name)
        graph.program()
        graph.check_rest()


def validate(
    binary: ContextBinary,
    soc: SocSpec,
    driver: str,
    compatibility: str,
    platform: str = ANY_PLATFORM,
    *,
    data_too: bool,
) -> BinarySummary:
    """Summarise a binary of which a context could be made; otherwise raise the error that says why not."""
    if not isinstance(data_too, bool):
        raise InvalidArgument(f"check_data is {type_in_words(data_too)}; expected True or False")
    misfit = check_fit(binary, soc, driver, compatibility, platform)
    graphs = tuple(binary.graph_info(name) for name in binary.graph_names)
    if data_too:
        check_data(binary)
    why = "" if misfit is None else misfit.why
    return BinarySummary(info=binary.info, nbytes=binary.nbytes, graphs=graphs, suboptimal=why)
