"""Checks of a caller's choices for a graph or tensor, each with a message that says what is valid."""

from __future__ import annotations

import math
import threading
from collections.abc import Set

from openhtp.core import status as st
from openhtp.core.checks import is_encodable, items_of, real_number, shown, type_in_words, whole_number
from openhtp.core.errors import InvalidArgument
from openhtp.core.status import Status
from openhtp.core.tensor import MAX_RANK
from openhtp.core.units import MIB
from openhtp.options import EXECUTION
from openhtp.options.graph import MAX_HVX_THREADS, MAX_VTCM_MB

Shape = tuple[int, ...]

MAX_NAME = 1024
# No machine has more. Whether the session's budget allows a size is for the device to say.
MAX_MEMORY_BYTES = 1 << 40

MAX_UNITS = MAX_HVX_THREADS
# The device splits a batch into at most so many executions.
MAX_BATCH = 4096
MAX_VTCM_BYTES = MAX_VTCM_MB * MIB

_NAME_STATUS = {
    "tensor": st.QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM,
    "device": st.QNN_DEVICE_ERROR_INVALID_ARGUMENT,
    "node": st.QNN_GRAPH_ERROR_INVALID_OP_CONFIG,
}


def deadline_from(called_ns: int, deadline_us: int) -> int:
    """When an execution of a call at ``called_ns`` should be done."""
    return called_ns + int(EXECUTION.read({"deadline_us": deadline_us}).deadline_us) * 1000


def check_count(
    what: str,
    value: object,
    most: int,
    *,
    least: int = 1,
    status: Status = st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
) -> int:
    """A whole number from ``least`` to ``most``."""
    number = whole_number(value)
    if number is None or not least <= number <= most:
        raise InvalidArgument(f"{what} is {shown(value)}; expected a whole number from {least} to {most}", status)
    return number


def check_bytes(value: object) -> int:
    """A size of memory. The device decides whether it has that much."""
    number = whole_number(value)
    if number is None or not 1 <= number <= MAX_MEMORY_BYTES:
        raise InvalidArgument(
            f"memory of {shown(value)} bytes; expected a whole number above 0, at most {MAX_MEMORY_BYTES}",
            st.QNN_MEM_ERROR_INVALID_ARGUMENT,
        )
    return number


def check_name(name: object, what: str) -> str:
    """A name that can be sent and stored: not empty, of bounded length, valid Unicode."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not is_encodable(name):
        raise InvalidArgument(
            f"{what} name {shown(name)}; expected a non-empty string that UTF-8 can encode, of at most {MAX_NAME}"
            " characters",
            _NAME_STATUS.get(what, st.QNN_GRAPH_ERROR_INVALID_NAME),
        )
    return str(name)


def check_shape(what: str, shape: object, status: Status = st.QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM) -> Shape:
    """Dimensions as a tuple of whole numbers. Text and bytes can be iterated, too, but are no shapes."""
    items = None if isinstance(shape, Set) else items_of(shape, MAX_RANK + 1)
    sizes = [None] if items is None else [whole_number(size) for size in items]
    if None in sizes or len(sizes) > MAX_RANK:
        raise InvalidArgument(
            f"shape of {what} is {shown(shape)}; expected a sequence of at most {MAX_RANK} whole numbers", status
        )
    return tuple(size for size in sizes if size is not None)


def check_callable(what: str, function: object, takes: str) -> None:
    """None, or a function."""
    if function is not None and not callable(function):
        raise InvalidArgument(
            f"{what} is {type_in_words(function)}; expected a function of {takes}",
            st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
        )


def check_timeout(timeout: object) -> float | None:
    """Seconds to wait, cut to the longest wait; None waits for ever."""
    if timeout is None:
        return None
    seconds = math.inf if isinstance(timeout, float) and timeout == math.inf else real_number(timeout)
    if seconds is None:
        raise InvalidArgument(f"timeout is {shown(timeout)}; expected a number of seconds, or None")
    return min(seconds, threading.TIMEOUT_MAX)


def check_handle(what: str, handle: object, kind: type) -> None:
    """None, or a handle of the right kind."""
    if handle is not None and not isinstance(handle, kind):
        raise InvalidArgument(
            f"{what} is {type_in_words(handle)}; expected a {what} handle of this backend or None",
            st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
        )
