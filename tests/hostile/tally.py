"""What an attack counts, and what it holds against us.

Allowed ends of a call: it returns, raises an error of the tree other than InternalError, or a TypeError or
ValueError that our own code raised. Everything else is a *stray*; so are wrong results, notifications lost or
doubled, calls that hang, and whatever is left behind.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import json
import linecache
import logging
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import openhtp as htp

PACKAGE = str(Path(htp.__file__).parent)
_HERE = str(Path(__file__).parent)
LONGEST_CALL = 120.0
"""Seconds after which a call hangs, on a machine that has much else to do."""
_RESCUE_AFTER = 3.0
_KEPT_CALLS = 25
_KEPT_STRAYS = 40


@dataclass
class Stray:
    """One defect: its kind (stray, wrong, lost, double, hang, leak, crash), what was seen, and the last calls."""

    kind: str
    text: str
    calls: list[str] = field(default_factory=list)


@dataclass
class Tally:
    """What one attack did and found."""

    name: str
    seed: int
    calls: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    strays: list[Stray] = field(default_factory=list)
    more_strays: int = 0

    def count(self, outcome: str) -> None:
        """One more call that ended so."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def found(self, kind: str, text: str, calls: list[str] | None = None) -> None:
        """A defect."""
        if len(self.strays) < _KEPT_STRAYS:
            self.strays.append(Stray(kind, text, calls or []))
        else:
            self.more_strays += 1

    @property
    def defects(self) -> int:
        """How many there were."""
        return len(self.strays) + self.more_strays

    def report(self) -> str:
        """All defects in words, with what is needed to see them again."""
        lines = [f"{self.name}: {self.calls} calls, {self.defects} defects, seed {self.seed}"]
        for stray in self.strays:
            lines += [f"--- {stray.kind}: {stray.text}", *(f"      {call}" for call in stray.calls)]
        if self.strays:
            lines.append(f"again: python -X dev -m tests.hostile --only {self.name} --seed {self.seed} --exact")
        return "\n".join(lines)

    def to_json(self) -> str:
        """As text that ``from_json`` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Tally:
        """Inverse of ``to_json``."""
        fields = json.loads(text)
        return cls(**{**fields, "strays": [Stray(**stray) for stray in fields["strays"]]})


class Budget:
    """How long an attack may go on: so many calls, and so many seconds from its first look at the budget.

    On a busy machine, preparing the attack may take longer than that. So the first round is always made.
    """

    def __init__(self, seconds: float, calls: int | None = None) -> None:
        self._seconds = seconds
        self._left = calls
        self._end: float | None = None

    def __bool__(self) -> bool:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                return False
        if self._end is None:
            self._end = time.monotonic() + self._seconds
            return True
        return time.monotonic() < self._end


class Watch:
    """Watches the calls of one attack: remembers the last ones, judges how they end, and ends what hangs."""

    def __init__(self, tally: Tally, journal: Path | None = None) -> None:
        self.tally = tally
        self.last: collections.deque[str] = collections.deque(maxlen=_KEPT_CALLS)
        self.rescue: Callable[[], object] | None = None
        # Whether a socket or a loop may be closed by being dropped, of which Python warns.
        self.forgives_dropping = False
        self._journal = None if journal is None else os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
        self._began: float | None = None
        self._over = threading.Event()
        threading.Thread(target=self._rescue, name="hostile-rescue", daemon=True).start()

    @contextlib.contextmanager
    def call(self, text: str, limit: float = LONGEST_CALL) -> Iterator[None]:
        """Around one call, or a ``limit`` seconds' worth of them, which may end in any way that is allowed."""
        self.last.append(text)
        if self._journal is not None:
            # If the process dies, whoever started it reads the last calls here.
            os.pwrite(self._journal, "\n".join(self.last).encode(errors="replace")[:60_000].ljust(60_000), 0)
        self.tally.calls += 1
        faulthandler.dump_traceback_later(limit, exit=True)
        self._began = time.monotonic()
        try:
            yield
            self.tally.count("returned")
        except Exception as error:
            self.tally.count(type(error).__name__)
            problem = stray_text(error)
            if problem is not None:
                self.found("stray", problem)
        finally:
            self._began = None
            faulthandler.cancel_dump_traceback_later()

    def found(self, kind: str, text: str) -> None:
        """A defect, with the last calls."""
        self.tally.found(kind, text, list(self.last))

    def close(self) -> None:
        """No more calls."""
        self._over.set()
        if self._journal is not None:
            os.close(self._journal)

    def _rescue(self) -> None:
        """A call may wait for executions that never end by themselves; it must end when those are ended."""
        while not self._over.wait(0.25):
            began = self._began
            if began is not None and time.monotonic() - began > _RESCUE_AFTER and self.rescue is not None:
                self.tally.count("(rescued)")
                self.rescue()
                self._over.wait(_RESCUE_AFTER)


