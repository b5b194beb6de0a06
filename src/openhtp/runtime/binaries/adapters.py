"""Adapters: data and encodings of a graph's updateable tensors, taken out of the graph and put into it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.checks import shown, type_in_words
from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.core.quant import AxisScaleOffset, Encoding
from openhtp.core.tensor import TensorSpec
from openhtp.program.sections import pack_section, read_section
from openhtp.records.profile import Method
from openhtp.runtime.calls.long_call import OF_CONTEXT, carrying
from openhtp.runtime.calls.sheet import Fill, NotedCall
from openhtp.runtime.links.link import serving
from openhtp.runtime.objects.argument_checks import check_handle
from openhtp.runtime.objects.graph_draft import static_data
from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.profile_events import request_events
from openhtp.runtime.objects.signal import Signal

if TYPE_CHECKING:
    from openhtp.runtime.calls.long_call import CallStop
    from openhtp.runtime.objects.context import Context
    from openhtp.runtime.objects.graph import Graph
    from openhtp.runtime.objects.loaded_graph import LoadedGraph

Arrays = dict[str, npt.NDArray[Any]]

WEIGHTS, QUANT_PARAMS = "updatable_weights", "updatable_quant_params"
SECTIONS = ("updatable", WEIGHTS, QUANT_PARAMS)
"""Kinds of sections in the order of their numbers, which start at 1."""


def _find(context: Context, graph: str | Graph) -> tuple[Graph, LoadedGraph]:
    """A loaded graph of the context."""
    name: str = graph if isinstance(graph, str) else getattr(graph, "name", "")
    own = context.graph(name)
    if not isinstance(graph, str) and own is not graph:
        raise _bad(f"graph {name!r} is another context's")
    own.life.require("save")
    assert own.loaded is not None
    return own, own.loaded


def get_section(
    context: Context,
    of: str | Graph,
    tensors: Mapping[str, npt.ArrayLike] | None,
    encodings: Mapping[str, Encoding] | None,
    kind: str,
) -> bytes:
    """A section with the graph's present data and encodings, except for those given here."""
    graph, loaded = _find(context, of)
    specs = loaded.updateables()
    if kind not in SECTIONS:
        raise _bad(f"section is {shown(kind)}; expected one of {', '.join(SECTIONS)}")
    if (tensors and kind == QUANT_PARAMS) or (encodings and kind == WEIGHTS):
        argument = "tensors" if kind == QUANT_PARAMS else "encodings"
        raise _bad(f"{argument} are given for a section of {kind}, which has none")
    data = {} if kind == QUANT_PARAMS else {**loaded.data(), **_checked_data(graph, specs, tensors or {})}
    encoded = (
        {} if kind == WEIGHTS else {**loaded.encodings(), **_checked_encodings(graph, specs, encodings or {})}
    )
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
    graph, loaded = _find(context, of)
    specs = loaded.updateables()
    check_handle("signal", signal, Signal)
    check_handle("profile", profile, Profile)
    if not isinstance(section, (bytes, bytearray, memoryview)):
        raise _bad(f"section is {type_in_words(section)}; expected bytes from get_binary_section")
    data = bytes(section)

    def apply(fill: Fill | None, stop: CallStop | None) -> None:
        link = loaded.context.link
        with serving() as served:
            begin = link.now()
            validate = not loaded.context.options.skip_validation_on_binary_section
            new = read_section(data, graph.name, specs, validate=validate)
            asked, present = link.now(), loaded.encodings()
            if any(present[name] != encoding for name, encoding in new.encodings.items()):
                loaded.exchange_encodings(new.encodings, new.data, stop)
                encodings = loaded.encodings()
                for name, tensor in graph.tensors.items():
                    if name in encodings:
                        tensor.spec = dataclasses.replace(tensor.spec, quant=encodings[name])
            else:
                loaded.exchange_data(data, new.data, stop)
            if fill is not None:
                events = request_events("apply binary section", 9002, 9001, (begin, asked, link.now()), served)
                fill(NotedCall(Method.APPLY_BINARY_SECTION, graph.name, events))

    carrying(profile, signal, f"applying a section to graph {graph.name!r}", OF_CONTEXT, apply)


def _checked_encodings(
    graph: Graph, specs: list[TensorSpec], encodings: Mapping[str, Encoding]
) -> dict[str, Encoding]:
    known = {spec.name: spec for spec in specs if spec.quant is not None}
    for name, encoding in encodings.items():
        spec = known.get(name)
        if spec is None:
            raise _bad(
                f"encodings gives {shown(name)}; updateable tensors of graph {graph.name!r} with an encoding are"
                f" {', '.join(map(repr, known)) or 'none'}"
            )
        if type(encoding) is not type(spec.quant) or not _fits(spec, encoding):
            raise _bad(f"the encoding of tensor {spec} is {shown(encoding)}; expected one like {spec.quant}")
    return dict(encodings)


def _fits(spec: TensorSpec, encoding: Encoding) -> bool:
    """Whether a per-axis encoding has the axis and the number of scales of the tensor's own encoding."""
    if not isinstance(encoding, AxisScaleOffset) or not isinstance(spec.quant, AxisScaleOffset):
        return True
    return encoding.axis == spec.quant.axis and len(encoding.scales) == len(spec.quant.scales)


def _checked_data(graph: Graph, specs: list[TensorSpec], tensors: Mapping[str, npt.ArrayLike]) -> Arrays:
    known = {spec.name: spec for spec in specs if spec.kind.is_static}
    arrays: Arrays = {}
    for name, values in tensors.items():
        spec = known.get(name)
        if spec is None:
            raise _bad(
                f"tensors gives {shown(name)}; updateable tensors of graph {graph.name!r} are"
                f" {', '.join(map(repr, known))}"
            )
        data = static_data(spec, values)
        if data is None or data.dtype != spec.dtype.numpy or data.shape != spec.shape:
            raise _bad(
                f"data of tensor {spec} is {shown(values) if data is None else f'{data.dtype}{list(data.shape)}'};"
                f" expected {spec.dtype.numpy}{list(spec.shape)}, the stored type"
            )
        arrays[name] = data
    return arrays


def _bad(message: str) -> InvalidArgument:
    return InvalidArgument(message, st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT)
