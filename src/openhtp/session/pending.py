"""A run that was queued: a future of the list of outputs."""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import numpy as np

from openhtp.core import status as st
from openhtp.core.errors import Aborted, ExecutionError, QnnError, QueueFull
from openhtp.core.latches import Promise
from openhtp.core.threads import Errands
from openhtp.runtime.calls.execution import Execution, Outputs
from openhtp.runtime.objects.argument_checks import check_timeout
from openhtp.runtime.objects.graph import Graph
from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.signal import AtOnce
from openhtp.session.executable import Results, RunCall
from openhtp.session.ort_errors import as_ort_error
from openhtp.session.profiling import AnyProfile

log = logging.getLogger(__name__)

Collect = Callable[[Outputs], Results]


class PendingRun:
    """Returned by ``InferenceSession.run_async``; ``result()``, ``done()``, ``cancel()`` and ``await``."""

    def __init__(
        self, run: Execution | CarriedRun, collect: Callable[[Any], Results], profile: AnyProfile | None
    ) -> None:
        # Filled when the run is over, if the session profiles.
        self.profile = profile
        self._run = run
        self._collect = collect

    @property
    def execution(self) -> Execution | None:
        """The graph's execution; None until the queue has accepted the run, and on the CPU."""
        return self._run.execution if isinstance(self._run, CarriedRun) else self._run

    def done(self) -> bool:
        """Whether it is over."""
        return self._run.done()

    def cancel(self) -> bool:
        """Ask for an early end; False if it is already over."""
        return self._run.cancel()

    def cancelled(self) -> bool:
        """Whether it was ended by ``cancel()``."""
        return self._run.cancelled()

    def result(self, timeout: float | None = None) -> Results:
        """Wait for the outputs, in the order asked for; raises the run's error."""
        try:
            return self._collect(self._run.result(timeout))
        except QnnError as error:
            as_ort_error(error)
            raise

    def exception(self, timeout: float | None = None) -> QnnError | None:
        """Wait for the end and return its error, or None."""
        error = self._run.exception(timeout)
        return None if error is None else as_ort_error(error)

    def add_done_callback(self, function: Callable[[PendingRun], object]) -> None:
        """Call ``function(self)`` once it is over, on the thread that ends it."""
        self._run.add_done_callback(lambda _: function(self))

    def __await__(self) -> Generator[Any, None, Results]:
        try:
            return self._collect((yield from self._run.__await__()))
        except QnnError as error:
            as_ort_error(error)
            raise

    def __repr__(self) -> str:
        return f"<PendingRun: {self.execution or self._run!r}>"


class CarriedRun:
    """Used like an ``Execution`` while a thread of the session carries the run.

    The run waits for a place in the queue, or is computed on the CPU.
    """

    def __init__(self) -> None:
        self.execution: Execution | None = None
        self._lock = threading.Lock()
        self._unwanted = False
        self._end: Promise[Any] = Promise()
        self.done = self._end.done

    def cancel(self) -> bool:
        """Ask for an early end; False if it is already over."""
        with self._lock:
            self._unwanted = True
            execution = self.execution
        return not self.done() if execution is None else execution.cancel()

    def cancelled(self) -> bool:
        """Whether it was ended by ``cancel()``."""
        error = self.exception() if self.done() else None
        return error is not None and error.code == st.QNN_GRAPH_ERROR_ABORTED.code

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the results; raises the run's error."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._end.result()

    def exception(self, timeout: float | None = None) -> QnnError | None:
        """Wait for the end and return its error, or None."""
        try:
            error = self._end.exception(check_timeout(timeout))
        except TimeoutError:
            raise TimeoutError(f"the run is not over after {timeout} s; it goes on") from None
        assert error is None or isinstance(error, QnnError)
        return error

    def add_done_callback(self, function: Callable[[CarriedRun], object]) -> None:
        """Call ``function(self)`` on the thread that ends it."""
        self._end.then(lambda: function(self))

    def __await__(self) -> Generator[Any, None, Any]:
        return self._end.__await__()

    def __repr__(self) -> str:
        return "over" if self.done() else "waiting for its turn"

    def compute(self, work: Callable[[], Any]) -> None:
        """End with what ``work`` returns or raises, unless the run is not wanted any more."""
        try:
            self._check_wanted()
            results = work()
        except BaseException as error:
            self._fail(error)
        else:
            self._end.keep(results)

    def enqueue(self, execute: Callable[[], Execution]) -> None:
        """Wait for a place in the queue, unless the run is not wanted any more; end with the execution."""
        try:
            self._check_wanted()
            execution = execute()
        except BaseException as error:
            self._fail(error)
            return
        with self._lock:
            self.execution = execution
            unwanted = self._unwanted
        if unwanted:
            execution.cancel()
        execution.add_done_callback(lambda over: self.compute(over.result))

    def _check_wanted(self) -> None:
        if self._unwanted and self.execution is None:
            raise Aborted("the run was cancelled before it began")

    def _fail(self, error: BaseException) -> None:
        self._end.fail(error if isinstance(error, QnnError) else ExecutionError(f"the run failed: {error!r}"))


class Carrier:
    """The thread that carries a session's runs, one after the other; started with the first."""

    def __init__(self) -> None:
        self._errands = Errands("openhtp-session")
        self._waiting: set[object] = set()

    def queue(self, graph: Graph, feeds: Outputs, collect: Collect, profile: Profile | None) -> PendingRun:
        """Put a run into a graph's queue; the thread waits for a place where that would stop an event loop."""
        if not _on_event_loop():
            return PendingRun(graph.execute_async(feeds or None, profile=profile), collect, profile)
        if not self._waiting:
            try:
                execution = graph.execute_async(feeds or None, profile=profile, signal=AtOnce())
                return PendingRun(execution, collect, profile)
            except QueueFull:
                log.debug("the queue is full; a thread of the session waits for a place")
        run, copies = CarriedRun(), {name: array.copy() for name, array in feeds.items()}
        self._carry(lambda: run.enqueue(lambda: graph.execute_async(copies or None, profile=profile)))
        return PendingRun(run, collect, profile)

    def compute(self, call: RunCall, work: Callable[[RunCall], Results]) -> PendingRun:
        """Have ``work`` compute the results from the inputs as they are now."""
        run = CarriedRun()
        copied = replace(call, feeds={name: _snapshot(fed) for name, fed in call.feeds.items()})

        def results() -> Results:
            outputs = work(copied)
            if copied.noted is not None:
                copied.noted()
            return outputs

        self._carry(lambda: run.compute(results))
        return PendingRun(run, lambda outputs: outputs, call.profile)

    def _carry(self, task: Callable[[], None]) -> None:
        self._waiting.add(task)

        def carried() -> None:
            try:
                task()
            finally:
                self._waiting.discard(task)

        self._errands.post(carried)


def _snapshot(fed: Any) -> Any:
    """Copies of the fed values; ONNX Runtime's own values stay where they are."""
    return copy.deepcopy(fed) if isinstance(fed, np.ndarray | list | dict) else fed


def _on_event_loop() -> bool:
    """Whether this thread runs an event loop, which must not be made to wait."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
