"""Several contexts from as many binaries in one call: made side by side, each announced when it is ready."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openhtp.core import status as st, tidying
from openhtp.core.checks import items_of, shown
from openhtp.core.enumerations import NotifyType
from openhtp.core.errors import Aborted, InternalError, InvalidArgument, QnnError
from openhtp.core.latches import Promise
from openhtp.core.threads import OwnThread
from openhtp.options import CONTEXT, ContextOrigin, OptionValues
from openhtp.runtime.binaries.opening import Given, check_given, in_memory, open_for_context
from openhtp.runtime.calls.long_call import OF_CONTEXT, CallStop, Interrupt
from openhtp.runtime.objects import forks
from openhtp.runtime.objects.argument_checks import check_timeout
from openhtp.runtime.objects.lifecycle import Life, State, foreign_error

if TYPE_CHECKING:
    from openhtp.options._arguments import ContextArguments
    from openhtp.program.binary import ContextBinary
    from openhtp.runtime.objects.context import Context
    from openhtp.runtime.objects.device import Device
    from openhtp.runtime.objects.graph import Graph
    from openhtp.runtime.objects.signal import Signal


log = logging.getLogger(__name__)

# The arguments of the C function: context, graph, its name, kind of notification, parameter, status number.
CreationNotify = Callable[["Context | None", "Graph | None", "str | None", NotifyType, object, int], object]

# Opens a context: from a binary, with its options, unless it is stopped, for the list of that number.
ContextMaker = Callable[["ContextBinary", "OptionValues", CallStop, int], "Context"]

# At most so many contexts are made at once: the client copies for one while the device makes sessions for another.
MOST_THREADS = 4

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ListedContext:
    """One context of a list: how to open its binary, its options, and the parameter of its notifications.

    ``opened`` gets the check that ends it early.
    """

    opened: Callable[[Callable[[], None]], ContextBinary]
    chosen: OptionValues
    param: object


def list_wanted(
    binaries: Iterable[Given],
    configs: Sequence[ContextArguments] | None,
    options: ContextArguments,
    param: object,
    read: Callable[[ContextArguments, ContextOrigin], OptionValues],
) -> list[ListedContext]:
    """The contexts of a list. All arguments are checked, those for the list and those for single contexts."""
    items = None if isinstance(binaries, str) or in_memory(binaries) else items_of(binaries)
    if not items:
        raise InvalidArgument(
            f"binaries is {shown(binaries)}; expected a list of at least one binary",
            st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
        )
    if "callback" in options:
        raise InvalidArgument(
            "a callback is for create_context_from_binary only: contexts of a list read their binaries themselves",
            st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
        )
    for binary in items:
        check_given(binary)
    own = [{}] * len(items) if configs is None else items_of(configs)
    if own is None or len(own) != len(items) or not all(isinstance(config, Mapping) for config in own):
        raise InvalidArgument(
            f"configs is {shown(configs)}; expected one mapping of options for each of {len(items)} binaries",
            st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
        )
    read(options, ContextOrigin.LIST)
    for index, config in enumerate(own):
        _refuse_group_options(index, config)
    chosen = [read({**options, **config}, ContextOrigin.LIST) for config in own]
    return [
        ListedContext(
            functools.partial(open_for_context, item, values.file_read_memory_budget_in_mb),
            values,
            index if param is None else param,
        )
        for index, (item, values) in enumerate(zip(items, chosen, strict=True))
    ]


def _refuse_group_options(index: int, config: Mapping[str, object]) -> None:
    for name in config:
        if CONTEXT.option(name).origins == (ContextOrigin.LIST,):
            raise InvalidArgument(
                f"configs[{index}] has {name}, which is for the list as a whole; give it as an option of the call",
                st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
            )


class Creation:
    """Made by ``Device.create_contexts_from_binaries``; a future of its contexts, in the order of the binaries.

    ``result()`` waits, and so does ``await``. If one binary fails, the others go on: ``contexts`` and ``errors``
    show the outcome of each, even when ``result()`` raises. At the end of a ``with`` block the contexts are freed.
    """

    def __init__(
        self,
        device: Device,
        wanted: Sequence[ListedContext],
        make: ContextMaker,
        notify: CreationNotify | None,
        signal: Signal | CallStop | None,
    ) -> None:
        """``make`` opens one context from a binary. A call that carries a signal already gives its stop."""
        self.device = device
        self.number = next(_numbers)
        self._wanted = wanted
        self._make_context = make
        self._notify = notify
        self._contexts: list[Context | None] = [None] * len(wanted)
        self._errors: list[QnnError | None] = [None] * len(wanted)
        self._ended: set[int] = set()
        self._todo = list(reversed(range(len(wanted))))
        self._outcome: Promise[list[Context]] = Promise()
        self._abandoned = False
        self._is_carried = isinstance(signal, CallStop)
        if isinstance(signal, CallStop):
            self._interrupt, self._stop = signal.interrupt, signal
        else:
            self._interrupt = Interrupt(Life("signal", ""), None) if signal is None else signal.interrupt
            self._stop = CallStop(self._interrupt, "creating contexts from a list of binaries", OF_CONTEXT)
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin; returns at once."""
        try:
            forks.on_fork(self, Creation._leave)
            if not self._is_carried:
                self._interrupt.begin(self, self._stop)
            for _ in range(min(len(self._wanted), MOST_THREADS, max(2, len(os.sched_getaffinity(0))))):
                OwnThread(self._work, name="openhtp-creation").start()
        except BaseException:
            tidying.post((self._give_up, ()))
            raise

    # For the user

    @property
    def contexts(self) -> list[Context | None]:
        """The contexts made so far, in the order of the binaries; None where one is not ready or has failed."""
        return list(self._contexts)

    @property
    def errors(self) -> list[QnnError | None]:
        """The errors so far, in the order of the binaries; None where there is none."""
        return list(self._errors)

    def done(self) -> bool:
        """Whether every context is ready or has failed."""
        return self._outcome.done()

    def cancel(self) -> bool:
        """End contexts early that are not ready yet, as an abort signal does; False if all is over."""
        if self.done():
            return False
        self._interrupt.trigger()
        return True

    def result(self, timeout: float | None = None) -> list[Context]:
        """Wait, and return all contexts; raises the error of the first binary that failed.

        Raises TimeoutError if ``timeout`` seconds pass first; the creation then goes on.
        """
        timeout = check_timeout(timeout)
        try:
            return self._outcome.result(timeout)
        except TimeoutError:
            if self.done():
                raise
            raise TimeoutError(
                f"{len(self._ended)} of {len(self._wanted)} contexts are made after {timeout} s; the rest goes on"
            ) from None

    def exception(self, timeout: float | None = None) -> QnnError | None:
        """Wait, and return the error that ``result`` would raise, or None."""
        try:
            self.result(timeout)
        except QnnError as error:
            return error
        return None

    def __await__(self) -> Generator[Any, None, list[Context]]:
        return self._outcome.__await__()

    def free(self) -> None:
        """Cancel contexts that are under way and free all that were made."""
        self._abandon()
        self._outcome.exception()

    def __enter__(self) -> Creation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.free()

    def __repr__(self) -> str:
        failed = sum(error is not None for error in self._errors)
        return f"<Creation of {len(self._wanted)} contexts, {len(self._ended)} over, {failed} failed>"

    # On threads of its own

    def _work(self) -> None:
        while True:
            try:
                index = self._todo.pop()
            except IndexError:
                return
            self._end(index, *self._make(self._wanted[index]))

    def _make(self, wanted: ListedContext) -> tuple[Context | None, QnnError | None, tuple[str, ...]]:
        """The context or its error, and the names of its graphs as far as they are known."""
        names: tuple[str, ...] = ()
        try:
            self._stop.check()
            if self._abandoned:
                raise Aborted("the creation of contexts was given up", st.QNN_CONTEXT_ERROR_ABORTED)
            parsed = wanted.opened(self._stop.check)
            names = parsed.graph_names
            return self._make_context(parsed, wanted.chosen, self._stop, self.number), None, names
        except QnnError as error:
            return None, error, names
        except BaseException as error:
            log.exception("creating a context of a list")
            return None, InternalError(f"the context could not be made: {error!r}"), names

    def _end(self, index: int, context: Context | None, error: QnnError | None, names: tuple[str, ...]) -> None:
        with self._lock:
            self._contexts[index], self._errors[index] = context, error
            self._ended.add(index)
            last, abandoned = len(self._ended) == len(self._wanted), self._abandoned
        if abandoned:
            _free(context)
        else:
            self._notify_client(self._wanted[index].param, context, error, names)
        if last:
            self._interrupt.end(self)
            self._settle()

    def _notify_client(
        self, param: object, context: Context | None, error: QnnError | None, names: tuple[str, ...]
    ) -> None:
        """Post a notification for each graph, then one for the context."""
        if self._notify is None:
            return
        post, status = self.device.backend.notifier.post, 0 if error is None else error.code
        for name in names:
            graph = None if context is None else context.graph(name)
            disabled = graph is not None and not graph.is_finalized
            code = st.QNN_GRAPH_ERROR_DISABLED.code if disabled else status
            post(self._notify, context, graph, name, NotifyType.GRAPH_INIT, param, code)
        post(self._notify, context, None, None, NotifyType.CONTEXT_INIT, param, status)

    def _settle(self) -> None:
        failed = next((error for error in self._errors if error is not None), None)
        if failed is not None:
            self._outcome.fail(failed)
        else:
            self._outcome.keep([context for context in self._contexts if context is not None])

    def _abandon(self) -> None:
        """Nobody wants the contexts: cancel those under way, and free the others, now or when they are made."""
        with self._lock:
            self._abandoned = True
            contexts = list(self._contexts)
        if not self.done() and self._interrupt.holder is (self._stop if self._is_carried else self):
            self._interrupt.trigger()
        for context in contexts:
            _free(context)

    def _give_up(self) -> None:
        """The starting thread was interrupted, perhaps before others ran: end contexts not yet begun."""
        self._abandon()
        self._work()

    def _leave(self) -> None:
        """In the child of a fork: the creation is the parent's, and so are the threads that would end it."""
        self._lock = threading.Lock()
        if not self._outcome.done():
            self._outcome = Promise()
            self._outcome.fail(foreign_error("the creation", st.QNN_CONTEXT_ERROR_INVALID_HANDLE))


def _free(context: Context | None) -> None:
    if context is not None and context.opened.life.state not in (State.FREED, State.FOREIGN):
        context.free()
