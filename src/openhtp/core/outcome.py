"""How an execution ended: said by the scheduler, told to the client, kept in traces."""

from __future__ import annotations

import enum


class Outcome(enum.Enum):
    """How a job ended."""

    DONE = "done"
    ABORTED = "aborted"
    TIMED_OUT = "timed_out"
    GONE = "gone"
