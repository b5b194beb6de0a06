"""One ONNX node on its way into the QNN graph: what a rule reads from and writes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.errors import UnsupportedOp
from openhtp.core.quant import AxisScaleOffset, Encoding, ScaleOffset
from openhtp.core.tensor import TensorSpec
from openhtp.frontend import encodings, values as vs
from openhtp.frontend.model import Array, OnnxNode, Shape, ValueType
from openhtp.frontend.values import OnnxValue, Perm
from openhtp.ops import PACKAGE

if TYPE_CHECKING:
    from openhtp.frontend.onnx_import import GraphImport


class Site:
    """A node, its inputs as values, and the means to emit QNN nodes for it.

    ``fixed`` holds the type and encoding of each output that is stored in fixed point. Without it the node
    computes in floats: its inputs are dequantized, and its outputs are left as floats.
    """

    def __init__(self, around: GraphImport, node: OnnxNode, fixed: Mapping[int, encodings.Fixed] | None) -> None:
        self._around = around
        self._fixed = fixed
        self._emitted = 0
        self.node = node
        self.assembly = around.assembly

    @property
    def is_fixed(self) -> bool:
        """Whether the node computes in fixed point."""
        return self._fixed is not None

    # Reading

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return self.node.has(index)

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.node.attr(name, default)

    def type(self, index: int = 0) -> ValueType:
        """ONNX type of an input."""
        return self._around.types[self.node.inputs[index]]

    def out_type(self, index: int = 0) -> ValueType:
        """ONNX type of an output."""
        return self._around.types[self.node.outputs[index]]

    def constant(self, index: int) -> Array | None:
        """Real numbers of a constant input, otherwise None."""
        return self._around.value(self.node.inputs[index]).real() if self.has(index) else None

    def ints(self, index: int) -> list[int]:
        """A constant input as a list of whole numbers; refuses one that is computed."""
        array = self.constant(index)
        if array is None:
            self.refuse(f"input {index} ({self.node.inputs[index]!r}) is computed", "make it a constant")
        return [int(item) for item in np.asarray(array).reshape(-1)]

    def source(self, index: int) -> OnnxValue:
        """An input as it is."""
        return self._around.value(self.node.inputs[index])

    def value(self, index: int) -> OnnxValue:
        """An input in the domain that the node computes in."""
        value = self._around.value(self.node.inputs[index])
        if not value.is_real:
            return value
        if not self.is_fixed:
            if value.dtype.is_fixed_point:
                return self.assembly.converted(value, encodings.plain_type(self.type(index).dtype), None)
            return value
        if value.dtype.is_float:
            real = value.real()
            if real is None:
                self.refuse(f"input {value.name!r} is a float beside fixed-point ones", "quantize it, or none")
            dtype = self.fixed_type
            return self.assembly.converted(value, dtype, encodings.covering(real, dtype))
        return value

    def weight(self, index: int) -> OnnxValue:
        """A filter or matrix: constants of 16 bits in the restricted form that the HTP takes."""
        value = self.value(index)
        if value.data is None or value.quant is None or value.dtype.bits != 16:
            return value
        quant = encodings.sixteen_bit_weights(value.data, value.dtype, value.quant)
        return value if quant is None else self.assembly.converted(value, DType.SFIXED_POINT_16, quant)

    def like(self, value: OnnxValue, dtype: DType) -> OnnxValue:
        """A fixed-point value in another fixed-point type, exactly where the type can hold it."""
        if value.dtype == dtype or not value.dtype.is_fixed_point:
            return value
        if isinstance(value.quant, AxisScaleOffset) or value.quant is None:
            real = value.real()
            if real is None:
                self.refuse(f"input {value.name!r} is computed with a scale per channel", "use one scale")
            return self.assembly.converted(value, dtype, encodings.covering(real, dtype))
        unsigned, quant = encodings.activation(value.dtype, value.quant)
        assert isinstance(quant, ScaleOffset)
        if (unsigned.bits, dtype.bits) == (8, 16):
            quant = encodings.widened(quant)
        elif (unsigned.bits, dtype.bits) == (16, 8):
            quant = ScaleOffset(quant.scale * 257.0, round(quant.offset / 257))
        return self.assembly.converted(value, dtype, quant)

    def matched(self, value: OnnxValue) -> OnnxValue:
        """A value in the type of this node's activations, where they are fixed point."""
        return self.like(value, self.fixed_type) if self.is_fixed else value

    def wide_enough(self, value: OnnxValue) -> OnnxValue:
        """An activation with at least the output's bits: integer kernels give what they take."""
        return self.matched(value) if value.dtype.bits < self.fixed_type.bits else value

    @property
    def fixed_type(self) -> DType:
        """The type of this node's activations: its output's, or that of its first fixed-point input."""
        if self._fixed:
            return next(iter(self._fixed.values()))[0]
        kinds = [self._around.value(name) for name in self.node.inputs if name]
        return next((v.dtype for v in kinds if v.dtype.is_fixed_point and not v.is_constant), DType.UFIXED_POINT_8)

    # Taking and giving tensors

    def take(self, index: int, perm: Perm | None = None) -> TensorSpec:
        """An input as a tensor with its axes in this order (as in ONNX if not given)."""
        value = self.value(index)
        return self.assembly.form(value, perm if perm is not None else vs.identity(value.rank))

    def in_order(self, index: int) -> TensorSpec:
        """An input as a tensor whose elements are in ONNX's order, whatever its axes of size 1."""
        value = self.value(index)
        plain = vs.identity(value.rank)
        for perm, spec in value.forms.items():
            if vs.same_order(value.shape, perm, plain):
                return spec
        return self.assembly.form(value, plain)

    def give(self, index: int = 0, perm: Perm | None = None) -> TensorSpec:
        """The tensor for an output, with its axes in this order."""
        name = self.node.outputs[index]
        kind = self._around.types[name]
        dtype, quant = self.stored_as(index)
        return self._around.declare(name, perm if perm is not None else vs.identity(len(kind.shape)), dtype, quant)

    def stored_as(self, index: int = 0) -> tuple[DType, Encoding | None]:
        """Type and encoding of an output."""
        if self._fixed is not None and index in self._fixed:
            return self._fixed[index]
        return encodings.plain_type(self._around.types[self.node.outputs[index]].dtype), None

    def between(self, shape: Shape, like: TensorSpec) -> TensorSpec:
        """A tensor between two nodes of this site, stored like another."""
        return self.assembly.native(f"{self.node.outputs[0]}_part", shape, like.dtype, like.quant)

    def static(self, data: Any, dtype: DType, quant: Encoding | None = None) -> TensorSpec:
        """A constant of this site's own."""
        return self.assembly.static(f"{self.node.outputs[0]}_constant", np.asarray(data), dtype, quant)

    def number(self, real: float) -> TensorSpec:
        """One real number as an operand for this node's arithmetic."""
        if not self.is_fixed:
            return self.static(np.full((1,), real, np.float32), self.stored_as()[0])
        dtype = self.fixed_type
        quant = encodings.covering(np.array([real]), dtype)
        return self.static(vs.stored(np.full((1,), real), dtype, quant), dtype, quant)

    def is_used(self, index: int) -> bool:
        """Whether an output has a name."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def result(self, index: int, value: OnnxValue) -> None:
        """An output is this value; no node is needed."""
        self._around.define(self.node.outputs[index], value)

    def emit(
        self,
        op: str,
        inputs: Sequence[TensorSpec | None],
        outputs: Sequence[TensorSpec],
        params: Mapping[str, Any] | None = None,
        *,
        package: str = PACKAGE,
    ) -> None:
        """Add a QNN node."""
        name = self.node.name if not self._emitted else f"{self.node.name}_{self._emitted}"
        self._emitted += 1
        self.assembly.call(op, name, inputs, outputs, params, package=package)

    def emit_kept(
        self,
        op: str,
        inputs: Sequence[TensorSpec | None],
        outputs: Sequence[TensorSpec],
        params: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a node whose first output has values of its first input: QNN wants them in the same encoding."""
        x, out = inputs[0], outputs[0]
        assert x is not None
        if not self.is_fixed or (x.dtype, x.quant) == (out.dtype, out.quant):
            self.emit(op, inputs, outputs, params)
            return
        kept = self.between(out.shape, x)
        self.emit(op, inputs, [kept, *outputs[1:]], params)
        self.emit("Convert", [kept], [out])

    def emit_cast(self, op: str, x: TensorSpec, out: TensorSpec, dtype: DType, params: Mapping[str, Any]) -> None:
        """Add a node that computes in another type than its input and output have."""
        before, after = (self.assembly.native(f"{s.name}_{dtype.short}", s.shape, dtype, None) for s in (x, out))
        self.emit("Cast", [x], [before])
        self.emit(op, [before], [after], params)
        self.emit("Cast", [after], [out])

    def refuse(self, problem: str, advice: str = "") -> NoReturn:
        """The node cannot be represented; ``advice`` names the nearest form that can."""
        raise UnsupportedOp(f"{self.node.title}: {problem}" + (f"; {advice}" if advice else ""))

    # Order of axes

    def axis(self, axis: int, rank: int) -> int:
        """An ONNX axis, counted from the front."""
        if not -rank <= axis < rank:
            self.refuse(f"axis {axis} is out of range for rank {rank}")
        return axis % rank

    def common_perm(self, indexes: Sequence[int], rank: int) -> Perm:
        """The order of axes in which most of these inputs exist already; the graph's own when it is a draw."""
        plain = vs.identity(rank)
        counts: dict[Perm, int] = {}
        for index in indexes:
            value = self._around.value(self.node.inputs[index])
            if value.rank == rank and not value.is_constant:
                for perm in value.forms:
                    counts[perm] = counts.get(perm, 0) + 1
        if not counts:
            return plain
        most = max(counts.values())
        best = [perm for perm, count in counts.items() if count == most]
        # In a draw between ONNX's order and another, the other comes from a convolution and probably leads to one.
        return (
            next((perm for perm in best if perm != plain), plain) if counts.get(plain, 0) < len(indexes) else plain
        )

    def aligned(self, value: OnnxValue, perm: Perm) -> TensorSpec:
        """An operand with its axes in this order, axes of size 1 put in front where it has fewer."""
        rank = len(perm)
        if value.rank == rank:
            return self.assembly.form(value, perm)
        if perm == vs.identity(rank) and value.rank > 0:
            return self.assembly.form(value, vs.identity(value.rank))
        shape = (1,) * (rank - value.rank) + value.shape
        return self.assembly.form(self.reshaped(value, shape), perm)

    def reshaped(self, value: OnnxValue, shape: Shape) -> OnnxValue:
        """The elements of ``value`` in another shape."""
        quant = value.quant
        if isinstance(quant, AxisScaleOffset):
            quant = AxisScaleOffset(quant.axis + len(shape) - value.rank, quant.scales, quant.offsets)
        result = OnnxValue(f"{value.name}_reshaped", shape, value.dtype, quant)
        if value.data is not None:
            result.data = value.data.reshape(shape)
            return result
        target = self.assembly.native(result.name, shape, value.dtype, quant)
        self.emit("Reshape", [self.assembly.form(value, vs.identity(value.rank))], [target])
        result.forms[vs.identity(len(shape))] = target
        return result
