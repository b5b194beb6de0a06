"""A model that is ready soon and best later: from a cache, or prepared fast, run, and prepared well meanwhile.

The cache is a folder that processes share: files appear whole or not at all, and one process makes each.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import logging
import os
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from openhtp.core import status as st, tidying
from openhtp.core.checks import path_of, shown
from openhtp.core.errors import BadModel, InvalidArgument, QnnError, WrongState
from openhtp.core.files import digest_of
from openhtp.core.latches import Latch
from openhtp.core.threads import OwnThread
from openhtp.core.version import BUILD_ID, VERSION
from openhtp.frontend.onnx_reader import check_path, external_files
from openhtp.session.executable import NodeArg, Results
from openhtp.session.inference import Callback, InferenceSession
from openhtp.session.on_htp import HtpExecutable
from openhtp.session.options import CPU, DEFAULT_SOC, QNN
from openhtp.session.pending import PendingRun

log = logging.getLogger(__name__)

FAST, BEST = "1", "3"
_LEVEL = "htp_graph_finalization_optimization_mode"


@dataclass(frozen=True, slots=True)
class ModelEvent:
    """Something that a prepared model did, ``at_s`` seconds (measured) after it was asked for."""

    at_s: float
    what: str
    detail: str = ""


class _Served:
    """A session, and the runs that it has under way.

    A session that was replaced is closed with the last of them.
    """

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        self.runs: set[_Use] = set()
        self.replaced = False


class _Use:
    """One run, and the session that it runs on."""

    served: _Served | None = None


class PreparedModel:
    """A model with a cache of its compiled form.

    If the cache has it, it is loaded from there. Otherwise it is prepared fast (optimization level 1) and can be
    run at once, while a thread prepares it well (level 3), puts that into the cache, and replaces the first form:
    runs under way end on the form they began on, later runs use the new one. Processes that share a cache prepare
    a model once. ``options`` are those of ``InferenceSession``; ``events`` tells what was done.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from openhtp import zoo
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "mlp.onnx").write_bytes(zoo.tiny_mlp())
        >>> with PreparedModel(folder / "mlp.onnx", cache=folder / "cache", transport="inprocess") as model:
        ...     model.wait(60)
        ...     [event.what for event in model.events]
        True
        ['prepared fast', 'prepared well', 'saved', 'replaced']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        cache: str | os.PathLike[str],
        soc: str | None = None,
        provider_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._begin_s = time.monotonic()
        self._source = check_path(path)
        self._provider_options = dict(provider_options or {})
        self._make: Callable[..., InferenceSession] = functools.partial(InferenceSession, soc=soc, **options)
        shown_options = sorted(
            (name, repr(value)) for name, value in {**options, **self._provider_options}.items()
        )
        folder = path_of(cache)
        if folder is None:
            raise InvalidArgument(f"cache is {shown(cache)}; expected a folder for compiled models")
        self._entry = CacheEntry(folder, self._source, soc or DEFAULT_SOC, shown_options)
        self._events: list[ModelEvent] = []
        self._lock = threading.Lock()
        self._over = Latch()
        self._settled = Latch()
        self._best = False
        session = self._cached()
        if session is None:
            session = self._prepared(FAST)
            self._note("prepared fast")
        self._served: _Served | None = _Served(session)
        _models.add(self)
        if self._best or not isinstance(session.executable, HtpExecutable):
            self._settled.unlock()
            return
        OwnThread(self._improve, name="openhtp-prepare").start()

    # Running

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, npt.ArrayLike],
        run_options: Any = None,
    ) -> Results:
        """Run once; returns the named outputs, or all."""
        use = _Use()
        try:
            results = self._begin_use(use).run(output_names, input_feed, run_options)
            self._end_use(use)
        except BaseException:
            tidying.post((self._end_use, (use,)))
            raise
        return results

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, npt.ArrayLike],
        callback: Callback | None = None,
        user_data: Any = None,
        run_options: Any = None,
    ) -> PendingRun:
        """Queue one run and return, as ``InferenceSession.run_async`` does."""
        use = _Use()
        try:
            pending = self._begin_use(use).run_async(output_names, input_feed, callback, user_data, run_options)
            pending.add_done_callback(lambda _: self._end_use(use))
        except BaseException:
            tidying.post((self._end_use, (use,)))
            raise
        return pending

    # Looking

    @property
    def events(self) -> list[ModelEvent]:
        """What was done so far, in order."""
        return list(self._events)

    @property
    def is_best(self) -> bool:
        """Whether it runs what was prepared well."""
        return self._best

    @property
    def cache_path(self) -> Path:
        """Where its compiled form is, or will be."""
        return self._entry.path

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until preparation is over; return whether it is."""
        return self._settled.wait(timeout)

    def get_inputs(self) -> list[NodeArg]:
        """What ``run`` takes."""
        return self._now().session.get_inputs()

    def get_outputs(self) -> list[NodeArg]:
        """What ``run`` returns."""
        return self._now().session.get_outputs()

    def close(self) -> None:
        """Leave the device once the runs under way are over. A preparation under way is given up."""
        self._over.unlock()
        with self._lock:
            served, self._served = self._served, None
        if served is not None:
            self._retire(served)

    def __enter__(self) -> PreparedModel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._served is None else "best" if self._best else "fast"
        return f"<PreparedModel {self._source.name!r}, {state}>"

    # Which session runs

    def _now(self) -> _Served:
        served = self._served
        if served is None:
            raise WrongState(f"{self!r} was closed", st.QNN_COMMON_ERROR_OPERATION_NOT_PERMITTED)
        return served

    def _begin_use(self, use: _Use) -> InferenceSession:
        with self._lock:
            served = use.served = self._now()
            served.runs.add(use)
            return served.session

    def _end_use(self, use: _Use) -> None:
        """Twice does nothing."""
        served = use.served
        if served is None:
            return
        with self._lock:
            last = served.replaced and served.runs == {use}
            served.runs.discard(use)
        if last:
            served.session.close()

    def _retire(self, served: _Served) -> None:
        with self._lock:
            served.replaced = True
            idle = not served.runs
        if idle:
            served.session.close()

    # Preparing

    def _prepared(self, level: str) -> InferenceSession:
        options = {_LEVEL: level, **self._provider_options}
        return self._make(self._source, providers=[(QNN, options), CPU])

    def _cached(self) -> InferenceSession | None:
        """A session from the cache; None if the cache has nothing that can be used."""
        if not self._entry.exists():
            return None
        try:
            session = self._make(self._entry.path, providers=[(QNN, self._provider_options)])
        except QnnError as error:
            self._note("refused what the cache has", str(error))
            return None
        executable = session.executable
        # A form made by another machine, user or version runs, but had to be compiled again: replace it.
        self._best = isinstance(executable, HtpExecutable) and not executable.graph.was_outdated
        self._note("loaded from the cache", "" if self._best else "it had to be compiled again")
        return session

    def _improve(self) -> None:
        """Get the best form, made here or by another process. Runs on a thread of its own."""
        try:
            with self._entry.locked(self._over) as mine:
                if mine:
                    self._replace(self._best_form())
        except Exception as error:
            if not self._over.is_open:
                log.warning("%r stays as it is: it could not be prepared well: %s", self, error)
                self._note("failed to prepare well", str(error))
        finally:
            self._settled.unlock()

    def _best_form(self) -> InferenceSession:
        if not any(event.what.startswith(("refused", "loaded")) for event in self._events):
            session = self._cached()
            if session is not None and self._best:
                return session  # another process was quicker
            if session is not None:
                session.close()
        session = self._prepared(BEST)
        self._note("prepared well")
        try:
            self._save(session)
        except Exception as error:
            log.warning("%r is not saved: %s", self, error)
            self._note("failed to save", str(error))
        return session

    def _save(self, session: InferenceSession) -> None:
        executable = session.executable
        if not isinstance(executable, HtpExecutable) or self._over.is_open:
            return
        self._entry.store(executable.context_model(executable.context.get_binary()))
        self._note("saved", str(self._entry.path))

    def _replace(self, session: InferenceSession) -> None:
        fresh = _Served(session)
        with self._lock:
            old = self._served
            if old is not None:
                self._served, self._best = fresh, True
        if old is None:
            session.close()
            return
        self._note("replaced")
        self._retire(old)

    def _note(self, what: str, detail: str = "") -> None:
        self._events.append(ModelEvent(time.monotonic() - self._begin_s, what, detail))
        log.info("%s: %s%s", self._source.name, what, f" ({detail})" if detail else "")


_models: weakref.WeakSet[PreparedModel] = weakref.WeakSet()


def _start_anew() -> None:
    """In the child of a fork: no thread prepares the parent's models there."""
    for model in list(_models):
        model._lock = threading.Lock()
        model._settled = Latch()
        model._settled.unlock()


