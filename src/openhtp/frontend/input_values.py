"""Chooses sensible values for a model's inputs, by their names and by the nodes that read them.

A random number is neither a word of a vocabulary nor a length. A network that reads such numbers, or zeros, may
return constants or NaNs, which do not show whether it was computed correctly.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper, numpy_helper

from openhtp.core.errors import UnsupportedFeature
from openhtp.core.limits import SESSION_LIMIT_BYTES

Array = npt.NDArray[Any]
Draw = Callable[[np.random.Generator], Array]

NOISE = "noise"
"""The words for floats without a meaning."""

_BOUND = 3**0.5
_SAMPLE_RATE = 16_000
_PICTURE_RANK = 4
_STEPS = 1000
_FLOATS = "fV"  # numpy has no kind for the short floats
_FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
_HIDES = -1e4  # added to a score, it hides a position
# Nodes that only move or retype their input: the node that reads their result reads the input.
_MOVES = frozenset(
    ("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Expand", "Transpose", "Concat", "Slice")
)
_MASKS = frozenset(("mask", "masks"))
_LENGTHS = frozenset(("len", "lens", "length", "lengths", "seqlen", "seqlens"))
_POSITIONS = frozenset(("position", "positions", "pos"))
_RATES = frozenset(("sr", "rate", "samplerate", "sampling"))
_SIZES = frozenset(("size", "sizes", "shape", "shapes"))
_FACTORS = frozenset(("scale", "scales", "factor", "factors", "speed", "temperature", "ratio", "tempo"))
_TIMES = frozenset(("timestep", "timesteps"))


@dataclass(frozen=True, slots=True)
class InputValues:
    """How an input is filled: in words, and drawn."""

    words: str
    draw: Draw


def input_values(graph: Any) -> dict[str, InputValues]:
    """Values for all inputs of a graph's protobuf. All shapes must be fixed.

    Raises UnsupportedFeature if there is no room for them on an HTP.
    """
    constants = {tensor.name for tensor in graph.initializer}
    shapes = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in graph.input
        if value.name not in constants
    }
    dtypes = {
        value.name: np.dtype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        for value in graph.input
        if value.name in shapes
    }
    total_bytes = sum(math.prod(shape) * dtypes[name].itemsize for name, shape in shapes.items())
    if total_bytes > SESSION_LIMIT_BYTES:
        raise UnsupportedFeature(
            f"the inputs take {total_bytes:,} bytes; a session of an HTP addresses {SESSION_LIMIT_BYTES:,}"
        )
    uses = InputUses(graph)
    return {name: _values_of(name, shapes, dtype, uses) for name, dtype in dtypes.items()}


class InputUses:
    """The nodes that read each input, also through nodes that only move it."""

    def __init__(self, graph: Any) -> None:
        self._readers: dict[str, list[tuple[Any, int]]] = defaultdict(list)
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            for index, name in enumerate(node.input):
                self._readers[name].append((node, index))
            if node.op_type == "Constant":
                self._constants.update((node.output[0], item.t) for item in node.attribute if item.name == "value")

    def of(self, name: str) -> Iterator[tuple[Any, int]]:
        """Nodes that compute with an input, and at which of their inputs."""
        waiting, seen = [name], {name}
        while waiting:
            for node, index in self._readers[waiting.pop()]:
                if node.op_type not in _MOVES:
                    yield node, index
                elif index == 0 or node.op_type == "Concat":
                    fresh = [output for output in node.output if output not in seen]
                    seen.update(fresh)
                    waiting += fresh

    def rows(self, name: str) -> int | None:
        """Rows of the smallest constant table that the input selects from; None if there is none."""
        sizes = [size for node, index in self.of(name) if (size := self._rows_of(node, index)) is not None]
        return min(sizes, default=None)

    def is_added(self, name: str) -> bool:
        """Whether the input is added to something, as masks of minus infinity are."""
        return any(node.op_type == "Add" for node, _ in self.of(name))

    def hides_where_true(self, name: str) -> bool:
        """Whether the input chooses minus infinity where it is true, as PyTorch's padding masks do."""
        waiting, seen = [(name, True)], {name}
        while waiting:
            value, truth = waiting.pop()
            for node, index in self._readers[value]:
                if node.op_type == "Where" and index == 0 and self._is_hiding(node.input[1 if truth else 2]):
                    return True
                if index == 0 and (node.op_type in _MOVES or node.op_type == "Not"):
                    fresh = [output for output in node.output if output not in seen]
                    seen.update(fresh)
                    waiting += [(output, truth is not (node.op_type == "Not")) for output in fresh]
        return False

    def _is_hiding(self, name: str) -> bool:
        """Whether a constant is as good as minus infinity."""
        tensor = self._constants.get(name)
        if tensor is None or tensor.data_type not in _FLOAT_TYPES or tensor.external_data:
            return False
        return bool(np.all(numpy_helper.to_array(tensor).astype(np.float64) <= _HIDES))

    def _rows_of(self, node: Any, index: int) -> int | None:
        if node.op_type == "Gather" and index == 1:
            table = self._constants.get(node.input[0])
            axis = next((item.i for item in node.attribute if item.name == "axis"), 0)
            return None if table is None or not table.dims else int(table.dims[axis])
        if node.op_type == "EmbedLayerNormalization" and index < 2:
            table = self._constants.get(node.input[index + 2])
            return None if table is None else int(table.dims[0])
        if node.op_type == "OneHot" and index == 0:
            depth = self._constants.get(node.input[1])
            return None if depth is None else int(numpy_helper.to_array(depth).reshape(-1)[0])
        return None


