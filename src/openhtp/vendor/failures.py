"""From the library's numeric answers to our exceptions."""

from __future__ import annotations

from openhtp.core import errors, status
from openhtp.core.status import Status

# Codes that appeared after the API version our tables describe.
_NEWER = {
    4013: "QNN_BACKEND_ERROR_OP_PACKAGE_LOAD_FROM_BUFFER_FAILED",
    6040: "QNN_GRAPH_ERROR_CYCLE_DETECTED",
    14004: "QNN_DEVICE_ERROR_ACCESS_DENIED",
}

_CLASSES: dict[int, type[errors.QnnError]] = {
    1000: errors.UnsupportedFeature,
    1002: errors.OutOfMemory,
    1004: errors.InvalidArgument,
    1005: errors.WrongState,
    1006: errors.UnsupportedFeature,
    1007: errors.DeviceLost,
    1010: errors.ResourceError,
    1011: errors.DeviceLost,
    3110: errors.UnsupportedOp,
    4004: errors.InvalidArgument,
    4005: errors.UnsupportedOp,
    4011: errors.InvalidHandle,
    5000: errors.InvalidArgument,
    5002: errors.InvalidHandle,
    5003: errors.WrongState,
    5004: errors.BadBinary,
    5005: errors.BadBinary,
    5010: errors.InvalidArgument,
    6000: errors.InvalidArgument,
    6001: errors.InvalidHandle,
    6003: errors.NameClash,
    6004: errors.InvalidArgument,
    6005: errors.InvalidArgument,
    6007: errors.InvalidArgument,
    6023: errors.WrongState,
    6024: errors.WrongState,
    6031: errors.Aborted,
    6033: errors.TimedOut,
    7001: errors.InvalidHandle,
    7003: errors.NameClash,
    7004: errors.InvalidArgument,
    7005: errors.InvalidArgument,
    12000: errors.InvalidHandle,
    13001: errors.InvalidArgument,
    14000: errors.InvalidHandle,
    14001: errors.InvalidArgument,
    30001: errors.BadBinary,
    30010: errors.BadBinary,
}

# The same number means something else in some calls.
_BY_CALL: dict[tuple[str, int], type[errors.QnnError]] = {
    # The compiler answers "memory" for any graph it cannot lower; its log says which operation it was.
    ("graphFinalize", 1002): errors.UnsupportedOp,
    ("graphExecute", 1100): errors.ExecutionError,
    ("contextCreateFromBinary", 5000): errors.BadBinary,
}


def status_for(code: int, area: str) -> Status:
    """The documented status of a code; an unknown one keeps its number in its name."""
    if code in _NEWER:
        return Status(_NEWER[code], code)
    if code >= status.QNN_SYSTEM_CONTEXT_MINERROR.code:
        # The system library's range; core calls on context binaries answer from it too.
        area = "SYSTEM_CONTEXT"
    return status.for_code(code, area=area)


def failure(call: str, code: int, *, area: str, where: str, said: list[str]) -> errors.QnnError:
    """The exception for a call that answered ``code``; ``said`` is what the library logged meanwhile."""
    kind = _BY_CALL.get((call, code)) or _CLASSES.get(code, errors.QnnError)
    place = f" for {where}" if where else ""
    reason = f": {'; '.join(said)}" if said else ""
    return kind(f"vendor library: {call} failed{place}{reason}", status_for(code, area))
