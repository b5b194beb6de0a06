"""The tree of events of one call, in the order and nesting of the documents.

Host times are measured; cycles, and figures of single ops, are modelled for the chip and say so.
"""

from __future__ import annotations

from typing import Any

import msgspec

from openhtp.core.enumerations import ProfileLevel
from openhtp.core.status import QNN_SUCCESS
from openhtp.hw.catalog import find_soc
from openhtp.records.profile import ProfileEvent
from openhtp.runtime.calls.sheet import ExecutedCall
from openhtp.runtime.links.link import ServiceTime

# Ours: the documents know no deadlines. 1 if the device was not done in time, otherwise 0.
DEADLINE_MISSED = 90_001
STEPS = 407
STEP = 90_002  # ours too: a step of the emulated device
GRAPH_SWITCH = 90_003  # ours too: waiting for the graph to be loaded, part of the queue wait


def execute_events(run: ExecutedCall, level: ProfileLevel, *, optrace: bool) -> tuple[ProfileEvent, ...]:
    """Events of an execution: QNN > RPC > accelerator > accelerator without waiting."""
    record = run.record
    accelerated = record.finished_ns - record.started_ns
    waited_for_start = record.started_ns - record.received_ns
    detailed = level is not ProfileLevel.BASIC
    events = [
        ProfileEvent(8001, "Number of HVX threads used", _hvx_threads(run), "count"),
        _us(405, "Queue wait", waited_for_start),
        _us(3001, "RPC (execute) time", run.returned_ns - run.sent_ns),
        _us(3002, "QNN accelerator (execute) time", record.finished_ns - record.received_ns),
        ProfileEvent(3009, "Num times yield occured", record.yields, "count"),
    ]
    if run.told.switch_ns:
        events.append(_us(GRAPH_SWITCH, "Graph switch time", run.told.switch_ns))
    if record.yields:
        events += [
            _us(3006, "Time for initial VTCM release", record.release_ns),
            _us(3007, "Time waiting for resources after yield", record.paused_ns),
            _us(3008, "Time to restore after yield", record.restore_ns),
        ]
    if detailed:
        events += _detailed_events(run, level, waited_for_start)
    events += [
        _us(3004, "Accelerator (execute) time", accelerated),
        _us(3012, "Accelerator (execute excluding wait) time", accelerated - record.paused_ns),
    ]
    if run.deadline_at:
        missed = record.status != QNN_SUCCESS.code or record.finished_ns > run.deadline_at
        events.append(ProfileEvent(DEADLINE_MISSED, "Deadline missed", int(missed), "count"))
    if optrace and run.modelled is not None and run.modelled.is_known:
        ops = len(run.modelled.schematic(run.clocks).executed)
        events.append(ProfileEvent(600, "Optrace", ops, "object", modelled=True))
    events.append(_us(400, "QNN (execute) time", run.returned_ns - run.called_ns))
    return tuple(events)


def finalize_events(
    level: ProfileLevel, begin_ns: int, compiled_ns: int, end_ns: int, served: ServiceTime
) -> tuple[ProfileEvent, ...]:
    """Events of finalize.

    The stages are those of the documents; work that is no stage of its own here counts in a neighbour.
    """
    spent = {
        "Graph Preparation Initializing": 0,
        "Graph Optimizations": compiled_ns - begin_ns,
        "Post Graph Optimization": 0,
        "Graph Sequencing for Target": end_ns - compiled_ns,
        "VTCM Allocation": 0,
        "Parallelization Optimization": 0,
        "Finalizing Graph Sequence": 0,
        "Completion": 0,
    }
    stages = () if level is ProfileLevel.BASIC else tuple(_us(0, name, time) for name, time in spent.items())
    *parts, whole = request_events("finalize", 2001, 300, (begin_ns, compiled_ns, end_ns), served)
    return (*parts, msgspec.structs.replace(whole, events=stages))


HEAP_BEFORE, HEAP_AFTER = "DSP:before_context_created", "DSP:after_context_freed"
_BACKEND = 1000


def request_events(
    what: str, first: int, whole: int, times_ns: tuple[int, int, int], served: ServiceTime
) -> tuple[ProfileEvent, ...]:
    """Events of a call that is one request: the way there and back, the device's part, its work, and the whole.

    ``first`` and ``whole`` are numbers of events; ``times_ns`` are the times of the begin, the request and the
    end.
    """
    begin_ns, asked_ns, end_ns = times_ns
    device = "Accelerator" if what == "deinit" else "accelerator"  # spelled so in the documents' listings
    return (
        _us(first, f"RPC ({what}) time", end_ns - asked_ns),
        _us(first + 1, f"QNN {device} ({what}) time", served.served_ns),
        _us(first + 2, f"Accelerator ({what}) time", served.worked_ns),
        _us(whole, f"QNN ({what}) time", end_ns - begin_ns),
    )


def load_events(times_ns: tuple[int, int, int], served: ServiceTime, heap: int | None) -> tuple[ProfileEvent, ...]:
    """Events of a context's creation from a binary; ``heap`` is what the device held before, if it is reported."""
    return (*_heap_event(HEAP_BEFORE, heap), *request_events("load binary", 1002, 100, times_ns, served))


def free_events(times_ns: tuple[int, int, int], served: ServiceTime, heap: int | None) -> tuple[ProfileEvent, ...]:
    """Events of a context's end; ``heap`` is what the device still holds, if it is reported."""
    return (*request_events("deinit", 4001, 500, times_ns, served), *_heap_event(HEAP_AFTER, heap))


def _heap_event(name: str, heap: int | None) -> tuple[ProfileEvent, ...]:
    return () if heap is None else (ProfileEvent(_BACKEND, name, heap, "bytes"),)


def held_bytes(info: dict[str, Any]) -> int:
    """Bytes that a device holds for all its clients, by its own account (``Device.info``)."""
    return sum(session["bytes"] for session in info["sessions"])


def _detailed_events(run: ExecutedCall, level: ProfileLevel, acquire_ns: int) -> list[ProfileEvent]:
    """Events of detailed and linting profiles only: resources, cycles of ops, and times of the device's steps."""
    times = run.told.step_times_ns
    steps = tuple(_us(STEP, f"step {index}", time) for index, time in enumerate(times))
    events = [
        _us(3010, "Time for initial VTCM acquire", acquire_ns),
        # The emulated chip has nothing to switch on, and the vendor's library does not report it.
        ProfileEvent(3011, "Time for HVX + HMX power on and acquire", _power_up_us(run), "us", modelled=True),
        ProfileEvent(STEPS, "Steps on the device", sum(times) // 1000, "us", events=steps),
    ]
    if run.modelled is not None and run.modelled.is_known:
        events.append(run.modelled.node_event(level, run.clocks))
    return events


def _power_up_us(run: ExecutedCall) -> int:
    return 0 if run.modelled is None else run.told.power_up_ns // 1000


def _hvx_threads(run: ExecutedCall) -> int:
    """The number that the graph asked for; the chip's number where the graph leaves it to the chip."""
    if run.hvx_threads or run.modelled is None:
        return run.hvx_threads
    return find_soc(run.modelled.soc).hvx


def _us(number: int, name: str, nanoseconds: int) -> ProfileEvent:
    return ProfileEvent(number, name, max(0, nanoseconds) // 1000, "us")
