"""Products of one row are computed as those of several.

The runtime multiplies one row by a matrix that it was not given beforehand with a kernel of its own, which adds in
another order. An HTP adds integers, so there a row's
result does not depend on how many others are computed with it; graphs of a language model for 1 and for 128 tokens
rely on that.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter
from openhtp.ops._node import Node

_WIDE = (DType.UFIXED_POINT_16, DType.SFIXED_POINT_16)


def like_several_rows(node: Node, e: Emitter, left: str, product: Callable[[str], str]) -> str:
    """``product`` of the rows ``left``; a single row of 16-bit numbers goes in twice and comes out once."""
    if e.dynamic or node.outputs[0].shape[-2] != 1 or node.outputs[0].dtype not in _WIDE:
        return product(left)
    both = product(e.node("Concat", [left, left], axis=-2))
    first = [e.const(np.array([number], np.int64)) for number in (0, 1, -2)]
    return e.node("Slice", [both, *first])