def stray_text(error: BaseException, *, may_be_lost: bool = False) -> str | None:
    """Why an exception may not leave our code; None if it may."""
    text = f"{type(error).__name__}: {str(error)[:300]}"
    if isinstance(error, htp.DeviceLost) and "went away" in error.message and not may_be_lost:
        return f"{text}\n{_where(error)}"
    if isinstance(error, htp.InternalError):
        return f"{text}\n{_where(error)}"
    if isinstance(error, htp.QnnError):
        return None
    if isinstance(error, (TypeError, ValueError, TimeoutError)) and _raised_in(error, PACKAGE):
        return None
    if _raised_in(error, _HERE):  # by an object of the attack, when it was looked at
        return None
    if isinstance(error, ValueError) and "integer string conversion" in str(error) and _raised_by_repr(error):
        return None  # Python prints no such number, wherever it stands
    return f"{text}\n{_where(error)}"


def _raised_in(error: BaseException, folder: str) -> bool:
    """Whether a ``raise`` in this folder made it, and not something that was called there."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not frames[-1].filename.startswith(folder):
        return False
    return linecache.getline(frames[-1].filename, frames[-1].lineno or 0).strip().startswith("raise")


def _raised_by_repr(error: BaseException) -> bool:
    """Whether plain data of the caller's own making was shown: the ``__repr__`` that a dataclass is given."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and (frames[-1].filename, frames[-1].name) == ("<string>", "__repr__")


def _where(error: BaseException) -> str:
    return "".join(traceback.format_tb(error.__traceback__)[-4:]).rstrip()


class _Complaints(logging.Handler):
    """What our code logs as an exception was not expected by it; callbacks of the attack are its own affair."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(logging.ERROR)
        self._watch = watch

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None and "callback" not in str(record.msg):
            self._watch.found("stray", f"logged: {record.getMessage()}\n{_where(record.exc_info[1])}")


@contextlib.contextmanager
def nothing_escapes(watch: Watch) -> Iterator[None]:
    """Exceptions that nobody caught in threads and finalizers, warnings of unclosed things, logged exceptions."""

    def in_thread(args: threading.ExceptHookArgs) -> None:
        error = args.exc_value
        if error is not None and not isinstance(error, SystemExit):
            watch.found("stray", f"in thread: {type(error).__name__}: {error}\n{_where(error)}")

    def unraisable(args: object) -> None:
        error = getattr(args, "exc_value", None)
        if isinstance(error, KeyboardInterrupt):
            return  # Python itself swallows what comes while it tidies up an object
        watch.found("stray", f"unraisable: {error!r} in {getattr(args, 'object', None)!r}")

    def warned(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
        if issubclass(category, ResourceWarning) and not watch.forgives_dropping:
            watch.found("leak", f"{category.__name__}: {message} ({filename}:{lineno})")

    complaints = _Complaints(watch)
    logger = logging.getLogger("openhtp")
    before = threading.excepthook, sys.unraisablehook, warnings.showwarning, logger.propagate
    threading.excepthook, sys.unraisablehook, warnings.showwarning = in_thread, unraisable, warned
    logger.addHandler(complaints)
    logger.propagate = False  # an attack provokes thousands of lines
    try:
        with warnings.catch_warnings(action="always"):
            warnings.showwarning = warned
            yield
    finally:
        logger.removeHandler(complaints)
        threading.excepthook, sys.unraisablehook, warnings.showwarning, logger.propagate = before
