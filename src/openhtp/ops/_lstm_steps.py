"""An Lstm written out step by step, for what ONNX's operator does not have: projection, normalization, limits.

Kept beside ``lstm.py``, which says what the inputs are; here they are only numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from openhtp.ops._emit import Emitter
from openhtp.ops._node import Node

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
    """Emits the steps of one node."""

    def __init__(self, node: Node, e: Emitter, x: str) -> None:
        """``x`` is the sequence, [steps, batch, features]."""
        self._node = node
        self._e = e
        self._x = x
        self._sums: dict[Gate, str] = {}

    def emit(self, steps: range, hidden: str, cell: str) -> tuple[list[str], str]:
        """Hidden states in the order of ``steps``, and the last cell state."""
        found = []
        for step in steps:
            forget = self._op("Sigmoid", self._gate(FORGET_GATE, step, hidden, cell))
            if self._node.has(INPUT_GATE.from_input):
                enter = self._op("Sigmoid", self._gate(INPUT_GATE, step, hidden, cell))
            else:
                enter = self._op("Sub", self._number(1.0), forget)
            candidate = self._op("Tanh", self._gate(CELL_GATE, step, hidden, cell))
            kept, added = self._op("Mul", forget, cell), self._op("Mul", enter, candidate)
            cell = self._limited(self._op("Add", kept, added), self._node.params["cell_clip_threshold"])
            # The way out looks at the new cell, the other gates at the old one.
            leave = self._op("Sigmoid", self._gate(OUTPUT_GATE, step, hidden, cell))
            hidden = self._projected(self._op("Mul", leave, self._op("Tanh", cell)))
            found.append(hidden)
        return found, cell

    def _gate(self, gate: Gate, step: int, hidden: str, cell: str) -> str:
        if gate not in self._sums:
            self._sums[gate] = self._op("MatMul", self._x, self._weight(gate.from_input))
        here = self._e.node("Gather", [self._sums[gate], self._e.const(np.array(step, np.int64))], axis=0)
        total = self._op("Add", here, self._op("MatMul", hidden, self._weight(gate.from_hidden)))
        if gate.peephole is not None and self._node.has(gate.peephole):
            total = self._op("Add", total, self._op("Mul", cell, self._vector(gate.peephole)))
        if self._node.has(gate.norm):
            total = self._op("Mul", self._normalized(total), self._vector(gate.norm))
        return self._op("Add", total, self._vector(gate.bias))

    def _normalized(self, total: str) -> str:
        last = self._e.const(np.array([-1], np.int64))
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
        return self._e.const(np.array(value, np.float32))

    def _op(self, op_type: str, *inputs: str) -> str:
        return self._e.node(op_type, list(inputs))
