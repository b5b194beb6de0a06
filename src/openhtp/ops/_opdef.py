"""What an op is: the record that each op file fills in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openhtp.core.dtype import DType
from openhtp.core.quant import AxisScaleOffset
from openhtp.ops._emit import Emitter, Layout
from openhtp.ops._node import Array, Node, Shape
from openhtp.ops._onnx import OnnxRule
from openhtp.ops._tiles import TileRule, split_nowhere
from openhtp.ops._types import TypeRow


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output. A variadic port is the last of its side and stands for one or more tensors."""

    name: str
    optional: bool = False
    variadic: bool = False


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter. ``rank`` 0 is a scalar, otherwise a tensor of that many dimensions.

    ``default`` may be a function of the node so far (``axis`` defaults to the last one). ``choices`` names the
    numbers of an enumeration; a caller may give either. ``stored_or_real`` keeps an integer an integer: it is
    then a stored number of the op's tensor, where a float is a real value.
    """

    name: str
    dtype: DType = DType.UINT_32
    rank: int = 0
    default: Any = None
    mandatory: bool = False
    choices: Mapping[str, int] = field(default_factory=dict)
    stored_or_real: bool = False


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule: its sentence is the error text and the row in docs/ops.md.

    ``late``: only nodes of graphs are held to it. Clients have operations validated before they put axes in order.
    """

    sentence: str
    check: Callable[[Node], bool]
    late: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """How much an op does, not how long it takes: the cost model knows the latter.

    ``macs`` are multiply-accumulates that a matrix unit can do; ``vector_ops`` elementary vector-lane
    operations; bytes are those of whole tensors, before any tiling.
    """

    macs: int = 0
    vector_ops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass(frozen=True, slots=True)
class Weights:
    """Input 1 holds weights, and input 2 a bias in steps of input times weight.

    ``channel_axis`` is the axis of the weights that may have an encoding per index, where converters use that.
    """

    channel_axis: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One typical use, in real numbers; the tests derive a case per accepted type from it.

    ``shapes`` holds None for left-out inputs; ``static`` numbers the inputs that are constant; ``outputs`` is
    needed only where the output shape is the caller's choice. ``low`` and ``high`` bound the values of every
    input unless ``ranges`` says otherwise for one. ``types`` restricts to rows whose first input has one of
    these words.
    """

    shapes: tuple[Shape | None, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    static: tuple[int, ...] = ()
    outputs: tuple[Shape, ...] = ()
    low: float = -2.0
    high: float = 2.0
    ranges: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    types: tuple[str, ...] = ()


Infer = Callable[[Node], tuple[Shape, ...]]
Reference = Callable[[Node, Sequence[Array]], tuple[Array, ...]]
Lower = Callable[[Node, Emitter], None]
Worker = Callable[[Node], Work]


def no_fixed_range(node: Node) -> tuple[float, float] | None:
    """Results may be any number."""
    return None


def channel_scales(axis: Callable[[Node], int]) -> Constraint:
    """Per-channel weights must have their scales along the axis that makes output channels."""

    def check(node: Node) -> bool:
        quant = node.input(1).quant
        return not isinstance(quant, AxisScaleOffset) or quant.axis == axis(node) % node.input(1).rank

    return Constraint("per-channel weights have their scales along the output channels", check)


def touched_bytes(node: Node) -> tuple[int, int]:
    """Bytes of all inputs and of all outputs."""
    read = sum(spec.nbytes for spec in node.inputs if spec is not None)
    return read, sum(spec.nbytes for spec in node.outputs)


def vector_work(ops_per_element: int) -> Worker:
    """Work of an op that spends about the same on each output element."""

    def work(node: Node) -> Work:
        read, written = touched_bytes(node)
        elements = sum(spec.elements for spec in node.outputs)
        return Work(vector_ops=ops_per_element * elements, bytes_read=read, bytes_written=written)

    return work


_LIGHT = vector_work(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpDef:
    """One op. See docs/add-an-op.md for how the pieces are used.

    * ``infer`` gives the output shapes, or raises through ``_shapes.refuse``.
    * ``reference`` computes in float64 on real values (integers where the port is an integer).
    * ``lower`` emits the computation; ``layout`` says which memory layouts it can do so in.
    * ``work`` says how much it does, and ``kind`` which row of the cost model's table prices that; None if no
      published network told, and estimates then say so.
    * ``values_kept`` tells that outputs are a selection of input values, so no new rounding is due.
    * ``moves_only`` tells that nothing is computed: values are put elsewhere, or stored in another form.
    * ``shares_encoding`` tells that converters store inputs and outputs alike, though values may change.
    * ``result_range`` is the range that results always have, which the HTP then computes in.
    * ``weights`` describes the inputs of an op that has weights and a bias.
    * ``takes_activation`` lets the compiler fuse a following clamp into it.
    * ``affine_by_constant`` tells that with one constant operand it scales or shifts, so that several in a row are
      one pass.
    * ``tile`` says which output axes may be computed piece by piece.
    * ``by_stored_number`` marks that results depend on how real values are stored (Cast).
    * ``random`` marks that results differ from one execution to the next, so that none is computed ahead.
    * ``bound_to_shape`` marks that parameters which suit one shape do little on another.
    """

    name: str
    summary: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    types: tuple[TypeRow, ...]
    infer: Infer
    reference: Reference
    lower: Lower
    work: Worker = _LIGHT
    kind: str | None = None
    params: tuple[Param, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    max_rank: int = 5
    layout: Layout = Layout.LOGICAL
    values_kept: bool = False
    moves_only: bool = False
    shares_encoding: bool = False
    result_range: Callable[[Node], tuple[float, float] | None] = no_fixed_range
    weights: Weights | None = None
    takes_activation: bool = False
    affine_by_constant: bool = False
    by_stored_number: bool = False
    random: bool = False
    bound_to_shape: bool = False
    tile: TileRule = split_nowhere
    onnx: tuple[OnnxRule, ...] = ()
    samples: tuple[Sample, ...] = ()

    def param(self, name: str) -> Param | None:
        """The parameter of this name, if the op has it."""
        return next((param for param in self.params if param.name == name), None)
