"""Single operators as graphs of one node, with data and encodings as converters write them.

Any device can run such a graph, so it can compare two devices.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ops import Node, OpDef
from openhtp.ops._opdef import Sample, type_word
from openhtp.ops._resolve import filled_params
from openhtp.runtime.objects.device import Device

Array = npt.NDArray[Any]

PATIENCE_S = 120.0
"""How long a graph of one node, or a small network, may take; a device that takes longer hangs."""


@dataclass(frozen=True, slots=True)
class OperatorCase:
    """One node with stored data for its inputs, after the operator's own sample."""

    call: OpCall
    stored: Mapping[str, Array]

    @classmethod
    def of(cls, opdef: OpDef, dtype: DType) -> OperatorCase:
        """The first sample that takes this type of input, with encodings as converters write them."""
        word = type_word(dtype)
        sample = next(each for each in opdef.samples if not each.types or word in each.types)
        inputs, outputs = _types_for(opdef, sample, dtype)
        random = np.random.default_rng(zlib.crc32(f"{opdef.name} {word}".encode()))
        specs: list[TensorSpec | None] = []
        for index, (shape, kind) in enumerate(zip(sample.shapes, inputs, strict=True)):
            specs.append(None if shape is None else _input_spec(opdef, sample, index, kind, specs))
        stored = {
            spec.name: _drawn(random, spec, *sample.ranges.get(index, (sample.low, sample.high)))
            for index, spec in enumerate(specs)
            if spec is not None
        }
        call = OpCall(opdef.name, "node", tuple(specs), (), dict(sample.params))
        shapes = sample.outputs or opdef.infer(_resolved(opdef, call, stored))
        results = tuple(
            TensorSpec(f"y{index}", shape, outputs[min(index, len(outputs) - 1)], None, TensorKind.APP_READ)
            for index, shape in enumerate(shapes)
        )
        node = _resolved(opdef, replace(call, outputs=results), stored)
        real = [np.zeros(0) if spec is None else real_values(spec, stored[spec.name]) for spec in specs]
        exact = opdef.reference(node, real)
        encoded = tuple(
            replace(spec, quant=_output_encoding(opdef, node, spec, result))
            for spec, result in zip(results, exact, strict=True)
        )
        return cls(replace(call, outputs=encoded), stored)

    @property
    def types(self) -> str:
        """Types of inputs and outputs in the notation of docs/ops.md."""
        inputs = " ".join(type_word(None if spec is None else spec.dtype) for spec in self.call.inputs)
        return f"{inputs} > {' '.join(type_word(spec.dtype) for spec in self.call.outputs)}"

    def run(self, device: Device) -> list[Array]:
        """Compute on a device, in a context of its own: a library that crashes ends only that context."""
        with device.create_context() as context:
            graph = context.create_graph("operator")
            for spec in {spec.name: spec for spec in (*self.call.inputs, *self.call.outputs) if spec}.values():
                data = self.stored[spec.name] if spec.kind is TensorKind.STATIC else None
                graph.add_tensor(spec.name, spec.shape, spec.dtype, quant=spec.quant, kind=spec.kind, data=data)
            graph.add_node(
                self.call.op,
                inputs=[None if spec is None else spec.name for spec in self.call.inputs],
                outputs=[spec.name for spec in self.call.outputs],
                params=self.call.params,
            )
            graph.finalize()
            feeds = {tensor.name: self.stored[tensor.name] for tensor in graph.inputs}
            results = graph.execute_async(feeds).result(PATIENCE_S)
            return [results[spec.name] for spec in self.call.outputs]


def _types_for(opdef: OpDef, sample: Sample, dtype: DType) -> tuple[list[DType], list[DType]]:
    """Types of a row whose first input may be ``dtype``: 8-bit signed weights, 32-bit bias, otherwise alike."""
    row = next(each for each in opdef.types if dtype in each.inputs[0])

    def choice(index: int) -> DType:
        choices = row.inputs[min(index, len(row.inputs) - 1)]
        liked = {1: DType.SFIXED_POINT_8, 2: DType.SFIXED_POINT_32}.get(index) if opdef.weights else None
        return next((each for each in (liked, dtype) if each in choices), choices[0])

    outputs = [dtype if dtype in choices else choices[0] for choices in row.outputs]
    return [choice(index) for index in range(len(sample.shapes))], outputs


