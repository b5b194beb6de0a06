"""A loaded graph as the chip would run it, and which ops each of its steps computes.

It is worked out when a profile or trace is read, never during an execution; profiles know steps by number.
"""

from __future__ import annotations

import dataclasses
import threading
from itertools import pairwise
from typing import TYPE_CHECKING

from openhtp.core.enumerations import ProfileLevel
from openhtp.core.errors import UnsupportedError
from openhtp.hw.clocks import FULL, Clocks

if TYPE_CHECKING:
    from openhtp.options import OptionValues
    from openhtp.program.htp_program import HtpProgram
    from openhtp.program.packed import PackedGraph
    from openhtp.program.placement import Placed
    from openhtp.program.qnn_program import QnnProgram
    from openhtp.records.profile import ProfileEvent
    from openhtp.records.schematic import Schematic
    from openhtp.runtime.objects.graph import Graph


# Names of the nodes, and the type of each.
StepOps = tuple[tuple[str, ...], tuple[str, ...]]

# How many schematics are kept, one for each set of clocks: several clients' votes make a handful.
_MOST_KEPT = 16


class Modelled:
    """The model of a graph. It has the program and nothing of the device, so a profile keeps no device alive."""

    def __init__(
        self,
        packed: PackedGraph,
        program: QnnProgram | None,
        options: OptionValues,
        soc: str,
        steps: int,
        core: int,
    ) -> None:
        """``options`` are the present ones, which may differ from those of the packed graph."""
        self._packed = packed
        self._program = program
        self._options = options
        self.soc = soc
        self._device_steps = steps
        self._core = core
        self._lock = threading.Lock()
        self._compiled: HtpProgram | None = None
        self._schematics: dict[Clocks, Schematic] = {}
        self._events: dict[tuple[ProfileLevel, Clocks], ProfileEvent] = {}

    def schematic(self, clocks: Clocks) -> Schematic:
        """The graph op by op, with modelled times at these clocks."""
        from openhtp.report.schematic import schematic_of

        program = self._compile()
        with self._lock:
            known = self._schematics.get(clocks)
            if known is None:
                while len(self._schematics) >= _MOST_KEPT:
                    self._schematics.pop(next(iter(self._schematics)))
                known = self._schematics[clocks] = schematic_of(program, core=self._core, clocks=clocks)
            return known

    @property
    def is_known(self) -> bool:
        """Whether the graph has a model: float graphs have none on a chip without half precision."""
        try:
            self.schematic(next(iter(self._schematics), FULL))
        except UnsupportedError:
            return False
        return True

    def node_event(self, level: ProfileLevel, clocks: Clocks) -> ProfileEvent:
        """Cycles of all nodes, as a detailed or linting profile has them; the same for every run."""
        from openhtp.report.linting import cycles_event, linting_event

        known = self._events.get((level, clocks))
        if known is None:
            event_of = linting_event if level is ProfileLevel.LINTING else cycles_event
            if len(self._events) >= _MOST_KEPT:
                self._events.clear()
            known = self._events[level, clocks] = event_of(self.schematic(clocks))
        return known

    @property
    def steps(self) -> tuple[tuple[str, ...], ...]:
        """Nodes of the graph by the step of the device that computes them; empty if that is not known."""
        return tuple(names for names, _ in step_nodes(self._compile(), self._device_steps))

    def digest(self, clocks: Clocks) -> str:
        """A digest by which a log recognises its schematic."""
        from openhtp.report.profile_log import schematic_digest

        return schematic_digest(self.schematic(clocks))

    @property
    def preparation(self) -> str:
        """A digest by which a log recognises the schematic of the graph's preparation, whatever the clocks."""
        from openhtp.report.profile_log import preparation_digest

        return preparation_digest(self.schematic(next(iter(self._schematics), FULL)))

    def _compile(self) -> HtpProgram:
        from openhtp.compiler.driver import program_for

        with self._lock:
            if self._compiled is None:
                program = self._packed.program() if self._program is None else self._program
                compiled = program_for(dataclasses.replace(program, options=self._options), self.soc)
                self._compiled = dataclasses.replace(compiled, placed=self.stored_placement(compiled))
            return self._compiled

    def stored_placement(self, program: HtpProgram) -> Placed | None:
        """Where the binary says that data lies in VTCM; None if it does not say, or not for this program.

        At the highest level a cost model chooses among several placements, of which the binary has one.
        """
        from openhtp.compiler.vtcm.place import THOROUGH

        chip = self._packed.chip_program()
        fits = chip is not None and program.options.optimization_level < THOROUGH and chip.fits(program)
        return chip.placed if fits and chip is not None else None


def ops_of_steps(graph: Graph) -> list[StepOps]:
    """Nodes and their types for every step.

    Empty if the device cut the graph in a way that is not known here. The device compiles a program and joins its
    steps by fixed rules, which are followed here again.
    """
    from openhtp.compiler.driver import program_for

    assert graph.loaded is not None  # it is finalized
    return step_nodes(program_for(graph.loaded.program(), graph.context.device.soc), graph.steps)


def step_nodes(program: HtpProgram, steps: int) -> list[StepOps]:
    """Nodes for every step of a compiled program that a device cut into ``steps`` steps."""
    from openhtp.engine.segments import Cuts, cuts_of

    whole = tuple(range(1, len(program.steps)))
    cuts = Cuts(whole) if steps == len(program.steps) else Cuts() if steps == 1 else cuts_of(program)
    if cuts.segments != steps:
        return []
    by_step = []
    for begin, end in pairwise((0, *cuts.after, len(program.steps))):
        nodes = [node for step in program.steps[begin:end] for k in program.kernels_of(step) for node in k.nodes]
        names = (tuple(node.name for node in nodes), tuple(node.op for node in nodes))
        # A step that is computed in strips appears once for each strip.
        by_step += [names] * cuts.segments_from(begin)
    return by_step
