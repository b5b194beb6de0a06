"""Writes operators that have no QNN op as nodes that have one.

These are the operators whose form matters: half precision overflows early, and an HTP is fastest with few large
products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from openhtp.core.errors import UnsupportedOp
from openhtp.frontend.model import Array, OnnxNode, ValueType

# Nodes are written as in this opset, whatever the model's is.
_OPSET = 18


class Writer:
    """Collects nodes; the last one gets the name of the output that it stands for."""

    def __init__(
        self, node: OnnxNode, types: Mapping[str, ValueType], constants: Mapping[str, Array] | None = None
    ) -> None:
        self.node = node
        self.nodes: list[OnnxNode] = []
        self._types = types
        self._constants = constants or {}
        # The first output may be left out.
        self._stem = next((name for name in node.outputs if name), node.name)
        self._names = 0

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute of the node that is taken apart."""
        return self.node.attr(name, default)

    def input(self, index: int) -> str:
        """Name of one of its inputs."""
        return self.node.inputs[index]

    def type(self, index: int) -> ValueType:
        """Type of one of its inputs."""
        return self._types[self.node.inputs[index]]

    def known(self, index: int) -> Array | None:
        """Value of one of its inputs, if it is given and a constant."""
        return self._constants.get(self.node.inputs[index]) if self.node.has(index) else None

    def new_name(self, word: str) -> str:
        """A name for a value that nothing else has."""
        self._names += 1
        return f"{self._stem}/{word}_{self._names}"

    def constant(self, data: Any) -> str:
        """A constant."""
        array: Array = np.asarray(data)
        return self.add("Constant", [], {"value": array})

    def integers(self, data: int | Sequence[int]) -> str:
        """A constant of whole numbers: sizes, axes, indices."""
        return self.constant(np.array(data, np.int64))

    def reshape(self, name: str, sizes: Sequence[int]) -> str:
        """A value in another shape."""
        return self.add("Reshape", [name, self.integers(sizes)])

    def add(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Any] | None = None, *, opset: int = _OPSET
    ) -> str:
        """A node in between; gives the name of its result."""
        return self.put(op, inputs, [f"{self._stem}/{op}_{len(self.nodes)}"], attrs, opset=opset)

    def end(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Any] | None = None, *, opset: int = _OPSET
    ) -> str:
        """The node that gives the output."""
        return self.put(op, inputs, self.node.outputs[:1], attrs, opset=opset)

    def put(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        attrs: Mapping[str, Any] | None = None,
        *,
        opset: int = _OPSET,
    ) -> str:
        """A node with these results; gives the name of the first."""
        name = f"{self.node.name}/{op}_{len(self.nodes)}"
        self.nodes.append(OnnxNode(op, "", name, tuple(inputs), tuple(outputs), dict(attrs or {}), opset))
        return outputs[0]

    def refuse(self, problem: str, advice: str) -> NoReturn:
        """The node cannot be taken apart."""
        raise UnsupportedOp(f"{self.node.title}: {problem}; {advice}")


# Einsum as transpositions, sums and matrix products. Each operand is summed over the letters that no other has.
# Two operands at a time are then brought into the form ``[shared, own, summed]`` and ``[shared, summed, own]``,
# multiplied as matrices, and their letters sorted again.

_ADVICE = "write it as Transpose, Reshape and MatMul"
# Letters for the axes that an ellipsis stands for; equations have none of these.
_ELLIPSIS = "0123456789"


@dataclass(frozen=True, slots=True)
class _Term:
    """A value with a letter per axis."""

    name: str
    letters: str


def _einsum(w: Writer) -> None:
    """Write the nodes of an Einsum."""
    terms, wanted, sizes = _parsed_equation(w)
    current = terms[0]
    for index, other in enumerate(terms[1:], 1):
        later = wanted + "".join(term.letters for term in terms[index + 1 :])
        current = _product(w, current, other, later, sizes)
    current = _summed(w, current, wanted)
    perm = [current.letters.index(letter) for letter in wanted]
    if perm:
        w.end("Transpose", [current.name], {"perm": perm})
    else:
        w.end("Identity", [current.name])


