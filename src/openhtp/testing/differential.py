"""Single operations, drawn at random, on our engine, on the vendor's library, and in exact arithmetic.

A *row* is one operation with one choice of data types for its tensors. Every round draws data and encodings of
its own: even rounds use the encodings that converters produce (symmetric 16 bits and weights, one encoding for
values that are only moved, the fixed ranges of Softmax and its like), odd rounds use any.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.compiler.driver import CompileOptions, compile_graph
from openhtp.core.dtype import DType
from openhtp.core.errors import DeviceLost, QnnError, TimedOut, UnsupportedOp
from openhtp.core.opcall import OpCall
from openhtp.core.quant import AxisScaleOffset, Encoding, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine.ort import OrtEngine
from openhtp.ir.builder import GraphBuilder
from openhtp.ops import Node, OpDef, find_op, resolve
from openhtp.ops._opdef import Sample
from openhtp.ops._resolve import filled_params
from openhtp.ops._types import TypeRow, type_word
from openhtp.vendor import oracle
from openhtp.vendor.forms import params_of

Array = npt.NDArray[Any]

# The axis of a weight's output channels, for operations that take one encoding per channel.
_CHANNEL_AXIS = {"Conv2d": 3, "DepthWiseConv2d": 3, "TransposeConv2d": 3, "FullyConnected": 0}
_BIASED = (*_CHANNEL_AXIS, "Conv1d", "Conv3d", "DepthWiseConv1d", "TransposeConv1d", "TransposeConv3d", "MatMul")
# Beside those of the definitions, where the vendor's library does not take or do the ones there: its validator
# wants rank 4 and the last axis, and its TransposeConv3d equal strides.
_MORE_SAMPLES = {
    "LayerNorm": (Sample(((1, 2, 5, 16), (16,), (16,)), {"axes": [3], "epsilon": 1e-5}, static=(1, 2)),),
    "LogSoftmax": (Sample(((1, 3, 4, 10),), {"axis": 3, "beta": 1.0}),),
    "InstanceNorm": (Sample(((1, 5, 4, 6), (6,), (6,)), {"epsilon": 1e-5}, static=(1, 2)),),
    "TransposeConv3d": (
        Sample(
            ((1, 3, 3, 4, 2), (2, 2, 2, 2, 3), (3,)),
            {"stride": [2, 2, 2], "pad_amount": [[0, 0], [0, 1], [0, 0]]},
            static=(1, 2),
        ),
    ),
}
# Operations that put values of several inputs side by side, beside those that keep values.
_MIXING = ("ScatterElements", "ScatterNd")
# Operations, and those of ElementWiseNeuron, whose result has a fixed range, which the HTP computes in.
_FIXED_RANGE = {
    "Sigmoid": (0.0, 1.0),
    "SIGMOID": (0.0, 1.0),
    "HARD_SIGMOID": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "MaskedSoftmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "TANH": (-1.0, 1.0),
}


@dataclass(frozen=True, slots=True)
class Row:
    """An operation and the types of its tensors, from one of the samples in its definition."""

    op: str
    sample: int
    inputs: tuple[DType, ...]
    outputs: tuple[DType, ...]

    @property
    def types(self) -> str:
        """The types in the notation of docs/ops.md."""
        given = [
            None if shape is None else dtype
            for shape, dtype in zip(_samples(self.op)[self.sample].shapes, self.inputs, strict=True)
        ]
        return f"{' '.join(map(type_word, given))} > {' '.join(map(type_word, self.outputs))}"

    def __str__(self) -> str:
        return f"{self.op}/{self.sample} {self.types}"


@dataclass(frozen=True, slots=True)
class Case:
    """One call with the stored data of its inputs and the exact real outputs."""

    row: Row
    call: OpCall
    stored: dict[str, Array]
    exact: tuple[Array, ...]


def rows_of(op: str) -> Iterator[Row]:
    """Every row of an operation: for each sample each accepted choice of types."""
    opdef = find_op(op)
    for number, sample in enumerate(_samples(op)):
        seen: set[Row] = set()
        for accepted in opdef.types:
            for inputs, outputs in _type_choices(accepted, len(sample.shapes)):
                row = Row(op, number, inputs, outputs)
                wanted = not sample.types or type_word(inputs[0]) in sample.types
                if wanted and row not in seen and _is_accepted(row):
                    seen.add(row)
                    yield row


def _samples(op: str) -> tuple[Sample, ...]:
    return (*find_op(op).samples, *_MORE_SAMPLES.get(op, ()))


def _type_choices(row: TypeRow, inputs: int) -> Iterator[tuple[tuple[DType, ...], tuple[DType, ...]]]:
    """Every combination that a row allows; further tensors of a variadic input are like the one before."""
    ports = row.inputs[:inputs]
    for picked in itertools.product(*ports, *row.outputs):
        given = picked[: len(ports)]
        yield (*given, *(given[-1],) * (inputs - len(given))), picked[len(ports) :]


def _is_accepted(row: Row) -> bool:
    try:
        draw_case(row, 0)
    except UnsupportedOp:
        return False
    return True


def draw_case(row: Row, number: int) -> Case:
    """Data and encodings of one round. The same row and round give the same case. Raises UnsupportedOp."""
    opdef, sample = find_op(row.op), _samples(row.op)[row.sample]
    rng = np.random.default_rng([zlib.crc32(str(row).encode()), number])
    usual = number % 2 == 0
    specs: list[TensorSpec | None] = []
    stored: dict[str, Array] = {}
    for index, shape in enumerate(sample.shapes):
        if shape is None:
            specs.append(None)
            continue
        low, high = sample.ranges.get(index, (sample.low, sample.high))
        dtype, static = row.inputs[index], index in sample.static
        spec = TensorSpec(f"x{index}", shape, dtype, kind=TensorKind.STATIC if static else TensorKind.APP_WRITE)
        if dtype.is_fixed_point:
            low, high = _narrowed(rng, low, high, number)
            spec = replace(spec, quant=_input_encoding(row, spec, index, (low, high), specs, usual, rng))
        stored[spec.name] = _draw_data(rng, spec, low, high)
        specs.append(spec)
    bare = OpCall(row.op, "node", tuple(specs), (), dict(sample.params))
    call = replace(bare, outputs=_blank_outputs(row, opdef, sample, bare, stored))
    arrays = [np.zeros(0) if spec is None else real_values(spec, stored[spec.name]) for spec in specs]
    exact = opdef.reference(_node(opdef, call, stored), arrays)
    kept = _moves_values(row.op) or all(np.isin(result, arrays[0]).all() for result in exact)
    outputs = tuple(
        replace(spec, quant=_output_encoding(row, spec, result, specs, usual, kept, rng)) if spec.quant else spec
        for spec, result in zip(call.outputs, exact, strict=True)
    )
    call = replace(call, outputs=outputs)
    resolve(call, stored)
    return Case(row, call, stored, opdef.reference(_node(opdef, call, stored), arrays))


def _moves_values(op: str) -> bool:
    return find_op(op).values_kept or op in _MIXING


def _narrowed(rng: np.random.Generator, low: float, high: float, number: int) -> tuple[float, float]:
    """Another part of the range in every round but the first, with the same signs: domains are kept."""
    part = 1.0 if number == 0 else float(rng.uniform(0.3, 1.0))
    return low * part if low < 0 else low, high * part if high > 0 and low <= 0 else high


def _input_encoding(
    row: Row,
    spec: TensorSpec,
    index: int,
    bounds: tuple[float, float],
    before: Sequence[TensorSpec | None],
    usual: bool,
    rng: np.random.Generator,
) -> Encoding:
    weight = before[1] if len(before) > 1 else None
    if index == 2 and row.op in _BIASED and spec.dtype.bits == 32 and before[0] and weight:
        return _bias_encoding(before[0].quant, weight.quant)
    axis = _CHANNEL_AXIS.get(row.op)
    if index == 1 and axis is not None and spec.dtype is DType.SFIXED_POINT_8 and not usual:
        largest = max(-bounds[0], bounds[1]) / 127
        return AxisScaleOffset(axis, tuple(_single(s * largest) for s in rng.uniform(0.5, 1.0, spec.shape[axis])))
    if usual and before and before[0] and before[0].dtype == spec.dtype and _moves_values(row.op):
        return before[0].quant or _covering(spec.dtype, *bounds)
    symmetric = usual and (spec.kind is TensorKind.STATIC or spec.dtype.bits == 16)
    return _covering(spec.dtype, *bounds, symmetric=symmetric)


def _bias_encoding(activation: Encoding | None, weight: Encoding | None) -> Encoding:
    """A 32-bit bias is in steps of a product, as every converter writes it."""
    assert isinstance(activation, ScaleOffset)
    if isinstance(weight, AxisScaleOffset):
        return AxisScaleOffset(0, tuple(_single(scale * activation.scale) for scale in weight.scales))
    assert isinstance(weight, ScaleOffset)
    return ScaleOffset(_single(activation.scale * weight.scale), 0)


def _output_encoding(
    row: Row,
    spec: TensorSpec,
    result: Array,
    inputs: Sequence[TensorSpec | None],
    usual: bool,
    kept: bool,
    rng: np.random.Generator,
) -> Encoding | None:
    if find_op(row.op).by_stored_number:
        return spec.quant
    if usual and result.dtype == np.bool_:
        return ScaleOffset(1.0, -spec.dtype.integer_range[0])
    source = inputs[0]
    if usual and source is not None and source.dtype == spec.dtype and kept:
        return source.quant
    bounds = _FIXED_RANGE.get(str(_samples(row.op)[row.sample].params.get("operation", row.op)))
    if usual and bounds is not None:
        low, high = bounds
        steps = 1 << spec.dtype.bits
        return ScaleOffset((high - low) / steps, -spec.dtype.integer_range[0] + round(low * steps / (high - low)))
    real = np.asarray(result, np.float64)
    slack = 1.0 if usual else float(rng.uniform(1.0, 1.1))
    symmetric = usual and spec.dtype.bits == 16
    return _covering(spec.dtype, float(real.min()) * slack, float(real.max()) * slack, symmetric=symmetric)


def _covering(dtype: DType, low: float, high: float, *, symmetric: bool = False) -> ScaleOffset:
    """An encoding whose range just holds these values, and zero."""
    low, high = min(low, 0.0), max(high, 0.0)
    smallest, largest = dtype.integer_range
    most = max(-low, high, 1e-3)
    if dtype.bits == 32:
        return ScaleOffset(_single(most / 2**20), 0)
    if symmetric:
        return ScaleOffset(_single(most / (1 << (dtype.bits - 1))), 0 if dtype.signed else -(largest + 1) // 2)
    scale = _single(max(high - low, 1e-3) / (largest - smallest))
    return ScaleOffset(scale, round(low / scale) - smallest)


def _single(scale: float) -> float:
    """Scales travel as 32-bit floats; both sides must start from the same number."""
    return float(np.float32(scale))


def _draw_data(rng: np.random.Generator, spec: TensorSpec, low: float, high: float) -> Array:
    if spec.dtype is DType.BOOL_8:
        return rng.integers(0, 2, spec.shape).astype(np.bool_)
    if spec.quant is not None:
        drawn = rng.uniform(low, high, spec.shape)
        return spec.quant.quantize(drawn, *spec.dtype.integer_range).astype(spec.dtype.numpy)
    if spec.dtype.is_float:
        return rng.uniform(low, high, spec.shape).astype(np.float16).astype(spec.dtype.numpy)
    least = max(int(np.ceil(low)), 0 if not spec.dtype.signed else int(np.ceil(low)))
    return rng.integers(least, max(least + 1, int(np.floor(high)) + 1), spec.shape).astype(spec.dtype.numpy)


def _blank_outputs(
    row: Row, opdef: OpDef, sample: Sample, call: OpCall, stored: dict[str, Array]
) -> tuple[TensorSpec, ...]:
    shapes = sample.outputs or opdef.infer(_node(opdef, call, stored))
    types = [row.outputs[min(index, len(row.outputs) - 1)] for index in range(len(shapes))]
    return tuple(
        TensorSpec(
            f"y{index}", shape, dtype, ScaleOffset(1.0, 0) if dtype.is_fixed_point else None, TensorKind.APP_READ
        )
        for index, (shape, dtype) in enumerate(zip(shapes, types, strict=True))
    )


def _node(opdef: OpDef, call: OpCall, stored: dict[str, Array]) -> Node:
    bare = Node(call.op, call.name, call.inputs, call.outputs, {}, stored)
    return Node(call.op, call.name, call.inputs, call.outputs, filled_params(opdef, bare, call), stored)


def real_values(spec: TensorSpec, stored: Array) -> Array:
    """What stored numbers stand for; plain integers stand for themselves."""
    if spec.quant is not None:
        return spec.quant.dequantize(stored)
    return stored.astype(np.float64) if spec.dtype.is_float else stored


def run_ours(case: Case, engine: OrtEngine) -> tuple[Array, ...]:
    """Compile a graph of the one node and run it on the emulator's engine."""
    builder = GraphBuilder("g")
    for spec in case.call.inputs:
        if spec is not None:
            builder.add_tensor(spec, case.stored[spec.name] if spec.kind is TensorKind.STATIC else None)
    for spec in case.call.outputs:
        builder.add_tensor(spec)
    builder.add_node(case.call)
    program = compile_graph(builder.finish(), CompileOptions(fold=False))
    inputs = {spec.name: case.stored[spec.name] for spec in program.inputs}
    results = {spec.name: np.zeros(spec.shape, spec.dtype.numpy) for spec in program.outputs}
    loaded = engine.load(program)
    run = loaded.bind({**inputs, **results})
    for index in range(loaded.steps):
        run.step(index)
    loaded.close()
    return tuple(results[spec.name] for spec in case.call.outputs)


class NotOffered(Exception):
    """The vendor's library does not take this row; the text is its reason."""


def run_vendor(case: Case, soc: str) -> tuple[Array, ...]:
    """Run the node on the vendor's library. Raises NotOffered with its reason if it does not take it."""
    try:
        results = oracle.run_op(case.call, params_of(case.call, case.stored), dict(case.stored), soc=soc)
    except (DeviceLost, TimedOut) as error:
        raise NotOffered(f"the library crashed or hung: {error.message}") from error
    except QnnError as error:
        raise NotOffered(error.message) from error
    return tuple(results[spec.name] for spec in case.call.outputs)
