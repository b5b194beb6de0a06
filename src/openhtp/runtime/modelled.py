"""A loaded graph as the chip would run it: found out when a profile is read, never while something executes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from openhtp.core.errors import UnsupportedError
from openhtp.core.levels import ProfileLevel

if TYPE_CHECKING:
    from openhtp.program.packed import PackedGraph
    from openhtp.program.qnn_program import QnnProgram
    from openhtp.trace.profile import ProfileEvent
    from openhtp.trace.schematic import Schematic


class Modelled:
    """Holds the program and nothing of the device, so that a profile that is kept keeps no device alive."""

    def __init__(self, packed: PackedGraph, program: QnnProgram | None, soc: str, steps: int, core: int) -> None:
        self._packed = packed
        self._program = program
        self.soc = soc
        self._device_steps = steps
        self._core = core
        self._lock = threading.Lock()
        self._events: dict[ProfileLevel, ProfileEvent] = {}
        self._found: tuple[Schematic, tuple[tuple[str, ...], ...]] | None = None

    @property
    def schematic(self) -> Schematic:
        """The graph op by op, with modelled times."""
        return self._made()[0]

    @property
    def is_known(self) -> bool:
        """Whether there is a model of it: none of float graphs on a chip that has no half precision."""
        try:
            self._made()
        except UnsupportedError:
            return False
        return True

    def node_event(self, level: ProfileLevel) -> ProfileEvent:
        """Cycles of all nodes, as a detailed or a linting profile tells them; the same for every run."""
        from openhtp.report.linting import cycles_event, linting_event

        found = self._events.get(level)
        if found is None:
            told = linting_event if level is ProfileLevel.LINTING else cycles_event
            found = self._events[level] = told(self.schematic)
        return found

    @property
    def steps(self) -> tuple[tuple[str, ...], ...]:
        """Nodes of the graph by the step of the device that computes them; empty if that is not known."""
        return self._made()[1]

    @property
    def digest(self) -> str:
        """By which a log knows the schematic again that it was made with."""
        from openhtp.report.profile_log import schematic_digest

        return schematic_digest(self.schematic)

    def _made(self) -> tuple[Schematic, tuple[tuple[str, ...], ...]]:
        from openhtp.compiler.driver import program_for
        from openhtp.report.schematic import schematic_of
        from openhtp.runtime.step_names import step_nodes

        with self._lock:
            if self._found is None:
                program = self._packed.program() if self._program is None else self._program
                compiled = program_for(program, self.soc)
                nodes = tuple(names for names, _ in step_nodes(compiled, self._device_steps))
                self._found = schematic_of(compiled, core=self._core), nodes
            return self._found
