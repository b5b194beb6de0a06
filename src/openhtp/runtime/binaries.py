"""Context binaries that a caller gives: as bytes, as a path or as a descriptor, and whether they fit a device."""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass

from openhtp.core import status as st
from openhtp.core.checks import shown
from openhtp.core.errors import BadBinary, InvalidArgument, UsageError
from openhtp.core.files import open_file
from openhtp.hw.soc import SocSpec
from openhtp.program.binary import BinaryInfo, ContextBinary, open_binary, read_binary
from openhtp.program.packed import GraphInfo
from openhtp.program.sources import File

log = logging.getLogger(__name__)

Given = bytes | bytearray | memoryview | str | os.PathLike[str] | int


@dataclass(frozen=True, slots=True, kw_only=True)
class BinarySummary:
    """What ``Device.validate_binary`` found: for what and by what it was made, its size, and its graphs.

    ``suboptimal`` says why it would run on the device, but not at its best; empty if it would.
    """

    info: BinaryInfo
    nbytes: int
    graphs: tuple[GraphInfo, ...]
    suboptimal: str


def check_given(binary: object) -> None:
    """Refuse what cannot be a binary; what is in it is looked at when it is opened."""
    if isinstance(binary, bool) or not isinstance(binary, (bytes, bytearray, memoryview, str, os.PathLike, int)):
        raise InvalidArgument(
            f"binary is a {type(binary).__name__}; expected bytes, or the path or descriptor of a file",
            st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
        )


def open_given(binary: Given) -> ContextBinary:
    """Open a binary: its header is read and checked, nothing else.

    Memory that the caller may change is copied; of a file, what is needed is read when it is needed.
    """
    check_given(binary)
    if isinstance(binary, (bytes, bytearray, memoryview)):
        return read_binary(bytes(binary))
    if isinstance(binary, int):
        return open_binary(File(_own_copy(binary)))
    with open_file(binary, most=None, what="a context binary", error=BadBinary) as (fd, _):
        return open_binary(File(os.dup(fd)))


def _own_copy(fd: int) -> int:
    """A descriptor of our own of the same file, which must be one that can be read at any place."""
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISREG(mode):
            return os.dup(fd)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidArgument(
            f"binary is descriptor {shown(fd)}: {reason}; expected that of a file or memory with a context binary",
            st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
        ) from error
    raise InvalidArgument(
        f"binary is descriptor {shown(fd)}, which is no regular file; expected that of a file or memory with a"
        " context binary",
        st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
    )


def check_fit(binary: ContextBinary, soc: SocSpec, compatibility: str) -> str:
    """Why a binary is not at its best on this SoC; empty if it is. Under ``strict`` that is an error."""
    reason = _suboptimal(binary.info, soc)
    if reason and compatibility == "strict":
        raise UsageError(
            f"the context binary {reason}: it would run, but not at its best; make it again for {soc.name} from"
            " its model, or load it with compatibility='permissive'",
            st.QNN_CONTEXT_ERROR_BINARY_SUBOPTIMAL,
        )
    return reason


def _suboptimal(info: BinaryInfo, soc: SocSpec) -> str:
    if info.soc not in ("", soc.name):
        return (
            f"was made for {shown(info.soc)} (v{info.arch}, {info.vtcm_mb} MB of VTCM); this device is {soc.name}"
            f" ({soc.arch_name}, {soc.vtcm_mb} MB)"
        )
    if 0 < info.vtcm_mb < soc.vtcm_mb:
        return f"was made for {info.vtcm_mb} MB of VTCM; this {soc.name} has {soc.vtcm_mb} MB"
    return ""


def check_data(binary: ContextBinary) -> None:
    """Look at every byte of all graphs. Raises BadBinary with the first place that is damaged."""
    for name in binary.graph_names:
        graph = binary.packed(name)
        graph.program()
        graph.check_rest()


def validate(binary: ContextBinary, soc: SocSpec, compatibility: str, *, data_too: bool) -> BinarySummary:
    """Whether a context could be made of it; raises the error that says why not."""
    if not isinstance(data_too, bool):
        raise InvalidArgument(f"check_data is a {type(data_too).__name__}; expected True or False")
    reason = check_fit(binary, soc, compatibility)
    found = tuple(binary.graph_info(name) for name in binary.graph_names)
    if data_too:
        check_data(binary)
    return BinarySummary(info=binary.info, nbytes=binary.nbytes, graphs=found, suboptimal=reason)
