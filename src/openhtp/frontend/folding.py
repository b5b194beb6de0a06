"""Computes, while importing, what depends on constants only: mostly the arithmetic that makes shapes.

Exporters write the target of a Reshape as a dozen nodes on ``Shape(x)``, and masks or positions as two dozen. With
fixed shapes all of these values are known. This module computes only cheap operators on small arrays, the most
frequent ones with numpy. Anything larger stays in the graph, where the compiler folds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from openhtp.core.errors import BadModel, UnsupportedOp
from openhtp.frontend.model import Array, OnnxNode, ValueType
from openhtp.frontend.schemas import evaluate

_MAX_ELEMENTS = 1 << 20

Inputs = Sequence[Array | None]


def can_fold(node: OnnxNode) -> bool:
    """Whether the node is of the kind that is computed here."""
    return not node.domain and (node.op_type in _FOLDS or node.op_type in _BY_DEFINITION)


def fold(node: OnnxNode, inputs: Inputs, outputs: Sequence[ValueType | None]) -> list[Array] | None:
    """The node's results, or None if the node is of another kind or too large."""
    sizes = [math.prod(known.shape) for known in outputs if known is not None]
    sizes.extend(array.size for array in inputs if array is not None)
    if not can_fold(node) or any(size > _MAX_ELEMENTS for size in sizes):
        return None
    function = _FOLDS.get(node.op_type)
    try:
        with np.errstate(all="ignore"):
            computed = [function(node, inputs)] if function is not None else evaluate(node, inputs)
    except (ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError, AttributeError) as error:
        raise UnsupportedOp(f"{node.title} cannot be computed: {error}") from error
    if computed is None:
        return None
    results = []
    for result, known in zip(computed, outputs, strict=True):
        if result is None or result.size > _MAX_ELEMENTS:
            return None
        results.append(np.asarray(result, known.dtype) if known is not None else result)
    return results


def constant_of(node: OnnxNode) -> Array:
    """The value of a Constant node."""
    for name, value in node.attrs.items():
        if name == "value":
            return np.asarray(value)
        if name in ("value_float", "value_floats"):
            return np.asarray(value, np.float32)
        if name in ("value_int", "value_ints"):
            return np.asarray(value, np.int64)
    raise BadModel(f"{node.title} has no value that is a number")


def _ints(array: Array | None) -> list[int]:
    return [] if array is None else [int(item) for item in np.asarray(array).reshape(-1)]


def _axes(node: OnnxNode, inputs: Inputs) -> tuple[int, ...]:
    second = inputs[1] if len(inputs) > 1 else None
    return tuple(node.attr("axes") or _ints(second))


def _slice(node: OnnxNode, inputs: Inputs) -> Array | None:
    x = inputs[0]
    assert x is not None
    if "starts" in node.attrs:
        starts, ends, axes, steps = node.attr("starts"), node.attr("ends"), node.attr("axes"), None
    else:
        starts, ends = _ints(inputs[1]), _ints(inputs[2])
        axes = _ints(inputs[3]) if len(inputs) > 3 and inputs[3] is not None else None
        steps = _ints(inputs[4]) if len(inputs) > 4 and inputs[4] is not None else None
    cuts: list[slice] = [slice(None)] * x.ndim
    for index, axis in enumerate(axes or range(len(starts))):
        step = steps[index] if steps else 1
        end = None if step < 0 and ends[index] < -x.shape[axis] else ends[index]
        cuts[axis] = slice(starts[index], end, step)
    return x[tuple(cuts)]


def _range(node: OnnxNode, inputs: Inputs) -> Array | None:
    begin, end, step = (np.asarray(item).item() for item in inputs)
    if step == 0 or (end - begin) / step > _MAX_ELEMENTS:
        return None
    return np.arange(begin, end, step, dtype=np.asarray(inputs[0]).dtype)


def _filled(node: OnnxNode, inputs: Inputs) -> Array | None:
    shape = _ints(inputs[0])
    value = np.asarray(node.attr("value", np.zeros(1, np.float32)))
    if any(size < 0 for size in shape) or math.prod(shape) > _MAX_ELEMENTS:
        return None
    return np.full(shape, value.reshape(-1)[0], value.dtype)


