"""Adapters: the data of updateable tensors is exchanged while their graph stays loaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.errors import UnsupportedFeature
from openhtp.device.contexts import UpdateableGraph
from openhtp.device.requests.table import Asked, handles
from openhtp.device.sessions import find
from openhtp.device.tasks import Task
from openhtp.memory.ledger import Use
from openhtp.program.sections import read_section
from openhtp.rpc import messages as ms
from openhtp.rpc.channel import ProtocolError

Arrays = dict[str, npt.NDArray[Any]]


@handles(ms.UpdateGraph, takes_descriptor=True)
def update(asked: Asked, request: ms.UpdateGraph) -> Task[Arrays]:
    """Copied before it is used: the client could change it while executions run."""
    graph = find(asked.session.graphs, request.graph, "graph")
    if not isinstance(graph, UpdateableGraph):
        raise UnsupportedFeature(
            f"graph {graph.name!r} has no updateable tensors", st.QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE
        )
    buffer, context = asked.memory(), graph.context
    try:
        if not 0 < request.nbytes <= buffer.nbytes:
            raise ProtocolError(f"a section of {request.nbytes} bytes in {buffer.nbytes} bytes of memory")
        grant = context.session.ledger.take(context.tenant, request.nbytes, Use.WEIGHTS, "the binary section")
    except BaseException:
        buffer.close()
        raise

    def work(task: Task[Arrays]) -> Arrays:
        view = buffer.view[: request.nbytes]
        found = read_section(view, graph.name, graph.updateables, validate=request.validate)
        return {name: np.array(array) for name, array in found.items()}

    def finish(arrays: Arrays) -> ms.Reply:
        buffer.close()
        # It may have been freed meanwhile, alone or with its context.
        find(asked.session.graphs, request.graph, "graph")
        graph.update(arrays, grant)
        return ms.Reply()

    def undo() -> None:
        grant.give_back()
        buffer.close()

    return Task("updating", graph.context, work=work, finish=finish, undo=undo)
