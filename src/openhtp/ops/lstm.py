"""Lstm: one layer, one direction.

Inputs, by number: 0 the sequence; 1, 2, 3 weights from it to the forget gate, the cell and the output gate; 4, 5,
6 the same from the hidden state; 7, 8, 9 their biases; 10 and 11 the first hidden and cell state; 16, 17, 21
weights and bias of the input gate, which is 1 minus the forget gate if they are left out; 12 to 15 factors of
normalized gates (fixed point only); 18 to 20 weights from the cell to the gates; 22 and 23 weights and bias of a
projection, behind which the hidden state may have another size. The reset flag (24) is not offered.

Fixed point is computed on real values and rounded where the node has a tensor. The parameters for the scales of
intermediate values have no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._node import Array, Arrays, Emitter, Node, Results, Shape, Shapes
from openhtp.ops._opdef import Constraint, OpDef, Param, Port, Sample, TypeRow, Work, rows
from openhtp.ops._shapes import expect_rank, expect_shape, refuse
from openhtp.ops.activation import sigmoid

# What keeps the normalization of a constant row from dividing by zero.
NORM_EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class Gate:
    """Numbers of the inputs that make one gate; the last two may be left out of a node."""

    from_input: int
    from_hidden: int
    bias: int
    norm: int
    peephole: int | None


INPUT_GATE = Gate(16, 17, 21, 12, 18)
FORGET_GATE = Gate(1, 4, 7, 13, 19)
CELL_GATE = Gate(2, 5, 8, 14, None)
OUTPUT_GATE = Gate(3, 6, 9, 15, 20)
PROJECTION, PROJECTION_BIAS = 22, 23


class Steps:
    """Emits the steps of a node that ONNX's operator cannot compute: projection, normalization, limits."""

    def __init__(self, node: Node, e: Emitter, x: str) -> None:
        """``x`` is the sequence, [steps, batch, features]."""
        self._node = node
        self._e = e
        self._x = x
        self._sums: dict[Gate, str] = {}

    def emit(self, steps: range, hidden: str, cell: str) -> tuple[list[str], str]:
        """Hidden states in the order of ``steps``, and the last cell state."""
        hidden_states = []
        for step in steps:
            forget = self._op("Sigmoid", self._gate(FORGET_GATE, step, hidden, cell))
            if self._node.has(INPUT_GATE.from_input):
                enter = self._op("Sigmoid", self._gate(INPUT_GATE, step, hidden, cell))
            else:
                enter = self._op("Sub", self._number(1.0), forget)
            candidate = self._op("Tanh", self._gate(CELL_GATE, step, hidden, cell))
            remembered, added = self._op("Mul", forget, cell), self._op("Mul", enter, candidate)
            cell = self._limited(self._op("Add", remembered, added), self._node.params["cell_clip_threshold"])
            # The output gate looks at the new cell, the other gates at the old one.
            leave = self._op("Sigmoid", self._gate(OUTPUT_GATE, step, hidden, cell))
            hidden = self._projected(self._op("Mul", leave, self._op("Tanh", cell)))
            hidden_states.append(hidden)
        return hidden_states, cell

    def _gate(self, gate: Gate, step: int, hidden: str, cell: str) -> str:
        if gate not in self._sums:
            self._sums[gate] = self._op("MatMul", self._x, self._weight(gate.from_input))
        step_sums = self._e.node("Gather", [self._sums[gate], self._e.ints(step)], axis=0)
        total = self._op("Add", step_sums, self._op("MatMul", hidden, self._weight(gate.from_hidden)))
        if gate.peephole is not None and self._node.has(gate.peephole):
            total = self._op("Add", total, self._op("Mul", cell, self._vector(gate.peephole)))
        if self._node.has(gate.norm):
            total = self._op("Mul", self._normalized(total), self._vector(gate.norm))
        return self._op("Add", total, self._vector(gate.bias))

    def _normalized(self, total: str) -> str:
        last = self._e.ints([-1])
        apart = self._op("Sub", total, self._e.node("ReduceMean", [total, last], keepdims=1))
        variance = self._e.node("ReduceMean", [self._op("Mul", apart, apart), last], keepdims=1)
        return self._op("Div", apart, self._op("Sqrt", self._op("Add", variance, self._number(NORM_EPSILON))))

    def _projected(self, hidden: str) -> str:
        if not self._node.has(PROJECTION):
            return hidden
        out = self._op("MatMul", hidden, self._weight(PROJECTION))
        if self._node.has(PROJECTION_BIAS):
            out = self._op("Add", out, self._vector(PROJECTION_BIAS))
        return self._limited(out, self._node.params["output_clip_threshold"])

    def _limited(self, name: str, threshold: float) -> str:
        return (
            self._e.node("Clip", [name, self._number(-threshold), self._number(threshold)]) if threshold else name
        )

    def _weight(self, index: int) -> str:
        return self._e.weight(index, np.transpose, (1, 0), axis=1, integer=False)

    def _vector(self, index: int) -> str:
        return self._e.weight(index, lambda w: w, (0,), axis=0, integer=False)

    def _number(self, value: float) -> str:
        return self._e.floats(value)

    def _op(self, op_type: str, *inputs: str) -> str:
        return self._e.node(op_type, list(inputs))


