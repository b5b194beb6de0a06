"""What a chain of transposes and reshapes comes to in the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.core.opcall import OpCall

_MOST = 1 << 22
"""Elements that are followed one by one; larger chains are taken as their parts say."""


def net_kind(calls: Sequence[OpCall]) -> str | None:
    """``reshape`` if all elements end up in the order in which they were, ``permute`` if rows of 32 stay together.

    None where the chain is too large to be looked at, or moves single elements.
    """
    source = calls[0].inputs[0]
    if source is None or source.elements > _MOST:
        return None
    order = np.arange(source.elements, dtype=np.int32).reshape(source.shape)
    for call in calls:
        perm = call.params.get("perm")
        order = order.reshape(call.outputs[0].shape) if perm is None else order.transpose(np.ravel(perm))
    steps = np.diff(order.ravel()) == 1
    if steps.all():
        return "reshape"
    breaks = np.flatnonzero(~steps) + 1
    return "permute" if not np.any(breaks % _ROW) else None


_ROW = 32
