"""The formula of native KV caches, element by element: what the layout of whole arrays is tested against."""

from __future__ import annotations


def offset_of(side: str, token: int, element: int, *, context: int, head_dim: int) -> int:
    """Byte of one element of one head."""
    tile = 256 if side == "key" else 64
    rows = head_dim if side == "key" else context
    row, column = (element, token) if side == "key" else (token, element)
    return (
        column // tile * rows * tile
        + row // 32 * 32 * tile
        + column % tile // 32 * 1024
        + row % 32 // 4 * 128
        + column % 32 * 4
        + row % 4
    )