def _parsed_equation(w: Writer) -> tuple[list[_Term], str, dict[str, int]]:
    equation = str(w.attr("equation", "")).replace(" ", "")
    left, arrow, wanted = equation.partition("->")
    parts = left.split(",")
    if len(parts) != len(w.node.inputs):
        w.refuse(f"equation {equation!r} has {len(parts)} terms for {len(w.node.inputs)} inputs", _ADVICE)
    shapes = [w.type(index).shape for index in range(len(parts))]
    ranks = [len(shape) - len(part) + 3 if "..." in part else 0 for part, shape in zip(parts, shapes, strict=True)]
    widest = max(ranks)
    written = [
        part.replace("...", _ELLIPSIS[widest - rank : widest]) for part, rank in zip(parts, ranks, strict=True)
    ]
    if not arrow:
        everything = "".join(written)
        wanted = "..." + "".join(sorted(c for c in set(everything) if everything.count(c) == 1 and c.isalpha()))
    wanted = wanted.replace("...", _ELLIPSIS[:widest])
    sizes: dict[str, int] = {}
    for letters, shape in zip(written, shapes, strict=True):
        if len(letters) != len(shape) or len(set(letters)) != len(letters):
            w.refuse(f"equation {equation!r} repeats a letter in a term, or does not fit {list(shape)}", _ADVICE)
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                w.refuse(f"axes of sizes {sizes[letter]} and {size} share a letter of {equation!r}", _ADVICE)
    if len(set(wanted)) != len(wanted) or not set(wanted) <= set(sizes):
        w.refuse(f"the result of equation {equation!r} repeats a letter, or has one of its own", _ADVICE)
    names = w.node.inputs
    return [_Term(name, letters) for name, letters in zip(names, written, strict=True)], wanted, sizes


def _summed(w: Writer, term: _Term, kept: str) -> _Term:
    """The term without the letters that no other term has."""
    axes = [axis for axis, letter in enumerate(term.letters) if letter not in kept]
    if not axes:
        return term
    name = w.add("ReduceSum", [term.name, w.integers(axes)], {"keepdims": 0})
    return _Term(name, "".join(letter for letter in term.letters if letter in kept))


def _product(w: Writer, left: _Term, right: _Term, later: str, sizes: dict[str, int]) -> _Term:
    left, right = _summed(w, left, right.letters + later), _summed(w, right, left.letters + later)
    both = [letter for letter in left.letters if letter in right.letters]
    shared = "".join(letter for letter in both if letter in later)
    inner = "".join(letter for letter in both if letter not in later)
    rows = "".join(letter for letter in left.letters if letter not in both)
    columns = "".join(letter for letter in right.letters if letter not in both)
    a = _arranged(w, left, (shared, rows, inner), sizes)
    b = _arranged(w, right, (shared, inner, columns), sizes)
    product = w.add("MatMul", [a, b])
    letters = shared + rows + columns
    return _Term(w.reshape(product, [sizes[letter] for letter in letters]), letters)


def _arranged(w: Writer, term: _Term, groups: tuple[str, str, str], sizes: dict[str, int]) -> str:
    """The term with three axes, one for each group of letters."""
    order = "".join(groups)
    name = term.name
    if order != term.letters:
        name = w.add("Transpose", [name], {"perm": [term.letters.index(letter) for letter in order]})
    shape = [math.prod(sizes[letter] for letter in group) for group in groups]
    return w.reshape(name, shape)


# Recurrent layers, step by step. The products with the sequence do not depend on the steps before, so they are one
# MatMul for all of them. A step has only the products with the state.

# Steps become nodes: a graph of more steps takes too long to compile.
_MOST_STEPS = 2048
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}

_Step = Callable[[str, str], str]
"""From the products with one element of the sequence, and the state, to the next state."""


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights of one direction: names of [size, gates x units] for sequence and state, and of the two biases."""

    sequence: str
    state: str
    sequence_bias: str | None
    state_bias: str | None


def _gru(w: Writer) -> None:
    """ONNX's GRU: gates are update, reset and candidate."""
    _check_recurrent(w, ["Sigmoid", "Tanh"])
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

    _write_steps(w, gates_after if w.attr("linear_before_reset", 0) else gates_before)


def _mixed(w: Writer, update: str, fresh: str, state: str) -> str:
    """Part of the state and part of the candidate: ``(1 - update) * fresh + update * state``."""
    update, fresh = w.add("Sigmoid", [update]), w.add("Tanh", [fresh])
    return w.add("Add", [fresh, w.add("Mul", [update, w.add("Sub", [state, fresh])])])


