"""What the child process answers, as plain data.

Requests are pickled: the child trusts its parent. Answers are not: the closed library may have damaged the
child's memory, or be fed a hostile context binary, so the parent takes only typed, plain messages from it. Tensors
travel in shared memory.
"""

from __future__ import annotations

from typing import Any

import msgspec

from openhtp.core import errors
from openhtp.core.dtype import DType
from openhtp.core.enumerations import DataFormat
from openhtp.core.quant import AxisScaleOffset, Encoding, ScaleOffset
from openhtp.core.status import Status
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.vendor.profile import ProfileEvent


class WireError(msgspec.Struct):
    """An exception of the error tree."""

    kind: str
    message: str
    name: str
    code: int
    context: list[str]


class WireTensor(msgspec.Struct):
    """A tensor spec; ``scales`` is empty without an encoding, ``axis`` None for one pair for all."""

    name: str
    shape: list[int]
    dtype: int
    kind: int
    scales: list[float]
    offsets: list[int]
    axis: int | None
    data_format: int = 0


class WireGraph(msgspec.Struct):
    """A graph that the child holds."""

    id: int
    name: str
    tensors: list[WireTensor]


class WireEvent(msgspec.Struct):
    """A profile event."""

    type: int
    name: str
    unit: str
    value: int
    identifier: str
    children: list[WireEvent]


class WireDevice(msgspec.Struct):
    """A device of the platform description."""

    device_id: int
    cores: int
    soc_model: int | None
    arch: int | None
    vtcm_mb: int | None
    signed_pd: bool | None
    dlbc: bool | None


class WireInfo(msgspec.Struct):
    """What was loaded."""

    path: str
    build_id: str
    core_api: tuple[int, int, int]
    htp_api: tuple[int, int, int]
    operations: list[str]
    devices: list[WireDevice]


class Answer(msgspec.Struct, omit_defaults=True):
    """The child's answer to one request; only the fields that the request is about are set."""

    error: WireError | None = None
    logs: list[tuple[int, str]] = []
    id: int = 0
    graphs: list[WireGraph] = []
    events: list[WireEvent] = []
    blob: bytes = b""
    flag: bool | None = None
    info: WireInfo | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Answer)


def encode(answer: Answer) -> bytes:
    """An answer as bytes."""
    return _encoder.encode(answer)


def decode(data: bytes) -> Answer:
    """An answer from bytes; anything else than a well-formed one counts as a lost device."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise errors.DeviceLost(f"the vendor process answered nonsense: {error}") from error


def error_to_wire(error: errors.QnnError) -> WireError:
    """An exception as data."""
    return WireError(type(error).__name__, error.message, error.name, error.code, list(error.context))


def wire_to_error(wire: WireError) -> errors.QnnError:
    """The exception again, of the same class where it is one of ours."""
    kind = getattr(errors, wire.kind, errors.QnnError)
    if not (isinstance(kind, type) and issubclass(kind, errors.QnnError)):
        kind = errors.QnnError
    error: errors.QnnError = kind(wire.message, Status(wire.name, wire.code))
    error.context.extend(wire.context)
    return error


def spec_to_wire(spec: TensorSpec) -> WireTensor:
    """A tensor spec as data."""
    scales: list[float] = []
    offsets: list[int] = []
    axis: int | None = None
    if isinstance(spec.quant, ScaleOffset):
        scales, offsets = [spec.quant.scale], [spec.quant.offset]
    elif isinstance(spec.quant, AxisScaleOffset):
        scales, offsets, axis = list(spec.quant.scales), list(spec.quant.offsets), spec.quant.axis
    return WireTensor(
        spec.name,
        list(spec.shape),
        int(spec.dtype),
        int(spec.kind),
        scales,
        offsets,
        axis,
        int(spec.data_format),
    )


def wire_to_spec(wire: WireTensor) -> TensorSpec:
    """The tensor spec again."""
    quant: Encoding | None = None
    if wire.scales and wire.axis is None:
        quant = ScaleOffset(wire.scales[0], wire.offsets[0])
    elif wire.scales and wire.axis is not None:
        quant = AxisScaleOffset(wire.axis, tuple(wire.scales), tuple(wire.offsets))
    return TensorSpec(
        wire.name,
        tuple(wire.shape),
        DType.parse(wire.dtype),
        quant,
        TensorKind.parse(wire.kind),
        data_format=DataFormat.parse(wire.data_format),
    )


def event_to_wire(event: ProfileEvent) -> WireEvent:
    """A profile event as data."""
    children = [event_to_wire(child) for child in event.children]
    return WireEvent(event.type, event.name, event.unit, event.value, event.identifier, children)


def wire_to_event(wire: WireEvent) -> ProfileEvent:
    """The profile event again."""
    fields: dict[str, Any] = {
        name: getattr(wire, name) for name in ("type", "name", "unit", "value", "identifier")
    }
    return ProfileEvent(**fields, children=tuple(wire_to_event(child) for child in wire.children))
