"""Images in another size: nearest, linear and cubic interpolation. The new size is that of the output tensor."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.ops._node import Array, Arrays, Emitter, Layout, Node, Results, Shapes
from openhtp.ops._opdef import Constraint, OpDef, Param, Sample, TypeRow, rows, vector_work
from openhtp.ops._shapes import expect_rank, refuse


@dataclass(frozen=True, slots=True)
class Mode:
    """How a node resizes, in ONNX's words."""

    kind: str
    places: str
    rounding: str = "floor"
    cubic_coeff: float = -0.75
    exclude_outside: bool = False


_TRANSFORMATIONS = {"HALF_PIXEL": 0, "PYTORCH_HALF_PIXEL": 1, "ALIGN_CORNERS": 2, "ASYMMETRIC": 3}
_INTERPOLATIONS = {"NEAREST": 0, "LINEAR": 1, "CUBIC": 2}
_ROUNDINGS = {"ROUND_PREFER_FLOOR": 0, "ROUND_PREFER_CEIL": 1, "FLOOR": 2, "CEIL": 3}
_PLACES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


def _mode(node: Node) -> Mode:
    if node.op == "Resize":
        return Mode(
            kind=("nearest", "linear", "cubic")[node.params["interpolation_mode"]],
            places=_PLACES[node.params["transformation_mode"]],
            rounding=[word.lower() for word in _ROUNDINGS][node.params["nearest_mode"]],
            cubic_coeff=node.params["cubic_coeff"],
            exclude_outside=node.params["exclude_outside"],
        )
    corners, centers = node.params["align_corners"], node.params["half_pixel_centers"]
    places = "align_corners" if corners else "half_pixel" if centers else "asymmetric"
    if node.op == "ResizeBilinear":
        return Mode("linear", places)
    # Pixel centers: floor((i + 0.5) * ratio) is the half-pixel place rounded half up.
    return Mode("nearest", places, "floor" if places == "asymmetric" else "round_prefer_ceil")


def _infer(node: Node) -> Shapes:
    shape = expect_rank(node, 0, *((3, 4, 5) if node.op == "Resize" else (4,)))
    out = node.outputs[0].shape if node.outputs else shape
    if len(out) != len(shape) or (out[0], out[-1]) != (shape[0], shape[-1]):
        refuse(node, f"output has shape {list(out)}; expected batch and channels of {list(shape)}")
    return (out,)


def _reference(node: Node, arrays: Arrays) -> Results:
    mode = _mode(node)
    matrices = []
    for size, out in zip(node.shape()[1:-1], node.outputs[0].shape[1:-1], strict=True):
        if mode.kind == "nearest":
            matrices.append(nearest_matrix(size, out, mode.places, mode.rounding))
        elif mode.kind == "linear":
            matrices.append(linear_matrix(size, out, mode.places))
        else:
            matrices.append(
                cubic_matrix(size, out, mode.places, mode.cubic_coeff, exclude_outside=mode.exclude_outside)
            )
    return (resample(arrays[0], matrices),)


def _lower(node: Node, e: Emitter) -> None:
    mode, out = _mode(node), node.outputs[0].shape
    if mode.kind != "nearest" and not node.input().is_dynamic and not _is_the_runtimes(node, mode, e):
        return e.put(0, _interpolated(node, e, mode))
    sizes = e.ints([out[0], out[-1], *out[1:-1]])
    attrs: dict[str, Any] = {"mode": mode.kind, "coordinate_transformation_mode": mode.places}
    if mode.kind == "nearest":
        attrs["nearest_mode"] = mode.rounding
    if mode.kind == "cubic":
        attrs |= {"cubic_coeff_a": mode.cubic_coeff, "exclude_outside": int(mode.exclude_outside)}
    return e.put(0, e.node("Resize", [e.value(0), "", "", sizes], **attrs))


# Interpolation with the same bits on every processor. Where it is not on x86, the runtime's own operator rounds a
# product and a sum at once. A cubic one fails on x86 in one of the orders of axes that its optimiser chooses
# (decision 037).

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Taps:
    """The inputs along one axis that each output is made of: a row of indices and of weights for each of these."""

    axis: int
    indices: npt.NDArray[np.int64]
    weights: Floats


def _is_the_runtimes(node: Node, mode: Mode, e: Emitter) -> bool:
    """Whether the runtime's own operator is to compute it."""
    if node.shape() == node.outputs[0].shape:
        return True
    return mode.kind == "linear" and e.rounds_products_alone


def _interpolated(node: Node, e: Emitter, mode: Mode) -> str:
    sizes, outs = _channels_first(node.shape()), _channels_first(node.outputs[0].shape)
    weigh = linear_taps if mode.kind == "linear" else cubic_taps
    taps = [
        weigh(axis, size, out, mode)
        for axis, (size, out) in enumerate(zip(sizes, outs, strict=True))
        if size != out
    ]
    result = _by_one_operator(e, sizes, outs, taps, by_axis=mode.kind == "cubic")
    if result:
        return result
    return (_in_linear_steps if mode.kind == "linear" else _in_cubic_steps)(e, len(outs), taps)