def _rnn(w: Writer) -> None:
    """ONNX's RNN: one gate."""
    names = w.attr("activations") or ["Tanh"]
    if set(names) - {"Tanh", "Relu", "Sigmoid"} or len(set(names)) != 1:
        w.refuse(f"its activations are {names}", "use Tanh, Relu or Sigmoid")
    _check_recurrent(w, names[:1])

    def plain(weights: _Weights) -> _Step:
        def step(x: str, state: str) -> str:
            return w.add(names[0], [w.add("Add", [x, _linear(w, state, weights.state, weights.state_bias)])])

        return step

    _write_steps(w, plain)


def _check_recurrent(w: Writer, usual: list[str]) -> None:
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
    if steps > _MOST_STEPS:
        w.refuse(f"it has {steps} steps", f"at most {_MOST_STEPS} are written out: give shorter sequences (dims)")


def _write_steps(w: Writer, prepared: Callable[[_Weights], _Step]) -> None:
    """All steps of all directions. Values that depend on weights alone are made once for all steps."""
    steps, batch, _ = w.type(0).shape
    units = w.type(2).shape[-1]
    sequences, ends = [], []
    for number, backwards in enumerate(_DIRECTIONS[w.attr("direction", "forward")]):
        weights = _direction_weights(w, number)
        step = prepared(weights)
        projected = _linear(w, w.input(0), weights.sequence, weights.sequence_bias)
        flat = w.reshape(projected, [steps * batch, -1])
        inputs = _split(w, flat, [batch] * steps, axis=0)
        state = _first_state(w, number, (batch, units))
        states = []
        for x in inputs[:: -1 if backwards else 1]:
            state = step(x, state)
            states.append(state)
        in_time = states[:: -1 if backwards else 1]
        whole = w.add("Concat", in_time, {"axis": 0}) if steps > 1 else in_time[0]
        sequences.append(w.reshape(whole, [steps, 1, batch, units]))
        ends.append(w.reshape(state, [1, batch, units]))
    for index, (parts, axis) in enumerate(((sequences, 1), (ends, 0))):
        if index < len(w.node.outputs) and w.node.outputs[index]:
            op, attrs = ("Concat", {"axis": axis}) if len(parts) > 1 else ("Identity", {})
            w.put(op, parts, [w.node.outputs[index]], attrs)


def _direction_weights(w: Writer, number: int) -> _Weights:
    sequence, state = (
        w.add("Transpose", [_direction_row(w, index, number)], {"perm": [1, 0]}) for index in (1, 2)
    )
    if not w.node.has(3):
        return _Weights(sequence, state, None, None)
    row = _direction_row(w, 3, number)
    half = w.type(3).shape[-1] // 2
    sequence_bias, state_bias = _split(w, row, [half, half])
    return _Weights(sequence, state, sequence_bias, state_bias)


def _direction_row(w: Writer, index: int, number: int) -> str:
    """What an input has for one direction."""
    return w.add("Gather", [w.input(index), w.integers(number)], {"axis": 0})


def _first_state(w: Writer, number: int, shape: tuple[int, int]) -> str:
    if w.node.has(5):
        return _direction_row(w, 5, number)
    return w.constant(np.zeros(shape, w.type(0).dtype))


def _linear(w: Writer, x: str, weight: str, bias: str | None) -> str:
    product = w.add("MatMul", [x, weight])
    return w.add("Add", [product, bias]) if bias is not None else product


def _split(w: Writer, name: str, sizes: list[int], axis: int = -1) -> list[str]:
    if len(sizes) == 1:
        return [name]
    outputs = [w.new_name("part") for _ in sizes]
    w.put("Split", [name, w.integers(sizes)], outputs, {"axis": axis})
    return outputs


# Short-time Fourier transforms as convolutions: windows and frequencies are known, so they are weights.


