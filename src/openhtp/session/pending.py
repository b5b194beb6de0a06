"""A run that was queued: a future of the list of outputs."""

from __future__ import annotations

import asyncio
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
from openhtp.session.profiling import AnyProfile

log = logging.getLogger(__name__)

Collect = Callable[[Outputs], Results]


class PendingRun:
    """Returned by ``InferenceSession.run_async``; ``result()``, ``done()``, ``cancel()`` and ``await``."""

    def __init__(self, execution: Execution, collect: Collect, profile: Profile | None = None) -> None:
        self.execution: Execution | None = execution
        # Filled when it is over, if the session profiles.
        self.profile: AnyProfile | None = profile
        self._accepted = execution
        self._collect = collect

    def done(self) -> bool:
        """Whether it is over."""
        return self._accepted.done()

    def cancel(self) -> bool:
        """Ask for an early end; False if it is already over."""
        return self._accepted.cancel()

    def cancelled(self) -> bool:
        """Whether it was ended by ``cancel()``."""
        return self._accepted.cancelled()

    def result(self, timeout: float | None = None) -> Results:
        """Wait for the outputs, in the order asked for; raises the run's error."""
        return self._collect(self._accepted.result(timeout))

    def exception(self, timeout: float | None = None) -> QnnError | None:
        """Wait for the end and return its error, or None."""
        return self._accepted.exception(timeout)

    def add_done_callback(self, function: Callable[[PendingRun], object]) -> None:
        """Call ``function(self)`` on the backend's thread once it is over."""
        self._accepted.add_done_callback(lambda _: function(self))

    def __await__(self) -> Generator[Any, None, Results]:
        return self._collect((yield from self._accepted.__await__()))

    def __repr__(self) -> str:
        return f"<PendingRun: {self._accepted!r}>"


class CarriedRun(PendingRun):
    """A run that a thread of the session carries: it waits for a place in the queue, or is computed on the CPU.

    ``execution`` is None until the queue has accepted it, and stays so on the CPU.
    """

    def __init__(self, profile: AnyProfile | None = None) -> None:
        self.execution = None
        self.profile = profile
        self._lock = threading.Lock()
        self._unwanted = False
        self._outcome: Promise[Results] = Promise()

    def done(self) -> bool:
        """Whether it is over."""
        return self._outcome.done()

    def cancel(self) -> bool:
        """Ask for an early end; False if it is already over."""
        with self._lock:
            self._unwanted = True
            execution = self.execution
        if execution is not None:
            return execution.cancel()
        return not self._outcome.done()

    def cancelled(self) -> bool:
        """Whether it was ended by ``cancel()``."""
        if not self._outcome.done():
            return False
        error = self._outcome.exception()
        return isinstance(error, QnnError) and error.code == st.QNN_GRAPH_ERROR_ABORTED.code

    def result(self, timeout: float | None = None) -> Results:
        """Wait for the outputs, in the order asked for; raises the run's error."""
        try:
            return self._outcome.result(check_timeout(timeout))
        except TimeoutError:
            if self._outcome.done():
                raise
            raise TimeoutError(f"the run is not over after {timeout} s; it goes on") from None

    def exception(self, timeout: float | None = None) -> QnnError | None:
        """Wait for the end and return its error, or None."""
        try:
            error = self._outcome.exception(check_timeout(timeout))
        except TimeoutError:
            raise TimeoutError(f"the run is not over after {timeout} s; it goes on") from None
        assert error is None or isinstance(error, QnnError)
        return error

    def add_done_callback(self, function: Callable[[PendingRun], object]) -> None:
        """Call ``function(self)`` on the thread that ends it."""
        self._outcome.then(lambda: function(self))

    def __await__(self) -> Generator[Any, None, Results]:
        return self._outcome.__await__()

    def __repr__(self) -> str:
        if self.execution is not None:
            return f"<PendingRun: {self.execution!r}>"
        return f"<PendingRun: {'over' if self.done() else 'waiting for its turn'}>"

    # What the thread that carries it does

    def _accept(self, execution: Execution, collect: Collect) -> None:
        """The queue has it; it ends with the execution."""
        with self._lock:
            self.execution = execution
            unwanted = self._unwanted
        if unwanted:
            execution.cancel()
        execution.add_done_callback(lambda over: self._end(lambda: collect(over.result())))

    def _end(self, work: Callable[[], Results]) -> None:
        """End it with what ``work`` returns or raises, unless it is not wanted any more."""
        try:
            if self._unwanted and self.execution is None:
                raise Aborted("the run was cancelled before it began")
            results = work()
        except QnnError as error:
            self._outcome.fail(error)
        except BaseException as error:
            self._outcome.fail(ExecutionError(f"the run failed: {error!r}"))
        else:
            self._outcome.keep(results)


class Carrier:
    """The thread that carries a session's runs, one after the other; started with the first."""

    def __init__(self) -> None:
        self._errands = Errands("openhtp-session")
        self._waiting: set[object] = set()

    @property
    def is_busy(self) -> bool:
        """Whether runs are before the next one."""
        return bool(self._waiting)

    def queue(self, graph: Graph, feeds: Outputs, collect: Collect, profile: Profile | None) -> PendingRun:
        """Put a run into a graph's queue; the thread waits for a place where that would stop an event loop."""
        if not _on_event_loop():
            return PendingRun(graph.execute_async(feeds or None, profile=profile), collect, profile)
        if not self.is_busy:
            try:
                execution = graph.execute_async(feeds or None, profile=profile, signal=AtOnce())
                return PendingRun(execution, collect, profile)
            except QueueFull:
                log.debug("the queue is full; a thread of the session waits for a place")
        run, copies = CarriedRun(profile), {name: array.copy() for name, array in feeds.items()}
        self._submit(run, lambda: (graph.execute_async(copies or None, profile=profile), collect))
        return run

    def _submit(self, run: CarriedRun, enqueue: Callable[[], tuple[Execution, Collect]]) -> None:
        """Have ``enqueue`` wait for a place in the queue."""

        def accept() -> None:
            if run._unwanted:
                run._end(list)
                return
            try:
                accepted = enqueue()
            except BaseException as error:
                failure = error
                run._end(lambda: _raise(failure))
            else:
                run._accept(*accepted)

        self._carry(accept)

    def compute(self, call: RunCall, work: Callable[[RunCall], Results], noted: Callable[[], None]) -> PendingRun:
        """Have ``work`` make the results, of the inputs as they are now; ``noted`` is called before it is over."""
        run = CarriedRun(call.profile)
        copied = replace(call, feeds={name: np.array(array) for name, array in call.feeds.items()})

        def results() -> Results:
            outputs = work(copied)
            noted()
            return outputs

        self._carry(lambda: run._end(results))
        return run

    def _carry(self, task: Callable[[], None]) -> None:
        self._waiting.add(task)

        def carried() -> None:
            try:
                task()
            finally:
                self._waiting.discard(task)

        self._errands.post(carried)


def _on_event_loop() -> bool:
    """Whether this thread runs an event loop, which must not be made to wait."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _raise(error: BaseException) -> Results:
    raise error
