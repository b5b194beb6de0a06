"""HeatMapMaxKeyPoint: the highest point of each map, refined between pixels, placed in the map's box.

Around the highest pixel the map is taken for a quadratic surface: its slopes and curvatures come from the eight
neighbours (mirrored at the border), and its top is where the slope vanishes, at most one and a half pixels away.
"""

from __future__ import annotations

import numpy as np

from openhtp.ops._node import Array, Arrays, Emitter, Node, Results, Shapes
from openhtp.ops._opdef import FIXED_SHAPES, TWO_INPUTS, Constraint, OpDef, Port, Sample, Work, rows
from openhtp.ops._shapes import expect_rank, expect_shape

_FURTHEST = 1.5
# A surface this flat, relative to its curvatures, has no top to speak of: the pixel is kept.
_FLAT = 1e-5


def _infer(node: Node) -> Shapes:
    boxes, _, _, points = expect_rank(node, 0, 4)
    expect_shape(node, 1, (boxes, 4), "x1, y1, x2, y2 per map")
    return (boxes, points), (boxes, points, 2)


def _refined(grid: Array) -> tuple[float, float, float]:
    """How far right and down of the middle the top is, and how much higher."""
    slope = np.array([grid[1, 2] - grid[1, 0], grid[2, 1] - grid[0, 1]]) / 2
    mixed = (grid[2, 2] - grid[2, 0] - grid[0, 2] + grid[0, 0]) / 4
    curve = np.array(
        [
            [grid[1, 0] - 2 * grid[1, 1] + grid[1, 2], mixed],
            [mixed, grid[0, 1] - 2 * grid[1, 1] + grid[2, 1]],
        ]
    )
    product = curve[0, 0] * curve[1, 1]
    if abs(product - mixed * mixed) < _FLAT + _FLAT * product:
        return 0.0, 0.0, 0.0
    top = np.linalg.solve(curve, -slope)
    top *= min(1.0, _FURTHEST / max(np.abs(top).max(), 1e-12))
    return float(top[0]), float(top[1]), float(slope @ top + top @ curve @ top / 2)


