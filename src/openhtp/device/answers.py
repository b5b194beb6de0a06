"""Answers to requests, also for failures that nobody expected."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from openhtp.core.errors import InternalError, QnnError, ResourceError, is_used_up
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import SharedBuffer

# A reply, or shared memory with content that is too long for a reply. The sender closes that memory.
Answer = ms.Reply | SharedBuffer


def error_reply(error: QnnError) -> ms.Reply:
    """A failure as a reply; the client raises the same kind of error again."""
    return ms.Reply(
        error=error.message,
        status_name=error.name,
        status_code=error.code,
        where=error.context,
        info={"kind": type(error).__name__},
    )


def timed(answer: Answer, served_ns: int, worked_ns: int) -> Answer:
    """An answer that tells how long it took; shared memory cannot tell that."""
    if not isinstance(answer, ms.Reply):
        return answer
    return msgspec.structs.replace(answer, served_ns=served_ns, worked_ns=worked_ns)


class LogSource(Protocol):
    """Lines for the client's log, with their levels."""

    def take(self) -> list[tuple[int, str]]:
        """The lines so far, once."""


def with_log(answer: Answer, log: LogSource) -> Answer:
    """An answer that carries lines for the client's log; shared memory leaves them to the next reply."""
    return msgspec.structs.replace(answer, log=log.take()) if isinstance(answer, ms.Reply) else answer


_E = TypeVar("_E", bound=Exception)


def in_words(error: BaseException) -> str:
    """An exception as text, even if it cannot say what it is."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


def unexpected(activity: str, error: BaseException) -> QnnError:
    """The error that a client receives when the device's own code broke while working for it."""
    reason = f"{type(error).__name__}: {in_words(error)}"
    if is_used_up(error):
        return ResourceError(f"{activity}: the device has used up what the system gives it ({reason})")
    return InternalError(
        f"{activity} failed unexpectedly ({reason}); this is a bug of openhtp, and the device logged it"
    )


def bare(error: _E) -> _E:
    """An exception without the frames it came through, whose variables may be whole models."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error
