"""The stage at which a tool failed. Scripts read it from the exit status of ``qnn-net-run``, and so from ours."""

from __future__ import annotations

import enum
from collections.abc import Callable
from contextlib import AbstractContextManager

from openhtp.core.errors import QnnError, error_context

Tell = Callable[[str, int, int | None], None]
"""Called with the progress of a tool: what it does, how much is done, and of how much, if that is known."""


class ToolStage(enum.Enum):
    """A stage of a tool, and its exit status if it fails there."""

    DEVICE = "device creation", 11
    CREATE = "graph composition", 14
    FINALIZE = "graph finalization", 15
    EXECUTE = "graph execution", 17

    @property
    def exit_status(self) -> int:
        """The exit status of a tool that fails in this stage."""
        return self.value[1]


def during(stage: ToolStage) -> AbstractContextManager[None]:
    """Errors within say at which stage they happened."""
    return error_context(stage=stage.value[0])


def exit_status_of(error: QnnError) -> int | None:
    """The exit status for an error that came through ``during``; None for any other."""
    name = error.where.get("stage")
    return next((stage.exit_status for stage in ToolStage if stage.value[0] == name), None)
