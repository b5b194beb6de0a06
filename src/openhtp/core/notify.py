"""What a notification of a context's creation tells of."""

from __future__ import annotations

import enum


class NotifyType(enum.IntEnum):
    """The value is the API's number."""

    GRAPH_INIT = 0
    CONTEXT_INIT = 1