# In the order that ONNX stacks them.
_GATES = (INPUT_GATE, OUTPUT_GATE, FORGET_GATE, CELL_GATE)
_FROM_INPUT = tuple(gate.from_input for gate in _GATES)
_FROM_HIDDEN = tuple(gate.from_hidden for gate in _GATES)
_BIASES = tuple(gate.bias for gate in _GATES)
_NORMS, _PEEPHOLES = range(12, 16), range(18, 21)
_RESET = 24


def _sizes(node: Node) -> tuple[int, int, int]:
    """Steps, batch and features of the sequence."""
    shape = expect_rank(node, 0, 2, 3)
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    steps, batch = shape[:2] if node.params["time_major"] else shape[1::-1]
    return steps, batch, shape[2]


def _out_size(node: Node) -> int:
    """Size of the hidden state."""
    return node.shape(PROJECTION if node.has(PROJECTION) else 1)[0]


def _infer(node: Node) -> Shapes:
    _, batch, features = _sizes(node)
    units, out = node.shape(1)[0], _out_size(node)
    if len({node.has(index) for index in (16, 17, 21)}) > 1:
        refuse(node, "inputs 16, 17 and 21 make the input gate: expected all of them or none")
    for number in _FROM_INPUT:
        expect_shape(node, number, (units, features), "units by features")
    for number in _FROM_HIDDEN:
        expect_shape(node, number, (units, out), "units by size of the hidden state")
    for number in (*_BIASES, *_NORMS, *_PEEPHOLES):
        expect_shape(node, number, (units,), "one per unit")
    expect_shape(node, PROJECTION, (out, units), "size of the hidden state by units")
    expect_shape(node, PROJECTION_BIAS, (out,), "one per number of the hidden state")
    expect_shape(node, 10, (batch, out), "batch by size of the hidden state")
    expect_shape(node, 11, (batch, units), "batch by units")
    return (*node.shape()[:-1], out), (batch, units), (batch, out)


def _gate(node: Node, arrays: Arrays, gate: Gate, x: Array, hidden: Array, cell: Array) -> Array:
    total = x @ arrays[gate.from_input].T + hidden @ arrays[gate.from_hidden].T
    if gate.peephole is not None and node.has(gate.peephole):
        total = total + cell * arrays[gate.peephole]
    if node.has(gate.norm):
        spread = np.sqrt(total.var(axis=-1, keepdims=True) + NORM_EPSILON)
        total = (total - total.mean(axis=-1, keepdims=True)) / spread * arrays[gate.norm]
    return np.asarray(total + arrays[gate.bias])


def _limited(x: Array, threshold: float) -> Array:
    return np.clip(x, -threshold, threshold) if threshold else x


