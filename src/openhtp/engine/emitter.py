"""The emitter that op definitions lower through: one per program node."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.core.precision import half_constant, half_rounded
from openhtp.core.quant import AxisScaleOffset, Encoding, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine import encoding
from openhtp.engine.encoding import bias_in_steps, integer_weights
from openhtp.engine.integer_kernels import rounds_products_alone
from openhtp.engine.values import Physical, TensorForms, axes_order
from openhtp.engine.wide import computed_right, constant_right, is_wide, row_product, wide_product
from openhtp.ops import Node, OpDef

Array = npt.NDArray[Any]
Bounds = tuple[float, float]


class NodeEmitter:
    """Implements ``openhtp.ops._node.Emitter`` on an OnnxGraph."""

    def __init__(
        self, values: TensorForms, opdef: OpDef, node: Node, physical: Physical, clamp: Bounds | None
    ) -> None:
        self._values = values
        self._graph = values.graph
        self._opdef = opdef
        self._node = node
        self._physical = physical
        self._clamp = clamp

    @property
    def dynamic(self) -> bool:
        """Whether shapes may vary between executions."""
        return self._values.dynamic

    @property
    def rounds_products_alone(self) -> bool:
        """Whether the runtime's plain kernels round a product before they add it to something."""
        return rounds_products_alone()

    def node(self, op_type: str, inputs: Sequence[str], *, domain: str = "", **attrs: Any) -> str:
        """Emit a node with one output."""
        return self._graph.node(op_type, inputs, 1, domain, **attrs)[0]

    def nodes(self, op_type: str, inputs: Sequence[str], outputs: int, **attrs: Any) -> tuple[str, ...]:
        """Emit a node with several outputs."""
        return self._graph.node(op_type, inputs, outputs, **attrs)

    def own_node(self, op_type: str, inputs: Sequence[str], shape: Sequence[int], **attrs: int) -> str:
        """Emit a node of one of the C side's operators, or "" where that was not compiled."""
        from openhtp.engine.native import DOMAIN, native  # the runtime, which lowering alone does not need

        if native() is None:
            return ""
        # The runtime cannot find out its shape, and is told by a node that costs nothing.
        return self.node("Reshape", [self.node(op_type, inputs, domain=DOMAIN, **attrs), self.ints(shape)])

    def const(self, array: Array) -> str:
        """A constant."""
        return self._graph.const(np.asarray(array))

    def ints(self, numbers: npt.ArrayLike) -> str:
        """A constant of indices, sizes or axes."""
        return self._graph.const(np.array(numbers, np.int64))

    def floats(self, numbers: npt.ArrayLike) -> str:
        """A constant of real numbers."""
        return self._graph.const(np.array(numbers, np.float32))

    def value(self, index: int) -> str:
        """Real values of an input in this node's layout."""
        return self._values.real(self._input(index), self._physical)

    def stored(self, index: int) -> str:
        """The input as it is stored, in this node's layout."""
        return self._values.stored(self._input(index), self._physical)

    def permuted(self, index: int, perm: Sequence[int], *, stored: bool = False) -> str:
        """Input with its logical axes permuted."""
        spec = self._node.input(index)
        name = self._values.permuted(spec, perm)
        if stored or not spec.dtype.is_fixed_point:
            return name
        return encoding.dequantize(
            self._graph, name, spec.dtype, encoding.encoding_of(spec), _moved_axis(spec, perm)
        )

    def reshaped(self, index: int, shape: Sequence[int]) -> str:
        """Values of an input in another shape."""
        spec = self._node.input(index)
        stored = self._values.stored(spec, Physical.LOGICAL)
        return self._values.dequantized(spec, self.node("Reshape", [stored, self.ints(shape)]))

    def weight(
        self,
        index: int,
        arrange: Callable[[Array], Array],
        perm: Sequence[int],
        axis: int,
        *,
        integer: bool = True,
    ) -> str:
        """Real values of a weight-like input, rearranged."""
        spec = self._node.input(index)
        if spec.kind is not TensorKind.STATIC:
            return self.permuted(index, perm)
        stored = self._values.statics[spec.name]
        quant = encoding.encoding_of(spec)
        if integer and self._is_integer_path(spec, quant):
            dtype, stored, quant = integer_weights(spec.dtype, stored, quant)
            name = self._graph.const(arrange(stored))
            return encoding.dequantize(self._graph, name, dtype, quant, axis)
        real = encoding.real_values(spec, stored)
        if self._values.rounds and spec.dtype.is_float:
            real = half_constant(real)
        return self._graph.const(arrange(real).astype(np.float32))

    def wide_product(
        self, index: int, right: int, perm: Sequence[int], shape: tuple[int, ...] | None = None
    ) -> str:
        """Real values of an exact product, or "" if these are no 16-bit and 8-bit numbers."""
        spec, other = self._node.input(index), self._node.input(right)
        if not self._values.takes_apart or not is_wide(spec):
            return ""
        if not {spec.name, other.name}.isdisjoint(self._values.unrounded):
            return ""
        rows = other.shape[perm[-2]]
        if other.kind is TensorKind.STATIC:
            factor = constant_right(self._graph, other, self._values.statics[other.name].transpose(perm))
        elif other.dtype is DType.UFIXED_POINT_8:
            factor = computed_right(self._graph, other, self._values.permuted(other, perm), rows)
        else:
            return ""
        if factor is None:
            return ""
        one_row = not self.dynamic and spec.elements == rows
        result = wide_product(self._graph, self._values.pieces(spec, shape), spec, factor, one_row=one_row)
        if one_row and other.elements == rows * other.shape[perm[-1]]:
            sizes = rows, other.shape[perm[-1]], max(spec.rank if shape is None else len(shape), other.rank)
            middle = None if other.kind is TensorKind.STATIC else -int(getattr(other.quant, "offset", 0))
            stored = self._values.stored(spec, Physical.LOGICAL)
            product = row_product(stored, spec, factor, sizes, middle)
            if product is not None:
                self._graph.products[result] = product
        return result

    def bias(self, index: int, weight: int, *, integer: bool = True) -> str:
        """Real values of a bias, or "" if left out."""
        if not self._node.has(index):
            return ""
        spec, weights = self._node.input(index), self._node.input(weight)
        if spec.kind is not TensorKind.STATIC:
            return self.value(index)
        scales = self._product_scales(weights)
        stored = self._values.statics[spec.name]
        if spec.dtype is DType.SFIXED_POINT_32 and spec.quant is None:
            # Per-channel weights leave the bias without a scale of its own: it is the product's.
            real = stored.astype(np.float64) * scales
        else:
            real = encoding.real_values(spec, stored)
        static = weights.kind is TensorKind.STATIC
        if integer and static and self._is_integer_path(weights, encoding.encoding_of(weights)):
            steps = bias_in_steps(real, scales)
            if steps is not None:
                scale = self._graph.const(scales.astype(np.float32))
                attrs: dict[str, Any] = {"axis": 0} if scales.ndim else {}
                return self.node("DequantizeLinear", [self._graph.const(steps), scale], **attrs)
        if self._values.rounds and spec.dtype.is_float:
            real = half_constant(real)
        return self._graph.const(real.astype(np.float32))

    def axis(self, axis: int, index: int = 0) -> int:
        """Where a logical axis of an input is in this node's layout."""
        rank = self._node.input(index).rank
        return axes_order(self._physical, rank).index(axis % rank)

    def vector(self, per_axis: Sequence[int]) -> list[int]:
        """Numbers given per logical axis, in the order of this node's layout."""
        return [per_axis[axis] for axis in axes_order(self._physical, len(per_axis))]

    def same_encoding(self) -> bool:
        """Whether all inputs of input 0's type and all outputs share one type and encoding."""
        first = self._node.input(0)
        alike = [spec for spec in self._node.inputs if spec is not None and spec.dtype == first.dtype]
        return all(
            spec.dtype == first.dtype and spec.quant == first.quant for spec in (*alike, *self._node.outputs)
        ) and not isinstance(first.quant, AxisScaleOffset)

    def put(self, index: int, name: str, clamp: Bounds | None = None) -> None:
        """The output's real values are here."""
        spec = self._node.outputs[index]
        name = self._as_declared(index, name)
        bounds = _tighter(clamp, self._clamp)
        if spec.name in self._values.unrounded:
            return self._values.set_real(spec, self._physical, name)
        if spec.dtype.is_fixed_point:
            quant = encoding.encoding_of(spec)
            in_steps = isinstance(quant, ScaleOffset) and spec.dtype.bits == 8
            if bounds is not None and not in_steps:
                name = self._clip(name, bounds, np.dtype(np.float32))
            axis = None
            if isinstance(quant, AxisScaleOffset):
                axis = axes_order(self._physical, spec.rank).index(quant.axis)
            name = encoding.quantize(self._graph, name, spec.dtype, quant, axis)
            return self._finish(index, self._clip_steps(name, spec, bounds) if in_steps else name)
        if bounds is not None:
            name = self._clip(name, self._rounded(spec, bounds), _computed_type(spec))
        if spec.dtype.is_float and self._values.rounds and not self._keeps_precision(spec):
            name = self._values.rounded(name)
        return self._finish(index, name)

    def put_stored(self, index: int, name: str, clamp: Bounds | None = None) -> None:
        """The output's stored form is here."""
        spec = self._node.outputs[index]
        name = self._as_declared(index, name)
        bounds = _tighter(clamp, self._clamp)
        if bounds is not None:
            if not spec.dtype.is_fixed_point:
                name = self._clip(name, self._rounded(spec, bounds), _computed_type(spec))
            elif spec.dtype.bits == 8:
                name = self._clip_steps(name, spec, bounds)
            else:
                # The runtime clips no 16-bit integers: go through real values, which is exact for 16 bits.
                return self.put(index, self._values.dequantized(spec, name, self._physical), clamp)
        return self._finish(index, name)

    def _as_declared(self, index: int, name: str) -> str:
        """The value in its declared shape: a single element may be declared without an axis, or with one."""
        shape = self._node.outputs[index].shape
        if shape not in ((), (1,)) or self._opdef.infer(self._node)[index] == shape:
            return name
        return self.node("Reshape", [name, self.ints(shape)])

    def _finish(self, index: int, name: str) -> None:
        self._values.set_stored(self._node.outputs[index], self._physical, name)

    def _input(self, index: int) -> TensorSpec:
        """Spec of an input, constants widened to the output's rank where the layout moves axes."""
        spec = self._node.input(index)
        if self._physical is Physical.FIRST and spec.kind is TensorKind.STATIC:
            return self._values.widened(spec, self._node.outputs[0].rank)
        return spec

    def _is_integer_path(self, weights: TensorSpec, quant: Encoding) -> bool:
        """Whether the runtime has an integer kernel for this node: 8 bits in, out, and in the weights."""
        if self._node.outputs[0].name in self._values.unrounded:
            return False
        ends = (self._node.input(0).dtype, self._node.outputs[0].dtype, weights.dtype)
        return all(dtype.is_fixed_point and dtype.bits == 8 for dtype in ends) and encoding.has_operator(
            weights.dtype, quant
        )

    def _product_scales(self, weights: TensorSpec) -> npt.NDArray[np.float64]:
        left, right = encoding.encoding_of(self._node.input(0)), encoding.encoding_of(weights)
        scale = left.scale if isinstance(left, ScaleOffset) else 1.0
        return scale * np.array(right.scale if isinstance(right, ScaleOffset) else right.scales, np.float64)

    def _keeps_precision(self, spec: TensorSpec) -> bool:
        source = self._node.input(0).dtype if self._node.inputs else None
        if source is None:
            return False
        if source.is_float:
            return self._opdef.values_kept
        # Fixed point that leaves the chip as 32-bit floats was never a half.
        return self._opdef.moves_only and spec.kind.is_output and spec.dtype is DType.FLOAT_32

    def _rounded(self, spec: TensorSpec, bounds: Bounds) -> Bounds:
        if not (spec.dtype.is_float and self._values.rounds):
            return bounds
        low, high = (float(bound) for bound in half_rounded(np.array(bounds, np.float64)))
        return low, high

    def _clip(self, name: str, bounds: Bounds, dtype: np.dtype[Any]) -> str:
        low, high = bounds
        if low == 0.0 and math.isinf(high) and dtype.kind == "f":
            return self.node("Relu", [name])
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            low, high = (
                max(math.ceil(max(low, info.min)), info.min),
                min(math.floor(min(high, info.max)), info.max),
            )
        return self.node("Clip", [name, self.const(np.array(low, dtype)), self.const(np.array(high, dtype))])

    def _clip_steps(self, name: str, spec: TensorSpec, bounds: Bounds | None) -> str:
        quant = encoding.encoding_of(spec)
        if bounds is None or not isinstance(quant, ScaleOffset):
            return name
        steps = encoding.clamp_in_steps(spec.dtype, quant, *bounds)
        if steps == spec.dtype.integer_range:
            return name
        return self._clip(name, steps, spec.dtype.numpy)


def _tighter(one: Bounds | None, two: Bounds | None) -> Bounds | None:
    if one is None or two is None:
        return one or two
    return max(one[0], two[0]), min(one[1], two[1])


def _computed_type(spec: TensorSpec) -> np.dtype[Any]:
    return np.dtype(np.float32) if spec.dtype.is_float else spec.dtype.numpy


def _moved_axis(spec: TensorSpec, perm: Sequence[int]) -> int | None:
    return list(perm).index(spec.quant.axis) if isinstance(spec.quant, AxisScaleOffset) else None
