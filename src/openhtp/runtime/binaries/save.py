"""A context as a binary, and a graph as that stores it."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

import msgspec

from openhtp.core import status as st
from openhtp.core.errors import DeviceLost, QnnError, WrongState
from openhtp.core.version import BUILD_ID
from openhtp.hw.catalog import find_soc
from openhtp.program.binary import BinaryInfo, pack_graphs, read_binary
from openhtp.program.packed import PackedGraph
from openhtp.program.records import EndsRecord
from openhtp.runtime.binaries import adapters
from openhtp.runtime.objects.reconfiguring import STORED

if TYPE_CHECKING:
    from openhtp.runtime.objects.context import Context
    from openhtp.runtime.objects.graph import Graph

log = logging.getLogger(__name__)


class Saver:
    """Makes the binary of a context. Whoever asked for its size is not kept waiting for it again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._measured: tuple[list[Graph], bytes] | None = None

    def binary(self) -> bytes:
        """The context as bytes. What was kept since the size was asked for is given away."""
        graphs = self._graphs()
        measured, self._measured = self._measured, None
        return measured[1] if measured is not None and measured[0] == graphs else self._made(graphs)

    def size(self) -> int:
        """How many bytes it is: the binary is made, and kept until it is asked for or a graph is added."""
        graphs = self._graphs()
        measured = self._measured
        if measured is None or measured[0] != graphs:
            self._measured = measured = graphs, self._made(graphs)
        return len(measured[1])

    def forget(self) -> None:
        """Nobody will ask for it any more."""
        self._measured = None

    def _graphs(self) -> list[Graph]:
        """As of now: other threads may add some meanwhile."""
        graphs = list(self._context.graphs.values())
        if not graphs:
            raise WrongState("the context has no graphs to save", st.QNN_CONTEXT_ERROR_NOT_FINALIZED)
        for graph in graphs:
            graph._life.require("save")
        return graphs

    def _made(self, graphs: list[Graph]) -> bytes:
        context = self._context
        soc = find_soc(context.device.soc)
        info = BinaryInfo(
            soc=soc.name,
            soc_model=soc.soc_model,
            arch=soc.arch,
            vtcm_mb=soc.vtcm_mb,
            cores=soc.cores,
            build_id=BUILD_ID,
            lora_weight_sharing=adapters.shares_updates(context),
            extended_udma=context._extended_udma,
            driver=context.device._driver,
        )
        return b"".join(pack_graphs([stored_form(graph) for graph in graphs], info))


def stored_form(graph: Graph) -> PackedGraph:
    """The graph as it came, if that was prepared, or with what the device makes of it."""
    packed = graph._packed
    assert packed is not None
    ids = tuple(tensor.id for tensor in (*graph.inputs, *graph.outputs))
    if graph.was_prepared:
        return dataclasses.replace(packed, ids=ids, ends=_ends_now(graph, packed))
    try:
        data = graph.context._link.pack_graph(graph._number)
    except DeviceLost:
        raise
    except QnnError as error:
        log.warning("graph %r is stored without its prepared form: %s", graph.name, error)
        data = b""
    found = read_binary(data).packed(graph.name) if data else packed
    return dataclasses.replace(found, ids=ids, ends=_ends_now(graph, found))


def _ends_now(graph: Graph, packed: PackedGraph) -> EndsRecord:
    """With what was changed since the graph was packed, as far as that is stored."""
    options = graph._options.stored()
    changed = {name: options[name] for name in graph._changed & STORED}
    return msgspec.structs.replace(packed.ends, options={**packed.ends.options, **changed})