def _give_up() -> None:
    """Give up all preparations, because the program ends."""
    for model in list(_models):
        model._over.unlock()


os.register_at_fork(after_in_child=_start_anew)
# Registered after the runtime's own, so called before devices end: their end would look like a failure here.
atexit.register(_give_up)


# How often a process that waits for the lock looks again. A closed model waits no longer than that.
_LOOK_AGAIN_S = 0.05
_SUFFIX = "_ctx.onnx"


class CacheEntry:
    """The place of one model, for one chip and one way to compile it."""

    def __init__(self, folder: Path, source: Path, *settings: object) -> None:
        """``settings`` are whatever else decides what the compiled model is."""
        _make_folder(folder)
        key = hashlib.sha256()
        for part in (digest_of(source, what="an ONNX model", error=BadModel), VERSION, BUILD_ID, *settings):
            key.update(f"{part!r}\0".encode())
        for path in external_files(source):
            # The file is too large to be read each time. A change that keeps size and time is not seen.
            about = path.stat()
            key.update(f"{path.name}\0{about.st_size}\0{about.st_mtime_ns}\0".encode())
        self.path = folder / f"{source.stem}-{key.hexdigest()[:20]}{_SUFFIX}"
        self._lock = self.path.with_name(f".{self.path.name}.lock")

    def exists(self) -> bool:
        """Whether somebody has put it there."""
        return self.path.is_file()

    def store(self, data: bytes) -> None:
        """Put it there: on the disk first, then under its name. Only under the lock."""
        fresh = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        for left in self.path.parent.glob(f".{self.path.name}.*.tmp"):
            left.unlink(missing_ok=True)  # of a process that was killed: nobody else writes under the lock
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self.path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise

    @contextlib.contextmanager
    def locked(self, over: Latch) -> Iterator[bool]:
        """Hold the lock of the process that makes the entry. False if ``over`` came before the lock.

        The system gives the lock back when its holder dies, in whatever way.
        """
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not over.is_open:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    over.wait(_LOOK_AGAIN_S)
                    continue
                yield True
                return
            yield False
        finally:
            os.close(fd)


def _make_folder(folder: Path) -> None:
    """Make a folder for this user alone: what is in it is loaded without being compiled again."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
    except OSError as error:
        raise InvalidArgument(f"cache {str(folder)!r} cannot be made: {error}; give a folder") from error
    if not stat.S_ISDIR(about.st_mode) or not os.access(folder, os.W_OK):
        raise InvalidArgument(f"cache {str(folder)!r} is no folder that can be written; give another")
    if about.st_uid != os.getuid():
        log.warning("cache %s belongs to another user, who decides what is loaded from it", folder)
