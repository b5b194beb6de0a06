"""A model that is ready soon and best later: from a cache, or prepared fast, run, and prepared well meanwhile.

The cache is a store that processes share (``core/model_store.py``): one process makes each model.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from openhtp.core import status as st, tidying
from openhtp.core.checks import path_of, shown
from openhtp.core.errors import BadModel, InvalidArgument, QnnError, WrongState
from openhtp.core.files import digest_of
from openhtp.core.latches import Latch
from openhtp.core.model_store import CacheEntry, ModelStore, user_store
from openhtp.core.threads import OwnThread
from openhtp.frontend.onnx_reader import check_path, external_files
from openhtp.session.executable import NodeArg, Results
from openhtp.session.inference import Callback, InferenceSession
from openhtp.session.on_htp import HtpExecutable
from openhtp.session.options import CPU, DEFAULT_SOC, QNN
from openhtp.session.pending import PendingRun

log = logging.getLogger(__name__)

FAST, BEST = "1", "3"
_LEVEL = "htp_graph_finalization_optimization_mode"
# The compiled model's name in its entry of the cache.
_FILE = "model_ctx.onnx"


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
    """A model with a cache of its compiled form: the folder ``cache``, or the user's own (``openhtp cache``).

    If the cache has it, it is loaded from there. Otherwise it is prepared fast (optimization level 1) and can be
    run at once, while a thread prepares it well (level 3), puts that into the cache, and replaces the first form:
    runs under way end on the form they began on, later runs use the new one. Processes that share a cache prepare
    a model once. ``options`` are those of ``InferenceSession``; ``events`` lists what was done.

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
        cache: str | os.PathLike[str] | None = None,
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
        store = _store_at(cache)
        self._entry: CacheEntry | None = None
        if store is not None:
            self._entry = onnx_entry(store, self._source, soc or DEFAULT_SOC, shown_options)
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
        """The events so far, in order."""
        return list(self._events)

    @property
    def is_best(self) -> bool:
        """Whether it runs what was prepared well."""
        return self._best

    @property
    def cache_path(self) -> Path | None:
        """The file of the cache that its compiled form is in, or will be; None without a cache."""
        return None if self._entry is None else self._entry.path

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until preparation is over; return whether it is."""
        return self._settled.wait(timeout)

    def get_inputs(self) -> list[NodeArg]:
        """The inputs of ``run``."""
        return self._now().session.get_inputs()

    def get_outputs(self) -> list[NodeArg]:
        """The outputs of ``run``."""
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
        if self._entry is None or not self._entry.exists():
            return None
        model = (self._entry.read() or {}).get(_FILE)
        if model is None:
            self._note("refused what the cache has", "it is damaged")
            return None
        try:
            session = self._make(model, providers=[(QNN, self._provider_options)])
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
            with contextlib.nullcontext(True) if self._entry is None else self._entry.locked(self._over) as mine:
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
        if self._entry is None or not isinstance(executable, HtpExecutable) or self._over.is_open:
            return
        if self._entry.write({_FILE: executable.context_model(executable.context.get_binary())}):
            self._note("saved", str(self._entry.path))
        else:
            self._note("failed to save", "it is larger than the cache may be")

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


def _store_at(cache: str | os.PathLike[str] | None) -> ModelStore | None:
    """The store in a folder, or the user's own, which may be switched off."""
    if cache is None:
        return user_store(log.warning)
    folder = path_of(cache)
    if folder is None:
        raise InvalidArgument(f"cache is {shown(cache)}; expected a folder for compiled models, or None")
    return ModelStore(folder)


def onnx_entry(store: ModelStore, source: Path, *settings: object) -> CacheEntry:
    """The place of an ONNX model; ``settings`` are whatever else decides what the compiled model is."""
    contents = [digest_of(source, what="an ONNX model", error=BadModel)]
    for path in external_files(source):
        contents += [path.name, digest_of(path, what="weights of an ONNX model", error=BadModel)]
    return store.entry("onnx", source.name, contents, *settings)