def _by_one_operator(
    e: Emitter, sizes: Sequence[int], outs: Sequence[int], taps: Sequence[Taps], *, by_axis: bool
) -> str:
    """By an operator of the engine's own; "" where it has none."""
    counts = {one.axis - len(outs): len(one.indices) for one in taps}
    attrs = {"by_axis": int(by_axis), "rank": len(outs), "batch": outs[0], "channels": outs[1]}
    sides = (("depth", "taps_deep"), ("height", "taps_down"), ("width", "taps_across"))
    for axis, (side, count) in zip((-3, -2, -1), sides, strict=True):
        is_there = axis >= 2 - len(outs)
        attrs[side] = sizes[axis] if is_there else 1
        attrs[f"new_{side}"] = outs[axis] if is_there else 1
        attrs[count] = counts.get(axis, 1)
    indices = np.concatenate([one.indices.ravel() for one in taps])
    weights = np.concatenate([one.weights.ravel() for one in taps])
    return e.own_node("Interpolation", [e.value(0), e.const(indices), e.const(weights)], outs, **attrs)


def _in_linear_steps(e: Emitter, rank: int, taps: Sequence[Taps]) -> str:
    """A sum over all corners, each weighted by the product of its weights, last axis first."""
    corners: list[tuple[str, tuple[Floats, ...]]] = [(e.value(0), ())]
    for one in taps:
        corners = [
            (e.node("Gather", [name, e.ints(indices)], axis=one.axis), (_along(one, weight, rank), *weights))
            for name, weights in corners
            for indices, weight in zip(one.indices, one.weights, strict=True)
        ]
    return _sum(
        e, [e.node("Mul", [name, e.const(functools.reduce(np.multiply, weights))]) for name, weights in corners]
    )


def _in_cubic_steps(e: Emitter, rank: int, taps: Sequence[Taps]) -> str:
    """One axis after the other, the last one first."""
    name = e.value(0)
    for one in reversed(taps):
        name = _sum(
            e,
            [
                e.node(
                    "Mul",
                    [
                        e.node("Gather", [name, e.ints(indices)], axis=one.axis),
                        e.const(_along(one, weight, rank)),
                    ],
                )
                for indices, weight in zip(one.indices, one.weights, strict=True)
            ],
        )
    return name


def _along(taps: Taps, numbers: Floats, rank: int) -> Floats:
    return numbers.reshape(-1, *(1,) * (rank - 1 - taps.axis))


def _sum(e: Emitter, terms: Sequence[str]) -> str:
    return functools.reduce(lambda total, term: e.node("Add", [total, term]), terms)


def _channels_first(sizes: Sequence[int]) -> tuple[int, ...]:
    return (sizes[0], sizes[-1], *sizes[1:-1])


def _float_places(size: int, out: int, places: str) -> Floats:
    """Where the outputs lie between the inputs, in the runtime's own arithmetic."""
    numbers, half = np.arange(out, dtype=np.float32), np.float32(0.5)
    if places == "align_corners":
        return numbers * np.float32(size - 1) / np.float32(max(out - 1, 1))
    ratio = np.float32(out) / np.float32(size)
    if places == "asymmetric":
        return numbers / ratio
    if places == "pytorch_half_pixel" and out == 1:
        return numbers
    return (numbers + half) / ratio - half


def linear_taps(axis: int, size: int, out: int, mode: Mode) -> Taps:
    """Each output lies between two inputs."""
    source = np.clip(_float_places(size, out, mode.places), np.float32(0), np.float32(size - 1))
    left = source.astype(np.int64)
    right = np.minimum(left + 1, size - 1)
    weights = np.abs(source - np.stack([right, left]).astype(np.float32))
    weights[:, left == right] = 0.5
    return Taps(axis, np.stack([left, right]), weights)


def cubic_taps(axis: int, size: int, out: int, mode: Mode) -> Taps:
    """Each output is made of four inputs."""
    source = _float_places(size, out, mode.places)
    base = np.floor(source)
    indices = np.stack([base.astype(np.int64) + offset for offset in (-1, 0, 1, 2)])
    apart = np.abs((source - base).astype(np.float64) - np.array([[-1], [0], [1], [2]]))
    weights = np.vectorize(_cubic)(apart, mode.cubic_coeff)
    if mode.exclude_outside:
        weights[(indices < 0) | (indices >= size)] = 0
        weights /= weights.sum(axis=0)
    return Taps(axis, np.clip(indices, 0, size - 1), weights.astype(np.float32))


def _resizing(
    name: str, summary: str, types: tuple[TypeRow, ...], params: tuple[Param, ...], samples: tuple[Sample, ...]
) -> OpDef:
    return OpDef(
        name=name,
        summary=summary,
        types=types,
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=vector_work(2 if name == "ResizeNearestNeighbor" else 8),
        kind="resize",
        params=params,
        constraints=(
            Constraint(
                "align_corners and half_pixel_centers are not both set",
                lambda node: not (node.params.get("align_corners") and node.params.get("half_pixel_centers")),
            ),
            Constraint(
                "cubic interpolation is for rank 4",
                lambda node: _mode(node).kind != "cubic" or node.input().rank == 4,
            ),
        ),
        layout=Layout.CHANNEL_FIRST,
        values_kept=name == "ResizeNearestNeighbor",
        moves_only=name == "ResizeNearestNeighbor",
        samples=samples,
    )


