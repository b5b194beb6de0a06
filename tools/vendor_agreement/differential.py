"""Single operations, drawn at random, on our engine, on the vendor's library, and in exact arithmetic.

A *row* is one operation with one choice of data types for its tensors. Every round draws data and encodings of
its own: even rounds use the encodings that converters produce (``drawing.py``), odd rounds use any.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.compiler.driver import CompileOptions, compile_graph
from openhtp.core.dtype import DType
from openhtp.core.errors import DeviceLost, QnnError, UnsupportedOp
from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine.ort import OrtEngine
from openhtp.ir.builder import GraphBuilder
from openhtp.ops import OpDef, find_op, resolve
from openhtp.ops._node import Shape
from openhtp.ops._opdef import TypeRow, type_word
from openhtp.testing import oracle
from vendor_agreement.drawing import (
    draw_data,
    input_encoding,
    moves_values,
    narrowed,
    output_encoding,
    real_inputs,
    resolved_node,
)
from vendor_agreement.rows import Row, samples_of

Array = npt.NDArray[Any]

# Results are the same on every chip; a program is compiled for one.
SOC = "SM8650"


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
    for number, sample in enumerate(samples_of(op)):
        seen: set[Row] = set()
        for accepted in opdef.types:
            for inputs, outputs in _type_choices(accepted, len(sample.shapes)):
                row = Row(op, number, inputs, outputs)
                wanted = not sample.types or type_word(inputs[0]) in sample.types
                if wanted and row not in seen and _is_accepted(row):
                    seen.add(row)
                    yield row


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
    sample = samples_of(row.op)[row.sample]
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
            low, high = narrowed(rng, low, high, number)
            spec = replace(spec, quant=input_encoding(row, spec, index, (low, high), specs, usual, rng))
        stored[spec.name] = draw_data(rng, spec, low, high)
        specs.append(spec)
    call, exact = with_outputs(
        row, OpCall(row.op, "node", tuple(specs), (), dict(sample.params)), stored, usual, rng
    )
    return Case(row, call, stored, exact)


def with_outputs(
    row: Row,
    call: OpCall,
    stored: Mapping[str, Array],
    usual: bool,
    rng: np.random.Generator,
    prefix: str = "",
    shape: Shape | None = None,
) -> tuple[OpCall, tuple[Array, ...]]:
    """The call with outputs that hold its exact results, and those. Raises UnsupportedOp or InvalidArgument.

    ``shape`` is that of the output where the caller chooses it.
    """
    opdef = find_op(row.op)
    shapes = samples_of(row.op)[row.sample].outputs if shape is None else (shape,)
    call = replace(call, outputs=_blank_outputs(row, opdef, shapes, call, stored, prefix))
    arrays = real_inputs(call, stored)
    node = resolved_node(opdef, call, stored)
    # A reference computes what the rules allow.
    broken = next((rule.sentence for rule in opdef.constraints if not rule.check(node)), None)
    if broken is not None:
        raise UnsupportedOp(f"{row.op}: {broken}")
    exact, bounds = opdef.reference(node, arrays), opdef.result_range(node)
    kept = moves_values(row.op) or all(np.isin(result, arrays[0]).all() for result in exact)
    outputs = tuple(
        replace(spec, quant=output_encoding(row, spec, result, call.inputs, usual, kept, bounds, rng))
        if spec.quant
        else spec
        for spec, result in zip(call.outputs, exact, strict=True)
    )
    call = replace(call, outputs=outputs)
    resolve(call, stored)
    return call, exact_results(call, stored)


def exact_results(call: OpCall, stored: Mapping[str, Array], nudge: float = 1.0) -> tuple[Array, ...]:
    """Real outputs of a call on stored inputs, in exact arithmetic; the first input may be nudged a little."""
    opdef = find_op(call.op)
    first, *others = real_inputs(call, stored)
    return opdef.reference(resolved_node(opdef, call, stored), [first if nudge == 1.0 else first * nudge, *others])


def _blank_outputs(
    row: Row, opdef: OpDef, shapes: tuple[Shape, ...], call: OpCall, stored: Mapping[str, Array], prefix: str
) -> tuple[TensorSpec, ...]:
    shapes = shapes or opdef.infer(resolved_node(opdef, call, stored))
    types = [row.outputs[min(index, len(row.outputs) - 1)] for index in range(len(shapes))]
    return tuple(
        TensorSpec(
            f"{prefix}y{index}",
            shape,
            dtype,
            ScaleOffset(1.0, 0) if dtype.is_fixed_point else None,
            TensorKind.APP_READ,
        )
        for index, (shape, dtype) in enumerate(zip(shapes, types, strict=True))
    )


def run_ours(case: Case, engine: OrtEngine) -> tuple[Array, ...]:
    """Compile a graph of the one node and run it on the emulator's engine."""
    results = run_calls([case.call], case.stored, engine)
    return tuple(results[spec.name] for spec in case.call.outputs)


def run_calls(
    calls: Sequence[OpCall], stored: Mapping[str, Array], engine: OrtEngine, *, fold: bool = False
) -> dict[str, Array]:
    """Compile a graph of these nodes and run it on the emulator's engine; all its outputs by name."""
    builder = GraphBuilder("g")
    for spec in {spec.name: spec for call in calls for spec in (*call.inputs, *call.outputs) if spec}.values():
        builder.add_tensor(spec, stored[spec.name] if spec.kind is TensorKind.STATIC else None)
    for call in calls:
        builder.add_node(call)
    program = compile_graph(builder.finish(), SOC, CompileOptions(fold=fold))
    inputs = {spec.name: stored[spec.name] for spec in program.inputs}
    results = {spec.name: np.zeros(spec.shape, spec.dtype.numpy) for spec in program.outputs}
    loaded = engine.load(program)
    run = loaded.bind({**inputs, **results})
    for index in range(loaded.steps):
        run.step(index)
    loaded.close()
    return results


class NotOffered(Exception):
    """The vendor's library does not take this row; the text is its reason."""


def run_vendor(case: Case, soc: str) -> tuple[Array, ...]:
    """Run the node on the vendor's library. Raises NotOffered with its reason if it does not take it."""
    try:
        results = oracle.run_op(case.call, dict(case.stored), soc=soc)
    except DeviceLost as error:
        raise NotOffered(f"the library crashed or hung: {error.message}") from error
    except QnnError as error:
        raise NotOffered(error.message) from error
    return tuple(results[spec.name] for spec in case.call.outputs)
