"""Cases derived from an op's samples: one per accepted combination of types, with data and the answer."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from openhtp.compiler.driver import CompileOptions, compile_graph
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine.ort import OrtEngine
from openhtp.ir.builder import GraphBuilder
from openhtp.ops import OpDef
from openhtp.ops._node import Node
from openhtp.ops._opdef import Sample, TypeRow, type_word
from openhtp.ops._resolve import filled_params

FORCED_LAYOUT = "forced"


@dataclass(frozen=True)
class Case:
    """One op call with the stored data of its inputs and the exact real outputs."""

    opdef: OpDef
    call: OpCall
    stored: dict[str, np.ndarray]
    exact: tuple[np.ndarray, ...]


def type_choices(row: TypeRow, inputs: int) -> Iterator[tuple[list[DType], list[DType]]]:
    """The row's first combination, then one more for every alternative word in it."""
    ports = [row.inputs[min(i, len(row.inputs) - 1)] for i in range(inputs)]
    outputs = list(row.outputs)
    base = [choices[-1] if DType.SFIXED_POINT_32 in choices else choices[0] for choices in ports]
    base_out = [choices[0] for choices in outputs]
    yield base, base_out
    for index, choices in enumerate(ports):
        for other in choices:
            if other != base[index] and not (row.variadic_input and index >= len(row.inputs)):
                yield [*base[:index], other, *base[index + 1 :]], base_out
    for index, choices in enumerate(outputs):
        for other in choices[1:]:
            yield base, [*base_out[:index], other, *base_out[index + 1 :]]


def encoding_for(dtype: DType, low: float, high: float, *, symmetric: bool = False) -> ScaleOffset:
    low, high = min(low, 0.0), max(high, 0.0)
    smallest, largest = dtype.integer_range
    if dtype.bits == 32:
        return ScaleOffset(float(np.float32(max(-low, high, 1e-3) / 2**20)), 0)
    if symmetric and dtype.signed:
        return ScaleOffset(float(np.float32(max(-low, high, 1e-3) / largest)), 0)
    scale = float(np.float32(max(high - low, 1e-3) / (largest - smallest)))
    return ScaleOffset(scale, -round(smallest - low / scale))


def _data(rng: np.random.Generator, spec: TensorSpec, low: float, high: float) -> np.ndarray:
    if spec.dtype is DType.BOOL_8:
        return rng.integers(0, 2, spec.shape).astype(np.bool_)
    if spec.quant is not None:
        real = rng.uniform(low, high, spec.shape)
        return spec.quant.quantize(real, *spec.dtype.integer_range).astype(spec.dtype.numpy)
    if spec.dtype.is_float:
        return rng.uniform(low, high, spec.shape).astype(np.float16).astype(spec.dtype.numpy)
    least = 0 if not spec.dtype.signed else int(np.ceil(low))
    return rng.integers(max(least, int(np.ceil(low))), max(least + 1, int(np.floor(high)) + 1), spec.shape).astype(
        spec.dtype.numpy
    )


def real(spec: TensorSpec, stored: np.ndarray) -> np.ndarray:
    if spec.quant is not None:
        return spec.quant.dequantize(stored)
    return stored.astype(np.float64) if spec.dtype.is_float else stored


def make_case(opdef: OpDef, sample: Sample, inputs: list[DType], outputs: list[DType], data_set: int = 0) -> Case:
    """The case with one of many sets of random data; the tests take the first."""
    words = " ".join(type_word(dtype) for dtype in (*inputs, *outputs))
    seed = zlib.crc32(f"{opdef.name} {words}".encode())
    rng = np.random.default_rng([data_set, seed] if data_set else seed)
    specs: list[TensorSpec | None] = []
    stored: dict[str, np.ndarray] = {}
    for index, shape in enumerate(sample.shapes):
        if shape is None:
            specs.append(None)
            continue
        low, high = sample.ranges.get(index, (sample.low, sample.high))
        dtype, static = inputs[index], index in sample.static
        quant = None
        if dtype.is_fixed_point:
            quant = encoding_for(dtype, low, high, symmetric=static)
        kind = TensorKind.STATIC if static else TensorKind.APP_WRITE
        spec = TensorSpec(f"x{index}", shape, dtype, quant, kind)
        stored[spec.name] = _data(rng, spec, low, high)
        specs.append(spec)
    call = OpCall(opdef.name, "node", tuple(specs), (), dict(sample.params))
    out_specs = _output_specs(opdef, sample, call, outputs, stored)
    node = _node(opdef, OpCall(call.op, call.name, call.inputs, out_specs, call.params), stored)
    arrays = [np.zeros(0) if spec is None else real(spec, stored[spec.name]) for spec in specs]
    exact = opdef.reference(node, arrays)
    final = []
    for spec, result in zip(out_specs, exact, strict=True):
        if spec.dtype.is_fixed_point and opdef.name != "Cast":
            result = np.asarray(result, np.float64)
            quant = encoding_for(spec.dtype, float(result.min()), float(result.max()))
            spec = replace(spec, quant=quant)
        final.append(spec)
    full = OpCall(call.op, call.name, call.inputs, tuple(final), call.params)
    return Case(opdef, full, stored, opdef.reference(_node(opdef, full, stored), arrays))