_CORNERS = (
    Param("align_corners", DType.BOOL_8, default=False),
    Param("half_pixel_centers", DType.BOOL_8, default=False),
)
_UP, _DOWN = ((1, 8, 10, 3),), ((1, 3, 4, 3),)
_IN = ((1, 4, 5, 3),)

OPS = (
    _resizing(
        "ResizeBilinear",
        "in[0] in the output's size, linearly interpolated",
        rows("T > T : f16 f32 u16 s16 u8 s8"),
        (*_CORNERS, Param("antialias", DType.BOOL_8, default=False)),
        (
            Sample(_IN, outputs=_UP),
            Sample(_IN, {"align_corners": True}, outputs=_UP),
            Sample(_IN, {"half_pixel_centers": True}, outputs=_DOWN),
        ),
    ),
    _resizing(
        "ResizeNearestNeighbor",
        "in[0] in the output's size, from the nearest pixel",
        rows("T > T : f16 f32 u16 u8 s8"),
        _CORNERS,
        (Sample(_IN, outputs=_UP), Sample(_IN, {"half_pixel_centers": True}, outputs=_DOWN)),
    ),
    _resizing(
        "Resize",
        "in[0] in the output's size, interpolated as the modes say",
        rows("T > T : f16 f32 u16 u8 s8"),
        (
            Param("exclude_outside", DType.BOOL_8, default=False),
            Param("transformation_mode", default=0, choices=_TRANSFORMATIONS),
            Param("interpolation_mode", default=0, choices=_INTERPOLATIONS),
            Param("nearest_mode", default=0, choices=_ROUNDINGS),
            Param("cubic_coeff", DType.FLOAT_32, default=-0.75),
        ),
        (
            Sample(_IN, {"interpolation_mode": "LINEAR"}, outputs=_UP),
            Sample(_IN, {"nearest_mode": "FLOOR", "transformation_mode": "ASYMMETRIC"}, outputs=_DOWN),
            Sample(_IN, {"interpolation_mode": "CUBIC"}, outputs=_UP),
        ),
    ),
)


# Resampling along one axis as a matrix: row i holds the weights of the inputs that make output i.


# How an output index becomes a place between inputs: (index, output size, input size) -> place.
PLACES: dict[str, Callable[[int, int, int], float]] = {
    "half_pixel": lambda i, out, size: (i + 0.5) * size / out - 0.5,
    "pytorch_half_pixel": lambda i, out, size: (i + 0.5) * size / out - 0.5 if out > 1 else 0.0,
    "align_corners": lambda i, out, size: i * (size - 1) / (out - 1) if out > 1 else 0.0,
    "asymmetric": lambda i, out, size: i * size / out,
}
_ROUND: dict[str, Callable[[float], float]] = {
    "round_prefer_floor": lambda x: math.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: math.floor(x + 0.5),
    "floor": math.floor,
    "ceil": math.ceil,
}


def nearest_matrix(size: int, out: int, places: str, rounding: str) -> Array:
    """Each output is one input."""
    matrix = np.zeros((out, size))
    for i in range(out):
        source = _ROUND[rounding](PLACES[places](i, out, size))
        matrix[i, min(max(int(source), 0), size - 1)] = 1.0
    return matrix


def linear_matrix(size: int, out: int, places: str) -> Array:
    """Each output lies between two inputs; beyond the border the last one counts alone."""
    matrix = np.zeros((out, size))
    for i in range(out):
        source = min(max(PLACES[places](i, out, size), 0.0), size - 1.0)
        left = min(int(source), size - 1)
        matrix[i, left] += 1.0 - (source - left)
        matrix[i, min(left + 1, size - 1)] += source - left
    return matrix


def cubic_matrix(size: int, out: int, places: str, a: float, *, exclude_outside: bool) -> Array:
    """Each output is made of four inputs by the cubic convolution kernel with coefficient ``a``."""
    matrix = np.zeros((out, size))
    for i in range(out):
        source = PLACES[places](i, out, size)
        base = math.floor(source)
        weights = [_cubic(abs(source - (base + k)), a) for k in range(-1, 3)]
        if exclude_outside:
            weights = [w if 0 <= base + k < size else 0.0 for k, w in zip(range(-1, 3), weights, strict=True)]
            weights = [w / sum(weights) for w in weights]
        for k, weight in zip(range(-1, 3), weights, strict=True):
            matrix[i, min(max(base + k, 0), size - 1)] += weight
    return matrix


def _cubic(x: float, a: float) -> float:
    if x <= 1.0:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2.0 else 0.0


def resample(x: Array, matrices: list[Array]) -> Array:
    """Apply one matrix per image axis of a channel-last array."""
    for axis, matrix in enumerate(matrices, start=1):
        x = np.moveaxis(np.tensordot(matrix, x, axes=(1, axis)), 0, axis)
    return x
