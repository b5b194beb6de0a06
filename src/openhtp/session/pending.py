"""A run that was queued: a future of the list of outputs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy.typing as npt

from openhtp.core.errors import QnnError
from openhtp.runtime.calls.execution import Execution, Outputs
from openhtp.runtime.profile import Profile

Results = list[npt.NDArray[Any]]


class PendingRun:
    """Returned by ``InferenceSession.run_async``; ``result()``, ``done()``, ``cancel()`` and ``await``."""

    def __init__(
        self, execution: Execution, collect: Callable[[Outputs], Results], profile: Profile | None = None
    ) -> None:
        self.execution = execution
        # Filled when it is over, if the session profiles.
        self.profile = profile
        self._collect = collect

    def done(self) -> bool:
        """Whether it is over."""
        return self.execution.done()

    def cancel(self) -> bool:
        """Ask for an early end; False if it is already over."""
        return self.execution.cancel()

    def cancelled(self) -> bool:
        """Whether it was ended by ``cancel()``."""
        return self.execution.cancelled()

    def result(self, timeout: float | None = None) -> Results:
        """Wait for the outputs, in the order asked for; raises the run's error."""
        return self._collect(self.execution.result(timeout))

    def exception(self, timeout: float | None = None) -> QnnError | None:
        """Wait for the end and return its error, or None."""
        return self.execution.exception(timeout)

    def add_done_callback(self, function: Callable[[PendingRun], object]) -> None:
        """Call ``function(self)`` on the backend's thread once it is over."""
        self.execution.add_done_callback(lambda _: function(self))

    def __await__(self) -> Generator[Any, None, Results]:
        return self._collect((yield from self.execution.__await__()))

    def __repr__(self) -> str:
        return f"<PendingRun: {self.execution!r}>"
