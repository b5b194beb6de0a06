"""The content of a profile: the API's tree of events, and a log's record of each call that was profiled.

A value is measured on this computer, or modelled for the chip; each event says which.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from msgspec import Struct

from openhtp.records.schematic import OpTrace


class ProfileEvent(Struct, frozen=True):
    """One value. ``type`` is the API's number of the event, ``name`` its identifier, ``unit`` us, cycles, ...

    ``modelled`` values are computed for the chip; all others were measured here. ``text`` is what events without
    a number say: names of ops, units that an op uses.
    """

    type: int
    name: str
    value: int
    unit: str
    events: tuple[ProfileEvent, ...] = ()
    modelled: bool = False
    text: str = ""


class Method(enum.Enum):
    """Which call a message of a log is about, in the words of the vendor's JSON reader."""

    CREATE_FROM_BINARY = "BACKEND_CREATE_FROM_BINARY"
    COMPOSE = "APP_COMPOSE_GRAPHS"
    FINALIZE = "BACKEND_FINALIZE"
    EXECUTE = "BACKEND_EXECUTE"
    EXECUTE_ASYNC = "BACKEND_EXECUTE_ASYNC"
    APPLY_BINARY_SECTION = "BACKEND_APPLY_BINARY_SECTION"
    IPS = "APP_EXECUTE_IPS"
    DEINIT = "BACKEND_DEINIT"


class Pause(Struct, frozen=True, array_like=True):
    """A job made way for a more urgent one before ``step``. Times are the device's, in nanoseconds.

    Asked at ``asked_ns``, it had let go at ``released_ns``, had its resources again at ``granted_ns`` and its
    VTCM back at ``restored_ns``.
    """

    step: int
    asked_ns: int
    released_ns: int
    granted_ns: int
    restored_ns: int


class DeviceProfile(Struct, array_like=True):
    """The details of an execution that a device reports to a client that profiles."""

    step_times_ns: list[int]
    pauses: list[Pause]
    # How long it waited for its graph to be loaded, where graphs are switched.
    switch_ns: int = 0
    # Modelled: how long HVX and HMX took to be ready, and how fast core, HMX and bus went when it began, 1.0 being
    # the most; None from a device that has no clocks to tell of.
    power_up_ns: int = 0
    clocks: tuple[float, float, float] | None = None


NOTHING_TOLD = DeviceProfile([], [])
"""The profile of an execution of which nothing is known."""


class RunTimes(Struct, frozen=True, kw_only=True):
    """When one execution was where, in nanoseconds of the device's clock. Measured."""

    received_ns: int
    started_ns: int
    finished_ns: int
    step_times_ns: tuple[int, ...] = ()
    pauses: tuple[Pause, ...] = ()
    # Modelled, unlike the rest.
    power_up_ns: int = 0


class Message(Struct, frozen=True, kw_only=True):
    """One call that was profiled."""

    method: Method
    graph: str = ""
    stamp_us: int = 0
    # How long the call took by the clock of the program that made it; 0 if it did not measure.
    app_us: int = 0
    events: tuple[ProfileEvent, ...] = ()
    # From the first op's begin to the last one's end on the chip (modelled); 0 if that is not known.
    timeline_cycles: int = 0
    # Of these cycles, by the votes that stood when it began; 0 if there are none.
    clock_hz: int = 0
    # With optrace: what happened when, and the digest of the schematic that says what was run.
    run: RunTimes | None = None
    schematic: str = ""
    # A digest of what was prepared, whatever the clocks, by which the schematic of the preparation is recognised.
    preparation: str = ""
    # Nodes of the graph behind each step, so that a pause is found again among them.
    steps: tuple[tuple[str, ...], ...] = ()


class ProfileLogContent(Struct, frozen=True, kw_only=True):
    """The content of a log file."""

    app: str
    version: str
    created_us: int
    soc: str
    level: str
    # Of the modelled cycles; 0 if there are none.
    clock_hz: int = 0
    messages: tuple[Message, ...] = ()
    # With optrace: when each op ran, once for all runs at the same clocks.
    traces: tuple[OpTrace, ...] = ()


