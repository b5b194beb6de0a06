"""Lstm: one layer, one direction.

Inputs, by number: 0 the sequence; 1, 2, 3 weights from it to the forget gate, the cell and the output gate;
4, 5, 6 the same from the hidden state; 7, 8, 9 their biases; 10 and 11 the first hidden and cell state;
16, 17, 21 weights and bias of the input gate. Layer normalization (12..15), peepholes (18..20), projection
(22, 23) and the reset flag (24) are not offered.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._emit import Emitter
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._opdef import Constraint, OpDef, Param, Port, Sample, Work, touched_bytes
from openhtp.ops._shapes import expect_rank, expect_shape, refuse
from openhtp.ops._types import rows

# Inputs of each gate in the order that ONNX stacks them: input, output, forget, cell.
_FROM_INPUT, _FROM_HIDDEN, _BIASES = (16, 3, 1, 2), (17, 6, 4, 5), (21, 9, 7, 8)
_UNOFFERED = (*range(12, 16), *range(18, 21), *range(22, 25))


def _sizes(node: Node) -> tuple[int, int, int]:
    """Steps, batch and features of the sequence."""
    shape = expect_rank(node, 0, 2, 3)
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    steps, batch = shape[:2] if node.params["time_major"] else shape[1::-1]
    return steps, batch, shape[2]


def _infer(node: Node) -> tuple[Shape, ...]:
    _, batch, features = _sizes(node)
    units = node.shape(1)[0]
    for index in (16, 17, 21):
        if not node.has(index):
            refuse(node, f"input {index} is left out; coupling the input gate to the forget gate is not offered")
    for number in _FROM_INPUT:
        expect_shape(node, number, (units, features), "units by features")
    for number in _FROM_HIDDEN:
        expect_shape(node, number, (units, units), "units by units")
    for number in _BIASES:
        expect_shape(node, number, (units,), "one per unit")
    for number in (10, 11):
        expect_shape(node, number, (batch, units), "batch by units")
    return (*node.shape()[:-1], units), (batch, units), (batch, units)


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)))


def _reference(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    steps, batch, features = _sizes(node)
    x = arrays[0].reshape(1, batch, features) if node.input().rank == 2 else arrays[0]
    if node.input().rank == 3 and not node.params["time_major"]:
        x = np.moveaxis(x, 1, 0)
    units = node.shape(1)[0]
    hidden = arrays[10] if node.has(10) else np.zeros((batch, units))
    cell = arrays[11] if node.has(11) else np.zeros((batch, units))
    out = np.zeros((steps, batch, units))
    for step in range(steps)[:: -1 if node.params["direction"] else 1]:
        i, o, f, c = (
            x[step] @ arrays[w].T + hidden @ arrays[r].T + arrays[b]
            for w, r, b in zip(_FROM_INPUT, _FROM_HIDDEN, _BIASES, strict=True)
        )
        cell = _sigmoid(f) * cell + _sigmoid(i) * np.tanh(c)
        hidden = _sigmoid(o) * np.tanh(cell)
        out[step] = hidden
    if node.input().rank == 3 and not node.params["time_major"]:
        out = np.moveaxis(out, 0, 1)
    return out.reshape(*node.shape()[:-1], units), cell, hidden


def _stacked(e: Emitter, numbers: Sequence[int], rank: int) -> str:
    perm = tuple(range(rank))
    parts = [e.weight(number, lambda w: w, perm, axis=0, integer=False) for number in numbers]
    return e.node("Unsqueeze", [e.node("Concat", parts, axis=0), e.const(np.array([0], np.int64))])


def _lower(node: Node, e: Emitter) -> None:
    steps, batch, features = _sizes(node)
    units, time_major = node.shape(1)[0], node.params["time_major"]
    three_axes = node.input().rank == 3
    x = e.permuted(0, (1, 0, 2)) if three_axes and not time_major else e.value(0)
    if not three_axes:
        x = e.reshaped(0, (1, batch, features))
    biases = e.node("Concat", [_stacked(e, _BIASES, 1), e.const(np.zeros((1, 4 * units), np.float32))], axis=1)
    first = e.const(np.array([0], np.int64))
    states = [e.node("Unsqueeze", [e.value(number), first]) if node.has(number) else "" for number in (10, 11)]
    inputs = [x, _stacked(e, _FROM_INPUT, 2), _stacked(e, _FROM_HIDDEN, 2), biases, "", *states]
    direction = "reverse" if node.params["direction"] else "forward"
    out, hidden, cell = e.nodes("LSTM", inputs, 3, hidden_size=units, direction=direction)
    sequence = e.node("Reshape", [out, e.const(np.array([steps, batch, units], np.int64))])
    if three_axes and not time_major:
        sequence = e.node("Transpose", [sequence], perm=[1, 0, 2])
    if not three_axes:
        sequence = e.node("Reshape", [out, e.const(np.array([batch, units], np.int64))])
    flat = e.const(np.array([batch, units], np.int64))
    e.put(0, sequence)
    e.put(1, e.node("Reshape", [cell, flat]))
    e.put(2, e.node("Reshape", [hidden, flat]))


def _work(node: Node) -> Work:
    steps, batch, features = _sizes(node)
    units = node.shape(1)[0]
    read, written = touched_bytes(node)
    return Work(4 * steps * batch * units * (features + units), 40 * steps * batch * units, read, written)


def _inputs(steps_first: Shape, units: int) -> tuple[Shape | None, ...]:
    features, batch = steps_first[-1], steps_first[-2]
    shapes: list[Shape | None] = [None] * 22
    shapes[0], shapes[10], shapes[11] = steps_first, (batch, units), (batch, units)
    for number in _FROM_INPUT:
        shapes[number] = (units, features)
    for number in _FROM_HIDDEN:
        shapes[number] = (units, units)
    for number in _BIASES:
        shapes[number] = (units,)
    return tuple(shapes)


_STATIC = (*_FROM_INPUT, *_FROM_HIDDEN, *_BIASES)
_RANGES = dict.fromkeys(_STATIC, (-0.6, 0.6))
_QSCALES = tuple(
    Param(f"{name}_qscale", DType.FLOAT_32, default=0.0)
    for name in ("input_gate", "forget_gate", "cell_gate", "output_gate", "hidden_state")
)

OPS = (
    OpDef(
        name="Lstm",
        summary="long short-term memory over a sequence; outputs are the sequence, the last cell and hidden state",
        inputs=tuple(Port(f"in[{index}]", optional=index > 9) for index in range(25)),
        outputs=(Port("out[0]"), Port("out[1]"), Port("out[2]")),
        types=rows("T* > T T T : f16 f32"),
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=_work,
        params=(
            Param("direction", default=0, choices={"FORWARD": 0, "REVERSE": 1}),
            Param("cell_clip_threshold", DType.FLOAT_32, default=0.0),
            Param("output_clip_threshold", DType.FLOAT_32, default=0.0),
            Param("time_major", DType.BOOL_8, default=True),
            *_QSCALES,
            Param("hidden_state_offset", DType.FLOAT_32, default=0.0),
        ),
        constraints=(
            Constraint(
                "layer normalization, peepholes, projection and reset are left out",
                lambda node: not any(node.has(index) for index in _UNOFFERED),
            ),
            Constraint(
                "cell and output are not clipped",
                lambda node: not (node.params["cell_clip_threshold"] or node.params["output_clip_threshold"]),
            ),
        ),
        samples=(
            Sample(_inputs((3, 2, 4), 5), static=_STATIC, ranges=_RANGES),
            Sample(_inputs((3, 2, 4), 5), {"direction": "REVERSE"}, static=_STATIC, ranges=_RANGES),
            Sample(_inputs((2, 4), 5), static=_STATIC, ranges=_RANGES),
        ),
    ),
)
