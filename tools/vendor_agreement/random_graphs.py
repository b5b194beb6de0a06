"""Small random graphs with branches and joins, out of every operation and choice of types that is offered.

A graph grows node by node. Each takes a value that is already there; its other inputs are such values too, or new
inputs. Where an operation does not take the value's shape, the value is cut and reshaped first. Encodings come
from exact arithmetic, rounded to steps after every node, as calibration would give them.

Whoever draws is passed in (``Choices``), so that hypothesis can shrink a graph and a plain generator repeat one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.core.errors import QnnError
from openhtp.core.opcall import OpCall
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ops import find_op
from vendor_agreement.differential import with_outputs
from vendor_agreement.drawing import draw_data, input_encoding, moves_values, narrowed, real_values
from vendor_agreement.rows import Row, samples_of

Array = npt.NDArray[Any]
T = TypeVar("T")
Accepts = Callable[[OpCall, Mapping[str, Array]], bool]

MOST_NODES = 6
# Values this large make powers and products overflow in half precision.
_MOST_ANYWHERE = 8.0
_FEWEST_NUMBERS = 8
_TRIES = 12


class Choices(Protocol):
    """Where a graph's choices come from."""

    def pick(self, options: Sequence[T]) -> T:
        """One of several."""
        ...

    def integer(self, low: int, high: int) -> int:
        """A number, both ends included."""
        ...


class Dice:
    """Choices from a seed."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def pick(self, options: Sequence[T]) -> T:
        """One of several."""
        return options[int(self._rng.integers(len(options)))]

    def integer(self, low: int, high: int) -> int:
        """A number, both ends included."""
        return int(self._rng.integers(low, high + 1))


class GraphNode(NamedTuple):
    """A node of a random graph. ``number`` is odd if its encodings are not such as converters write."""

    row: Row
    call: OpCall
    number: int


@dataclass(frozen=True, slots=True)
class RandomGraph:
    """Nodes in order, and the stored data of all inputs and constants."""

    nodes: tuple[GraphNode, ...]
    stored: dict[str, Array]


class Offered:
    """The rows to choose from, by the type of their first input that is not constant."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows: dict[DType, dict[str, list[Row]]] = {}
        for row in rows:
            first = _first_computed(row)
            if first is not None:
                self._rows.setdefault(row.inputs[first], {}).setdefault(row.op, []).append(row)

    @property
    def types(self) -> tuple[DType, ...]:
        """Types that a graph may start from."""
        return tuple(self._rows)

    def draw(self, dtype: DType, choices: Choices) -> Row:
        """Every operation is as likely as any other, however many rows it has."""
        by_op = self._rows[dtype]
        return choices.pick(by_op[choices.pick(sorted(by_op))])

    def moving(self, op: str, dtype: DType) -> Row | None:
        """The row of an operation that gives back what it takes."""
        rows = self._rows.get(dtype, {}).get(op, [])
        return next((row for row in rows if row.outputs == (dtype,)), None)


def _first_computed(row: Row) -> int | None:
    sample = samples_of(row.op)[row.sample]
    computed = (i for i, shape in enumerate(sample.shapes) if shape is not None and i not in sample.static)
    return next(computed, None)


def draw_graph(offered: Offered, choices: Choices, accepts: Accepts) -> RandomGraph:
    """A graph whose every node is accepted. It has at least one node, and two to six (and adapters) as a rule."""
    usual = choices.integer(0, 3) > 0
    grown = _Growing(offered, choices, accepts, usual, np.random.default_rng(choices.integer(0, 2**31)))
    # Graphs of 8 and 16 bits are what the HTP is for; others are drawn, too.
    common = [dtype for dtype in offered.types if dtype in (DType.UFIXED_POINT_8, DType.UFIXED_POINT_16)]
    start = choices.pick([*common * 3, *offered.types])
    wanted = choices.integer(2, MOST_NODES)
    made = 0
    for _ in range(_TRIES * wanted):
        if made < wanted:
            made += grown.grow(start)
    return RandomGraph(tuple(grown.nodes), grown.inputs)


