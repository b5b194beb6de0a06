"""Targets make portable programs ready to run on a device."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from openhtp.compiler.chip_rules import verify_chip
from openhtp.compiler.driver import program_for
from openhtp.core.errors import error_context
from openhtp.engine.protocol import Engine, LoadedProgram, PreparingEngine
from openhtp.engine.workshop import Workshop
from openhtp.hw.soc import SocSpec
from openhtp.program.packed import GraphInfo, PackedGraph
from openhtp.program.qnn_program import QnnProgram


class Target(Protocol):
    """A place where a portable program can run: an emulated chip, or the vendor's library."""

    def load(self, program: QnnProgram) -> LoadedProgram:
        """Make a program ready; may take seconds, so it is never called on the loop's thread."""

    def check(self, program: QnnProgram) -> None:
        """Raise if ``load`` would refuse the program, as far as that is known without loading."""


@runtime_checkable
class PreparingTarget(Target, Protocol):
    """A target that can store a program in prepared form, and load that form in a fraction of the time."""

    def load_packed(self, packed: PackedGraph, info: GraphInfo, workshop: Workshop) -> LoadedProgram | None:
        """Load a stored graph from its prepared form. None if that form cannot be used: load its program."""

    def pack(self, program: QnnProgram) -> PackedGraph | None:
        """The program with its memory needs and any prepared form. None if the engine provides neither."""


class EmulatedChip:
    """One SoC: compiles programs for it and gives them to an engine."""

    def __init__(self, engine: Engine, soc: SocSpec) -> None:
        self._engine = engine
        self._soc = soc

    def load(self, program: QnnProgram) -> LoadedProgram:
        """Compile for the SoC and load."""
        self.check(program)
        return self._engine.load(program_for(program, self._soc))

    def check(self, program: QnnProgram) -> None:
        """Refuse programs that need what the SoC does not have."""
        with error_context(soc=self._soc.name):
            verify_chip(program, self._soc)

    def load_packed(self, packed: PackedGraph, info: GraphInfo, workshop: Workshop) -> LoadedProgram | None:
        """Load a form that was prepared for this very SoC."""
        if not isinstance(self._engine, PreparingEngine):
            return None
        return self._engine.load_packed(packed, info, self._soc, workshop)

    def pack(self, program: QnnProgram) -> PackedGraph | None:
        """Compile a program and pack the engine's prepared form."""
        if not isinstance(self._engine, PreparingEngine):
            return None
        return self._engine.pack(program_for(program, self._soc))
