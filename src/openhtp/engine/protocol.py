"""The interface between the device and the engines that compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


class RowWatch(NamedTuple):
    """What ends a row of steps before its last one. Times are of the monotonic clock, in nanoseconds.

    At the end of a step, ``news`` (a descriptor) is looked at if the last look was ``interval_ns`` ago; no step
    begins after it has become readable, nor after ``until_ns``.
    """

    looked_ns: int
    interval_ns: int
    until_ns: int
    news: int


class RowDone(NamedTuple):
    """How many steps of a row were computed, and when the last of them began and ended."""

    steps: int
    began_ns: int
    ended_ns: int


NOT_IN_A_ROW = RowDone(0, 0, 0)


ComputeRow = Callable[[int, int, RowWatch], RowDone]
"""The method ``row`` of a run that can compute steps in a row, which saves most of our own time between them.

It computes from the first step to before the second one. A step that cannot be computed in a row, or fails there,
ends the row and does not count: ``step`` says what is wrong with it.
"""


@runtime_checkable
class StoppableRun(Run, Protocol):
    """A run whose step can be interrupted."""

    def stop(self) -> None:
        """End the step under way soon, or the next one at once, without results. Called on any thread, once."""


class LoadedProgram(Protocol):
    """A program made ready to run on this machine."""

    @property
    def steps(self) -> int:
        """The number of its steps. Each ends at the end of a step of the program, where the program may yield."""

    @property
    def spill_fill_bytes(self) -> int:
        """The spill-fill buffer that it needs on the chip."""

    @property
    def vtcm_peak_bytes(self) -> int | None:
        """The most bytes that it has in VTCM at once. None if unknown: it may be all of the graph's share."""

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
        """The rehearsed run, which one execution at a time may use again; None if the program is too large."""


@runtime_checkable
class SpillingProgram(LoadedProgram, Protocol):
    """A program that can be told where its values between two steps lie."""

    def spill_into(self, room: memoryview) -> None:
        """Keep these values here, as far as they fit, for all runs bound from now on, one at a time."""


@runtime_checkable
class UpdateableProgram(LoadedProgram, Protocol):
    """A program with tensors whose data can be exchanged."""

    def update(self, arrays: Arrays) -> None:
        """Use this data for the updateable tensors, by name, in all runs bound from now on.

        The arrays are not copied, and must not change. Runs that are bound already go on as they are.
        """


class Engine(Protocol):
    """Makes programs ready to run."""

    def load(self, program: HtpProgram) -> LoadedProgram:
        """Prepare a program; may take seconds, so it is never called on the loop's thread."""


@runtime_checkable
class PreparingEngine(Engine, Protocol):
    """An engine that can store a prepared program, and load it again in a fraction of the time."""

    def load_packed(
        self, packed: PackedGraph, info: GraphInfo, soc: SocSpec, workshop: Workshop
    ) -> LoadedProgram | None:
        """Make a stored graph ready from its prepared form. None if that must not be used: load its program.

        A form that was prepared for another SoC must not be used. ``workshop`` serves the whole binary.
        """

    def pack(self, program: HtpProgram) -> PackedGraph:
        """The program with its needs of memory, and with its prepared form if that is useful."""