def _values_of(
    name: str, shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype[Any], uses: InputUses
) -> InputValues:
    shape, words = shapes[name], _words(name)
    rows = uses.rows(name)
    if _MASKS & words:
        hides = (dtype.kind in _FLOATS and uses.is_added(name)) or uses.hides_where_true(name)
        return _all(0 if hides else 1, shape, dtype, "all 0, which hides nothing" if hides else "all 1")
    if _POSITIONS & words:
        count = np.arange(shape[-1] if shape else 1) % (rows or 1 << 30)
        return InputValues("positions", lambda random: np.broadcast_to(count, shape).astype(dtype))
    if rows is not None:
        return InputValues(
            f"ids below {rows:,}", lambda random: random.integers(0, max(1, rows), shape).astype(dtype)
        )
    known = _by_name(name, words, shapes)
    if known is not None and (dtype.kind not in _FLOATS or len(shape) <= 2):
        numbers = np.resize(known, shape)
        return InputValues(_listed(known), lambda random: numbers.astype(dtype))
    return _by_type(shape, words, dtype)


def _by_name(name: str, words: frozenset[str], shapes: Mapping[str, tuple[int, ...]]) -> Sequence[int] | None:
    """Numbers for inputs whose names say that they are lengths, rates, sizes or factors."""
    if _LENGTHS & words:
        return [_length(name, shapes)]
    if _RATES & words:
        return [_SAMPLE_RATE]
    if _FACTORS & words:
        return [1]
    if _SIZES & words:
        picture = next((shape for shape in shapes.values() if len(shape) == _PICTURE_RANK), None)
        if picture is not None:
            # The channels are the shortest of the last three axes.
            return picture[1:3] if picture[3] <= min(picture[1:3]) else picture[2:]
    return None


def _length(name: str, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The size that a length counts: that of the input with the same name, otherwise the longest size."""
    stem = re.sub(r"_?(seq)?_?len(gth)?s?$", "", name, flags=re.IGNORECASE)
    sizes = {other: max(shape[1:]) for other, shape in shapes.items() if len(shape) > 1}
    if stem and stem in sizes:
        return sizes[stem]
    return max(sizes.values(), default=1)


def _by_type(shape: tuple[int, ...], words: frozenset[str], dtype: np.dtype[Any]) -> InputValues:
    if dtype.kind in _FLOATS:
        return InputValues(NOISE, lambda random: random.uniform(-_BOUND, _BOUND, shape).astype(dtype))
    if dtype.kind == "b":
        return _all(True, shape, dtype, "all true")
    if dtype.kind not in "iu":
        return _all("a", shape, dtype, "text")
    low, high = (1, 12) if len(shape) < 3 else (0, 256)
    if _TIMES & words:
        low, high = 1, _STEPS
    if dtype.itemsize == 1:
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max) + 1
    return InputValues(
        f"whole numbers from {low} to {high - 1}", lambda random: random.integers(low, high, shape).astype(dtype)
    )


def _all(value: object, shape: tuple[int, ...], dtype: np.dtype[Any], words: str) -> InputValues:
    return InputValues(words, lambda random: np.full(shape, value, dtype))


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _words(name: str) -> frozenset[str]:
    """The words of a name: ``attention_mask``, ``attentionMask`` and ``mask:0`` have mask."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return frozenset(word for word in re.split(r"[^a-z]+", apart.lower()) if word)
