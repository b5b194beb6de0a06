"""A graph bound to arrays, for executions that use the same arrays again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from openhtp.core import tidying
from openhtp.core.errors import QnnError
from openhtp.runtime.calls.arguments import Arguments, Ports
from openhtp.runtime.calls.call import Call, enqueue, send
from openhtp.runtime.calls.notify import Notifier
from openhtp.runtime.calls.queue import CallbackReturn
from openhtp.runtime.instruments.instrument import Watched

if TYPE_CHECKING:
    from openhtp.device.direct import DataCopies
    from openhtp.runtime.calls.arguments import Values
    from openhtp.runtime.calls.callee import Callee
    from openhtp.runtime.calls.execution import Execution, Notify
    from openhtp.runtime.links.link import Link
    from openhtp.runtime.objects.graph import Graph
    from openhtp.runtime.objects.profile import Profile
    from openhtp.runtime.objects.signal import Signal


def require_executable(graph: Graph) -> None:
    """If the graph cannot be executed now, raise the error that an execution would."""
    graph.context.opened.life.require("execute")
    graph.life.require("execute")


def output_shapes(graph: Graph, inputs: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Sizes of a graph's outputs in an execution with inputs of these sizes."""
    return _callee(graph).bindings.output_shapes(inputs)


class RunAtOnce:
    """An asynchronous execution that its caller computes, as the queue sees it."""

    __slots__ = ("notifier",)
    synchronous = False

    def __init__(self, notifier: Notifier) -> None:
        self.notifier = notifier


class BoundCall:
    """A graph and the arrays that it computes on. Each execution reads them as they are when it starts.

    Results are written into the outputs. Where the NPU is in this process, arrays are used where they lie: those
    of the graph's first execution at once, others from the second synchronous run on. If that NPU is idle, a
    synchronous run bypasses the queue as well. Otherwise a run is ``Graph.execute`` or ``Graph.execute_async``.
    """

    __slots__ = (
        "_arguments",
        "_callee",
        "_graph_life",
        "_has_run",
        "_life",
        "_looked",
        "_shortcut",
        "graph",
        "inputs",
        "outputs",
    )

    def __init__(self, graph: Graph, inputs: Values | None, outputs: Values | None) -> None:
        self.graph = graph
        self.inputs = inputs
        self.outputs = outputs
        self._life, self._graph_life = graph.context.opened.life, graph.life
        # Binding costs more than one copy, but less than memory for the first one: it is done for the first arrays
        # of a graph, and for those that are used again.
        self._has_run = self._looked = False
        self._callee: Callee
        self._arguments: Arguments | None = None
        self._shortcut: Shortcut | None = None

    def run(self, profile: Profile | None = None, signal: Signal | None = None) -> None:
        """Compute on the present contents of the inputs, and wait for the end."""
        self._life.require("execute")
        self._graph_life.require("execute")
        if not self._looked and (self._has_run or _callee(self.graph).is_new):
            self._look()
        self._has_run = True
        bound = self._shortcut
        if bound is None or Watched.executions:
            self.graph.execute(self.inputs, self.outputs, profile=profile, signal=signal)
        elif profile is not None or signal is not None or not bound.run():
            self._send(bound, profile, signal, None, synchronous=True).result()

    def run_async(
        self, notify: Notify | None, profile: Profile | None = None, signal: Signal | None = None
    ) -> None:
        """Queue an execution: it reads the inputs when it starts, and ``notify(None, status)`` tells its end.

        An execution that is shorter than queueing it is over when this returns; only its notification follows.
        """
        self._life.require("execute")
        self._graph_life.require("execute")
        if not self._looked:
            self._look()
        bound = self._shortcut
        if bound is None or Watched.executions:
            self.graph.execute_async(self.inputs, self.outputs, profile=profile, signal=signal, notify=notify)
        elif (
            profile is not None
            or signal is not None
            or not bound.is_short
            or not _run_at_once(self._callee, bound.run_queued, notify)
        ):
            self._send(bound, profile, signal, notify, synchronous=False)

    def _send(
        self,
        bound: Shortcut,
        profile: Profile | None,
        signal: Signal | None,
        notify: Notify | None,
        *,
        synchronous: bool,
    ) -> Execution:
        callee = self._callee
        assert self._arguments is not None  # _look has run
        return send(
            Call(
                callee,
                self._arguments,
                self,
                notify,
                None,
                synchronous=synchronous,
                called_ns=callee.link.now(),
                profile=None if profile is None else profile.sheet,
                signal=None if signal is None else signal.interrupt,
                bound=bound,
            ),
            enqueue,
        )

    def _look(self) -> None:
        callee = self._callee = _callee(self.graph)
        callee.is_new = False
        self._arguments = callee.bindings.arguments(self.inputs, self.outputs)
        self._shortcut = shortcut(callee.link, callee.number, callee.ports, self._arguments)
        self._looked = True


