"""ExtractPatches: every window of an image, its pixels side by side in the channels."""

from __future__ import annotations

from openhtp.ops._node import Arrays, Emitter, Node, Results, Shapes, move
from openhtp.ops._opdef import FIXED_SHAPES, OpDef, Param, Sample, rows
from openhtp.ops._shapes import expect_rank, refuse
from openhtp.ops._windows import AxisWindow, patches


def _pair(node: Node, name: str) -> tuple[int, int]:
    numbers = node.ints(name)
    if len(numbers) != 2 or min(numbers) < 1:
        refuse(node, f"{name} is {list(numbers)}; expected two numbers of at least 1")
    return numbers[0], numbers[1]


def _windows(node: Node) -> tuple[tuple[AxisWindow, AxisWindow], tuple[int, int]]:
    """The window along height and width, and how many of them there are."""
    lengths = expect_rank(node, 0, 4)[1:3]
    windows, counts = [], []
    for axis, length in enumerate(lengths):
        kernel, stride, rate = (_pair(node, name)[axis] for name in ("size", "stride", "rate"))
        reach = rate * (kernel - 1) + 1
        if node.params["padding"]:
            count = -(-length // stride)
            missing = max((count - 1) * stride + reach - length, 0)
        else:
            if reach > length:
                refuse(node, f"a window of {reach} pixels does not fit into {length}")
            count, missing = (length - reach) // stride + 1, 0
        windows.append(AxisWindow(kernel, stride, missing // 2, missing - missing // 2, rate))
        counts.append(count)
    return (windows[0], windows[1]), (counts[0], counts[1])


def _infer(node: Node) -> Shapes:
    (rows_, columns), counts = _windows(node)
    batch, _, _, channels = node.shape()
    return ((batch, *counts, rows_.kernel * columns.kernel * channels),)


def _reference(node: Node, arrays: Arrays) -> Results:
    windows, counts = _windows(node)
    return (patches(arrays[0], windows, counts, 0.0).reshape(_infer(node)[0]),)


def _lower(node: Node, e: Emitter) -> None:
    (down, across), (high, wide) = _windows(node)

    def emit(x: str) -> str:
        parts = []
        for row in range(down.kernel):
            for column in range(across.kernel):
                begins = [row * down.dilation, column * across.dilation]
                ends = [begins[0] + (high - 1) * down.stride + 1, begins[1] + (wide - 1) * across.stride + 1]
                numbers = (begins, ends, [1, 2], [down.stride, across.stride])
                parts.append(e.node("Slice", [x, *(e.ints(values) for values in numbers)]))
        return e.node("Concat", parts, axis=-1)

    if any((down.before, down.after, across.before, across.after)):
        # Padding is with real zeros, so it is done on real values.
        pads = [0, down.before, across.before, 0, 0, down.after, across.after, 0]
        e.put(0, emit(e.node("Pad", [e.value(0), e.ints(pads)])))
    else:
        move(e, emit)


OPS = (
    OpDef(
        name="ExtractPatches",
        summary="the pixels of every window of in[0], side by side in the channels; SAME pads with zeros",
        types=rows("T > T : f16 f32 u8"),
        infer=_infer,
        reference=_reference,
        lower=_lower,
        kind="move",
        params=(
            Param("size", rank=1, mandatory=True),
            Param("stride", rank=1, mandatory=True),
            Param("rate", rank=1, mandatory=True),
            Param("padding", mandatory=True, choices={"VALID": 0, "SAME": 1}),
        ),
        constraints=(FIXED_SHAPES,),
        max_rank=4,
        values_kept=True,
        moves_only=True,
        samples=(
            Sample(((2, 6, 7, 3),), {"size": [2, 3], "stride": [2, 2], "rate": [1, 1], "padding": "VALID"}),
            Sample(((1, 5, 6, 2),), {"size": [2, 2], "stride": [2, 2], "rate": [2, 2], "padding": "SAME"}),
            Sample(((1, 8, 5, 1),), {"size": [3, 3], "stride": [1, 2], "rate": [1, 1], "padding": "SAME"}),
        ),
    ),
)
