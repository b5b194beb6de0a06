"""The arguments of an op's functions: the checked node and, to lower it, an emitter of ONNX nodes.

Ops never import ``onnx``. They ask the emitter for the *value* of an input and get the name of real numbers (or of
plain integers, for integer ports), build on it with ``node``, and ``put`` the result. The engine adds
dequantization before and quantization or rounding after, in the form that its runtime fuses into integer kernels.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.core.errors import InternalError
from openhtp.core.tensor import TensorKind, TensorSpec

Array = npt.NDArray[Any]
Arrays = Sequence[Array]
Results = tuple[Array, ...]
Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """An op call with defaults filled in.

    ``params`` holds Python numbers for scalar parameters and numpy arrays for tensor parameters.
    ``statics`` holds the stored data of static inputs by tensor name, where it was known. ``op`` of a user's
    package has the package before it (``my.ops::Relu``), so that it is never taken for the HTP's own.
    """

    op: str
    name: str
    inputs: tuple[TensorSpec | None, ...]
    outputs: tuple[TensorSpec, ...]
    params: Mapping[str, Any]
    statics: Mapping[str, Array] = field(default_factory=dict)
    package: str = "qti.aisw"

    def has(self, index: int) -> bool:
        """Whether the optional input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int = 0) -> TensorSpec:
        """Spec of an input that is known to be given."""
        spec = self.inputs[index] if index < len(self.inputs) else None
        if spec is None:
            raise InternalError(f"{self.op} {self.name!r} reads input {index}, which was left out")
        return spec

    def shape(self, index: int = 0) -> Shape:
        """Shape of an input that is known to be given."""
        return self.input(index).shape

    def static(self, index: int) -> Array | None:
        """Stored data of a static input, if known."""
        if not self.has(index) or self.input(index).kind is TensorKind.UPDATEABLE_STATIC:
            return None
        return self.statics.get(self.input(index).name)

    def is_wide(self) -> bool:
        """Whether the node makes 16-bit numbers."""
        return self.outputs[0].dtype in (DType.UFIXED_POINT_16, DType.SFIXED_POINT_16)

    def ints(self, param: str) -> tuple[int, ...]:
        """A tensor parameter as a flat tuple of ints."""
        return tuple(map(int, np.asarray(self.params[param]).reshape(-1).tolist()))

    def pairs(self, param: str) -> tuple[tuple[int, int], ...]:
        """A tensor parameter of shape [n, 2] as pairs of ints."""
        flat = self.ints(param)
        return tuple(zip(flat[::2], flat[1::2], strict=True))


class Layout(enum.Enum):
    """In which memory layouts an op can be lowered. Logical axes are always those of the QNN graph.

    * LOGICAL: axes as in the graph.
    * CHANNEL_FIRST: inputs and outputs with the last axis moved behind the batch axis.
    * ANY: either; the op translates its axes by ``Emitter.axis``.
    * OWN: the op asks for what it needs by ``Emitter.permuted``.
    """

    LOGICAL = "logical"
    CHANNEL_FIRST = "channel first"
    ANY = "any"
    OWN = "own"


class Emitter(Protocol):
    """Emits the ONNX nodes of one QNN node."""

    @property
    def dynamic(self) -> bool:
        """Whether shapes may vary between executions, so that no shape may be baked in."""

    @property
    def rounds_products_alone(self) -> bool:
        """Whether the runtime's plain kernels round a product before they add it to something, as on x86."""

    def node(self, op_type: str, inputs: Sequence[str], *, domain: str = "", **attrs: Any) -> str:
        """Emit a node with one output; an empty input name is a left-out input."""

    def nodes(self, op_type: str, inputs: Sequence[str], outputs: int, **attrs: Any) -> tuple[str, ...]:
        """Emit a node with several outputs."""

    def own_node(self, op_type: str, inputs: Sequence[str], shape: Sequence[int], **attrs: int) -> str:
        """Emit a node of one of the engine's own operators, with a result of this shape; "" where it has none."""

    def const(self, array: Array) -> str:
        """A constant."""

    def ints(self, numbers: npt.ArrayLike) -> str:
        """A constant of indices, sizes or axes (int64)."""

    def floats(self, numbers: npt.ArrayLike) -> str:
        """A constant of real numbers (float32)."""

    def value(self, index: int) -> str:
        """Real values of an input in this node's layout (float32), or its integers if it is an integer port."""

    def stored(self, index: int) -> str:
        """The input as it is stored."""

    def weight(
        self,
        index: int,
        arrange: Callable[[Array], Array],
        perm: Sequence[int],
        axis: int,
        *,
        integer: bool = True,
    ) -> str:
        """Real values of a weight-like input, rearranged.

        ``arrange`` works on the constant's array; ``perm`` is the same move as a transposition, for weights
        that are computed at run time; ``axis`` is where the per-channel axis ends up. ``integer`` says that the
        op that reads it exists as an integer kernel.
        """

    def wide_product(
        self, index: int, right: int, perm: Sequence[int], shape: tuple[int, ...] | None = None
    ) -> str:
        """Real values of the product of an input, in ``shape``, with another one whose axes are moved by ``perm``.

        Exact, whatever the order of its sums. "" if these are not 16-bit numbers on the left and 8-bit ones on the
        right.
        """

    def bias(self, index: int, weight: int, *, integer: bool = True) -> str:
        """Real values of a bias, stored with the product of input 0's and the weight's scale. "" if left out."""

    def permuted(self, index: int, perm: Sequence[int], *, stored: bool = False) -> str:
        """Input with its logical axes permuted, from whichever layout is at hand: values, or as stored."""

    def reshaped(self, index: int, shape: Sequence[int]) -> str:
        """Values of an input in another shape; its encoding stays next to the op that reads it."""

    def axis(self, axis: int, index: int = 0) -> int:
        """Where a logical axis of input ``index`` is in this node's layout."""

    def vector(self, per_axis: Sequence[int]) -> list[int]:
        """Numbers given per logical axis (of the output), in the order of this node's layout."""

    def same_encoding(self) -> bool:
        """Whether all inputs of input 0's type and all outputs share one type and encoding."""

    def put(self, index: int, name: str, clamp: tuple[float, float] | None = None) -> None:
        """The output's real values (or plain integers) are here; requantize or round as its type asks.

        ``clamp`` limits the result; integers are limited after quantization, where that is cheap and exact.
        """

    def put_stored(self, index: int, name: str, clamp: tuple[float, float] | None = None) -> None:
        """The output's stored form is here; ``clamp`` is in real values."""


def exact_forms(e: Emitter) -> tuple[Callable[[int], str], Callable[..., None]]:
    """How ops that compute nothing read inputs and put outputs: as stored if one encoding serves all of them.

    Otherwise as real values.
    """
    return (e.stored, e.put_stored) if e.same_encoding() else (e.value, e.put)


def move(e: Emitter, emit: Callable[[str], str]) -> None:
    """Apply ``emit`` to input 0 in the cheapest form that is exact, and put the result."""
    read, put = exact_forms(e)
    put(0, emit(read(0)))


def put_integers(node: Node, e: Emitter, index: int, name: str) -> None:
    """Give an integer output in its own type."""
    e.put_stored(index, e.node("Cast", [name], to=node.outputs[index].dtype.numpy.name))