def _input_spec(
    opdef: OpDef, sample: Sample, index: int, dtype: DType, before: Sequence[TensorSpec | None]
) -> TensorSpec:
    shape, is_static = sample.shapes[index], index in sample.static
    assert shape is not None
    kind = TensorKind.STATIC if is_static else TensorKind.APP_WRITE
    low, high = sample.ranges.get(index, (sample.low, sample.high))
    first = before[0] if before else None
    quant = None
    if dtype.is_fixed_point:
        quant = _covering(dtype, low, high, symmetric=is_static or dtype.bits == 16)
        if first is not None and first.dtype is dtype and _keeps_encoding(opdef):
            quant = first.quant if isinstance(first.quant, ScaleOffset) else quant
        scales = [spec.quant.scale for spec in before[:2] if spec and isinstance(spec.quant, ScaleOffset)]
        if opdef.weights is not None and dtype.bits == 32 and len(scales) == 2:
            quant = ScaleOffset(float(np.float32(scales[0] * scales[1])), 0)
    return TensorSpec(f"x{index}", shape, dtype, quant, kind)


def _keeps_encoding(opdef: OpDef) -> bool:
    return opdef.values_kept or opdef.shares_encoding


def _output_encoding(opdef: OpDef, node: Node, spec: TensorSpec, result: Array) -> ScaleOffset | None:
    if not spec.dtype.is_fixed_point:
        return None
    first = node.inputs[0]
    if first and first.dtype is spec.dtype and _keeps_encoding(opdef) and isinstance(first.quant, ScaleOffset):
        return first.quant
    bounds = opdef.result_range(node)
    if bounds is not None:
        steps = 1 << spec.dtype.bits
        low, high = bounds
        return ScaleOffset((high - low) / steps, -spec.dtype.integer_range[0] + round(low * steps / (high - low)))
    real = np.asarray(result, np.float64)
    return _covering(spec.dtype, float(real.min()), float(real.max()), symmetric=spec.dtype.bits == 16)


def _covering(dtype: DType, low: float, high: float, *, symmetric: bool) -> ScaleOffset:
    """An encoding whose range just holds these values, and zero. Scales travel as 32-bit floats."""
    low, high = min(low, 0.0), max(high, 0.0)
    smallest, largest = dtype.integer_range
    if dtype.bits == 32:
        return ScaleOffset(float(np.float32(max(-low, high, 1e-3) / 2**20)), 0)
    if symmetric:
        scale = float(np.float32(max(-low, high, 1e-3) / (1 << (dtype.bits - 1))))
        return ScaleOffset(scale, 0 if dtype.signed else -(largest + 1) // 2)
    scale = float(np.float32(max(high - low, 1e-3) / (largest - smallest)))
    return ScaleOffset(scale, round(low / scale) - smallest)


def _drawn(random: np.random.Generator, spec: TensorSpec, low: float, high: float) -> Array:
    if spec.dtype.is_float:
        return random.uniform(low, high, spec.shape).astype(np.float16).astype(spec.dtype.numpy)
    if spec.quant is None:
        least = math.ceil(low)
        return random.integers(least, max(least, math.floor(high)) + 1, spec.shape).astype(spec.dtype.numpy)
    return as_stored(spec, random.uniform(low, high, spec.shape))


def real_values(spec: TensorSpec, stored: Array) -> Array:
    """The real values of stored numbers; plain integers stand for themselves."""
    if spec.quant is not None:
        return spec.quant.dequantize(stored)
    return stored.astype(np.float64) if spec.dtype.is_float else stored


def as_stored(spec: TensorSpec, values: Array) -> Array:
    """Real values as a tensor stores them."""
    if spec.quant is None:
        return values.astype(spec.dtype.numpy)
    return spec.quant.quantize(values, *spec.dtype.integer_range).astype(spec.dtype.numpy)


def _resolved(opdef: OpDef, call: OpCall, stored: Mapping[str, Array]) -> Node:
    bare = Node(call.op, call.name, call.inputs, call.outputs, {}, stored)
    return Node(call.op, call.name, call.inputs, call.outputs, filled_params(opdef, bare, call), stored)
