"""Operators that no QNN op stands for, written as others that have one.

Some are written here, since it matters how: half precision overflows early, and an HTP likes few large products.
For all others ONNX has a definition in terms of simpler operators. An If whose condition is known is the branch
that it takes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from openhtp.core.errors import UnsupportedOp
from openhtp.frontend.einsum import write_einsum
from openhtp.frontend.model import Array, Branch, OnnxNode, ValueType
from openhtp.frontend.plain import plain_rules
from openhtp.frontend.rules import rules
from openhtp.frontend.schemas import body_of
from openhtp.frontend.unrolling import write_gru, write_rnn
from openhtp.frontend.writing import Writer

# Short-time Fourier transforms as convolutions: windows and frequencies are known, so they are weights.


def write_stft(w: Writer) -> None:
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
    kernel = _kernel(size, bins, np.ones(size) if window is None else window.reshape(-1))
    line = w.add("Reshape", [w.input(0), w.constant(np.array([signal[0], 1, signal[1]], np.int64))])
    found = w.add("Conv", [line, w.constant(kernel.astype(w.type(0).dtype))], {"strides": [stride]})
    parts = w.add("Reshape", [found, w.constant(np.array([signal[0], 2, bins, frames], np.int64))])
    w.end("Transpose", [parts], {"perm": [0, 3, 2, 1]})


def _kernel(size: int, bins: int, window: Array) -> Array:
    """Real parts of all frequencies, then imaginary ones: [2 x bins, 1, size]."""
    # Angles are reduced as integers: exact for long frames too.
    turns = np.outer(np.arange(bins), np.arange(size)) % size / size
    waves = np.concatenate((np.cos(2 * np.pi * turns), -np.sin(2 * np.pi * turns)))
    return (waves * window.astype(np.float64))[:, np.newaxis]


Types = Mapping[str, ValueType]

# ONNX's numbers of types.
_INT32, _BOOL = 6, 9


def expand(node: OnnxNode, types: Types, constants: Mapping[str, Array]) -> list[OnnxNode] | None:
    """Simpler nodes with the same outputs, or None for a node that stays as it is."""
    if node.domain:
        return None
    if node.op_type == "If":
        return _taken_branch(node, constants)
    if node.op_type in ("Concat", "Split"):
        found = _without_empty(node, types, constants)
        if found is not None:
            return found
    if node.op_type in _NO_TRUTH and _moves_truth(node, types):
        return _through_integers(node, types)
    if node.op_type in rules() or node.op_type in plain_rules():
        return None
    write = _WRITTEN.get(node.op_type)
    if write is None:
        return body_of(node, types)
    writer = Writer(node, types, constants)
    write(writer)
    return writer.nodes


# Nothing


def _without_empty(node: OnnxNode, types: Types, constants: Mapping[str, Array]) -> list[OnnxNode] | None:
    """Joining and cutting without the parts that have no elements: an HTP has no such tensors."""
    if node.op_type == "Concat":
        full = [name for name in node.inputs if name and 0 not in types[name].shape]
        if not full or len(full) == len(node.inputs):
            return None
        if len(full) > 1:
            return [dataclasses.replace(node, inputs=tuple(full))]
        return [dataclasses.replace(node, op_type="Identity", inputs=tuple(full), attrs={})]
    sizes = node.attr("split") or (constants[node.inputs[1]].tolist() if node.inputs[-1] in constants else [])
    if 0 not in sizes or not any(sizes) or len(sizes) != len(node.outputs):
        return None
    kind, axis = types[node.inputs[0]], node.attr("axis", 0)
    shape = list(kind.shape)
    shape[axis] = 0
    w = Writer(node, types)
    kept = [(name, size) for name, size in zip(node.outputs, sizes, strict=True) if size]
    for name, size in zip(node.outputs, sizes, strict=True):
        if not size:
            w.put("Constant", [], [name], {"value": np.zeros(shape, kind.dtype)})
    if len(kept) == 1:
        w.put("Identity", [node.inputs[0]], [kept[0][0]])
    else:
        lengths = w.constant(np.array([size for _, size in kept], np.int64))
        w.put("Split", [node.inputs[0], lengths], [name for name, _ in kept], {"axis": axis})
    return w.nodes


# Truth values

# Operators that move values of any type in ONNX, and no booleans in QNN; and the inputs that are moved.
_NO_TRUTH: dict[str, Sequence[int] | None] = {
    "Concat": None,
    "Expand": (0,),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Pad": (0, 2),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Split": (0,),
    "Tile": (0,),
    "Where": (1, 2),
}


def _moved(node: OnnxNode) -> Sequence[int]:
    indexes = _NO_TRUTH[node.op_type]
    return [index for index in (range(len(node.inputs)) if indexes is None else indexes) if node.has(index)]


def _moves_truth(node: OnnxNode, types: Types) -> bool:
    return any(types[node.inputs[index]].dtype == np.bool_ for index in _moved(node))


def _through_integers(node: OnnxNode, types: Types) -> list[OnnxNode]:
    """The node on integers, between casts."""
    inputs, made = list(node.inputs), []
    for index in _moved(node):
        inputs[index] = f"{node.outputs[0]}/integers_{index}"
        made.append(_cast(node, f"in_{index}", node.inputs[index], inputs[index], _INT32))
    numbers = [f"{name}/integers" if name else "" for name in node.outputs]
    made.append(dataclasses.replace(node, inputs=tuple(inputs), outputs=tuple(numbers)))
    made.extend(
        _cast(node, f"out_{index}", numbers[index], name, _BOOL) for index, name in enumerate(node.outputs) if name
    )
    return made


def _cast(node: OnnxNode, part: str, source: str, target: str, to: int) -> OnnxNode:
    return OnnxNode("Cast", "", f"{node.name}/{part}", (source,), (target,), {"to": to}, node.opset)


# Branches


def _taken_branch(node: OnnxNode, constants: Mapping[str, Array]) -> list[OnnxNode]:
    condition = constants.get(node.inputs[0]) if node.has(0) else None
    if condition is None or condition.size != 1:
        raise UnsupportedOp(
            f"{node.title}: its condition is computed, and an HTP has no branches; compute both sides and choose"
            " with Where, or export the model with the side that is meant"
        )
    branch = node.attr("then_branch" if condition.reshape(-1)[0] else "else_branch")
    if not isinstance(branch, Branch) or len(branch.outputs) != len(node.outputs):
        raise UnsupportedOp(f"{node.title}: its branch does not give {len(node.outputs)} values")
    made = [name for inner in branch.nodes for name in inner.outputs if name]
    names = {name: f"{node.outputs[0]}/{name}" for name in (*branch.constants, *made)}
    found = [
        OnnxNode("Constant", "", f"{node.name}/{name}", (), (names[name],), {"value": data}, node.opset)
        for name, data in branch.constants.items()
    ]
    found.extend(_renamed(inner, names, f"{node.name}/") for inner in branch.nodes)
    for index, (outer, inner_name) in enumerate(zip(node.outputs, branch.outputs, strict=True)):
        source = names.get(inner_name, inner_name)
        found.append(OnnxNode("Identity", "", f"{node.name}/out_{index}", (source,), (outer,), {}, node.opset))
    return found


def _renamed(node: OnnxNode, names: Mapping[str, str], prefix: str) -> OnnxNode:
    attrs: dict[str, Any] = {}
    for key, value in node.attrs.items():
        attrs[key] = _renamed_branch(value, names) if isinstance(value, Branch) else value
    return dataclasses.replace(
        node,
        name=prefix + node.name,
        inputs=tuple(names.get(name, name) for name in node.inputs),
        outputs=tuple(names.get(name, name) for name in node.outputs),
        attrs=attrs,
    )


def _renamed_branch(branch: Branch, names: Mapping[str, str]) -> Branch:
    """The names that a branch takes from around it, changed; its own stay."""
    own = {*branch.constants, *(name for node in branch.nodes for name in node.outputs)}
    outer = {name: new for name, new in names.items() if name not in own}
    nodes = tuple(_renamed(node, outer, "") for node in branch.nodes)
    return Branch(nodes, tuple(outer.get(name, name) for name in branch.outputs), branch.constants)


# Operators


def _trilu(w: Writer) -> None:
    """A triangle of the last two axes: which elements stay is known."""
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
    # Axes became an input of ReduceSum in opset 13, of its kin in 18; what they are called here decides.
    opset = 11 if "axes" in attrs else 18
    made = w.end if last else w.add
    return made(op, inputs, {**attrs, "keepdims": int(keep)}, opset=opset)


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


_WRITTEN: dict[str, Callable[[Writer], None]] = {
    "Einsum": write_einsum,
    "GRU": write_gru,
    "IsNaN": _is_nan,
    "ReduceL1": _l1,
    "ReduceL2": _l2,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
    "RNN": write_rnn,
    "STFT": write_stft,
    "Trilu": _trilu,
}