def walk(events: tuple[ProfileEvent, ...]) -> Iterator[ProfileEvent]:
    """All events of a tree, parents first."""
    for event in events:
        yield event
        yield from walk(event.events)


EVENT_UNITS = {1: "us", 2: "bytes", 3: "cycles", 4: "count", 5: "object", 6: "none"}

EVENT_NAMES = {
    100: "INIT",
    300: "FINALIZE",
    400: "EXECUTE",
    404: "NODE",
    405: "EXECUTE_QUEUE_WAIT",
    406: "EXECUTE_PREPROCESS",
    407: "EXECUTE_DEVICE",
    408: "EXECUTE_POSTPROCESS",
    500: "DEINIT",
    600: "TRACE",
    1002: "CONTEXT_LOAD_BIN_HOST_RPC_TIME_MICROSEC",
    1003: "CONTEXT_LOAD_BIN_HTP_RPC_TIME_MICROSEC",
    1004: "CONTEXT_LOAD_BIN_ACCEL_TIME_MICROSEC",
    2001: "GRAPH_FINALIZE_HOST_RPC_TIME_MICROSEC",
    2002: "GRAPH_FINALIZE_HTP_RPC_TIME_MICROSEC",
    2003: "GRAPH_FINALIZE_ACCEL_TIME_MICROSEC",
    3001: "GRAPH_EXECUTE_HOST_RPC_TIME_MICROSEC",
    3002: "GRAPH_EXECUTE_HTP_RPC_TIME_MICROSEC",
    3003: "GRAPH_EXECUTE_ACCEL_TIME_CYCLE",
    3004: "GRAPH_EXECUTE_ACCEL_TIME_MICROSEC",
    3005: "GRAPH_EXECUTE_MISC_ACCEL_TIME_MICROSEC",
    3006: "GRAPH_EXECUTE_YIELD_INSTANCE_RELEASE_TIME",
    3007: "GRAPH_EXECUTE_YIELD_INSTANCE_WAIT_TIME",
    3008: "GRAPH_EXECUTE_YIELD_INSTANCE_RESTORE_TIME",
    3009: "GRAPH_EXECUTE_YIELD_COUNT",
    3010: "GRAPH_EXECUTE_VTCM_ACQUIRE_TIME",
    3011: "GRAPH_EXECUTE_RESOURCE_POWER_UP_TIME",
    3012: "GRAPH_EXECUTE_ACCEL_EXCL_WAIT_TIME_MICROSEC",
    4001: "GRAPH_DEINIT_HOST_RPC_TIME_MICROSEC",
    4002: "GRAPH_DEINIT_HTP_RPC_TIME_MICROSEC",
    4003: "GRAPH_DEINIT_ACCEL_TIME_MICROSEC",
    5001: "NODE_WAIT",
    5002: "NODE_OVERLAP",
    5003: "NODE_WAIT_OVERLAP",
    5004: "NODE_RESOURCEMASK",
    5005: "NODE_CRITICAL_BG_OP_ID",
    5006: "NODE_WAIT_BG_OP_ID",
    6001: "GRAPH_EXECUTE_CRITICAL_ACCEL_TIME_CYCLE",
    8001: "GRAPH_NUMBER_OF_HVX_THREADS",
    9001: "GRAPH_APPLY_BINARY_SECTION_QNN",
    9002: "GRAPH_APPLY_BINARY_SECTION_RPC",
    9003: "GRAPH_APPLY_BINARY_SECTION_QNN_ACC",
    9004: "GRAPH_APPLY_BINARY_SECTION_ACC",
}
"""Documented names, without their ``QNN_PROFILE_EVENTTYPE_`` and ``QNN_HTP_PROFILE_EVENTTYPE_``."""
