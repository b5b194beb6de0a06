"""Faults to order: the words that order them, and the call that each of them meets.

::

    ssr@graphExecute:3              the third execution meets a subsystem restart
    oom@contextCreate:2-4           the second to the fourth context find no memory
    fail@graphFinalize:1+           every graph fails to finalize
    fail@graphExecute:5:QNN_GRAPH_ERROR_TIMED_OUT
    slow@notify:50ms                every notification is 50 ms late

Several are separated by commas. Calls are counted from the moment when the faults are armed, each point by itself.
"""

from __future__ import annotations

import enum
import re
import threading
from collections import deque
from dataclasses import dataclass
from typing import NoReturn

from openhtp.core import status as st
from openhtp.core.checks import type_in_words
from openhtp.core.errors import InvalidArgument
from openhtp.core.status import Status
from openhtp.core.validating import did_you_mean

MOST_KEPT = 10_000
"""So many calls with faults are kept with their times: the last ones."""

_MOST_CALLS = 10**9
_MOST_NS = 3600 * 10**9
_COUNT = re.compile(r"(\d{1,10})(\+|-(\d{1,10}))?")
_TIME = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(us|ms|s)")
_UNITS = {"us": 10**3, "ms": 10**6, "s": 10**9}


class FaultKind(enum.Enum):
    """What happens."""

    SSR = "ssr"
    OOM = "oom"
    FAIL = "fail"
    SLOW = "slow"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class FaultPoint:
    """Where something can happen: a call of the API, and what it answers then."""

    name: str
    about: str
    failed: Status | None = None
    no_memory: Status | None = None
    kinds: tuple[FaultKind, ...] = (FaultKind.SSR, FaultKind.OOM, FaultKind.FAIL, FaultKind.SLOW)


