"""In how many pieces an op can be computed, by its own tile rule.

Pieces are strips of eight rows of pixels, as the units' blocks are high, or blocks of 32 channels; of what is no
picture, 32 rows. An op whose rule lets none of these axes be cut is computed whole.
"""

from __future__ import annotations

from openhtp.ops import Node, find_op

_PIXEL_ROWS = 8
_BLOCK = 32
_PICTURE_RANK = 4
_ROWS = 1


def strips_of(node: Node) -> int:
    """The most pieces that the op's result may be made in, along one axis."""
    shape = node.outputs[0].shape
    rank = len(shape)
    high = {rank - 1: _BLOCK, rank - 2: _BLOCK if rank < 4 else _PIXEL_ROWS, rank - 3: _PIXEL_ROWS}
    cuttable = (axis.axis for axis in find_op(node.op).tile(node))
    return max((-(-shape[axis] // high[axis]) for axis in cuttable if axis in high), default=1)


def row_ends(node: Node, tiles: int) -> tuple[int, ...]:
    """Rows of the result after which a tile ends, but for the last: in about so many, each of whole strips."""
    shape = node.outputs[0].shape
    if len(shape) != _PICTURE_RANK or all(axis.axis != _ROWS for axis in find_op(node.op).tile(node)):
        return ()
    strips = -(-shape[_ROWS] // _PIXEL_ROWS)
    high = -(-strips // min(tiles, strips)) * _PIXEL_ROWS
    return tuple(range(high, shape[_ROWS], high))
