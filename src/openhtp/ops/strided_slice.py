"""StridedSlice: a range with a step on every axis, with optional new and dropped axes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._node import Arrays, Emitter, Node, Results, move
from openhtp.ops._opdef import OpDef, Param, Sample, rows
from openhtp.ops._shapes import refuse


@dataclass(frozen=True, slots=True)
class Cut:
    """The cut of one input axis: which indices are taken, and whether the axis is dropped."""

    begin: int
    end: int
    step: int
    count: int
    dropped: bool


def _bit(node: Node, mask: str, index: int) -> bool:
    return bool(node.params[mask] >> index & 1)


def _cuts(node: Node) -> tuple[list[Cut | None], tuple[int, ...]]:
    """One Cut per row of ``ranges``; None stands for a new axis. Also the output shape."""
    ranges = np.asarray(node.params["ranges"])
    rank = node.input().rank
    new = sum(_bit(node, "new_axes_mask", row) for row in range(len(ranges)))
    if ranges.shape != (rank + new, 3):
        refuse(node, f"ranges has shape {list(ranges.shape)}; expected [{rank + new}, 3]")
    cuts: list[Cut | None] = []
    shape: list[int] = []
    sizes = iter(node.shape())
    for row, (begin, end, step) in enumerate(ranges.tolist()):
        if _bit(node, "new_axes_mask", row):
            cuts.append(None)
            shape.append(1)
            continue
        cut = _one_cut(node, row, (begin, end, step), next(sizes))
        cuts.append(cut)
        if not cut.dropped:
            shape.append(cut.count)
    return cuts, tuple(shape)


def _one_cut(node: Node, row: int, bounds: tuple[int, int, int], size: int) -> Cut:
    begin, end, step = bounds
    if step == 0:
        refuse(node, f"ranges[{row}] has stride 0")
    dropped = _bit(node, "shrink_axes", row)
    if dropped:
        begin = begin + size if begin < 0 else begin
        if not 0 <= begin < size:
            refuse(node, f"ranges[{row}] takes index {bounds[0]} of an axis of size {size}")
        return Cut(begin, begin + 1, 1, 1, True)
    start = None if _bit(node, "begin_mask", row) else begin
    # Going backwards, -1 is before the first: counted from the end, it would always take nothing.
    stop = None if _bit(node, "end_mask", row) or (step < 0 and end == -1) else end
    indices = range(size)[slice(start, stop, step)]
    if not indices:
        refuse(node, f"ranges[{row}] {begin}:{end}:{step} takes nothing from an axis of size {size}")
    return Cut(indices.start, indices.stop, step, len(indices), False)


def _reference(node: Node, arrays: Arrays) -> Results:
    cuts, shape = _cuts(node)
    out = arrays[0]
    axis = 0
    for cut in cuts:
        if cut is not None:
            out = np.take(out, [cut.begin + i * cut.step for i in range(cut.count)], axis=axis)
            axis += 1
    return (out.reshape(shape),)


def _lower(node: Node, e: Emitter) -> None:
    cuts, shape = _cuts(node)
    kept = [cut for cut in cuts if cut is not None]
    taking = [(axis, cut) for axis, cut in enumerate(kept) if cut.count != node.shape()[axis] or cut.step != 1]

    def emit(x: str) -> str:
        if taking:
            lists = (
                [cut.begin for _, cut in taking],
                # ONNX reads a negative end as counted from the back; "before the first" needs a low number.
                [cut.end if cut.end >= 0 else -(2**31) for _, cut in taking],
                [axis for axis, _ in taking],
                [cut.step for _, cut in taking],
            )
            x = e.node("Slice", [x, *(e.ints(numbers) for numbers in lists)])
        if len(kept) != len(cuts) or any(cut.dropped for cut in kept):
            x = e.node("Reshape", [x, e.ints(shape)])
        return x

    move(e, emit)


OPS = (
    OpDef(
        name="StridedSlice",
        summary="elements begin:end:stride of in[0] on each axis",
        types=rows("T > T : f16 f32 u16 s16 u8 s8 n32 i32 i64 b"),
        infer=lambda node: (_cuts(node)[1],),
        reference=_reference,
        lower=_lower,
        kind="move",
        params=(
            Param("ranges", DType.INT_32, rank=2, mandatory=True),
            Param("begin_mask", default=0),
            Param("end_mask", default=0),
            Param("shrink_axes", default=0),
            Param("new_axes_mask", default=0),
        ),
        values_kept=True,
        moves_only=True,
        bound_to_shape=True,
        samples=(
            Sample(((1, 8, 9, 4),), {"ranges": [[0, 1, 1], [1, 7, 2], [8, 0, -3], [0, 4, 1]]}),
            Sample(((5, 6),), {"ranges": [[0, 2, 1], [5, -7, -1]], "begin_mask": 1, "end_mask": 1}),
            Sample(((5, 6),), {"ranges": [[4, -1, -1], [5, -1, -2]]}),
            Sample(((5, 6, 2),), {"ranges": [[3, 4, 1], [0, 6, 1], [0, 2, 1]], "shrink_axes": 1}),
            Sample(((5, 6),), {"ranges": [[0, 0, 1], [1, 5, 1], [0, 6, 1]], "new_axes_mask": 1}),
        ),
    ),
)
