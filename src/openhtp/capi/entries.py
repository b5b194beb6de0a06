"""Which Python function answers which entry of the C interface, and how its errors become codes.

An answer takes the entry's arguments as whole numbers (addresses, handles, numbers; the address of a structure
that is passed by value) and returns nothing for success, or a code.
"""

from __future__ import annotations

import _thread
import logging
from collections.abc import Callable
from typing import Any

from openhtp.abi.tables import CORE, POWER, SYSTEM, TableEntry
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, InvalidHandle, QnnError, UnsupportedError, is_used_up
from openhtp.core.status import Status
from openhtp.runtime.instruments.instrument import news

log = logging.getLogger("openhtp.capi")

Answer = Callable[..., Any]

_IN_EARNEST = ("context", "graphCreate", "graphSetConfig", "graphFinalize", "graphExecute", "memRegister")

# First numbers of the tables, as in native/stub.c.
_TABLES = ((0, CORE), (128, SYSTEM), (192, POWER))
COUNT = 208

_answers: dict[str, Answer] = {}

# The code of each area for a wrong argument that has no code of its own.
_INVALID: dict[str, Status] = {
    "BACKEND": st.QNN_BACKEND_ERROR_INVALID_ARGUMENT,
    "CONTEXT": st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
    "GRAPH": st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
    "TENSOR": st.QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM,
    "LOG": st.QNN_LOG_ERROR_INVALID_ARGUMENT,
    "MEM": st.QNN_MEM_ERROR_INVALID_ARGUMENT,
    "SIGNAL": st.QNN_SIGNAL_ERROR_INVALID_ARGUMENT,
    "OP_PACKAGE": st.QNN_OP_PACKAGE_ERROR_INVALID_ARGUMENT,
    "HTP_PERF_INFRASTRUCTURE": st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_INVALID_INPUT,
    "SYSTEM_CONTEXT": st.QNN_SYSTEM_CONTEXT_ERROR_INVALID_ARGUMENT,
    "SYSTEM_TENSOR": st.QNN_SYSTEM_CONTEXT_ERROR_INVALID_ARGUMENT,
    "SYSTEM_PROFILE": st.QNN_SYSTEM_CONTEXT_ERROR_INVALID_ARGUMENT,
    "SYSTEM_LOG": st.QNN_LOG_ERROR_INVALID_ARGUMENT,
}


def answers(name: str) -> Callable[[Answer], Answer]:
    """Make a function the answer to an entry."""

    def note(answer: Answer) -> Answer:
        _answers[name] = answer
        return answer

    return note


def table(
    *, noted: bool = False, condition: Callable[[str, Answer], Answer] = lambda name, answer: answer
) -> list[Answer]:
    """All answers by number.

    An answer returns a code and never raises; instruments are notified of ``noted`` ones. ``condition`` says under
    which condition an entry of this name is answered.
    """
    by_number: list[Answer] = [_unknown] * COUNT
    for first, entries in _TABLES:
        for name, entry in entries.items():
            answer = _guarded(name, entry, condition(name, _answers.get(name, _unsupported(name))))
            by_number[first + entry.place] = _noted(name, answer) if noted else answer
    return by_number


def _noted(name: str, answer: Answer) -> Answer:
    """An answer of which instruments are notified."""

    def call(*arguments: int) -> int:
        status: int = answer(*arguments)
        news.entry_answered(name, status)
        return status

    return call


def _unknown(*arguments: int) -> int:
    return st.QNN_COMMON_ERROR_NOT_SUPPORTED.code


def _unsupported(name: str) -> Answer:
    def refuse(*arguments: int) -> int:
        log.info("%s is not supported", name)
        return st.QNN_COMMON_ERROR_NOT_SUPPORTED.code

    return refuse


def _guarded(name: str, entry: TableEntry, answer: Answer) -> Answer:
    """An answer whose errors are logged and returned as a code."""
    invalid = _INVALID.get(entry.area, st.QNN_COMMON_ERROR_INVALID_ARGUMENT)

    def call(*arguments: int) -> int:
        try:
            return answer(*arguments) or 0
        except QnnError as error:
            return _code(name, error, invalid)
        except (KeyboardInterrupt, SystemExit):
            # The host is not Python code that an exception could leave: Python raises it at its next instruction.
            _thread.interrupt_main()
            return st.QNN_COMMON_ERROR_GENERAL.code
        except MemoryError:
            log.error("%s: out of memory", name)
            return st.QNN_COMMON_ERROR_MEM_ALLOC.code
        except BaseException as error:
            if is_used_up(error):
                log.error("%s: this process has used up what the system gives it: %s", name, error)
                return st.QNN_COMMON_ERROR_RESOURCE_UNAVAILABLE.code
            log.exception("%s failed; this is a fault of openhtp", name)
            return st.QNN_COMMON_ERROR_GENERAL.code

    return call


def _code(name: str, error: QnnError, invalid: Status) -> int:
    status = error.status
    if isinstance(error, InvalidArgument) and status is st.QNN_COMMON_ERROR_INVALID_ARGUMENT:
        status = invalid
    # Clients try out what is supported, but with none of these functions.
    is_tried = isinstance(error, UnsupportedError) and not name.startswith(_IN_EARNEST)
    level = logging.INFO if is_tried else logging.ERROR
    where = f" [{', '.join(reversed(error.context))}]" if error.context else ""
    log.log(level, "%s: %s%s (%s, %d)", name, error.message, where, status.name, status.code)
    return status.code


def null(what: str) -> InvalidArgument:
    """The error about an address that must not be NULL."""
    return InvalidArgument(f"{what} is NULL")


def bad_handle(what: str, status: Status, handle: int) -> InvalidHandle:
    """The error about a handle that is unknown, of another kind, or freed."""
    return InvalidHandle(f"{handle:#x} is no {what} of this library, or was freed", status)