def _output_specs(
    opdef: OpDef, sample: Sample, call: OpCall, outputs: list[DType], stored: dict[str, np.ndarray]
) -> tuple[TensorSpec, ...]:
    shapes = sample.outputs
    if not shapes:
        count = len(opdef.infer(_node(opdef, call, stored)))
        shapes = opdef.infer(_node(opdef, call, stored))
        assert len(shapes) == count
    types = [outputs[min(i, len(outputs) - 1)] for i in range(len(shapes))]
    return tuple(
        TensorSpec(
            f"y{i}", shape, dtype, ScaleOffset(1.0, 0) if dtype.is_fixed_point else None, TensorKind.APP_READ
        )
        for i, (shape, dtype) in enumerate(zip(shapes, types, strict=True))
    )


def _node(opdef: OpDef, call: OpCall, stored: dict[str, np.ndarray]) -> Node:
    bare = Node(call.op, call.name, call.inputs, call.outputs, {}, stored)
    return Node(call.op, call.name, call.inputs, call.outputs, filled_params(opdef, bare, call), stored)


def all_cases(opdef: OpDef) -> Iterator[Any]:
    """(id, make) for every sample and accepted combination of types."""
    for number, sample in enumerate(opdef.samples):
        seen = set()
        for row in opdef.types:
            for inputs, outputs in type_choices(row, len(sample.shapes)):
                given = [None if s is None else d for s, d in zip(sample.shapes, inputs, strict=True)]
                words = f"{number}: {' '.join(map(type_word, given))} > {' '.join(map(type_word, outputs))}"
                if words in seen or (sample.types and type_word(inputs[0]) not in sample.types):
                    continue
                seen.add(words)
                if not _operation_takes(opdef, sample, inputs, outputs):
                    continue
                yield words, (opdef, sample, inputs, outputs)


def _operation_takes(opdef: OpDef, sample: Sample, inputs: list[DType], outputs: list[DType]) -> bool:
    """Whether the member of a family that the sample names accepts these types."""
    fits = [rule for rule in opdef.constraints if rule.sentence == "the chosen operation accepts these types"]
    if not fits:
        return True
    ins = tuple(TensorSpec("x", (1,), dtype) for dtype in inputs)
    outs = tuple(TensorSpec("y", (1,), dtype) for dtype in outputs)
    call = OpCall(opdef.name, "node", ins, outs, dict(sample.params))
    return fits[0].check(_node(opdef, call, {}))


def run_case(case: Case, *, forced_layout: bool = False) -> tuple[np.ndarray, ...]:
    """Build a graph of the one op, compile it, run it. ``forced_layout`` sends images through a 1x1 pool first."""
    builder = GraphBuilder("g")
    inputs: list[TensorSpec | None] = []
    for spec in case.call.inputs:
        if spec is None:
            inputs.append(None)
            continue
        if spec.name not in builder.tensors:
            builder.add_tensor(spec, case.stored[spec.name] if spec.kind is TensorKind.STATIC else None)
        if forced_layout and spec.rank == 4 and spec.kind is not TensorKind.STATIC:
            spec = _through_pool(builder, spec)
        inputs.append(spec)
    for spec in case.call.outputs:
        builder.add_tensor(spec)
    builder.add_node(OpCall(case.call.op, "node", tuple(inputs), case.call.outputs, case.call.params))
    program = compile_graph(builder.finish(), "SM8650", CompileOptions(fold=False))
    arrays = {name: data for name, data in case.stored.items() if name in {s.name for s in program.inputs}}
    results = {spec.name: np.zeros(spec.shape, spec.dtype.numpy) for spec in program.outputs}
    loaded = OrtEngine().load(program)
    run = loaded.bind({**arrays, **results})
    for index in range(loaded.steps):
        run.step(index)
    return tuple(results.values())


def _through_pool(builder: GraphBuilder, spec: TensorSpec) -> TensorSpec:
    moved = replace(spec, name=f"{spec.name} {FORCED_LAYOUT}", kind=TensorKind.NATIVE)
    builder.add_tensor(moved)
    params = {"filter_size": [1, 1], "stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}
    builder.add_node(OpCall("PoolMax2d", moved.name, (spec,), (moved,), params))
    return moved


def assert_close(spec: TensorSpec, got: np.ndarray, exact: np.ndarray) -> None:
    """8 bits: within 1 step for 99.9 %; 16 bits: within 2 steps; half floats: within rounding; integers: equal."""
    assert got.shape == spec.shape == exact.shape
    if spec.dtype.is_fixed_point and spec.dtype.bits < 32:
        assert spec.quant is not None
        wanted = spec.quant.quantize(exact, *spec.dtype.integer_range)
        steps = np.abs(got.astype(np.int64) - wanted)
        if spec.dtype.bits == 8:
            assert steps.max() <= 2
            assert (steps <= 1).mean() >= 0.999
        else:
            assert steps.max() <= 2, steps.max()
    elif spec.dtype.is_float or spec.dtype.is_fixed_point:
        numbers = real(spec, got)
        scale = np.abs(exact[np.isfinite(exact)]).max(initial=0.0)
        np.testing.assert_allclose(numbers, exact, rtol=2.0**-10, atol=1e-6 + scale * 2.0**-20)
    else:
        np.testing.assert_array_equal(got, exact.astype(got.dtype))