def _run_at_once(callee: Callee, run_queued: Callable[[], bool], notify: Notify | None) -> bool:
    """Compute here and post the notification; False if the execution has to go through the queue after all."""
    places, code = callee.places, 0
    run = RunAtOnce(callee.notifier)
    try:
        if not places.try_take(run):
            return False  # there is a queue to wait for
        try:
            if not run_queued():
                places.give_back(run)
                return False
        except QnnError as error:
            code = error.code
        places.give_back(run, untold=notify is not None)
        if notify is not None:
            callee.notifier.tell(notify, code, CallbackReturn(places, run))
    except BaseException:
        tidying.post((places.give_back, (run,)))
        tidying.post((places.told, (run,)))
        raise
    return True


class CopiedCall:
    """A small graph whose data are copied: for executions of which nobody knows yet whether they are repeated."""

    __slots__ = ("_callee", "_graph_life", "_life", "_run", "arrays")

    def __init__(self, graph: Graph, run: RehearsedRun) -> None:
        self._life, self._graph_life = graph.context.opened.life, graph.life
        self._callee = _callee(graph)
        self._run = run
        self.arrays = run.arrays

    def run(self, copies: DataCopies) -> bool:
        """Compute, and wait for the end; False if that has to be done another way."""
        self._require()
        return not Watched.executions and self._run.run(copies)

    def run_async(self, copies: DataCopies, notify: Notify | None) -> bool:
        """Compute at once, and notify of the end; False if the execution has to be queued."""
        self._require()
        run = self._run
        if Watched.executions or not run.is_short:
            return False
        return _run_at_once(self._callee, lambda: run.run(copies, queued=True), notify)

    def _require(self) -> None:
        self._life.require("execute")
        self._graph_life.require("execute")


def copied_call(graph: Graph) -> CopiedCall | None:
    """For a graph that can be executed now. None if its data are large, sparse or of sizes that vary."""
    callee = _callee(graph)
    run = None if callee.ports.sparse or callee.ports.is_dynamic else callee.link.rehearsed(callee.number)
    return None if run is None else CopiedCall(graph, run)


def _callee(graph: Graph) -> Callee:
    assert graph.loaded is not None  # it is finalized
    return graph.loaded.callee


Array = npt.NDArray[Any]


class Shortcut(Protocol):
    """A graph on arrays that are used where they lie."""

    @property
    def is_short(self) -> bool:
        """Whether computing it is expected to take less time than queueing it."""

    def run(self) -> bool:
        """Compute on this thread; False if it has to go through the queue."""

    def run_queued(self) -> bool:
        """Compute an asynchronous execution on this thread; False if it has to go through the queue."""

    def submit(self, execution: Execution, call: Call, timeout_at: int, profile_level: int) -> None:
        """Queue an execution."""


class RehearsedRun(Protocol):
    """A graph on arrays of the device's, to and from which data are copied."""

    @property
    def arrays(self) -> Mapping[str, Array]:
        """They hold the data of an execution while it is computed."""

    @property
    def is_short(self) -> bool:
        """Whether computing it is expected to take less time than queueing it."""

    def run(self, copies: DataCopies, *, queued: bool = False) -> bool:
        """Compute on this thread; False if it has to go another way. ``queued``: it is asynchronous."""


def shortcut(link: Link, number: int, ports: Ports, arguments: Arguments) -> Shortcut | None:
    """The link's shortcut for just these arrays, if it has one and the arrays allow it.

    All arrays must be given, in the sizes that the graph declares, and no output may overlap another array. Graphs
    with sparse inputs, which are checked in every execution, go the usual way.
    """
    if arguments.dims or arguments.batch != 1 or ports.is_dynamic or arguments.count != len(ports.specs):
        return None
    if ports.sparse:
        return None
    by_port: dict[int, Array | None] = {**arguments.raw_inputs, **arguments.raw_outputs}
    by_port |= {port: array for port, (_, _, array) in arguments.registered.items()}
    arrays: dict[str, Array] = {}
    for port, array in by_port.items():
        if array is None or not array.flags.c_contiguous or not array.flags.aligned:
            return None
        arrays[ports.specs[port].name] = array
    return None if _overlap(ports, arrays) else link.shortcut(number, arrays)


def _overlap(ports: Ports, arrays: Mapping[str, Array]) -> bool:
    """Whether an output shares memory with anything else."""
    names = [spec.name for spec in ports.specs]
    return any(
        np.may_share_memory(arrays[written], arrays[other])
        for port, written in enumerate(names[ports.inputs :], ports.inputs)
        for other in names[:port]
    )
