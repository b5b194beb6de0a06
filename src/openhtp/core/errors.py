"""The one exception tree, sorted by what the caller can do about it.

::

    QnnError                    carries .status (.name, .code), .context
      UsageError                your call is wrong
        InvalidArgument         a value is of the wrong kind or out of range
        InvalidHandle           an object was freed, or belongs to someone else
        WrongState              right call, wrong moment (not finalized, already running...)
        NameClash               that name is taken
      UnsupportedError          valid, but not offered
        UnsupportedOp           no such operation, or not with these types
        UnsupportedFeature      a feature that this device or mode does not have
      ResourceError             free something, or try again
        OutOfMemory             a pool is exhausted
        QueueFull               the execution queue has no room
      ExecutionError            an accepted run ended early
        Aborted                 by a signal or by cancel()
        TimedOut                by a timeout signal
        DeviceLost              the device process went away (subsystem restart)
      FormatError               an input file is bad
        BadModel                a model file
        BadBinary               a context binary
        BadProfile              a profile log, a schematic
      InternalError             a bug of ours; please report it
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from openhtp.core import status as st
from openhtp.core.status import Status

# Descriptors, threads or processes: this process has as many as it may, or the system has.
_USED_UP = (errno.EMFILE, errno.ENFILE, errno.EAGAIN)


def is_used_up(error: BaseException) -> bool:
    """Whether an error of the system means that something is used up, which is nobody's bug."""
    return isinstance(error, OSError) and error.errno in _USED_UP


class QnnError(Exception):
    """Root of all errors raised by openhtp.

    ``name`` and ``code`` are those of the QNN API (``QNN_GRAPH_ERROR_GRAPH_NOT_FINALIZED``, 6023). The
    message says what was given, what was expected and where; ``where`` has the places by kind (``node``).
    """

    default_status: Status = st.QNN_COMMON_ERROR_GENERAL

    def __init__(self, message: str, status: Status | None = None) -> None:
        self.message = message
        self.status = status if status is not None else self.default_status
        self.context: list[str] = []
        self.where: dict[str, object] = {}
        super().__init__(message)

    @property
    def name(self) -> str:
        """Documented name of the status."""
        return self.status.name

    @property
    def code(self) -> int:
        """Documented number of the status."""
        return self.status.code

    def __str__(self) -> str:
        where = f" [{', '.join(reversed(self.context))}]" if self.context else ""
        return f"{self.message}{where} ({self.name}, {self.code})"

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message, self.status), {"context": self.context, "where": self.where})


class UsageError(QnnError):
    """The call is wrong; nothing was changed."""

    default_status = st.QNN_COMMON_ERROR_INVALID_ARGUMENT


class InvalidArgument(UsageError):
    """A value is of the wrong kind or out of range."""


class InvalidHandle(UsageError):
    """The object was freed, or belongs to another backend, device or context."""

    default_status = st.QNN_GRAPH_ERROR_INVALID_HANDLE


class WrongState(UsageError):
    """The call is right but comes at the wrong moment of the object's life."""

    default_status = st.QNN_COMMON_ERROR_OPERATION_NOT_PERMITTED


class NameClash(UsageError):
    """The name is taken."""

    default_status = st.QNN_GRAPH_ERROR_INVALID_NAME


class UnsupportedError(QnnError):
    """The request is valid but not offered here."""

    default_status = st.QNN_COMMON_ERROR_NOT_SUPPORTED


class UnsupportedOp(UnsupportedError):
    """No such operation, or not with these data types or parameters."""

    default_status = st.QNN_OP_PACKAGE_ERROR_VALIDATION_FAILURE


class UnsupportedFeature(UnsupportedError):
    """This device or mode does not have the feature."""


class ResourceError(QnnError):
    """Something is exhausted; free some of it or try again."""

    default_status = st.QNN_COMMON_ERROR_RESOURCE_UNAVAILABLE


class OutOfMemory(ResourceError):
    """A memory pool (session, shared memory, VTCM) has no room."""

    default_status = st.QNN_COMMON_ERROR_MEM_ALLOC


class QueueFull(ResourceError):
    """The execution queue has no room."""

    default_status = st.QNN_GRAPH_ERROR_EXECUTION_ASYNC_FIFO_FULL


class ExecutionError(QnnError):
    """An accepted execution ended early."""

    default_status = st.QNN_GRAPH_ERROR_GENERAL


class Aborted(ExecutionError):
    """Ended by an abort signal or by ``cancel()``."""

    default_status = st.QNN_GRAPH_ERROR_ABORTED


class TimedOut(ExecutionError):
    """Ended by a timeout signal."""

    default_status = st.QNN_GRAPH_ERROR_TIMED_OUT


class DeviceLost(ExecutionError):
    """The device process went away: a subsystem restart. Rebuild contexts on the same device object."""

    default_status = st.QNN_COMMON_ERROR_SYSTEM_COMMUNICATION


class FormatError(QnnError):
    """An input file is bad."""

    default_status = st.QNN_COMMON_ERROR_LOADING_BINARIES


class BadModel(FormatError):
    """A model file cannot be used; the message names the place."""


class BadBinary(FormatError):
    """A context binary cannot be used; the message names the place."""

    default_status = st.QNN_CONTEXT_ERROR_CREATE_FROM_BINARY


class BadProfile(FormatError):
    """A profile log, a schematic or the viewer's configuration cannot be used; the message names the place."""

    default_status = st.QNN_PROFILE_ERROR_INVALID_ARGUMENT


class InternalError(QnnError):
    """A bug in openhtp. Please report it with the message and the steps that led here."""


# Which class an execution's numeric status becomes on the client's side.
_EXECUTION_ERRORS: dict[int, type[QnnError]] = {
    st.QNN_GRAPH_ERROR_ABORTED.code: Aborted,
    st.QNN_GRAPH_ERROR_TIMED_OUT.code: TimedOut,
    st.QNN_COMMON_ERROR_SYSTEM_COMMUNICATION.code: DeviceLost,
    st.QNN_GRAPH_ERROR_MEM_ALLOC.code: OutOfMemory,
    st.QNN_GRAPH_ERROR_INVALID_CONTEXT.code: InvalidHandle,
}


def error_for_status(status: Status, message: str) -> QnnError:
    """Build the exception that a status received from the device stands for."""
    return _EXECUTION_ERRORS.get(status.code, ExecutionError)(message, status)


@contextlib.contextmanager
def error_context(**where: object) -> Iterator[None]:
    """Add a place (``graph="g", node="c1"``) to any QnnError that passes through."""
    try:
        yield
    except QnnError as error:
        context = ", ".join(f"{key} {value!r}" for key, value in where.items())
        if context not in error.context:  # it may come from the device, where the same was known
            error.context.append(context)
        # The innermost place is the most exact one.
        error.where = {**where, **error.where}
        raise
