"""The definition of an op: the record that each op file fills in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openhtp.core.checks import type_in_words
from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument
from openhtp.core.quant import AxisScaleOffset
from openhtp.ops._node import Arrays, Emitter, Layout, Node, Results, Shape, Shapes
from openhtp.ops._tiles import TileRule, split_nowhere

if TYPE_CHECKING:
    from openhtp.ops._packages import OwnOp

TYPE_WORDS = {
    "f16": DType.FLOAT_16,
    "f32": DType.FLOAT_32,
    "u8": DType.UFIXED_POINT_8,
    "u16": DType.UFIXED_POINT_16,
    "s8": DType.SFIXED_POINT_8,
    "s16": DType.SFIXED_POINT_16,
    "s32": DType.SFIXED_POINT_32,
    "i8": DType.INT_8,
    "i16": DType.INT_16,
    "i32": DType.INT_32,
    "i64": DType.INT_64,
    "n8": DType.UINT_8,
    "n16": DType.UINT_16,
    "n32": DType.UINT_32,
    "n64": DType.UINT_64,
    "b": DType.BOOL_8,
}
_BY_TYPE = {dtype: word for word, dtype in TYPE_WORDS.items()}

Choices = tuple[DType, ...]


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One combination of data types that an op accepts; ``text`` is the notation it was parsed from.

    A row reads ``"u8 u8|s8 u8|s32 > u8"``: one word per port, inputs left of ``>``, outputs right of it,
    alternatives joined by ``|``. ``u8``/``s8`` are fixed point, ``n8``/``i8`` plain unsigned/signed integers,
    ``f16``/``f32`` floats, ``b`` booleans. A word ending in ``*`` stands for all remaining ports of its side; the
    rows of one op are alternatives, and a left-out optional input matches anything.
    """

    text: str
    inputs: tuple[Choices, ...]
    outputs: tuple[Choices, ...]
    variadic_input: bool = False
    variadic_output: bool = False

    def accepts(self, inputs: Sequence[DType | None], outputs: Sequence[DType]) -> bool:
        """Whether the row allows these types; None is a left-out input."""
        return _side_accepts(self.inputs, self.variadic_input, inputs) and _side_accepts(
            self.outputs, self.variadic_output, outputs
        )


def _side_accepts(choices: tuple[Choices, ...], variadic: bool, dtypes: Sequence[DType | None]) -> bool:
    if len(dtypes) > len(choices) and not variadic:
        return False
    return all(
        dtype is None or dtype in choices[min(index, len(choices) - 1)] for index, dtype in enumerate(dtypes)
    )


def rows(*texts: str) -> tuple[TypeRow, ...]:
    """Parse rows. A row with a list behind a colon stands for one row per type ``T``: ``"T > T : u8 s8"``."""
    parsed: list[TypeRow] = []
    for text in texts:
        pattern, _, types = text.partition(":")
        parsed += [_parse(pattern.replace("T", dtype)) for dtype in types.split() or ["T"]]
    return tuple(parsed)


def _parse(text: str) -> TypeRow:
    inputs, outputs = (side.split() for side in text.split(">"))

    def choices(words: list[str]) -> tuple[Choices, ...]:
        return tuple(tuple(TYPE_WORDS[name] for name in word.rstrip("*").split("|")) for word in words)

    return TypeRow(
        text=" ".join(text.split()),
        inputs=choices(inputs),
        outputs=choices(outputs),
        variadic_input=bool(inputs) and inputs[-1].endswith("*"),
        variadic_output=outputs[-1].endswith("*"),
    )


def type_word(dtype: DType | None) -> str:
    """The notation's word for a type (``-`` for a left-out input)."""
    return "-" if dtype is None else _BY_TYPE.get(dtype, dtype.short)


