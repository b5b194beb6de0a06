"""A graph bound to arrays, for executions that use the same ones again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openhtp.runtime.calls.bound import Shortcut, shortcut
from openhtp.runtime.seams import any_open

if TYPE_CHECKING:
    from openhtp.runtime.calls.arguments import Values
    from openhtp.runtime.graph import Graph


class BoundCall:
    """A graph and the arrays that it computes on, as they are whenever ``run`` is called.

    Results are written into the outputs. On a device in this process that has nothing else to do, that takes
    neither copies nor a queue, from the second run on; otherwise it is ``Graph.execute``.
    """

    __slots__ = ("_graph_life", "_has_run", "_life", "_looked", "_shortcut", "graph", "inputs", "outputs")

    def __init__(self, graph: Graph, inputs: Values | None, outputs: Values | None) -> None:
        self.graph = graph
        self.inputs = inputs
        self.outputs = outputs
        self._life, self._graph_life = graph.context._life, graph._life
        # Binding costs more than one copy: it is done for arrays that are used again.
        self._has_run = self._looked = False
        self._shortcut: Shortcut | None = None

    def run(self) -> None:
        """Compute on what the inputs hold now, and wait for the end."""
        self._life.require("execute")
        self._graph_life.require("execute")
        if self._has_run and not self._looked:
            self._look()
        if self._shortcut is None or any_open() or not self._shortcut.run():
            self.graph.execute(self.inputs, self.outputs)
            self._has_run = True

    def _look(self) -> None:
        callee = self.graph._callee
        assert callee is not None  # it has run
        checked = callee.bindings.arguments(self.inputs, self.outputs)
        self._shortcut = shortcut(callee.link, callee.number, callee.ports, checked)
        self._looked = True
