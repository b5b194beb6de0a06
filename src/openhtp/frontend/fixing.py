"""Fixes the sizes that a model leaves open, and inputs that never change: the HTP must know both.

Everything that reads a model (sessions, ``openhtp.onnx.load``, estimates, scenarios, the quantizer) passes its
``dims`` and ``freeze`` to this module, so both mean the same everywhere.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from onnx import helper, numpy_helper

from openhtp.core.checks import shown, whole_number
from openhtp.core.errors import BadModel, InvalidArgument, UnsupportedFeature

Dims = Mapping[str, int]
Freeze = Mapping[str, npt.ArrayLike]
Ask = Callable[[list[Any]], Dims]
"""Tells sizes of inputs that are still open, by ``input.axis``."""

# In a line to paste, sizes can only be examples: a batch of one, images as most classifiers take them.
_BATCH, _IMAGE, _OTHER = 1, 224, 16
# One number is spread over an input of at most this many elements.
_MOST_FILLED = 1 << 26

OPEN_SIZES = "open sizes"
"""Under this key ``QnnError.where`` has the ``OpenSizes`` that an error is about."""


class OpenSizes(NamedTuple):
    """Sizes that a model leaves open, for callers whose option is not called ``dims`` or ``--dim``."""

    problem: str
    example: dict[str, int]


def fix_inputs(
    proto: Any,
    dims: Dims | None = None,
    freeze: Freeze | None = None,
    ask: Ask | None = None,
    *,
    may_stay_open: bool = False,
) -> None:
    """Fix sizes and freeze inputs of a model, in place.

    ``dims`` has sizes by a dimension's name in the file or as ``input.axis``, ``freeze`` values by input; ``ask``
    is called for sizes that are still open. Raises InvalidArgument for a name that the model does not have or a
    value that does not fit. Raises UnsupportedFeature, which lists every missing size, if a required size stays
    open.
    """
    dims = check_dims(dims)
    values = check_freeze(freeze)
    inputs = _inputs(proto)
    unknown = [name for name in values if name not in {value.name for value in inputs}]
    if unknown:
        names = _listed(value.name for value in inputs)
        raise InvalidArgument(f"freeze names {_listed(unknown)}; the model's inputs are {names}")
    known = _known_names(inputs)
    used = {key for value in inputs for key in _fix_sizes(value, dims)}
    if set(dims) - used:
        raise InvalidArgument(f"dims names {_listed(set(dims) - used)}; {known}")
    for value in inputs:
        if value.name in values:
            _freeze(proto.graph, value, values[value.name])
    left = [value for value in inputs if value.name not in values]
    if ask is not None and any(_open_axes(value) for value in left):
        sizes = ask(left)
        for value in left:
            _fix_sizes(value, sizes)
    if not may_stay_open:
        _refuse_open(left)
    if dims or values:
        _forget_old_sizes(proto.graph, dims)


def _inputs(proto: Any) -> list[Any]:
    constants = {tensor.name for tensor in proto.graph.initializer}
    return [value for value in proto.graph.input if value.name not in constants]


def _fix_sizes(value: Any, dims: Dims) -> set[str]:
    """Set the sizes of one input; returns the names in ``dims`` that were used."""
    kind = value.type.tensor_type
    used = set()
    if not kind.HasField("shape"):
        places = [f"{value.name}.{axis}" for axis in range(len(dims))]
        while places and places[-1] not in dims:
            places.pop()
        if places and all(place in dims for place in places):
            for _ in places:
                kind.shape.dim.add()
    for axis, dim in enumerate(kind.shape.dim) if kind.HasField("shape") else ():
        for key in (f"{value.name}.{axis}", dim.dim_param):
            if key and key in dims:
                used.add(key)
                dim.dim_value = int(dims[key])
                break
    return used


def _open_axes(value: Any) -> list[int]:
    # Some exporters write -1 or 0 for a size that is left open.
    return [axis for axis, dim in enumerate(value.type.tensor_type.shape.dim) if dim.dim_value < 1]


def _freeze(graph: Any, value: Any, content: npt.ArrayLike) -> None:
    """Make an input a constant."""
    kind = value.type.tensor_type
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    except KeyError:
        raise BadModel(f"input {value.name!r} has the unknown element type {kind.elem_type}") from None
    stored = _as_type(np.asarray(content), dtype)
    if stored is None:
        takes = "strings" if dtype.kind == "O" else dtype
        raise InvalidArgument(f"freeze gives input {value.name!r} the value {content!r}; it takes {takes}")
    if kind.HasField("shape"):
        sizes = [dim.dim_value if dim.dim_value > 0 else None for dim in kind.shape.dim]
        if stored.size == 1 and math.prod(size or 1 for size in sizes) <= _MOST_FILLED:
            stored = np.full([size or 1 for size in sizes], stored.reshape(-1)[0])
        fits = len(sizes) == stored.ndim and all(
            size in (None, have) for size, have in zip(sizes, stored.shape, strict=True)
        )
        if not fits:
            wanted = ["any" if size is None else size for size in sizes]
            raise InvalidArgument(
                f"freeze gives input {value.name!r} the shape {list(stored.shape)}; expected {wanted}"
            )
    graph.input.remove(value)
    graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(stored, dtype), value.name))


def _as_type(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """The values in the type of an input, or None if the type cannot hold them."""
    if dtype.kind == "O":
        return array.astype(dtype) if all(isinstance(each, str) for each in array.flat) else None
    if array.dtype == dtype:
        return array
    if not _is_real(array.dtype):
        return None
    with np.errstate(all="ignore"):
        stored = array.astype(dtype)
    # Conversion to other types rounds; conversion to these would wrap around.
    is_whole = dtype.name.startswith(("int", "uint", "bool"))
    return None if is_whole and not np.array_equal(stored, array) else stored


def _is_real(dtype: np.dtype[Any]) -> bool:
    """Whether it is a type of real numbers: numpy's own, or a registered one, as those of few bits are."""
    return dtype.kind in "biuf" or dtype.isbuiltin == 2


