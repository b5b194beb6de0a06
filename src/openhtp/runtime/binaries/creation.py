"""Several contexts from as many binaries, by one call: made side by side, and told of as each is there."""

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
from openhtp.runtime.binaries.opening import Given, check_given, in_memory, open_given
from openhtp.runtime.calls.long_call import OF_CONTEXT, Interrupt, Stop
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

# As the C function has it: context, graph, its name, what is told of, the parameter, and a status number.
CreationNotify = Callable[["Context | None", "Graph | None", "str | None", NotifyType, object, int], object]

# Opens a context: from a binary, with what was chosen for it, for a list of that number, unless it is stopped.
ContextMaker = Callable[["ContextBinary", "OptionValues", Stop, int], "Context"]

# Contexts under way at once, at most: the client copies for one while the device makes sessions for another.
MOST_THREADS = 4

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ListedContext:
    """One context of a list: where it comes from, what was chosen for it, and what its notifications carry.

    ``opened`` is given what ends it early.
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
    """The contexts of a list, all arguments checked: those for the list, and those for single contexts."""
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
    for place, config in enumerate(own):
        _refuse_group_options(place, config)
    return [
        ListedContext(
            functools.partial(open_given, item),
            read({**options, **config}, ContextOrigin.LIST),
            place if param is None else param,
        )
        for place, (item, config) in enumerate(zip(items, own, strict=True))
    ]


def _refuse_group_options(place: int, config: Mapping[str, object]) -> None:
    for name in config:
        if CONTEXT.option(name).origins == (ContextOrigin.LIST,):
            raise InvalidArgument(
                f"configs[{place}] has {name}, which is for the list as a whole; give it as an option of the call",
                st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
            )


class Creation:
    """Made by ``Device.create_contexts_from_binaries``; a future of its contexts, in the order of the binaries.

    ``result()`` waits, ``await`` does too. What one binary fails with ends none of the others: ``contexts`` and
    ``errors`` tell of each, also when ``result()`` raises. Used in a ``with`` block, the contexts are freed at
    its end.
    """

    def __init__(
        self,
        device: Device,
        wanted: Sequence[ListedContext],
        make: ContextMaker,
        notify: CreationNotify | None,
        signal: Signal | None,
    ) -> None:
        """``make`` opens one context from a binary."""
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
        self._interrupt = Interrupt(Life("signal", ""), None) if signal is None else signal.interrupt
        self._stop = Stop(self._interrupt, "creating contexts from a list of binaries", OF_CONTEXT)
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin; returns at once."""
        try:
            forks.on_fork(self, Creation._leave)
            self._interrupt.begin(self, self._stop)
            for _ in range(min(len(self._wanted), MOST_THREADS, max(2, len(os.sched_getaffinity(0))))):
                OwnThread(self._work, name="openhtp-creation").start()
        except BaseException:
            tidying.post((self._give_up, ()))
            raise

    # For the user

    @property
    def contexts(self) -> list[Context | None]:
        """What is there so far, by the binary's place in the list; None where it is not, or failed."""
        return list(self._contexts)

    @property
    def errors(self) -> list[QnnError | None]:
        """What failed so far, by the binary's place in the list."""
        return list(self._errors)

    def done(self) -> bool:
        """Whether every context is there or has failed."""
        return self._outcome.done()

    def cancel(self) -> bool:
        """End early what is not there yet, as an abort signal does; False if all is over."""
        if self.done():
            return False
        self._interrupt.trigger()
        return True

    def result(self, timeout: float | None = None) -> list[Context]:
        """Wait, and return all contexts; raises the error of the first binary that failed.

        Raises TimeoutError if ``timeout`` seconds pass first; the creation goes on then.
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
        """Cancel what is under way and free all contexts that were made."""
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
                place = self._todo.pop()
            except IndexError:
                return
            self._end(place, *self._make(self._wanted[place]))

    def _make(self, wanted: ListedContext) -> tuple[Context | None, QnnError | None, tuple[str, ...]]:
        """The context or why there is none, and the names of its graphs as far as they are known."""
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

    def _end(self, place: int, context: Context | None, error: QnnError | None, names: tuple[str, ...]) -> None:
        with self._lock:
            self._contexts[place], self._errors[place] = context, error
            self._ended.add(place)
            last, abandoned = len(self._ended) == len(self._wanted), self._abandoned
        if abandoned:
            _free(context)
        else:
            self._tell(self._wanted[place].param, context, error, names)
        if last:
            self._interrupt.end(self)
            self._settle()

    def _tell(
        self, param: object, context: Context | None, error: QnnError | None, names: tuple[str, ...]
    ) -> None:
        """A notification for each graph, then one for the context."""
        if self._notify is None:
            return
        post, status = self.device.backend.notifier.post, 0 if error is None else error.code
        for name in names:
            graph = None if context is None else context.graph(name)
            told = st.QNN_GRAPH_ERROR_DISABLED.code if graph is not None and not graph.is_finalized else status
            post(self._notify, context, graph, name, NotifyType.GRAPH_INIT, param, told)
        post(self._notify, context, None, None, NotifyType.CONTEXT_INIT, param, status)

    def _settle(self) -> None:
        failed = next((error for error in self._errors if error is not None), None)
        if failed is not None:
            self._outcome.fail(failed)
        else:
            self._outcome.keep([context for context in self._contexts if context is not None])

    def _abandon(self) -> None:
        """Nobody wants it: end what is under way, and free what is there, now or when it comes."""
        with self._lock:
            self._abandoned = True
            made = list(self._contexts)
        if not self.done() and self._interrupt.holder is self:
            self._interrupt.trigger()
        for context in made:
            _free(context)

    def _give_up(self) -> None:
        """Whoever started it was interrupted, perhaps before there was a thread: end what none has begun."""
        self._abandon()
        self._work()

    def _leave(self) -> None:
        """In the child of a fork: it is the parent's, and so are the threads that would end it."""
        self._lock = threading.Lock()
        if not self._outcome.done():
            self._outcome = Promise()
            self._outcome.fail(foreign_error("the creation", st.QNN_CONTEXT_ERROR_INVALID_HANDLE))


def _free(context: Context | None) -> None:
    if context is not None and context.opened.life.state not in (State.FREED, State.FOREIGN):
        context.free()
