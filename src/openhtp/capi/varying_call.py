"""Executions whose results vary in size; the sizes are written into the dimensions that the client gave."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from openhtp.abi import memory
from openhtp.core import status as st
from openhtp.core.errors import QnnError
from openhtp.runtime.calls.bound_call import BoundCall

if TYPE_CHECKING:
    from openhtp.runtime.calls.execution import Notify
    from openhtp.runtime.objects.profile import Profile
    from openhtp.runtime.objects.signal import Signal

_LOST = st.QNN_GRAPH_ERROR_DYNAMIC_TENSOR_SHAPE


@dataclass(frozen=True, slots=True)
class CutResult:
    """A result that is too long for the client's memory, which gets its beginning."""

    name: str
    whole: npt.NDArray[np.generic]
    address: int
    room: int

    def hand_over(self) -> None:
        """What fits."""
        ctypes.memmove(self.address, self.whole.ctypes.data, self.room)

    def __str__(self) -> str:
        return f"{self.name!r} takes {self.whole.nbytes} bytes, of which {self.room} fit"


class VaryingCall:
    """A bound call, where to write the sizes of its results, and which results are cut."""

    __slots__ = ("_bound", "_cut", "_told")

    def __init__(self, bound: BoundCall, told: list[tuple[int, bytes]], cut: list[CutResult]) -> None:
        self._bound = bound
        self._told = told
        self._cut = cut

    def run(self, profile: Profile | None = None, signal: Signal | None = None) -> None:
        """Compute, wait for the end, and write the sizes."""
        for address, dims in self._told:
            memory.check_writable(address, len(dims), "an output's dimensions")
        self._bound.run(profile, signal)
        self._write_sizes()
        if self._cut:
            self._hand_over()
            raise QnnError(f"results were cut: {', '.join(map(str, self._cut))}", _LOST)

    def run_async(
        self, notify: Notify | None, profile: Profile | None = None, signal: Signal | None = None
    ) -> None:
        """Queue an execution.

        Sizes follow from those of the inputs, so they are written before it is over. Later, the client's
        dimensions may be gone: nothing says that they outlast the call.
        """
        before = [(address, memory.read(address, len(dims))) for address, dims in self._told]
        try:
            self._write_sizes()
            self._bound.run_async(self._ending(notify) if self._cut else notify, profile, signal)
        except BaseException:
            for address, dims in before:
                memory.write(address, dims)
            raise

    def _write_sizes(self) -> None:
        for address, dims in self._told:
            memory.write(address, dims, "an output's dimensions")

    def _hand_over(self) -> None:
        for result in self._cut:
            result.hand_over()

    def _ending(self, notify: Notify | None) -> Notify:
        def end(param: object, status: int) -> None:
            if not status:
                self._hand_over()
                status = _LOST.code
            if notify is not None:
                notify(param, status)

        return end
