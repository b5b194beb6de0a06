"""Which output axes of an op may be computed piece by piece, and which part of its inputs a piece reads.

The op states the fact; where to cut is the compiler's choice. ``tests/ops/test_tiles.py`` tests every
rule: the pieces of the reference, put together, are the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openhtp.ops._node import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class TileAxis:
    """An output axis that may be cut.

    ``inputs`` has, for each input, the axis that is cut along with the output's, and None for an input that every
    piece reads whole. Of the axes that are cut, one output row reads ``reach`` rows, ``stride`` further on for
    the next, and ``before`` are the rows of padding in front of the whole. A piece pads (``pad_amount``) only
    where the whole does.
    """

    axis: int
    inputs: tuple[int | None, ...]
    reach: int = 1
    stride: int = 1
    before: int = 0

    def rows(self, first: int, last: int) -> tuple[int, int]:
        """The input rows that make output rows from ``first`` to before ``last``; some may lie in the padding."""
        return first * self.stride - self.before, (last - 1) * self.stride - self.before + self.reach


TileRule = Callable[[Node], tuple[TileAxis, ...]]


def split_nowhere(node: Node) -> tuple[TileAxis, ...]:
    """The op is computed whole."""
    return ()


def split_anywhere(node: Node) -> tuple[TileAxis, ...]:
    """Every output axis may be cut, and every input with it: elementwise work on broadcast inputs."""
    rank = node.outputs[0].rank
    return tuple(TileAxis(axis=axis, inputs=broadcast_axes(node, axis - rank)) for axis in range(rank))


def split_but(node: Node, kept: Sequence[int]) -> tuple[TileAxis, ...]:
    """Every axis of the first input may be cut but the ``kept`` ones; further inputs are read whole."""
    whole = (None,) * (len(node.inputs) - 1)
    return tuple(
        TileAxis(axis=axis, inputs=(axis, *whole)) for axis in range(node.input().rank) if axis not in kept
    )


def broadcast_axes(node: Node, behind: int) -> tuple[int | None, ...]:
    """The axis of each input that meets the output's axis ``behind`` (-1: the last); None where its size is 1."""
    return tuple(
        spec.rank + behind if spec is not None and spec.rank >= -behind and spec.shape[behind] != 1 else None
        for spec in node.inputs
    )
