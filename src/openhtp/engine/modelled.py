"""The engine that computes nothing: it shows what runs when, and gives no results.

It is ready at once and runs a program in the steps that the chip would, each of which may yield. How long a step
takes is for its runner to say. Outputs keep what is in their memory.
"""

from __future__ import annotations

from openhtp.compiler.vtcm.place import vtcm_peak_bytes
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument
from openhtp.engine.protocol import Arrays
from openhtp.program.htp_program import HtpProgram, spill_fill_bytes


class ModelledRun:
    """One execution, of which only the order of steps is real."""

    __slots__ = ()

    def step(self, index: int) -> None:
        """Compute nothing."""


class ModelledProgram:
    """A program with all its steps."""

    def __init__(self, program: HtpProgram) -> None:
        self._specs = (*program.inputs, *program.outputs)
        self.steps = len(program.steps)
        self.spill_fill_bytes = spill_fill_bytes(program)
        self.vtcm_peak_bytes = vtcm_peak_bytes(program)

    def bind(self, arrays: Arrays) -> ModelledRun:
        """Check that every input and output has an array of a shape that it may have."""
        for spec in self._specs:
            array = arrays.get(spec.name)
            if array is None or array.dtype != spec.dtype.numpy or not spec.accepts(array.shape):
                bound = "none" if array is None else f"{array.dtype}{list(array.shape)}"
                raise InvalidArgument(
                    f"array bound to {spec} is {bound}; expected {spec.dtype.numpy}{list(spec.shape)}",
                    st.QNN_GRAPH_ERROR_INVALID_TENSOR,
                )
        return ModelledRun()

    def close(self) -> None:
        """Nothing to give back."""


class ModelledEngine:
    """Makes programs ready to take time."""

    def load(self, program: HtpProgram) -> ModelledProgram:
        """Ready as it is."""
        return ModelledProgram(program)
