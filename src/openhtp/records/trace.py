"""The records of a trace. Times are integer nanoseconds of one clock; jobs and clients are known by number.

They stand in the order in which they became known, so what takes time (a step, a transfer) may have begun before
the record in front of it. Structs that are arrays on the wire: a device makes several for every execution.
"""

from __future__ import annotations

import enum
from typing import Literal

import msgspec
from msgspec import Struct

from openhtp.core.enumerations import Outcome
from openhtp.core.errors import FormatError


class TransferDirection(enum.Enum):
    """What was moved: VTCM out to memory when a job makes way, and back when it goes on."""

    SAVE = "save"
    RESTORE = "restore"


class Queued(Struct, frozen=True, tag="queued", array_like=True, gc=False):
    """A client asked for an execution. ``deadline_at`` is when it wants it done, if it said so."""

    t: int
    job: int
    client: int
    deadline_at: int | None = None


class Granted(Struct, frozen=True, tag="granted", array_like=True, gc=False):
    """A job got units and a byte range of the VTCM of one core. ``resumed``: not for the first time."""

    t: int
    job: int
    core: int
    hmx: tuple[int, ...]
    hvx: tuple[int, ...]
    vtcm_start: int
    vtcm_bytes: int
    resumed: bool = False


class Stepped(Struct, frozen=True, tag="step", array_like=True, gc=False):
    """A step was run to its end."""

    t: int
    job: int
    step: int
    end: int


class YieldAsked(Struct, frozen=True, tag="yield", array_like=True, gc=False):
    """A job was asked to make way for a more urgent one."""

    t: int
    job: int


class Released(Struct, frozen=True, tag="released", array_like=True, gc=False):
    """A job gave its resources back: it was ``paused``, or it is over."""

    t: int
    job: int
    paused: bool


class Transferred(Struct, frozen=True, tag="transfer", array_like=True, gc=False):
    """A job's part of the VTCM was moved."""

    t: int
    job: int
    what: TransferDirection
    nbytes: int
    end: int


class JobEnded(Struct, frozen=True, tag="ended", array_like=True, gc=False):
    """A job is over."""

    t: int
    job: int
    outcome: Outcome


class ClocksChanged(Struct, frozen=True, tag="clocks", array_like=True, gc=False):
    """Votes gave a core other clocks: MHz of core and HMX, and the bus in percent of its highest (modelled).

    The corners are those of the votes that won, by name.
    """

    t: int
    core: int
    core_mhz: int
    hmx_mhz: int
    bus_percent: int
    core_corner: str = ""
    hmx_corner: str = ""
    bus_corner: str = ""


OfJob = Queued | Granted | Stepped | YieldAsked | Released | Transferred | JobEnded
Record = OfJob | ClocksChanged


class Track(Struct, frozen=True, kw_only=True):
    """The client behind a number: a graph or an app of a session (process domain), bound to a core."""

    name: str
    kind: Literal["graph", "app"] = "graph"
    session: int = 0
    core: int = 0
    priority: int = 0


class Units(Struct, frozen=True, kw_only=True):
    """The units of the device; all but ``cores`` count for each core."""

    cores: int = 1
    hmx: int = 1
    hvx: int = 1
    vtcm_bytes: int = 0


class Trace(Struct, kw_only=True):
    """A recording: its records, the clients in them, and how many records did not fit."""

    units: Units
    tracks: dict[int, Track]
    records: list[Record]
    dropped: int = 0


VERSION = 1

_encoder = msgspec.msgpack.Encoder()
_envelope = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_decoder = msgspec.msgpack.Decoder(Trace)


def trace_to_bytes(trace: Trace) -> bytes:
    """Pack a trace, with the version of its form in front."""
    return _encoder.encode((VERSION, trace))


def trace_from_bytes(data: bytes) -> Trace:
    """Read what ``trace_to_bytes`` wrote.

    Raises:
        FormatError: these bytes are no trace, or one of another version.
    """
    try:
        version, packed = _envelope.decode(data)
        if version != VERSION:
            raise FormatError(f"a trace of version {version}; this openhtp reads version {VERSION}")
        trace = _decoder.decode(packed)
    except msgspec.MsgspecError as error:
        raise FormatError(f"{len(data)} bytes are no trace: {error}") from error
    unknown = {record.client for record in trace.records if type(record) is Queued} - trace.tracks.keys()
    if unknown:
        raise FormatError(f"the trace does not say who client {min(unknown)} is")
    return trace
