"""A trace as bytes: from the device to its client, or into a file."""

from __future__ import annotations

import msgspec

from openhtp.core.errors import FormatError
from openhtp.records.trace import Queued, Trace

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
