"""Adapters: the data of a graph's updateable tensors, taken out of it and put into it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.checks import shown
from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.core.tensor import TensorSpec
from openhtp.program.sections import pack_section, read_section
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import SharedBuffer
from openhtp.runtime.building import static_data
from openhtp.runtime.options import check_handle
from openhtp.runtime.signal import Signal
from openhtp.runtime.stopping import OF_CONTEXT, stopping

if TYPE_CHECKING:
    from openhtp.runtime.context import Context
    from openhtp.runtime.graph import Graph

Arrays = dict[str, npt.NDArray[Any]]


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


def get_section(context: Context, of: str | Graph, tensors: Mapping[str, npt.ArrayLike] | None) -> bytes:
    """A section with what the graph holds now, but for these tensors."""
    graph = _own(context, of)
    specs = _updateable(graph)
    data = _present(graph)
    if tensors is not None:
        data = {**data, **_given(graph, specs, tensors)}
    return pack_section(graph.name, specs, data)


def apply_section(
    context: Context, of: str | Graph, section: bytes | bytearray | memoryview, signal: Signal | None
) -> None:
    """Have the device use the data of a section from now on."""
    graph = _own(context, of)
    specs = _updateable(graph)
    check_handle("signal", signal, Signal)
    if not isinstance(section, (bytes, bytearray, memoryview)):
        raise InvalidArgument(
            f"section is a {type(section).__name__}; expected bytes from get_binary_section",
            st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
        )
    data = bytes(section)
    arrays = read_section(data, graph.name, specs, validate=not context._chosen.skip_validation_on_binary_section)
    with stopping(signal, f"applying a section to graph {graph.name!r}", OF_CONTEXT) as stop:
        with contextlib.closing(SharedBuffer.holding([data])) as buffer:
            # The checksum was looked at here; what comes over shared memory cannot be damaged on the way.
            request = ms.UpdateGraph(graph=graph._number, nbytes=buffer.nbytes, validate=False)
            context._link.request(request, (buffer.fd,), stop=stop)
        graph._updates = arrays


def _updateable(graph: Graph) -> list[TensorSpec]:
    packed = graph._packed
    assert packed is not None  # it is finalized
    specs = list(packed.info().updateables)
    if not specs:
        raise UnsupportedFeature(
            f"graph {graph.name!r} has no updateable tensors; add them with kind='updateable_static'",
            st.QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE,
        )
    return specs


def _present(graph: Graph) -> Arrays:
    assert graph._packed is not None
    return graph._updates or graph._packed.updateable_data()


def _given(graph: Graph, specs: list[TensorSpec], tensors: Mapping[str, npt.ArrayLike]) -> Arrays:
    known = {spec.name: spec for spec in specs}
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
