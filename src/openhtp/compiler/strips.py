"""In how many pieces an op can be computed, by its own tile rule.

Pieces are strips of eight rows of pixels, as the units' blocks are high, or blocks of 32 channels; of what is no
picture, 32 rows. An op whose rule lets none of these axes be cut is computed whole.
"""

from __future__ import annotations

from openhtp.ops import Node, find_op

_PIXEL_ROWS = 8
_BLOCK = 32


def strips_of(node: Node) -> int:
    """The most pieces that the op's result may be made in, along one axis."""
    shape = node.outputs[0].shape
    rank = len(shape)
    high = {rank - 1: _BLOCK, rank - 2: _BLOCK if rank < 4 else _PIXEL_ROWS, rank - 3: _PIXEL_ROWS}
    cuttable = (axis.axis for axis in find_op(node.op).tile(node))
    return max((-(-shape[axis] // high[axis]) for axis in cuttable if axis in high), default=1)
