"""``with openhtp.trace("out.json"):`` records every device of this process and writes one file for Perfetto."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from openhtp.core.checks import path_of, shown
from openhtp.core.enumerations import Priority
from openhtp.core.errors import InvalidArgument, QnnError, WrongState
from openhtp.core.files import write_file
from openhtp.records.trace import Trace
from openhtp.report.chrome import marks_to_chrome
from openhtp.report.lanes import Flow, Instant, Mark, TimelineSpan, named_track, trace_to_marks
from openhtp.runtime.instruments import injecting
from openhtp.runtime.instruments.device_queries import graphs_on, number_of
from openhtp.runtime.instruments.instrument import Instrument, told
from openhtp.runtime.objects.backend import open_backends
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.graph import Graph
from openhtp.runtime.objects.modelled import StepOps, ops_of_steps

log = logging.getLogger(__name__)

# The recorder in use, if any: one at a time.
_recording: dict[None, object] = {}


@contextlib.contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[None]:
    """Record what all devices of this process do while the block runs; also if it raises.

    The file is for ui.perfetto.dev and chrome://tracing: every graph with its steps, the ops in them, job,
    priority and session, and who made way for whom. Devices that are created or freed inside are included.
    """
    target = path_of(path)
    if target is None:
        raise InvalidArgument(f"path is {shown(path)}; expected the path of a file to write")
    me = object()
    try:
        if _recording.setdefault(None, me) is not me:
            raise WrongState("a trace is being recorded already; end that block first")
        if not os.path.isdir(target.parent):  # unlike Path.is_dir, it takes a name that is too long for none
            raise InvalidArgument(f"{str(target)!r} cannot be written: there is no folder {str(target.parent)!r}")
        recording = _Recording()
        with recording.instrument:
            for backend in open_backends():
                for device in list(backend.devices):
                    recording.device_made(device)
            try:
                yield
            finally:
                recording.end()
                recording.write(target)
    finally:
        if _recording.get(None) is me:
            del _recording[None]


class _Recording:
    """What was found out so far. Devices are asked when they leave, or at the end."""

    def __init__(self) -> None:
        self._devices: list[Device] = []
        self._graphs: list[Graph] = []
        self._marks: list[Mark] = []
        self._begin_ns = time.monotonic_ns()
        listeners = (self.device_made, self.device_leaves, self.graph_loaded)
        self.instrument = Instrument({listen.__name__: told(listen) for listen in listeners})

    def device_made(self, device: Device) -> None:
        """Begin to record it."""
        try:
            device.start_trace()
        except QnnError as error:
            log.warning("%r is not in the trace: %s", device, error)
            return
        if device not in self._devices:  # otherwise it was restarted
            self._devices.append(device)
        self._graphs += graphs_on(device)

    def graph_loaded(self, graph: Graph) -> None:
        """Keep it: its ops are looked up when the device has told what ran."""
        self._graphs.append(graph)

    def device_leaves(self, device: Device) -> None:
        """Take what was recorded."""
        if device not in self._devices:
            return
        self._devices.remove(device)
        try:
            pid, recorded = device.pid, device.stop_trace()
        except QnnError as error:
            log.warning("%r is not in the trace: %s", device, error)
            return
        ops = {number_of(graph): _ops_of(graph) for graph in self._graphs if graph.context.device is device}
        title = f"{device.name or device.soc} (process {pid})"
        self._marks += [_titled(mark, title) for mark in _explained(recorded, ops)]

    def end(self) -> None:
        """The block is over."""
        for device in list(self._devices):
            self.device_leaves(device)

    def write(self, target: Path) -> None:
        """All that was recorded, and the faults that calls met meanwhile."""
        self._marks += [
            Instant(
                lane="injected faults",
                name=met.fault.text,
                at_ns=met.t_ns,
                category="fault",
                group="client",
                args={"point": met.fault.point.name, "call": met.call},
            )
            for met in injecting.met_since(self._begin_ns)
        ]
        write_file(target, marks_to_chrome(self._marks))


def _ops_of(graph: Graph) -> list[StepOps]:
    """Ops by step; none if the graph was freed and the file of its binary closed: its steps have numbers then."""
    try:
        return ops_of_steps(graph)
    except QnnError as error:
        log.warning("the steps of graph %r have no names in the trace: %s", graph.name, error)
        return []


def _explained(recorded: Trace, ops: Mapping[int, list[StepOps]]) -> Iterator[Mark]:
    """The marks of a recording; those of clients say whose they are, and steps which ops they compute."""
    clients = {named_track(recorded, number): number for number in recorded.tracks}
    for mark in trace_to_marks(recorded):
        number = (
            clients.get(mark.lane) if isinstance(mark, TimelineSpan) and "client" in mark.group.lower() else None
        )
        if number is None or not isinstance(mark, TimelineSpan):
            yield mark
            continue
        track = recorded.tracks[number]
        level = Priority(track.priority)
        args = {
            **(mark.args or {}),
            "session": track.session,
            "priority": level.name.lower(),
            "thread_priority": f"{level.thread_priority:#04x}",
            "hvx_thread_priority": f"{level.hvx_thread_priority:#04x}",
        }
        name = mark.name
        if mark.category == "step":
            steps = ops.get(number, [])
            index = int(mark.name.removeprefix("step ")) % max(1, len(steps))
            if steps:
                names, kinds = steps[index]
                args["ops"] = ", ".join(names)
                name = "+".join(dict.fromkeys(kinds))
        yield msgspec.structs.replace(mark, name=name, args=args)


def _titled(mark: Mark, title: str) -> Mark:
    """The mark under a heading of its device's."""
    if isinstance(mark, Flow):
        return msgspec.structs.replace(
            mark, from_group=f"{title} {mark.from_group}", to_group=f"{title} {mark.to_group}"
        )
    return msgspec.structs.replace(mark, group=f"{title} {mark.group}")
