"""The engine's view of a session of ONNX Runtime, and the sessions of the runtime's own Python package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from openhtp.engine.onnx_graph import onnx_type

Array = npt.NDArray[Any]


class End(NamedTuple):
    """An input or output; a size that is free is a name."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...]


Sort = tuple[np.dtype[Any], tuple[int | str, ...]]
"""Type and sizes of an end."""


def agrees(end: End, known: Sort | None) -> bool:
    """Whether an end is the value that is known. The runtime compares free sizes when it runs."""
    if known is None or end.dtype != known[0] or len(end.shape) != len(known[1]):
        return False
    return all(isinstance(own, str) or own == size for own, size in zip(end.shape, known[1], strict=True))


class BoundSession(NamedTuple):
    """A session with places to read and write. ``call`` computes; it raises or returns words if that failed.

    ``kept`` has to live as long as it is called. ``place`` is where the C side has it; 0 for one of the package.
    """

    call: Callable[[], object]
    kept: object
    place: int = 0


class ComputeSession(Protocol):
    """One model, ready to compute. Several threads may have it compute at the same time."""

    held: tuple[Array, ...]
    """Constants that it reads where they lie."""

    def inputs(self) -> list[End]:
        """What it reads."""

    def outputs(self) -> list[End]:
        """What it writes, as far as the runtime knows."""

    def fits(self, inputs: Mapping[str, Sort], outputs: Mapping[str, Sort]) -> bool:
        """Whether it reads and writes just these; a size that it leaves free may be any."""

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> BoundSession:
        """Let it read and write these arrays, which must stay where they are."""


class PackagedSession:
    """A session of the runtime's Python package. Making one keeps all other Python threads waiting."""

    def __init__(self, session: Any, held: Mapping[str, tuple[Array, Any]] | None = None) -> None:
        """``held``: constants that it reads where they lie, and the runtime's values of them."""
        self._session = session
        self._values = tuple(value for _, value in (held or {}).values())
        self.held = tuple(array for array, _ in (held or {}).values())

    def inputs(self) -> list[End]:
        """What it reads."""
        return [_end(value) for value in self._session.get_inputs()]

    def outputs(self) -> list[End]:
        """What it writes, as far as the runtime knows."""
        return [_end(value) for value in self._session.get_outputs()]

    def fits(self, inputs: Mapping[str, Sort], outputs: Mapping[str, Sort]) -> bool:
        """Whether it reads and writes just these; a size that it leaves free may be any."""
        return all(
            len(ends) == len(expected) and all(agrees(end, expected.get(end.name)) for end in ends)
            for ends, expected in ((self.inputs(), inputs), (self.outputs(), outputs))
        )

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> BoundSession:
        """Let it read and write these arrays."""
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_input(name, "cpu", 0, *_described(array))
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, *_described(array))
        return BoundSession(partial(self._session._sess.run_with_iobinding, binding._iobinding, None), self)

    def flow(self, inputs: Mapping[str, Any], outputs: Mapping[str, Array | None]) -> dict[str, Any]:
        """Compute on arrays and values of the runtime; where there is no array to write to, it makes values."""
        binding = self._session.io_binding()
        for name, place in inputs.items():
            if isinstance(place, np.ndarray):
                binding.bind_input(name, "cpu", 0, *_described(place))
            else:
                binding.bind_ortvalue_input(name, place)
        for name, array in outputs.items():
            if array is None:
                binding.bind_output(name)
            else:
                binding.bind_output(name, "cpu", 0, *_described(array))
        self._session.run_with_iobinding(binding)
        values = zip(outputs.items(), binding.get_outputs(), strict=True)
        return {name: value for (name, array), value in values if array is None}


def _described(array: Array) -> tuple[int, list[int], int]:
    return onnx_type(array.dtype), list(array.shape), array.ctypes.data


def _end(value: Any) -> End:
    inner = value.type.removeprefix("tensor(").removesuffix(")")
    dtype = np.dtype({"float": "float32", "double": "float64"}.get(inner, inner))
    return End(value.name, dtype, tuple("" if size is None else size for size in value.shape))
