"""Adapters: data and encodings of a graph's updateable tensors, taken out of it and put into it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.checks import shown
from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.core.quant import AxisScaleOffset, Encoding
from openhtp.core.tensor import TensorSpec
from openhtp.program.binary import BinaryInfo, pack_graphs
from openhtp.program.packed import pack_program
from openhtp.program.sections import pack_section, read_section
from openhtp.records.profile import Method
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import SharedBuffer
from openhtp.runtime.binaries.load import fresh
from openhtp.runtime.calls.long_call import OF_CONTEXT, carrying
from openhtp.runtime.calls.sheet import Fill, Noted
from openhtp.runtime.links.served import serving
from openhtp.runtime.objects.argument_checks import check_handle
from openhtp.runtime.objects.building import static_data
from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.profile_events import apply_events
from openhtp.runtime.objects.signal import Signal

if TYPE_CHECKING:
    from openhtp.runtime.calls.long_call import Stop
    from openhtp.runtime.objects.context import Context
    from openhtp.runtime.objects.graph import Graph

Arrays = dict[str, npt.NDArray[Any]]

WEIGHTS, QUANT_PARAMS = "updatable_weights", "updatable_quant_params"
SECTIONS = ("updatable", WEIGHTS, QUANT_PARAMS)
"""Kinds of sections, in the order of their numbers, of which the first is 1."""


def shares_updates(context: Context) -> bool:
    """Whether its graphs hold adapters in turn (LoRA weight sharing); a binary keeps that of its maker."""
    binary = context._binary
    own: bool = context._chosen.lora_weight_sharing_enabled
    return own if binary is None else binary.info.lora_weight_sharing


def _own(context: Context, graph: str | Graph) -> Graph:
    name: str = graph if isinstance(graph, str) else getattr(graph, "name", "")
    found = context.graph(name)
    if not isinstance(graph, str) and found is not graph:
        raise InvalidArgument(f"graph {name!r} is another context's", st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT)
    found._life.require("save")
    return found


def get_section(
    context: Context,
    of: str | Graph,
    tensors: Mapping[str, npt.ArrayLike] | None,
    encodings: Mapping[str, Encoding] | None,
    kind: str,
) -> bytes:
    """A section with what the graph holds now, but for these tensors and encodings."""
    graph = _own(context, of)
    specs = _updateable(graph)
    if kind not in SECTIONS:
        raise InvalidArgument(
            f"section is {shown(kind)}; expected one of {', '.join(SECTIONS)}",
            st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
        )
    if (tensors and kind == QUANT_PARAMS) or (encodings and kind == WEIGHTS):
        what = "tensors" if kind == QUANT_PARAMS else "encodings"
        raise InvalidArgument(
            f"{what} are given for a section of {kind}, which has none", st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT
        )
    data = {} if kind == QUANT_PARAMS else {**_present(graph), **_given(graph, specs, tensors or {})}
    encoded = {} if kind == WEIGHTS else {**_encodings(graph), **_encoded(graph, specs, encodings or {})}
    if not data and not encoded:
        raise UnsupportedFeature(
            f"graph {graph.name!r} has no updateable tensors with"
            f" {'an encoding' if kind == QUANT_PARAMS else 'data'}",
            st.QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE,
        )
    return pack_section(graph.name, specs, data, encoded)


def apply_section(
    context: Context,
    of: str | Graph,
    section: bytes | bytearray | memoryview,
    signal: Signal | None,
    profile: Profile | None,
) -> None:
    """Have the device use the data and the encodings of a section from now on."""
    graph = _own(context, of)
    specs = _updateable(graph)
    check_handle("signal", signal, Signal)
    check_handle("profile", profile, Profile)
    if not isinstance(section, (bytes, bytearray, memoryview)):
        raise InvalidArgument(
            f"section is a {type(section).__name__}; expected bytes from get_binary_section",
            st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
        )
    data = bytes(section)

    def apply(fill: Fill | None, stop: Stop | None) -> None:
        with serving() as served:
            begin = context._link.now()
            validate = not context._chosen.skip_validation_on_binary_section
            found = read_section(data, graph.name, specs, validate=validate)
            changed = {name: new for name, new in found.encodings.items() if _encodings(graph)[name] != new}
            asked = context._link.now()
            if changed:
                _replace(graph, {**_encodings(graph), **found.encodings}, {**_present(graph), **found.data}, stop)
            elif found.data:
                with contextlib.closing(SharedBuffer.holding([data])) as buffer:
                    # The checksum was looked at here; what comes over shared memory cannot be damaged on the way.
                    request = ms.UpdateGraph(graph=graph._number, nbytes=buffer.nbytes, validate=False)
                    context._link.request(request, (buffer.fd,), stop=stop)
            graph._updates = found.data or graph._updates
            if fill is not None:
                events = apply_events(begin, asked, context._link.now(), served)
                fill(Noted(Method.APPLY_BINARY_SECTION, graph.name, events))

    carrying(profile, signal, f"applying a section to graph {graph.name!r}", OF_CONTEXT, apply)


def _replace(graph: Graph, encodings: dict[str, Encoding], data: Arrays, stop: Stop | None) -> None:
    """Encodings are compiled into a program: have the device make another, and run that from now on."""

    def packed() -> list[bytes | memoryview]:
        program = graph._whole_program().updated(encodings, data)
        return pack_graphs([pack_program(program)[0]], BinaryInfo())

    sending = fresh(packed() if stop is None else stop.run(packed))
    with sending.descriptor() as fd:
        reply = graph.context._link.request(ms.ReplaceProgram(graph=graph._number), (fd,), stop=stop)
    graph.steps = reply.graphs[0].steps
    graph._encodings = encodings
    for name, tensor in graph._tensors.items():
        if name in encodings:
            tensor.spec = dataclasses.replace(tensor.spec, quant=encodings[name])


def _updateable(graph: Graph) -> list[TensorSpec]:
    packed = graph._packed
    assert packed is not None  # it is finalized
    specs = list(packed.info().updateables)
    if not specs:
        raise UnsupportedFeature(
            f"graph {graph.name!r} has no updateable tensors; add them with kind='updateable_static' or another"
            " updateable kind",
            st.QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE,
        )
    return specs


def _present(graph: Graph) -> Arrays:
    assert graph._packed is not None
    return graph._updates or graph._packed.updateable_data()


def _encodings(graph: Graph) -> dict[str, Encoding]:
    """Those that hold now, of all updateable tensors that have one."""
    return graph._encodings or {spec.name: spec.quant for spec in _updateable(graph) if spec.quant is not None}


def _encoded(graph: Graph, specs: list[TensorSpec], given: Mapping[str, Encoding]) -> dict[str, Encoding]:
    known = {spec.name: spec for spec in specs if spec.quant is not None}
    for name, encoding in given.items():
        spec = known.get(name)
        if spec is None:
            raise InvalidArgument(
                f"encodings gives {shown(name)}; updateable tensors of graph {graph.name!r} with an encoding are"
                f" {', '.join(map(repr, known)) or 'none'}",
                st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
            )
        if type(encoding) is not type(spec.quant) or not _fits(spec, encoding):
            raise InvalidArgument(
                f"the encoding of tensor {spec} is {shown(encoding)}; expected one like {spec.quant}",
                st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
            )
    return dict(given)


def _fits(spec: TensorSpec, encoding: Encoding) -> bool:
    """Whether a per-axis encoding has the axis and the number of scales that the tensor's own has."""
    if not isinstance(encoding, AxisScaleOffset) or not isinstance(spec.quant, AxisScaleOffset):
        return True
    return encoding.axis == spec.quant.axis and len(encoding.scales) == len(spec.quant.scales)


def _given(graph: Graph, specs: list[TensorSpec], tensors: Mapping[str, npt.ArrayLike]) -> Arrays:
    known = {spec.name: spec for spec in specs if spec.kind.is_static}
    found: Arrays = {}
    for name, values in tensors.items():
        spec = known.get(name)
        if spec is None:
            raise InvalidArgument(
                f"tensors gives {shown(name)}; updateable tensors of graph {graph.name!r} are"
                f" {', '.join(map(repr, known))}",
                st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
            )
        data = static_data(spec, values)
        if data is None or data.dtype != spec.dtype.numpy or data.shape != spec.shape:
            raise InvalidArgument(
                f"data of tensor {spec} is {shown(values) if data is None else f'{data.dtype}{list(data.shape)}'};"
                f" expected {spec.dtype.numpy}{list(spec.shape)}, the stored type",
                st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
            )
        found[name] = data
    return found
