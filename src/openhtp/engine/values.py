"""Where each tensor of a program is in the ONNX graph: stored or real, in which layout.

A tensor may exist in several forms at once; a form that is asked for and missing is made from one that is there.
Static tensors are transformed here and now, in numpy, and cost nothing at run time.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.core.errors import InternalError
from openhtp.core.precision import half_constant
from openhtp.core.quant import AxisScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine import encoding
from openhtp.engine.encoding import signed_tensor, unsigned_tensor
from openhtp.engine.half import MARK
from openhtp.engine.onnx_graph import OnnxGraph
from openhtp.engine.wide import pieces

Array = npt.NDArray[Any]


class Physical(enum.Enum):
    """Order of the axes in memory: as in the graph, or with the last axis moved behind the first."""

    LOGICAL = "logical"
    FIRST = "first"


def axes_order(physical: Physical, rank: int) -> tuple[int, ...]:
    """Logical axes in the order they lie in memory."""
    if physical is Physical.LOGICAL or rank < 3:
        return tuple(range(rank))
    return (0, rank - 1, *range(1, rank - 1))


def _moves_data(shape: Sequence[int], perm: Sequence[int]) -> bool:
    kept = [axis for axis in perm if shape[axis] != 1]
    return kept != sorted(kept)


class Rounding(enum.Enum):
    """The rounding of float results: none, a pair of casts, or a mark that becomes one (``half.py``)."""

    NONE = "none"
    CASTS = "casts"
    MARKS = "marks"


class TensorForms:
    """The forms of all tensors."""

    def __init__(
        self,
        graph: OnnxGraph,
        statics: Mapping[str, Array],
        *,
        dynamic: bool,
        rounding: Rounding,
        unrounded: frozenset[str] = frozenset(),
        takes_apart: bool = True,
    ) -> None:
        """``unrounded`` tensors have real values and no stored form (``HtpNode.rounds``)."""
        self.graph = graph
        self.takes_apart = takes_apart
        self.unrounded = unrounded
        self.statics = statics
        self.dynamic = dynamic
        self.rounding = rounding
        self.rounds = rounding is not Rounding.NONE
        self._stored: dict[tuple[str, DType, Physical], str] = {}
        self._real: dict[tuple[str, DType, Physical], str] = {}
        self._pieces: dict[tuple[str, tuple[int, ...] | None], tuple[str, ...]] = {}
        self._widened: dict[str, Array] = {}

    def has(self, spec: TensorSpec, physical: Physical) -> bool:
        """Whether the form that a tensor is held in is there without any work."""
        forms = self._real if spec.name in self.unrounded else self._stored
        return (spec.name, spec.dtype, _settled(spec, physical)) in forms

    def set_real(self, spec: TensorSpec, physical: Physical, name: str) -> None:
        """Say where an unrounded tensor's real values are."""
        self._real[spec.name, spec.dtype, _settled(spec, physical)] = name

    def set_stored(self, spec: TensorSpec, physical: Physical, name: str) -> None:
        """Say where a tensor's stored form is."""
        self._stored[spec.name, spec.dtype, _settled(spec, physical)] = name

    def stored(self, spec: TensorSpec, physical: Physical) -> str:
        """The stored form; for floats, float32 that already has the precision of the graph."""
        physical = _settled(spec, physical)
        key = (spec.name, spec.dtype, physical)
        if key not in self._stored:
            if spec.kind is TensorKind.STATIC:
                data = self.static(spec).transpose(axes_order(physical, spec.rank))
                self._stored[key] = self.graph.const(self._constant(spec, data))
            elif any((spec.name, spec.dtype, other) in self._stored for other in Physical):
                self._stored[key] = self.permuted(spec, axes_order(physical, spec.rank))
            else:
                self._stored[key] = self._resigned(spec, physical)
        return self._stored[key]

    def _resigned(self, spec: TensorSpec, physical: Physical) -> str:
        """An 8-bit tensor from its form of the other signedness; the same real values, so nothing is lost."""
        other = unsigned_tensor(spec)
        other = signed_tensor(spec) if other == spec else other
        if not any((other.name, other.dtype, form) in self._stored for form in Physical):
            raise InternalError(f"tensor {spec.name!r} is read before it is computed")
        real = self.dequantized(other, self.stored(other, physical), physical)
        quant = encoding.encoding_of(spec)
        axis = None
        if isinstance(quant, AxisScaleOffset):
            axis = axes_order(physical, spec.rank).index(quant.axis)
        return encoding.quantize(self.graph, real, spec.dtype, quant, axis)

    def real(self, spec: TensorSpec, physical: Physical) -> str:
        """Real values as float32; plain integers for integer tensors."""
        if not spec.dtype.is_fixed_point:
            return self.stored(spec, physical)
        physical = _settled(spec, physical)
        key = (spec.name, spec.dtype, physical)
        if key not in self._real:
            if spec.kind is TensorKind.STATIC:
                self._real[key] = self._static_real(spec, physical)
            else:
                self._real[key] = self.dequantized(spec, self.stored(spec, physical), physical)
        return self._real[key]

    def _static_real(self, spec: TensorSpec, physical: Physical) -> str:
        order = axes_order(physical, spec.rank)
        if spec.dtype.bits != 8:
            data = encoding.real_values(spec, self.static(spec)).astype(np.float32)
            return self.graph.const(data.transpose(order))
        if spec.dtype.signed:
            # Held unsigned, as computed tensors are: integer kernels want both operands alike.
            wide = self.static(spec).astype(np.int16) + 128
            name = self.graph.const(wide.astype(np.uint8).transpose(order))
            unsigned = unsigned_tensor(dataclasses.replace(spec, kind=TensorKind.NATIVE))
            return self.dequantized(unsigned, name, physical)
        return self.dequantized(spec, self.stored(spec, physical), physical)

    def widened(self, spec: TensorSpec, rank: int) -> TensorSpec:
        """A constant with leading dimensions of size 1 added, as broadcasting does; under a name of its own."""
        if spec.rank == rank:
            return spec
        added = rank - spec.rank
        quant = spec.quant
        if isinstance(quant, AxisScaleOffset):
            quant = AxisScaleOffset(quant.axis + added, quant.scales, quant.offsets)
        name = f"{spec.name} as rank {rank}"
        wide = dataclasses.replace(spec, name=name, shape=(1,) * added + spec.shape, quant=quant, dynamic=())
        self._widened[name] = self.statics[spec.name].reshape(wide.shape)
        return wide

    def static(self, spec: TensorSpec) -> Array:
        """Stored data of a constant."""
        return self._widened[spec.name] if spec.name in self._widened else self.statics[spec.name]

    def dequantized(self, spec: TensorSpec, name: str, physical: Physical = Physical.LOGICAL) -> str:
        """Real values of a stored form that has this tensor's encoding."""
        if not spec.dtype.is_fixed_point:
            return name
        quant = encoding.encoding_of(spec)
        axis = None
        if isinstance(quant, AxisScaleOffset):
            axis = axes_order(_settled(spec, physical), spec.rank).index(quant.axis)
        return encoding.dequantize(self.graph, name, spec.dtype, quant, axis)

    def permuted(self, spec: TensorSpec, perm: Sequence[int]) -> str:
        """Stored form with logical axes in the order ``perm``, from the layout that needs the least moving."""
        if spec.kind is TensorKind.STATIC:
            return self.graph.const(self._constant(spec, self.static(spec).transpose(tuple(perm))))
        candidates = []
        if not any((spec.name, spec.dtype, physical) in self._stored for physical in Physical):
            self.stored(spec, Physical.LOGICAL)
        for physical in Physical:
            name = self._stored.get((spec.name, spec.dtype, physical))
            if name is not None:
                order = axes_order(physical, spec.rank)
                steps = tuple(order.index(axis) for axis in perm)
                shape = tuple(spec.shape[axis] for axis in order)
                if steps == tuple(range(spec.rank)):
                    return name
                candidates.append((_moves_data(shape, steps), name, steps, shape))
        moves, name, steps, shape = min(candidates, key=lambda candidate: candidate[0])
        if moves or self.dynamic:
            return self.graph.node("Transpose", [name], perm=list(steps))[0]
        sizes = np.array([shape[step] for step in steps], np.int64)
        return self.graph.node("Reshape", [name, self.graph.const(sizes)])[0]

    def pieces(self, spec: TensorSpec, shape: tuple[int, ...] | None) -> tuple[str, ...]:
        """The bytes that a 16-bit tensor's stored numbers are made of, in another shape if one is given."""
        key = (spec.name, shape)
        if key not in self._pieces:
            stored = self.stored(spec, Physical.LOGICAL)
            if shape is not None:
                stored = self.graph.node("Reshape", [stored, self.graph.const(np.array(shape, np.int64))])[0]
            self._pieces[key] = pieces(self.graph, stored)
        return self._pieces[key]

    def rounded(self, name: str) -> str:
        """Real values rounded to half precision."""
        if self.rounding is Rounding.CASTS:
            return encoding.round_to_half(self.graph, name)
        marked = self.graph.node(MARK, [name])[0]
        self.graph.marks[marked] = name
        return marked

    def _constant(self, spec: TensorSpec, stored: Array) -> Array:
        if not spec.dtype.is_float:
            return stored
        return half_constant(stored) if self.rounds else stored.astype(np.float32)


def _settled(spec: TensorSpec, physical: Physical) -> Physical:
    return physical if spec.rank > 2 else Physical.LOGICAL