def _reference(node: Node, arrays: Arrays) -> Results:
    maps, boxes = arrays
    count, height, width, points = maps.shape
    scores, places = np.zeros((count, points)), np.zeros((count, points, 2))
    mirrored = np.pad(maps, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")
    for box in range(count):
        x1, y1, x2, y2 = boxes[box]
        for point in range(points):
            row, column = divmod(int(maps[box, :, :, point].argmax()), width)
            right, down, higher = _refined(mirrored[box, row : row + 3, column : column + 3, point])
            scores[box, point] = maps[box, row, column, point] + higher
            places[box, point] = (
                x1 + (column + right + 0.5) * (x2 - x1) / width,
                y1 + (row + down + 0.5) * (y2 - y1) / height,
            )
    return scores, places


class _Sums:
    """Arithmetic on names, to write the surface's formulas as they are."""

    def __init__(self, e: Emitter, cells: str) -> None:
        self._e = e
        self._cells = cells

    def cell(self, row: int, column: int) -> str:
        """One pixel of every window, [maps, points, 1]."""
        places = [self._e.ints([number]) for number in (3 * row + column, 3 * row + column + 1, 2)]
        return self._e.node("Slice", [self._cells, *places])

    def number(self, value: float) -> str:
        """A number."""
        return self._e.floats(value)

    def total(self, *terms: tuple[float, str]) -> str:
        """Sum of terms with their factors."""
        parts = [name if factor == 1.0 else self.times(name, self.number(factor)) for factor, name in terms]
        result = parts[0]
        for part in parts[1:]:
            result = self._e.node("Add", [result, part])
        return result

    def times(self, *names: str) -> str:
        """Product."""
        result = names[0]
        for name in names[1:]:
            result = self._e.node("Mul", [result, name])
        return result


def _emit_refined(e: Emitter, cells: str) -> tuple[str, str, str]:
    """``_refined`` for all windows at once."""
    sums = _Sums(e, cells)
    c, total, times = sums.cell, sums.total, sums.times
    slope_x = total((0.5, c(1, 2)), (-0.5, c(1, 0)))
    slope_y = total((0.5, c(2, 1)), (-0.5, c(0, 1)))
    mixed = total((0.25, c(2, 2)), (-0.25, c(2, 0)), (-0.25, c(0, 2)), (0.25, c(0, 0)))
    curve_x = total((1.0, c(1, 0)), (-2.0, c(1, 1)), (1.0, c(1, 2)))
    curve_y = total((1.0, c(0, 1)), (-2.0, c(1, 1)), (1.0, c(2, 1)))
    product = times(curve_x, curve_y)
    area = total((1.0, product), (-1.0, times(mixed, mixed)))
    flat = e.node("Less", [e.node("Abs", [area]), total((_FLAT, product), (_FLAT, sums.number(1.0)))])
    safe = e.node("Where", [flat, sums.number(1.0), area])
    numerators = (
        total((1.0, times(mixed, slope_y)), (-1.0, times(curve_y, slope_x))),
        total((1.0, times(mixed, slope_x)), (-1.0, times(curve_x, slope_y))),
    )
    tops = [e.node("Where", [flat, sums.number(0.0), e.node("Div", [each, safe])]) for each in numerators]
    far = e.node("Max", [e.node("Abs", [tops[0]]), e.node("Abs", [tops[1]]), sums.number(_FURTHEST)])
    right, down = (e.node("Div", [times(top, sums.number(_FURTHEST)), far]) for top in tops)
    higher = total(
        (1.0, times(slope_x, right)),
        (1.0, times(slope_y, down)),
        (0.5, times(curve_x, right, right)),
        (0.5, times(curve_y, down, down)),
        (1.0, times(mixed, right, down)),
    )
    return right, down, higher


def _lower(node: Node, e: Emitter) -> None:
    count, height, width, points = node.shape()

    maps = e.node("Transpose", [e.value(0)], perm=[0, 3, 1, 2])
    flat = e.node("Reshape", [maps, e.ints([count, points, height * width])])
    peak = e.node("ArgMax", [flat], axis=2, keepdims=1)
    row, column = e.node("Div", [peak, e.ints([width])]), e.node("Mod", [peak, e.ints([width])])
    mirrored = e.node("Pad", [maps, e.ints([0, 0, 1, 1, 0, 0, 1, 1])], mode="reflect")
    wide = e.node("Reshape", [mirrored, e.ints([count, points, (height + 2) * (width + 2)])])
    corner = e.node("Add", [e.node("Mul", [row, e.ints([width + 2])]), column])
    around = e.ints([dy * (width + 2) + dx for dy in range(3) for dx in range(3)])
    cells = e.node("GatherElements", [wide, e.node("Add", [corner, around])], axis=2)
    right, down, higher = _emit_refined(e, cells)
    highest = e.node("GatherElements", [flat, peak], axis=2)
    e.put(0, e.node("Reshape", [e.node("Add", [highest, higher]), e.ints([count, points])]))
    boxes = e.node("Unsqueeze", [e.value(1), e.ints([1])])
    parts = []
    for axis, (index, shift, size) in enumerate(((column, right, width), (row, down, height))):
        begin, end = (
            e.node("Slice", [boxes, e.ints([a]), e.ints([a + 1]), e.ints([2])]) for a in (axis, axis + 2)
        )
        middle = e.floats(0.5)
        position = e.node("Add", [e.node("Add", [e.node("Cast", [index], to="float32"), shift]), middle])
        share = e.node("Div", [position, e.floats(size)])
        parts.append(e.node("Add", [e.node("Mul", [share, e.node("Sub", [end, begin])]), begin]))
    e.put(1, e.node("Concat", parts, axis=2))


def _work(node: Node) -> Work:
    operations = 2 * node.input().elements + 100 * node.outputs[0].elements
    return Work.on(node, vector_ops=operations)


OPS = (
    OpDef(
        name="HeatMapMaxKeyPoint",
        summary="score and place (x, y) of the highest point of each map of in[0], within its box in[1]",
        inputs=TWO_INPUTS,
        outputs=(Port("out[0]"), Port("out[1]")),
        types=rows("u8 u16 > u8 u16"),
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=_work,
        constraints=(
            Constraint("maps have at least two rows and columns", lambda node: min(node.shape()[1:3]) >= 2),
            FIXED_SHAPES,
        ),
        samples=(
            Sample(((2, 6, 6, 3), (2, 4)), ranges={1: (0.0, 50.0)}),
            Sample(((3, 5, 7, 2), (3, 4)), low=0.0, high=1.0, ranges={1: (0.0, 50.0)}),
        ),
    ),
)