def _reference(node: Node, arrays: Arrays) -> Results:
    steps, batch, features = _sizes(node)
    x = arrays[0].reshape(1, batch, features) if node.input().rank == 2 else arrays[0]
    if node.input().rank == 3 and not node.params["time_major"]:
        x = np.moveaxis(x, 1, 0)
    units, size = node.shape(1)[0], _out_size(node)
    hidden = arrays[10] if node.has(10) else np.zeros((batch, size))
    cell = arrays[11] if node.has(11) else np.zeros((batch, units))
    out = np.zeros((steps, batch, size))
    for step in range(steps)[:: -1 if node.params["direction"] else 1]:
        forget = sigmoid(_gate(node, arrays, FORGET_GATE, x[step], hidden, cell))
        enter = sigmoid(_gate(node, arrays, INPUT_GATE, x[step], hidden, cell)) if node.has(16) else 1 - forget
        fresh = np.tanh(_gate(node, arrays, CELL_GATE, x[step], hidden, cell))
        cell = _limited(forget * cell + enter * fresh, node.params["cell_clip_threshold"])
        hidden = sigmoid(_gate(node, arrays, OUTPUT_GATE, x[step], hidden, cell)) * np.tanh(cell)
        if node.has(PROJECTION):
            hidden = hidden @ arrays[PROJECTION].T + (arrays[PROJECTION_BIAS] if node.has(PROJECTION_BIAS) else 0)
            hidden = _limited(hidden, node.params["output_clip_threshold"])
        out[step] = hidden
    if node.input().rank == 3 and not node.params["time_major"]:
        out = np.moveaxis(out, 0, 1)
    return out.reshape(*node.shape()[:-1], size), cell, hidden


def _stacked(e: Emitter, numbers: Sequence[int], rank: int) -> str:
    perm = tuple(range(rank))
    parts = [e.weight(number, lambda w: w, perm, axis=0, integer=False) for number in numbers]
    return e.node("Unsqueeze", [e.node("Concat", parts, axis=0), e.ints([0])])


def _fits_onnx(node: Node) -> bool:
    """Whether ONNX's operator can compute the node."""
    extras = (*_NORMS, *_PEEPHOLES, PROJECTION)
    return node.has(16) and not any(node.has(index) for index in extras) and not node.params["cell_clip_threshold"]


def _emit_whole(node: Node, e: Emitter, x: str) -> tuple[str, str, str]:
    """By ONNX's operator: the sequence, the last hidden and the last cell state, in shapes of its own.

    Biases are weights of one more feature that is always 1. The runtime, given biases, turns NaN into numbers.
    """
    _, batch, _ = _sizes(node)
    units = node.shape(1)[0]
    first = e.ints([0])
    biases = e.node("Unsqueeze", [_stacked(e, _BIASES, 1), e.ints([2])])
    weights = e.node("Concat", [_stacked(e, _FROM_INPUT, 2), biases], axis=2)
    x = e.node("Pad", [x, e.ints([0, 0, 0, 0, 0, 1]), e.floats(1.0)])
    states = [
        e.node("Unsqueeze", [e.value(number), first])
        if node.has(number)
        else e.const(np.zeros((1, batch, units), np.float32))
        for number in (10, 11)
    ]
    inputs = [x, weights, _stacked(e, _FROM_HIDDEN, 2), "", "", *states]
    direction = "reverse" if node.params["direction"] else "forward"
    out, hidden, cell = e.nodes("LSTM", inputs, 3, hidden_size=units, direction=direction)
    return out, hidden, cell


def _emit_steps(node: Node, e: Emitter, x: str) -> tuple[str, str, str]:
    """The results of ``_emit_whole``, computed step by step."""
    steps, batch, _ = _sizes(node)
    sizes = (10, (batch, _out_size(node))), (11, (batch, node.shape(1)[0]))
    first = [e.value(index) if node.has(index) else e.const(np.zeros(shape, np.float32)) for index, shape in sizes]
    order = range(steps)[:: -1 if node.params["direction"] else 1]
    hidden_states, cell = Steps(node, e, x).emit(order, first[0], first[1])
    in_time = hidden_states[:: order.step]
    front = e.ints([0])
    whole = e.node("Concat", [e.node("Unsqueeze", [name, front]) for name in in_time], axis=0)
    return whole, hidden_states[-1], cell


