"""The seam between the device and whatever computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy.typing as npt

from openhtp.hw.soc import SocSpec
from openhtp.program.htp_program import HtpProgram
from openhtp.program.packed import GraphInfo, PackedGraph

if TYPE_CHECKING:
    from openhtp.engine.workshop import Workshop

Arrays = Mapping[str, npt.NDArray[Any]]


class Run(Protocol):
    """One execution's state: I/O arrays bound, intermediate tensors its own. Steps run in order, 0 first.

    A Run may be used again after its last step. Two executions under way at once need a Run each.
    """

    def step(self, index: int) -> None:
        """Compute one step. Raises a QnnError when the computation itself fails."""


@runtime_checkable
class StoppableRun(Run, Protocol):
    """A run whose step can be interrupted."""

    def stop(self) -> None:
        """End the step under way soon, or the next one at once, without results. Called on any thread, once."""


class LoadedProgram(Protocol):
    """A program made ready to run on this machine."""

    @property
    def steps(self) -> int:
        """In how many steps it runs. Each ends where one of the program's does, and there it may yield."""

    @property
    def spill_fill_bytes(self) -> int:
        """The spill-fill buffer that it needs on the chip."""

    @property
    def vtcm_peak_bytes(self) -> int | None:
        """The most that it has in VTCM at once. None if nobody knows: it may be all that the graph was given."""

    def bind(self, arrays: Arrays) -> Run:
        """Bind every input and output tensor, by name, to an array that the run reads or writes in place.

        Arrays have the shape of this execution: that of the tensor, or smaller in its dynamic dimensions.
        They must stay mapped while the Run lives.
        """

    def close(self) -> None:
        """Give back memory and threads."""


class SharedRange(NamedTuple):
    """Where an array lies: at ``offset`` in the memory of a descriptor, which has ``nbytes``."""

    fd: int
    nbytes: int
    offset: int


@runtime_checkable
class MappingProgram(LoadedProgram, Protocol):
    """A program whose hardware maps shared memory by its descriptor."""

    def bind_shared(self, arrays: Arrays, ranges: Mapping[str, SharedRange]) -> Run:
        """Bind as ``bind`` does; ``ranges`` says of arrays in shared memory where they lie.

        The descriptors are open while the Run is bound, and not necessarily any longer.
        """


class Rehearsal(NamedTuple):
    """A run of a program's only step when it was loaded: how long it took, and the arrays that it is bound to."""

    took_ns: int
    run: Run
    arrays: Arrays


@runtime_checkable
class RehearsedProgram(LoadedProgram, Protocol):
    """A program that may have been run when it was loaded."""

    @property
    def rehearsal(self) -> Rehearsal | None:
        """The run of that time, for one execution at a time to use again; None if the program is too large."""


@runtime_checkable
class SpillingProgram(LoadedProgram, Protocol):
    """A program that can be told where its values between two steps lie."""

    def spill_into(self, room: memoryview) -> None:
        """Have these values here, as far as they fit, in all that is bound from now on: one run at a time."""


@runtime_checkable
class UpdateableProgram(LoadedProgram, Protocol):
    """A program with tensors whose data can be exchanged."""

    def update(self, arrays: Arrays) -> None:
        """Use this data for the updateable tensors, by name, in all that is bound from now on.

        The arrays are not copied, and must not change. Runs that are bound already go on as they are.
        """


class Engine(Protocol):
    """Makes programs ready to run."""

    def load(self, program: HtpProgram) -> LoadedProgram:
        """Prepare a program; may take seconds, so it is never called on the loop's thread."""


@runtime_checkable
class PreparingEngine(Engine, Protocol):
    """An engine that can store what it made of a program, and load that again in a fraction of the time."""

    def load_packed(
        self, packed: PackedGraph, info: GraphInfo, soc: SocSpec, workshop: Workshop
    ) -> LoadedProgram | None:
        """Make a stored graph ready from its prepared form. None if that must not be used: load its program.

        A form that was prepared for another SoC than this one must not. ``workshop`` is of the whole binary.
        """

    def pack(self, program: HtpProgram) -> PackedGraph:
        """The program with what it needs of memory, and with its prepared form if there is a use in one."""