def _expand(node: OnnxNode, inputs: Inputs) -> Array | None:
    x = inputs[0]
    assert x is not None
    shape = np.broadcast_shapes(x.shape, tuple(_ints(inputs[1])))
    return np.broadcast_to(x, shape) if math.prod(shape) <= _MAX_ELEMENTS else None


def _reshape(node: OnnxNode, inputs: Inputs) -> Array | None:
    x = inputs[0]
    assert x is not None
    wanted = node.attr("shape") or _ints(inputs[1])
    sizes = [x.shape[i] if size == 0 and not node.attr("allowzero", 0) else size for i, size in enumerate(wanted)]
    return x.reshape(sizes)


def _divide(node: OnnxNode, inputs: Inputs) -> Array | None:
    a, b = np.asarray(inputs[0]), np.asarray(inputs[1])
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    if not np.all(b):
        return None
    return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)), a.dtype)


def _gather_elements(node: OnnxNode, inputs: Inputs) -> Array | None:
    x, where = np.asarray(inputs[0]), np.asarray(inputs[1])
    axis = node.attr("axis", 0) % x.ndim
    # Along the other axes there may be fewer indices than elements.
    cut = tuple(slice(None) if other == axis else slice(size) for other, size in enumerate(where.shape))
    return np.take_along_axis(x[cut], where, axis)


def _elementwise(function: Callable[..., Any]) -> Callable[[OnnxNode, Inputs], Array | None]:
    return lambda node, inputs: np.asarray(function(*inputs))


_FOLDS: dict[str, Callable[[OnnxNode, Inputs], Array | None]] = {
    "Add": _elementwise(np.add),
    "Sub": _elementwise(np.subtract),
    "Mul": _elementwise(np.multiply),
    "Div": _divide,
    "Neg": _elementwise(np.negative),
    "Abs": _elementwise(np.abs),
    "Sqrt": _elementwise(np.sqrt),
    "Pow": lambda node, inputs: np.asarray(np.power(np.asarray(inputs[0]), np.asarray(inputs[1]))),
    "Floor": _elementwise(np.floor),
    "Ceil": _elementwise(np.ceil),
    "Equal": _elementwise(np.equal),
    "Greater": _elementwise(np.greater),
    "Less": _elementwise(np.less),
    "Not": _elementwise(np.logical_not),
    "And": _elementwise(np.logical_and),
    "Or": _elementwise(np.logical_or),
    "Where": _elementwise(np.where),
    "Identity": _elementwise(np.asarray),
    "Cast": _elementwise(np.asarray),
    "Concat": lambda node, inputs: np.concatenate([np.asarray(x) for x in inputs], node.attr("axis", 0)),
    "Gather": lambda node, inputs: np.take(np.asarray(inputs[0]), np.asarray(inputs[1]), node.attr("axis", 0)),
    "GatherElements": _gather_elements,
    "Transpose": lambda node, inputs: np.transpose(np.asarray(inputs[0]), node.attr("perm")),
    "Reshape": _reshape,
    "Unsqueeze": lambda node, inputs: np.expand_dims(np.asarray(inputs[0]), _axes(node, inputs)),
    "Squeeze": lambda node, inputs: np.squeeze(np.asarray(inputs[0]), _axes(node, inputs) or None),
    "Slice": _slice,
    "Range": _range,
    "ConstantOfShape": _filled,
    "Expand": _expand,
    "ReduceProd": lambda node, inputs: np.prod(
        np.asarray(inputs[0]), axis=_axes(node, inputs) or None, keepdims=bool(node.attr("keepdims", 1))
    ),
}

# These are too rare to be written here: ONNX's own definition computes them.
_BY_DEFINITION = frozenset(
    (
        *("ArgMax", "ArgMin", "BitShift", "CastLike", "Clip", "Cos", "CumSum", "Erf", "Exp", "EyeLike"),
        *("Flatten", "GatherND", "GreaterOrEqual", "IsInf", "IsNaN", "LessOrEqual", "Log", "Max", "Min", "Mod"),
        *("OneHot", "Pad", "Reciprocal", "ReduceMax", "ReduceMin", "ReduceSum", "Round", "ScatterElements"),
        *("ScatterND", "Sigmoid", "Sign", "Sin", "Split", "Sum", "Tanh", "Tile", "TopK", "Trilu", "Xor"),
    )
)