POINTS = {
    point.name: point
    for point in (
        FaultPoint(
            "deviceCreate",
            "a device is created",
            st.QNN_DEVICE_ERROR_HARDWARE_UNAVAILABLE,
            st.QNN_DEVICE_ERROR_MEM_ALLOC,
            (FaultKind.OOM, FaultKind.FAIL, FaultKind.SLOW),
        ),
        FaultPoint(
            "contextCreate",
            "a context is created, empty or from a binary",
            st.QNN_COMMON_ERROR_GENERAL,
            st.QNN_CONTEXT_ERROR_MEM_ALLOC,
        ),
        FaultPoint(
            "contextCreateFromBinary",
            "a context is created from a binary",
            st.QNN_CONTEXT_ERROR_CREATE_FROM_BINARY,
            st.QNN_CONTEXT_ERROR_MEM_ALLOC,
        ),
        FaultPoint(
            "graphFinalize",
            "a graph is finalized",
            st.QNN_GRAPH_ERROR_FINALIZE_FAILED,
            st.QNN_GRAPH_ERROR_MEM_ALLOC,
        ),
        FaultPoint(
            "graphExecute",
            "a graph is executed, synchronously or not",
            st.QNN_GRAPH_ERROR_GENERAL,
            st.QNN_GRAPH_ERROR_MEM_ALLOC,
        ),
        FaultPoint(
            "graphExecuteAsync",
            "an execution is queued",
            st.QNN_GRAPH_ERROR_GENERAL,
            st.QNN_GRAPH_ERROR_MEM_ALLOC,
        ),
        FaultPoint(
            "memRegister",
            "memory is registered",
            st.QNN_MEM_ERROR_MAPPING,
            st.QNN_COMMON_ERROR_MEM_ALLOC,
        ),
        FaultPoint("notify", "a client is notified", kinds=(FaultKind.SLOW,)),
        FaultPoint("binary", "a context binary is read", kinds=(FaultKind.CORRUPT,)),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: from the ``first`` to the ``last`` call of its point (None: for good)."""

    text: str
    kind: FaultKind
    point: FaultPoint
    first: int = 1
    last: int | None = None
    delay_ns: int = 0
    status: Status | None = None

    def meets(self, call: int) -> bool:
        """Whether this call of its point, counted from 1, meets it."""
        return self.first <= call and (self.last is None or call <= self.last)


@dataclass(frozen=True, slots=True)
class MetFault:
    """A call that met a fault."""

    t_ns: int
    fault: Fault
    call: int


class FaultPlan:
    """Faults and the calls that were counted so far. Safe to use from several threads."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        self.faults = faults
        self.met: deque[MetFault] = deque(maxlen=MOST_KEPT)
        self._calls: dict[str, int] = {}
        self._lock = threading.Lock()

    def reached(self, point: str, t_ns: int) -> list[MetFault]:
        """Count a call, and say what it meets."""
        with self._lock:
            call = self._calls[point] = self._calls.get(point, 0) + 1
            matching = [fault for fault in self.faults if fault.point.name == point and fault.meets(call)]
            met = [MetFault(t_ns, fault, call) for fault in matching]
            self.met += met
        return met

    @property
    def points(self) -> frozenset[str]:
        """Names of the points at which something is to happen."""
        return frozenset(fault.point.name for fault in self.faults)


def parse_faults(text: str, source: str = "faults") -> tuple[Fault, ...]:
    """Read an order. What is wrong is named with its place, counted from 1."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{source} is {type_in_words(text)}; expected text such as 'ssr@graphExecute:3'")
    faults = []
    offset = 0
    for part in text.split(","):
        word = part.strip()
        if word:
            faults.append(_parse(word, f"{source}, character {offset + part.index(word[0]) + 1}"))
        offset += len(part) + 1
    if not faults:
        raise InvalidArgument(f"{source} is empty; expected text such as 'ssr@graphExecute:3'")
    return tuple(faults)


def _parse(word: str, where: str) -> Fault:
    name, mark, rest = word.partition("@")
    kind = next((kind for kind in FaultKind if kind.value == name.strip().lower()), None)
    if kind is None:
        _refuse(where, f"{name.strip()!r} is no fault", name.strip(), [kind.value for kind in FaultKind])
    if not mark:
        raise InvalidArgument(
            f"{where}: {word!r} does not say where; expected {kind.value}@ and one of {_names(kind)}"
        )
    target, *settings = [part.strip() for part in rest.split(":")]
    point = next((point for point in POINTS.values() if point.name.lower() == target.lower()), None)
    if point is None:
        _refuse(where, f"{target!r} is no point", target, list(POINTS))
    if kind not in point.kinds:
        raise InvalidArgument(
            f"{where}: {kind.value} cannot happen at {point.name}; expected one of {_names(kind)}"
        )
    first, last, delay_ns, status = 1, None, 0, None
    for setting in settings:
        if count := _COUNT.fullmatch(setting):
            first, last = _calls(where, setting, count)
        elif (time := _TIME.fullmatch(setting)) and kind is FaultKind.SLOW:
            delay_ns = int(float(time[1]) * _UNITS[time[2]])
        elif setting in st.ALL and kind is FaultKind.FAIL:
            status = st.ALL[setting]
        else:
            raise InvalidArgument(f"{where}: {setting!r} is none of {_settings(kind)}")
    if kind is FaultKind.SLOW and not 0 < delay_ns <= _MOST_NS:
        raise InvalidArgument(f"{where}: {word!r} does not say how slow; expected 50ms, 2s, up to an hour")
    return Fault(
        text=word,
        kind=kind,
        point=point,
        first=first,
        last=last,
        delay_ns=delay_ns,
        status=status or _status(kind, point),
    )


def _calls(where: str, setting: str, count: re.Match[str]) -> tuple[int, int | None]:
    first = int(count[1])
    last = None if count[2] == "+" else first if count[2] is None else int(count[3])
    if not 1 <= first <= _MOST_CALLS or (last is not None and not first <= last <= _MOST_CALLS):
        raise InvalidArgument(f"{where}: {setting!r} is no range of calls; they are counted from 1")
    return first, last


def _settings(kind: FaultKind) -> str:
    more = {FaultKind.SLOW: ", a time (50ms)", FaultKind.FAIL: ", a status (QNN_GRAPH_ERROR_TIMED_OUT)"}
    return f"a call (3), calls (2-4), all from one on (3+){more.get(kind, '')}"


def _status(kind: FaultKind, point: FaultPoint) -> Status | None:
    if kind is FaultKind.SSR:
        return st.QNN_COMMON_ERROR_SYSTEM_COMMUNICATION
    return {FaultKind.OOM: point.no_memory, FaultKind.FAIL: point.failed}.get(kind)


def _names(kind: FaultKind) -> str:
    return ", ".join(point.name for point in POINTS.values() if kind in point.kinds)


def _refuse(where: str, problem: str, word: str, known: list[str]) -> NoReturn:
    hint = did_you_mean(word, known) or f"expected one of {', '.join(known)}"
    raise InvalidArgument(f"{where}: {problem}; {hint}")