# Row sets that many ops share.
WEIGHTED = rows(
    "T T T > T : f16 f32",
    "f16 s8 f16 > f16",
    "u16 u8|s8|u16|s16 u8|s32 > u16",
    "u8 u8|s8 u8|s32 > u8",
    "s8 u8|s8 u8|s32 > s8",
)


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output. A variadic port is the last of its side and stands for one or more tensors."""

    name: str
    optional: bool = False
    variadic: bool = False


TWO_INPUTS = (Port("in[0]"), Port("in[1]"))
WEIGHTED_INPUTS = (*TWO_INPUTS, Port("in[2]", optional=True))


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

    ``late``: only nodes of a graph must keep the rule. Clients validate operations before they put axes in order.
    """

    sentence: str
    check: Callable[[Node], bool]
    late: bool = False


FIXED_SHAPES = Constraint("inputs are not dynamic", lambda node: not any(s.is_dynamic for s in node.inputs if s))


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

    @classmethod
    def on(cls, node: Node, *, macs: int = 0, vector_ops: int = 0) -> Work:
        """This much computing, on all bytes of the node's inputs and outputs."""
        if not isinstance(node, Node):
            raise InvalidArgument(f"node is {type_in_words(node)}; expected the node that a work rule is given")
        read = sum(spec.nbytes for spec in node.inputs if spec is not None)
        return cls(macs, vector_ops, read, sum(spec.nbytes for spec in node.outputs))


@dataclass(frozen=True, slots=True)
class OnnxRule:
    """One ONNX operator that is this op: same inputs and outputs in the same order.

    ``attrs`` renames attributes (ONNX name -> QNN parameter; those not listed are dropped), ``params`` sets
    parameters to constants. A parameter called ``axis`` is translated to the QNN tensor's order of axes. Mappings
    that need more (layouts, attributes that became inputs, several QNN ops) are functions of the ONNX frontend.
    """

    op_type: str
    attrs: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)


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


Infer = Callable[[Node], Shapes]
Reference = Callable[[Node, Arrays], Results]
Lower = Callable[[Node, Emitter], None]
Worker = Callable[[Node], Work]


def channel_scales(axis: Callable[[Node], int]) -> Constraint:
    """Per-channel weights must have their scales along the axis that makes output channels."""

    def check(node: Node) -> bool:
        quant = node.input(1).quant
        return not isinstance(quant, AxisScaleOffset) or quant.axis == axis(node) % node.input(1).rank

    return Constraint("per-channel weights have their scales along the output channels", check)


def vector_work(ops_per_element: int) -> Worker:
    """Work of an op that spends about the same on each output element."""
    return lambda node: Work.on(node, vector_ops=ops_per_element * sum(spec.elements for spec in node.outputs))


_LIGHT = vector_work(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpDef:
    """One op. See docs/add-an-op.md for how the pieces are used.

    * ``infer`` gives the output shapes, or raises through ``_shapes.refuse``.
    * ``reference`` computes in float64 on real values (integers where the port is an integer).
    * ``lower`` emits the computation; ``layout`` says which memory layouts it can do so in.
    * ``work`` says how much it does, and ``kind`` which row of the cost model's table prices it. The kind is None
      if no published network has such an op; estimates then say so.
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
    * ``own`` is set for an operator of a user's package: it is computed by its own function and never lowered.
      With ``any_params`` it takes whatever parameters a node has.
    """

    name: str
    summary: str
    types: tuple[TypeRow, ...]
    infer: Infer
    reference: Reference
    lower: Lower
    inputs: tuple[Port, ...] = (Port("in[0]"),)
    outputs: tuple[Port, ...] = (Port("out[0]"),)
    work: Worker = _LIGHT
    kind: str | None = None
    params: tuple[Param, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    max_rank: int = 5
    layout: Layout = Layout.LOGICAL
    values_kept: bool = False
    moves_only: bool = False
    shares_encoding: bool = False
    result_range: Callable[[Node], tuple[float, float] | None] = lambda node: None
    weights: Weights | None = None
    takes_activation: bool = False
    affine_by_constant: bool = False
    by_stored_number: bool = False
    random: bool = False
    bound_to_shape: bool = False
    own: OwnOp | None = None
    any_params: bool = False
    tile: TileRule = split_nowhere
    onnx: tuple[OnnxRule, ...] = ()
    samples: tuple[Sample, ...] = ()

    def param(self, name: str) -> Param | None:
        """The parameter of this name, if the op has it."""
        return next((param for param in self.params if param.name == name), None)