def _stft(w: Writer) -> None:
    """ONNX's STFT of a real signal: [batch, length] to [batch, frames, frequencies, 2]."""
    signal, step = w.type(0).shape, w.known(1)
    window, length = w.known(2), w.known(3)
    if len(signal) == 3 and signal[2] != 1:
        w.refuse("its signal is complex", "transform real and imaginary part by themselves")
    if step is None or (w.node.has(2) and window is None) or (w.node.has(3) and length is None):
        w.refuse("its window, frame_length or frame_step is computed", "make them constants")
    if window is None and length is None:
        w.refuse("it has neither window nor frame_length", "give one of them")
    size = int(length.reshape(-1)[0]) if length is not None else window.size if window is not None else 0
    stride = int(step.reshape(-1)[0])
    if window is not None and window.size != size:
        w.refuse(f"its window has {window.size} elements and its frames {size}", "give both the same size")
    if not 0 < size <= signal[1] or stride < 1:
        w.refuse(f"frames of {size} every {stride} do not fit a signal of {signal[1]}", "give a longer signal")
    bins = size // 2 + 1 if w.attr("onesided", 1) else size
    frames = (signal[1] - size) // stride + 1
    kernel = _fourier_kernel(size, bins, np.ones(size) if window is None else window.reshape(-1))
    line = w.reshape(w.input(0), [signal[0], 1, signal[1]])
    products = w.add("Conv", [line, w.constant(kernel.astype(w.type(0).dtype))], {"strides": [stride]})
    parts = w.reshape(products, [signal[0], 2, bins, frames])
    w.end("Transpose", [parts], {"perm": [0, 3, 2, 1]})


def _fourier_kernel(size: int, bins: int, window: Array) -> Array:
    """Real parts of all frequencies, then imaginary ones: [2 x bins, 1, size]."""
    # Angles are reduced as integers: exact for long frames too.
    turns = np.outer(np.arange(bins), np.arange(size)) % size / size
    waves = np.concatenate((np.cos(2 * np.pi * turns), -np.sin(2 * np.pi * turns)))
    return (waves * window.astype(np.float64))[:, np.newaxis]


# Small operators


def _trilu(w: Writer) -> None:
    """A triangle of the last two axes. The elements that stay are known."""
    rows, columns = w.type(0).shape[-2:]
    shift = w.node.inputs[1] if w.node.has(1) else ""
    line, column = w.constant(np.arange(rows).reshape(-1, 1)), w.constant(np.arange(columns))
    diagonal = w.add("Add", [line, shift]) if shift else line
    stays = w.add("GreaterOrEqual" if w.attr("upper", 1) else "LessOrEqual", [column, diagonal])
    w.end("Where", [stays, w.input(0), w.constant(np.zeros((), w.type(0).dtype))])


def _is_nan(w: Writer) -> None:
    """What does not equal itself."""
    w.end("Not", [w.add("Equal", [w.input(0), w.input(0)])])


def _reduced(w: Writer, op: str, source: str, *, keep: bool, last: bool = False) -> str:
    attrs = {name: value for name, value in w.node.attrs.items() if name in ("axes", "noop_with_empty_axes")}
    inputs = [source, *w.node.inputs[1:]]
    # Axes became an input of ReduceSum in opset 13, of the other reductions in 18. The node's own form decides.
    opset = 11 if "axes" in attrs else 18
    write = w.end if last else w.add
    return write(op, inputs, {**attrs, "keepdims": int(keep)}, opset=opset)


def _l1(w: Writer) -> None:
    _reduced(w, "ReduceSum", w.add("Abs", [w.input(0)]), keep=bool(w.attr("keepdims", 1)), last=True)


def _l2(w: Writer) -> None:
    """QNN's ReduceSumSquare is not in the HTP's library, Multiply and ReduceSum are."""
    squares = w.add("Mul", [w.input(0), w.input(0)])
    w.end("Sqrt", [_reduced(w, "ReduceSum", squares, keep=bool(w.attr("keepdims", 1)))])


def _log_sum(w: Writer) -> None:
    w.end("Log", [_reduced(w, "ReduceSum", w.input(0), keep=bool(w.attr("keepdims", 1)))])


def _log_sum_exp(w: Writer) -> None:
    """With the largest taken out: in half precision exp overflows from 11.1 on."""
    keep = bool(w.attr("keepdims", 1))
    largest = _reduced(w, "ReduceMax", w.input(0), keep=True)
    powers = w.add("Exp", [w.add("Sub", [w.input(0), largest])])
    logs = w.add("Log", [_reduced(w, "ReduceSum", powers, keep=True)])
    if keep:
        w.end("Add", [logs, largest])
    else:
        # The axes that go away have size 1 by now: another maximum over them changes nothing else.
        _reduced(w, "ReduceMax", w.add("Add", [logs, largest]), keep=False, last=True)


WRITTEN: dict[str, Callable[[Writer], None]] = {
    "Einsum": _einsum,
    "GRU": _gru,
    "IsNaN": _is_nan,
    "ReduceL1": _l1,
    "ReduceL2": _l2,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
    "RNN": _rnn,
    "STFT": _stft,
    "Trilu": _trilu,
}
