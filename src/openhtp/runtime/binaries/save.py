"""A context as a binary, and a graph in its stored form."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

import msgspec

from openhtp.core import status as st
from openhtp.core.errors import DeviceLost, QnnError, WrongState
from openhtp.core.version import BUILD_ID
from openhtp.hw.catalog import find_soc
from openhtp.options import GRAPH, Changeable
from openhtp.program.binary import BinaryInfo, pack_graphs, read_binary
from openhtp.program.packed import PackedGraph
from openhtp.rpc import messages as ms

if TYPE_CHECKING:
    from openhtp.runtime.objects.graph import Graph
    from openhtp.runtime.objects.loaded_graph import LoadedGraph
    from openhtp.runtime.objects.open_context import OpenContext

log = logging.getLogger(__name__)

# A binary of the graph must have the present values of these options.
_STORED = frozenset(row.name for row in GRAPH.rows if row.changes is Changeable.BEFORE_EXECUTION)


class ContextPacker:
    """Makes the binary of a context. A caller that asked for its size does not wait for it a second time."""

    def __init__(self, context: OpenContext) -> None:
        self._context = context
        self._measured: tuple[list[Graph], bytes] | None = None

    def binary(self) -> bytes:
        """The context as bytes. A binary that was kept since the size was asked for is no longer kept."""
        graphs = self._graphs()
        measured, self._measured = self._measured, None
        return measured[1] if measured is not None and measured[0] == graphs else self._pack(graphs)

    def size(self) -> int:
        """The size of the binary, which is made now and kept until it is asked for or a graph is added."""
        graphs = self._graphs()
        measured = self._measured
        if measured is None or measured[0] != graphs:
            self._measured = measured = graphs, self._pack(graphs)
        return len(measured[1])

    def forget(self) -> None:
        """Drop the kept binary."""
        self._measured = None

    def _graphs(self) -> list[Graph]:
        """The graphs as of now: other threads may add some meanwhile."""
        graphs = list(self._context.graphs.values())
        if not graphs:
            raise WrongState("the context has no graphs to save", st.QNN_CONTEXT_ERROR_NOT_FINALIZED)
        for graph in graphs:
            graph.life.require("save")
        return graphs

    def _pack(self, graphs: list[Graph]) -> bytes:
        context = self._context
        soc, source = find_soc(context.device.soc), context.binary
        info = BinaryInfo(
            soc=soc.name,
            soc_model=soc.soc_model,
            arch=soc.arch,
            vtcm_mb=soc.vtcm_mb,
            cores=soc.cores,
            build_id=BUILD_ID,
            # A binary keeps the choices of its maker.
            weight_sharing=(
                context.options.weight_sharing_enabled if source is None else source.info.weight_sharing
            ),
            lora_weight_sharing=(
                context.options.lora_weight_sharing_enabled if source is None else source.info.lora_weight_sharing
            ),
            extended_udma=context.options.use_extended_udma if source is None else source.info.extended_udma,
            driver=context.device.driver,
        )
        return b"".join(pack_graphs([stored_form(graph) for graph in graphs], info))


def stored_form(graph: Graph) -> PackedGraph:
    """The graph as it came, if it came prepared; otherwise with the form that the device has prepared."""
    loaded = graph.loaded
    assert loaded is not None  # it is finalized
    ids = tuple(tensor.id for tensor in (*graph.inputs, *graph.outputs))
    packed = loaded.packed if loaded.was_prepared else _prepared_form(loaded)
    options = graph.options.stored()
    # Stored options that were changed since the graph was packed.
    changed = {name: options[name] for name in graph.changed_options & _STORED}
    ends = msgspec.structs.replace(packed.ends, options={**packed.ends.options, **changed})
    # A device that compiled the program again does not know whose updateable data it was given.
    return dataclasses.replace(
        packed,
        ids=ids,
        ends=ends,
        updates=loaded.packed.updates,
        foreign_updates=loaded.packed.foreign_updates,
    )


def _prepared_form(loaded: LoadedGraph) -> PackedGraph:
    try:
        data = loaded.context.link.fetch(ms.PackGraph(graph=loaded.number))
    except DeviceLost:
        raise
    except QnnError as error:
        log.warning("graph %r is stored without its prepared form: %s", loaded.packed.name, error)
        data = b""
    return read_binary(data).packed(loaded.packed.name) if data else loaded.packed