class _Refused(Exception):
    """A node cannot be as drawn."""


@dataclass(slots=True)
class _Growing:
    offered: Offered
    choices: Choices
    accepts: Accepts
    usual: bool
    rng: np.random.Generator
    nodes: list[GraphNode] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    # What every tensor holds in exact arithmetic that is rounded after each node.
    held: dict[str, Array] = field(default_factory=dict)
    values: list[TensorSpec] = field(default_factory=list)

    def grow(self, start: DType) -> bool:
        """Add a node, and what it needs to fit. False, and nothing is added, if it cannot be as drawn."""
        known = [spec for spec in self.values if spec.dtype in self.offered.types]
        if not known:
            row = self.offered.draw(start, self.choices)
            return self._attempt(lambda: self._add(row, None, None)) is not None
        source = self.choices.pick(known)
        row = self.offered.draw(source.dtype, self.choices)
        shapes = _shapes_to_try(row, source.shape)
        return any(self._attempt(partial(self._add, row, source, shape)) is not None for shape in shapes)

    def _attempt(self, what: Callable[[], T]) -> T | None:
        """Do it, or nothing of it."""
        before = (self.nodes.copy(), self.inputs.copy(), self.held.copy(), self.values.copy())
        try:
            return what()
        except (_Refused, QnnError):
            self.nodes, self.inputs, self.held, self.values = before
            return None

    def _add(self, row: Row, source: TensorSpec | None, shape: tuple[int, ...] | None) -> tuple[TensorSpec, ...]:
        sample = samples_of(row.op)[row.sample]
        first = _first_computed(row)
        specs: list[TensorSpec | None] = []
        for index, wanted in enumerate(sample.shapes):
            if wanted is None:
                specs.append(None)
                continue
            if shape is not None and first is not None and wanted == sample.shapes[first]:
                wanted = shape
            if index in sample.static:
                specs.append(self._new(row, index, wanted, specs, static=True))
            elif index == first and source is not None:
                specs.append(self._fitted(row, index, source, wanted))
            else:
                specs.append(self._other(row, index, wanted, specs))
        return self._place(row, tuple(specs), dict(sample.params))

    def _other(self, row: Row, index: int, shape: tuple[int, ...], before: list[TensorSpec | None]) -> TensorSpec:
        """A further input: a value that is there, if there is one of its type, or a new one."""
        known = [spec for spec in self.values if spec.dtype == row.inputs[index]]
        known = [spec for spec in known if spec.shape == shape] or known
        fitted = None
        if known and self.choices.integer(0, 3):
            fitted = self._attempt(partial(self._fitted, row, index, self.choices.pick(known), shape))
        return fitted or self._new(row, index, shape, before)

    def _new(
        self,
        row: Row,
        index: int,
        shape: tuple[int, ...],
        before: list[TensorSpec | None],
        *,
        static: bool = False,
    ) -> TensorSpec:
        sample = samples_of(row.op)[row.sample]
        low, high = sample.ranges.get(index, (sample.low, sample.high))
        kind = TensorKind.STATIC if static else TensorKind.APP_WRITE
        spec = TensorSpec(f"x{len(self.inputs)}", shape, row.inputs[index], kind=kind)
        if spec.dtype.is_fixed_point:
            low, high = narrowed(self.rng, low, high, len(self.inputs))
            quant = input_encoding(row, spec, index, (low, high), before, self.usual, self.rng)
            spec = replace(spec, quant=quant)
        self.inputs[spec.name] = self.held[spec.name] = draw_data(self.rng, spec, low, high)
        if not static:
            self.values.append(spec)
        return spec

    def _fitted(self, row: Row, index: int, source: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
        """The value in a shape that is asked for, through nodes that cut and reshape it."""
        held = self.held[source.name]
        if not (_varies(source, held) and _is_in_domain(row, index, source, held)):
            raise _Refused
        if source.shape == shape:
            return source
        count = math.prod(shape)
        if source.elements < count:
            raise _Refused
        if source.elements > count:
            flat = self._move("Reshape", source, (1, 1, 1, source.elements), {})
            ranges = [[0, 1, 1], [0, 1, 1], [0, 1, 1], [0, count, 1]]
            source = self._move("StridedSlice", flat, (1, 1, 1, count), {"ranges": ranges})
        return source if source.shape == shape else self._move("Reshape", source, shape, {})

    def _move(self, op: str, source: TensorSpec, shape: tuple[int, ...], params: dict[str, Any]) -> TensorSpec:
        row = self.offered.moving(op, source.dtype)
        if row is None:
            raise _Refused
        inputs = (source,) + (None,) * (len(row.inputs) - 1)
        return self._place(row, inputs, params, shape)[0]

    def _place(
        self,
        row: Row,
        inputs: tuple[TensorSpec | None, ...],
        params: dict[str, Any],
        shape: tuple[int, ...] | None = None,
    ) -> tuple[TensorSpec, ...]:
        name = f"n{len(self.nodes)}"
        call = OpCall(row.op, name, inputs, (), params)
        call, exact = with_outputs(row, call, self.held, self.usual, self.rng, f"{name}.", shape)
        if not self.accepts(call, self.held):
            raise _Refused
        for spec, result in zip(call.outputs, exact, strict=True):
            self.held[spec.name] = _rounded(spec, result)
        encodings = {
            spec.quant for spec in (*inputs, *call.outputs) if spec and spec.dtype == call.outputs[0].dtype
        }
        unusual = not self.usual or (moves_values(row.op) and len(encodings) > 1)
        self.nodes.append(GraphNode(row, call, int(unusual)))
        self.values += call.outputs
        return call.outputs


def _shapes_to_try(row: Row, given: tuple[int, ...]) -> Sequence[tuple[int, ...]]:
    """Shapes for the first computed input: the value's own, then that of the sample, which other inputs suit."""
    sample, first = samples_of(row.op)[row.sample], _first_computed(row)
    shape = None if first is None else sample.shapes[first]
    if shape is None or shape == given:
        return (given,)
    has_indices = any(not (row.inputs[i].is_fixed_point or row.inputs[i].is_float) for i in sample.ranges)
    bound = has_indices or sample.outputs or find_op(row.op).bound_to_shape
    return (shape,) if bound else (given, shape)


def _varies(spec: TensorSpec, held: Array) -> bool:
    """Whether there is enough in a value to find sensible encodings for what is computed from it."""
    return not (spec.dtype.is_fixed_point or spec.dtype.is_float) or np.unique(held).size >= _FEWEST_NUMBERS


def _is_in_domain(row: Row, index: int, spec: TensorSpec, held: Array) -> bool:
    """Whether an operation is defined on all that a value may be, a step to either side of what it is here."""
    if spec.dtype is DType.BOOL_8:
        return True
    sample = samples_of(row.op)[row.sample]
    low, high = sample.ranges.get(index, (sample.low, sample.high))
    real = real_values(spec, held)
    if index not in sample.ranges and (low, high) == (-2.0, 2.0):
        return bool(np.abs(real).max() <= _MOST_ANYWHERE)
    if not spec.dtype.is_fixed_point and not spec.dtype.is_float:
        return False  # indices: what they may become is not known
    margin = 0.02 * (high - low)
    return bool(real.min() >= low + margin and real.max() <= high - margin)


def _rounded(spec: TensorSpec, exact: Array) -> Array:
    if spec.quant is not None:
        return spec.quant.quantize(exact, *spec.dtype.integer_range).astype(spec.dtype.numpy)
    if spec.dtype.is_float:
        return np.asarray(exact).astype(np.float16).astype(spec.dtype.numpy)
    return np.asarray(exact).astype(spec.dtype.numpy)
