"""A graph as a context binary stores it."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from openhtp.core.errors import DeviceLost, QnnError
from openhtp.program.binary import read_binary
from openhtp.program.packed import PackedGraph

if TYPE_CHECKING:
    from openhtp.runtime.graph import Graph

log = logging.getLogger(__name__)


def stored_form(graph: Graph) -> PackedGraph:
    """The graph as it came, if that was prepared, or with what the device makes of it."""
    packed = graph._packed
    assert packed is not None
    ids = tuple(tensor.id for tensor in (*graph.inputs, *graph.outputs))
    if graph.was_prepared:
        return dataclasses.replace(packed, ids=ids)
    try:
        data = graph.context._link.pack_graph(graph._number)
    except DeviceLost:
        raise
    except QnnError as error:
        log.warning("graph %r is stored without its prepared form: %s", graph.name, error)
        data = b""
    return dataclasses.replace(read_binary(data).packed(graph.name) if data else packed, ids=ids)