def _lower(node: Node, e: Emitter) -> None:
    steps, batch, features = _sizes(node)
    units, size, time_major = node.shape(1)[0], _out_size(node), node.params["time_major"]
    three_axes = node.input().rank == 3
    x = e.permuted(0, (1, 0, 2)) if three_axes and not time_major else e.value(0)
    if not three_axes:
        x = e.reshaped(0, (1, batch, features))
    out, hidden, cell = _emit_whole(node, e, x) if _fits_onnx(node) else _emit_steps(node, e, x)

    def shaped(name: str, *sizes: int) -> str:
        return e.node("Reshape", [name, e.ints(sizes)])

    sequence = shaped(out, steps, batch, size) if three_axes else shaped(out, batch, size)
    if three_axes and not time_major:
        sequence = e.node("Transpose", [sequence], perm=[1, 0, 2])
    e.put(0, sequence)
    e.put(1, shaped(cell, batch, units))
    e.put(2, shaped(hidden, batch, size))


def _work(node: Node) -> Work:
    steps, batch, features = _sizes(node)
    units = node.shape(1)[0]
    return Work.on(
        node, macs=4 * steps * batch * units * (features + units), vector_ops=40 * steps * batch * units
    )


def _inputs(
    steps_first: Shape, units: int, *extra: int, out: int = 0, coupled: bool = False
) -> tuple[Shape | None, ...]:
    features, batch = steps_first[-1], steps_first[-2]
    size = out or units
    shapes: list[Shape | None] = [None] * 24
    shapes[0], shapes[10], shapes[11] = steps_first, (batch, size), (batch, units)
    for gate in _GATES[1:] if coupled else _GATES:
        shapes[gate.from_input] = (units, features)
        shapes[gate.from_hidden] = (units, size)
        shapes[gate.bias] = (units,)
    if out:
        shapes[PROJECTION], shapes[PROJECTION_BIAS] = (out, units), (out,)
    for number in extra:
        shapes[number] = (units,)
    return tuple(shapes)


_STATIC = (*range(1, 10), *range(12, 24))
_RANGES = dict.fromkeys(_STATIC, (-0.6, 0.6))
_QSCALES = tuple(
    Param(f"{name}_qscale", DType.FLOAT_32, default=0.0)
    for name in ("input_gate", "forget_gate", "cell_gate", "output_gate", "hidden_state")
)


def _fixed_point(weight: str) -> TypeRow:
    """Activations of 8 bits, states and factors of 16, biases of 32."""
    states, biases = ["s16"] * 5, ["s32"] * 3
    words = ["u8", *[weight] * 6, *biases, "u8", *states, weight, weight, *states[:3], "s32", weight, "s32"]
    return rows(f"{' '.join(words)} b > u8 s16 u8")[0]


def _sample(shapes: tuple[Shape | None, ...], types: tuple[str, ...] = (), **params: object) -> Sample:
    return Sample(shapes, params, static=_STATIC, ranges=_RANGES, types=types)


OPS = (
    OpDef(
        name="Lstm",
        summary="long short-term memory over a sequence; outputs are the sequence, the last cell and hidden state",
        inputs=tuple(Port(f"in[{index}]", optional=index > 9) for index in range(25)),
        outputs=(Port("out[0]"), Port("out[1]"), Port("out[2]")),
        types=(*rows("T* > T T T : f16 f32"), *(_fixed_point(word) for word in ("u8", "s8"))),
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
            Constraint("the reset flag is left out", lambda node: not node.has(_RESET)),
            Constraint(
                "normalization is for fixed point",
                lambda node: node.input().dtype.is_fixed_point or not any(node.has(index) for index in _NORMS),
            ),
            Constraint(
                "direction is FORWARD in fixed point",
                lambda node: not (node.input().dtype.is_fixed_point and node.params["direction"]),
            ),
        ),
        samples=(
            _sample(_inputs((3, 2, 4), 5)),
            _sample(_inputs((3, 2, 4), 5), types=("f16", "f32"), direction="REVERSE"),
            _sample(_inputs((2, 4), 5)),
            _sample(_inputs((2, 4), 5, *_PEEPHOLES, out=3), cell_clip_threshold=0.4, output_clip_threshold=0.3),
            _sample(_inputs((3, 3, 4), 5, coupled=True), time_major=False),
            _sample(_inputs((3, 2, 4), 5, *_PEEPHOLES, out=3), types=("f16", "f32"), direction="REVERSE"),
            _sample(_inputs((2, 4), 5, *_NORMS, out=6), types=("u8",)),
        ),
    ),
)
