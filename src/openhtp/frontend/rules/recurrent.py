"""LSTM: one QNN op per direction."""

from __future__ import annotations

import numpy as np

from openhtp.core.tensor import TensorSpec
from openhtp.frontend import values as vs
from openhtp.frontend.model import Array
from openhtp.frontend.site import Site

# ONNX stacks the gates as input, output, forget, cell. These are QNN's inputs for each gate's weights from the
# sequence, for its weights from the hidden state, and for its bias.
_PLACES = ((16, 17, 21), (3, 6, 9), (1, 4, 7), (2, 5, 8))
_PORTS = 22
_HIDDEN, _CELL = 10, 11
_DIRECTIONS = {"forward": (0,), "reverse": (1,), "bidirectional": (0, 1)}


def _lstm(site: Site) -> None:
    _check(site)
    directions = _DIRECTIONS[site.attr("direction", "forward")]
    steps, batch, _ = site.type(0).shape
    units = int(site.attr("hidden_size") or site.type(2).shape[-1])
    ends = []
    for number, backwards in enumerate(directions):
        x = site.take(0)
        sequence = site.between((steps, batch, units), x)
        cell, hidden = site.between((batch, units), x), site.between((batch, units), x)
        params = {"direction": backwards, "time_major": True}
        site.emit("Lstm", _operands(site, x, number, units), [sequence, cell, hidden], params)
        ends.append((sequence, hidden, cell))
    for index, axis in ((0, 1), (1, 0), (2, 0)):
        if site.is_used(index):
            _stack(site, index, [parts[index] for parts in ends], axis)


def _check(site: Site) -> None:
    """Refuse features of ONNX's operator that the HTP's does not have."""
    if site.is_fixed:
        site.refuse("it has no encodings for what lies between its steps", "it is computed in floats")
    directions = _DIRECTIONS.get(site.attr("direction", "forward"))
    if directions is None or site.attr("layout", 0):
        site.refuse("it has another direction or layout than ONNX's default", "use layout 0")
    for name, plain in (("clip", None), ("input_forget", 0)):
        if site.attr(name, plain) != plain:
            site.refuse(f"{name} is {site.attr(name)!r}", "the HTP has no such choice: leave it out")
    usual = ["Sigmoid", "Tanh", "Tanh"] * len(directions)
    if (site.attr("activations") or usual) != usual:
        site.refuse(f"its activations are {site.attr('activations')}", f"use {', '.join(usual[:3])}")
    lengths = site.constant(4)
    if site.has(4) and lengths is None:
        site.refuse("how long its sequences are is computed (sequence_lens)", "freeze the input that says it")
    if lengths is not None and np.any(lengths != site.type(0).shape[0]):
        site.refuse("its sequences end early (sequence_lens)", "give all of the same length, and cut afterwards")
    peepholes = site.constant(7)
    if site.has(7) and (peepholes is None or np.any(peepholes)):
        site.refuse("it has peepholes", "train without them, or unroll it")


def _operands(site: Site, x: TensorSpec, number: int, units: int) -> list[TensorSpec | None]:
    """The inputs of one direction, each at its index."""
    weights, recurrent = _constant_weights(site, 1)[number], _constant_weights(site, 2)[number]
    biases = _constant_weights(site, 3)[number] if site.has(3) else np.zeros(8 * units, np.float32)
    operands: list[TensorSpec | None] = [None] * _PORTS
    operands[0] = x
    for gate, (from_input, from_hidden, bias) in enumerate(_PLACES):
        rows = slice(gate * units, (gate + 1) * units)
        operands[from_input] = site.static(weights[rows], x.dtype)
        operands[from_hidden] = site.static(recurrent[rows], x.dtype)
        # ONNX has two biases and adds both.
        operands[bias] = site.static(biases[: 4 * units][rows] + biases[4 * units :][rows], x.dtype)
    for index, operand in ((5, _HIDDEN), (6, _CELL)):
        if site.has(index):
            operands[operand] = _state(site, index, number, x)
    return operands


def _constant_weights(site: Site, index: int) -> Array:
    weights = site.constant(index)
    if weights is None:
        site.refuse(f"input {index} ({site.node.inputs[index]!r}) is computed", "make its weights constants")
    return np.asarray(weights)


def _state(site: Site, index: int, number: int, x: TensorSpec) -> TensorSpec:
    """The first state of one direction."""
    known = site.constant(index)
    if known is not None:
        return site.static(np.asarray(known)[number], x.dtype)
    value = site.value(index)
    whole = site.assembly.form(value, vs.identity(3))
    directions, batch, units = value.shape
    if directions > 1:
        part = site.between((1, batch, units), x)
        ranges = np.array([[number, number + 1, 1], [0, batch, 1], [0, units, 1]], np.int32)
        site.emit("StridedSlice", [whole], [part], {"ranges": ranges})
        whole = part
    state = site.between((batch, units), x)
    site.emit("Reshape", [whole], [state])
    return state


def _stack(site: Site, index: int, parts: list[TensorSpec], axis: int) -> None:
    """Stack the results of all directions along a new axis."""
    out = site.give(index)
    shape = (*parts[0].shape[:axis], 1, *parts[0].shape[axis:])
    if len(parts) == 1:
        site.emit("Reshape", parts, [out])
        return
    lifted = []
    for part in parts:
        lifted.append(site.between(shape, part))
        site.emit("Reshape", [part], [lifted[-1]])
    site.emit("Concat", lifted, [out], {"axis": axis})


RULES = {"LSTM": _lstm}
