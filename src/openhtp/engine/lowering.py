"""Lowers a program to one ONNX model.

Every op of every kernel is lowered by its own ``lower``; this module walks them and assigns layouts. QNN images
are channel-last, ONNX's operators channel-first: a value stays channel-first from the first convolution on,
through every op that does not care (elementwise, concatenation, pooling), and is turned back only where an
op needs the graph's own axes or at an output.

Integers: quantize-dequantize pairs are emitted around every op on 8-bit tensors; the runtime fuses them
into its integer kernels. Signed 8-bit tensors are held as unsigned ones, which those kernels prefer. 16-bit
tensors run as float between the pairs, which is exact to within the last bit; their products with 8-bit tensors
are sums of integers (``wide.py``).

Floats: the HTP computes in half precision. Every op runs in float32 and its result is rounded to half and back
(see ``half.py``); ops that only move or clamp values need no rounding. All tensors between ops are thus float32
arrays of half-precision numbers, whether the graph declares FLOAT_16 or FLOAT_32.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.core.errors import error_context
from openhtp.core.precision import FloatPrecision
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine import encoding
from openhtp.engine.emitter import NodeEmitter
from openhtp.engine.encoding import unsigned_tensor
from openhtp.engine.onnx_graph import OnnxGraph
from openhtp.engine.values import Physical, Rounding, TensorForms
from openhtp.engine.wide import RowProduct
from openhtp.ops import Node, OpDef, op_of
from openhtp.ops._node import Layout
from openhtp.program.htp_program import HtpNode, HtpProgram

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A model, its large constants, and the model's name of each input and output that it uses.

    ``products`` are those of one row, by their results.
    """

    model: Any
    external: Mapping[str, Array]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    marks: Mapping[str, str]
    products: Mapping[str, RowProduct] = dataclasses.field(default_factory=dict)


def lower_program(
    program: HtpProgram, rounding: Rounding = Rounding.MARKS, *, takes_apart: bool = True
) -> Lowered:
    """Emit every kernel of the program into one model; ``rounding`` is how half precision is expressed in it.

    Without ``takes_apart``, products of 16-bit tensors are between quantize-dequantize pairs as well, as in a file
    that a quantizer writes.
    """
    graph = OnnxGraph()
    if program.options.precision is not FloatPrecision.FLOAT16:
        rounding = Rounding.NONE
    values = TensorForms(
        graph,
        program.statics,
        dynamic=program.source.is_dynamic,
        rounding=rounding,
        unrounded=frozenset(node.outputs[0] for node in program.nodes if not node.rounds),
        takes_apart=takes_apart,
    )
    inputs = _declare_inputs(program, values)
    for number, step in enumerate(program.steps):
        graph.prefix = f"n{number}"
        for kernel in program.kernels_of(step):
            for item in kernel.nodes:
                _emit(item, program.source.resolved(item), values)
    graph.prefix = "out"
    outputs = {spec.name: _declare_output(spec, values) for spec in program.outputs}
    return Lowered(graph.model(), graph.external, inputs, outputs, graph.marks, graph.products)


def _emit(item: HtpNode, node: Node, values: TensorForms) -> None:
    opdef = op_of(node)
    if not opdef.by_stored_number:
        node = _unsigned(node)
    clamp = None if item.clamp is None else (item.clamp.low, item.clamp.high)
    with error_context(node=node.name):
        opdef.lower(node, NodeEmitter(values, opdef, node, choose_layout(opdef, node, values), clamp))


def origin(name: str) -> int | None:
    """Number of the program's step that a name in the model came from."""
    match = re.match(r"n(\d+)/", name)
    return int(match[1]) if match else None


def choose_layout(opdef: OpDef, node: Node, values: TensorForms) -> Physical:
    """The layout a node is lowered in: its own, or for ops that take any, that of its inputs."""
    if opdef.layout is Layout.CHANNEL_FIRST:
        return Physical.FIRST
    if opdef.layout is not Layout.ANY:
        return Physical.LOGICAL
    rank = node.outputs[0].rank
    computed = [spec for spec in node.inputs if spec is not None and spec.kind is not TensorKind.STATIC]
    if rank < 3 or any(spec.rank != rank for spec in (*computed, *node.outputs)):
        return Physical.LOGICAL
    only_first = any(
        values.has(spec, Physical.FIRST) and not values.has(spec, Physical.LOGICAL) for spec in computed
    )
    return Physical.FIRST if only_first else Physical.LOGICAL


def _unsigned(node: Node) -> Node:
    """The node on the engine's own, unsigned, form of signed 8-bit tensors."""
    inputs = tuple(None if spec is None else unsigned_tensor(spec) for spec in node.inputs)
    return dataclasses.replace(node, inputs=inputs, outputs=tuple(map(unsigned_tensor, node.outputs)))


def _declare_inputs(program: HtpProgram, values: TensorForms) -> dict[str, str]:
    used = {name for node in program.nodes for name in node.inputs}
    graph = values.graph
    graph.prefix = "in"
    names = {}
    for spec in (*program.inputs, *program.source.updateable_statics):
        if spec.name not in used:
            continue
        names[spec.name] = name = f"in:{spec.name}"
        graph.add_input(name, spec.dtype.numpy, model_sizes(spec))
        if spec.dtype is DType.FLOAT_16:
            name = graph.node("Cast", [name], to="float32")[0]
        elif spec.dtype is DType.FLOAT_32 and values.rounds and not _only_stored(program, spec):
            name = encoding.round_to_half(graph, name)
        values.set_stored(spec, Physical.LOGICAL, name)
    return names


def _only_stored(program: HtpProgram, spec: TensorSpec) -> bool:
    """Whether a float input is only put into fixed point: at the edge of the chip, in full precision."""
    users = [node for node in program.nodes if spec.name in node.inputs]
    return all(op_of(node).moves_only and program.tensors[node.outputs[0]].dtype.is_fixed_point for node in users)


def _declare_output(spec: TensorSpec, values: TensorForms) -> str:
    source = values.stored(spec, Physical.LOGICAL)
    if spec.dtype is DType.FLOAT_16:
        source = values.graph.node("Cast", [source], to="float16")[0]
    name = f"out:{spec.name}"
    values.graph.add_output(name, source, spec.dtype.numpy, model_sizes(spec))
    return name


def model_sizes(spec: TensorSpec) -> tuple[int | str, ...]:
    """Sizes of an input or output in the model: names where they may vary."""
    sizes = enumerate(zip(spec.shape, spec.free, strict=True))
    return tuple(f"{spec.name}.{axis}" if free else size for axis, (size, free) in sizes)