def _forget_old_sizes(graph: Any, dims: Dims) -> None:
    """Drop the inner shapes that the file states: they may contain an open dimension, and are inferred again."""
    del graph.value_info[:]
    for value in graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in dims:
                dim.dim_value = int(dims[dim.dim_param])


def _refuse_open(inputs: list[Any]) -> None:
    """Refuse with the names of all missing sizes, and a line to paste."""
    missing, example = [], {}
    for value in inputs:
        if not value.type.HasField("tensor_type"):
            continue
        shape = value.type.tensor_type.shape.dim
        if not value.type.tensor_type.HasField("shape"):
            missing.append(f"input {value.name!r} has no shape")
            example.update({f"{value.name}.{axis}": size for axis, size in enumerate((1, 3, _IMAGE, _IMAGE))})
        for axis in _open_axes(value):
            name = shape[axis].dim_param
            missing.append(f"axis {axis} of input {value.name!r}" + (f" ({name})" if name else ""))
            size = _BATCH if axis == 0 else _IMAGE if len(shape) == 4 else _OTHER
            example.setdefault(name or f"{value.name}.{axis}", size)
    if missing:
        options = " ".join(f"--dim {shlex.quote(f'{name}={size}')}" for name, size in example.items())
        problem = f"no fixed size: {', '.join(missing)}; the HTP takes fixed shapes only"
        error = UnsupportedFeature(f"{problem}. Give the sizes that you need, like dims={example} or {options}")
        error.where[OPEN_SIZES] = OpenSizes(problem, example)
        raise error


def _known_names(inputs: Iterable[Any]) -> str:
    names = {dim.dim_param for v in inputs for dim in v.type.tensor_type.shape.dim if dim.dim_param}
    known = f"the model has {_listed(names)}" if names else "no dimension of the model has a name"
    return f"{known}; a dimension may also be given as 'input.axis'"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))


def check_dims(dims: object) -> dict[str, int]:
    """Sizes by name."""
    if dims is None:
        return {}
    if not isinstance(dims, Mapping):
        raise InvalidArgument(f"dims is {shown(dims)}; expected a mapping from names of dimensions to sizes")
    sizes: dict[str, int] = {}
    for name, size in dims.items():
        number = whole_number(size)
        if not isinstance(name, str) or number is None or not 1 <= number < 1 << 31:
            raise InvalidArgument(
                f"dims gives {shown(name)} the size {shown(size)}; expected names and whole numbers above 0"
            )
        sizes[name] = number
    return sizes


def check_freeze(freeze: object) -> dict[str, Any]:
    """The values of the inputs that become constants, by name."""
    if freeze is None:
        return {}
    if not isinstance(freeze, Mapping) or not all(isinstance(name, str) for name in freeze):
        raise InvalidArgument(f"freeze is {shown(freeze)}; expected a mapping from names of inputs to values")
    return dict(freeze)
