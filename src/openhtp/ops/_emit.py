"""What an op's ``lower`` talks to: a small emitter of ONNX nodes that hides encodings and memory layout.

Ops never import ``onnx``. They ask for the *value* of an input and get a name of real numbers (or plain integers
for integer ports), build on it with ``node``, and ``put`` the result; the engine adds dequantization before and
quantization or rounding after, in the form that its runtime fuses into integer kernels.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy.typing as npt

Array = npt.NDArray[Any]


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

    def node(self, op_type: str, inputs: Sequence[str], *, domain: str = "", **attrs: Any) -> str:
        """Emit a node with one output; an empty input name is a left-out input."""

    def nodes(self, op_type: str, inputs: Sequence[str], outputs: int, **attrs: Any) -> tuple[str, ...]:
        """Emit a node with several outputs."""

    def const(self, array: Array) -> str:
        """A constant."""

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
