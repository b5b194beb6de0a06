"""Recurrent layers that the HTP has no op for, written out step by step: GRU and RNN.

The products with the sequence do not depend on the steps before, so they are one MatMul for all of them; a step
has only those with the state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from openhtp.frontend.writing import Writer

# Steps become nodes: beyond this a graph takes longer to compile than anyone waits.
MOST_STEPS = 2048
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}

_Step = Callable[[str, str], str]
"""From the products with one element of the sequence, and the state, to the next state."""


@dataclass(frozen=True, slots=True)
class _Weights:
    """Of one direction: names of [size, gates x units] for sequence and state, and of the two biases."""

    sequence: str
    state: str
    sequence_bias: str | None
    state_bias: str | None


def write_gru(w: Writer) -> None:
    """ONNX's GRU: gates are update, reset and candidate."""
    _check(w, ["Sigmoid", "Tanh"])
    units = w.type(2).shape[-1]

    def gates_before(weights: _Weights) -> _Step:
        """The reset is applied to the state, before the candidate's product."""
        early, late = _split(w, weights.state, [2 * units, units])
        biases: list[str] | list[None] = [None, None]
        if weights.state_bias is not None:
            biases = _split(w, weights.state_bias, [2 * units, units])

        def step(x: str, state: str) -> str:
            x_update, x_reset, x_new = _split(w, x, [units] * 3)
            h_update, h_reset = _split(w, _linear(w, state, early, biases[0]), [units] * 2)
            reset = w.add("Sigmoid", [w.add("Add", [x_reset, h_reset])])
            h_new = _linear(w, w.add("Mul", [reset, state]), late, biases[1])
            return _mixed(w, w.add("Add", [x_update, h_update]), w.add("Add", [x_new, h_new]), state)

        return step

    def gates_after(weights: _Weights) -> _Step:
        """The reset is applied to the candidate's product."""

        def step(x: str, state: str) -> str:
            x_update, x_reset, x_new = _split(w, x, [units] * 3)
            h_update, h_reset, h_new = _split(w, _linear(w, state, weights.state, weights.state_bias), [units] * 3)
            reset = w.add("Sigmoid", [w.add("Add", [x_reset, h_reset])])
            h_new = w.add("Mul", [reset, h_new])
            return _mixed(w, w.add("Add", [x_update, h_update]), w.add("Add", [x_new, h_new]), state)

        return step

    _write(w, gates_after if w.attr("linear_before_reset", 0) else gates_before)


def _mixed(w: Writer, update: str, fresh: str, state: str) -> str:
    """Part of the state and part of the candidate: ``(1 - update) * fresh + update * state``."""
    update, fresh = w.add("Sigmoid", [update]), w.add("Tanh", [fresh])
    return w.add("Add", [fresh, w.add("Mul", [update, w.add("Sub", [state, fresh])])])


def write_rnn(w: Writer) -> None:
    """ONNX's RNN: one gate."""
    names = w.attr("activations") or ["Tanh"]
    if set(names) - {"Tanh", "Relu", "Sigmoid"} or len(set(names)) != 1:
        w.refuse(f"its activations are {names}", "use Tanh, Relu or Sigmoid")
    _check(w, names[:1])

    def plain(weights: _Weights) -> _Step:
        def step(x: str, state: str) -> str:
            return w.add(names[0], [w.add("Add", [x, _linear(w, state, weights.state, weights.state_bias)])])

        return step

    _write(w, plain)


def _check(w: Writer, usual: list[str]) -> None:
    steps = w.type(0).shape[0]
    directions = _DIRECTIONS.get(w.attr("direction", "forward"))
    if directions is None or w.attr("layout", 0):
        w.refuse("it has another direction or layout than ONNX's default", "use layout 0")
    if w.attr("clip") is not None:
        w.refuse(f"clip is {w.attr('clip')!r}", "leave it out")
    if (w.attr("activations") or usual * len(directions)) != usual * len(directions):
        w.refuse(f"its activations are {w.attr('activations')}", f"use {', '.join(usual)}")
    lengths = w.known(4)
    if w.node.has(4) and lengths is None:
        w.refuse("how long its sequences are is computed (sequence_lens)", "freeze the input that says it")
    if lengths is not None and np.any(lengths != steps):
        w.refuse("its sequences end early (sequence_lens)", "give all of the same length, and cut afterwards")
    if steps > MOST_STEPS:
        w.refuse(f"it has {steps} steps", f"at most {MOST_STEPS} are written out: give shorter sequences (dims)")


def _write(w: Writer, prepared: Callable[[_Weights], _Step]) -> None:
    """All steps of all directions. What is made of the weights is made once for all steps."""
    steps, batch, _ = w.type(0).shape
    units = w.type(2).shape[-1]
    sequences, ends = [], []
    for number, backwards in enumerate(_DIRECTIONS[w.attr("direction", "forward")]):
        weights = _weights(w, number)
        step = prepared(weights)
        projected = _linear(w, w.input(0), weights.sequence, weights.sequence_bias)
        flat = w.add("Reshape", [projected, w.constant(np.array([steps * batch, -1], np.int64))])
        parts = _split(w, flat, [batch] * steps, axis=0)
        state = _first_state(w, number, (batch, units))
        states = []
        for x in parts[:: -1 if backwards else 1]:
            state = step(x, state)
            states.append(state)
        in_time = states[:: -1 if backwards else 1]
        whole = w.add("Concat", in_time, {"axis": 0}) if steps > 1 else in_time[0]
        shape = w.constant(np.array([steps, 1, batch, units], np.int64))
        sequences.append(w.add("Reshape", [whole, shape]))
        ends.append(w.add("Reshape", [state, w.constant(np.array([1, batch, units], np.int64))]))
    for index, (found, axis) in enumerate(((sequences, 1), (ends, 0))):
        if index < len(w.node.outputs) and w.node.outputs[index]:
            w.put("Concat" if len(found) > 1 else "Identity", found, [w.node.outputs[index]], _axis(found, axis))


def _axis(parts: list[str], axis: int) -> dict[str, int]:
    return {"axis": axis} if len(parts) > 1 else {}


def _weights(w: Writer, number: int) -> _Weights:
    sequence, state = (w.add("Transpose", [_row(w, index, number)], {"perm": [1, 0]}) for index in (1, 2))
    if not w.node.has(3):
        return _Weights(sequence, state, None, None)
    row = _row(w, 3, number)
    half = w.type(3).shape[-1] // 2
    sequence_bias, state_bias = _split(w, row, [half, half])
    return _Weights(sequence, state, sequence_bias, state_bias)


def _row(w: Writer, index: int, number: int) -> str:
    """What an input has for one direction."""
    return w.add("Gather", [w.input(index), w.constant(np.array(number, np.int64))], {"axis": 0})


def _first_state(w: Writer, number: int, shape: tuple[int, int]) -> str:
    if w.node.has(5):
        return _row(w, 5, number)
    return w.constant(np.zeros(shape, w.type(0).dtype))


def _linear(w: Writer, x: str, weight: str, bias: str | None) -> str:
    product = w.add("MatMul", [x, weight])
    return w.add("Add", [product, bias]) if bias is not None else product


def _split(w: Writer, name: str, sizes: list[int], axis: int = -1) -> list[str]:
    if len(sizes) == 1:
        return [name]
    outputs = [w.new_name("part") for _ in sizes]
    w.put("Split", [name, w.constant(np.array(sizes, np.int64))], outputs, {"axis": axis})
    return outputs
