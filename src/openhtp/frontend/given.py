"""What a caller gives as a model and its sizes, checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openhtp.core.checks import path_of, shown, whole_number
from openhtp.core.errors import InvalidArgument


def check_path(source: object) -> Path:
    """The path of a model's file."""
    path = path_of(source)
    if path is None:
        raise InvalidArgument(f"model is {shown(source)}; expected the path of a file, bytes, or a ModelProto")
    return path


def check_dims(dims: object) -> dict[str, int]:
    """Sizes by name."""
    if dims is None:
        return {}
    if not isinstance(dims, Mapping):
        raise InvalidArgument(f"dims is {shown(dims)}; expected a mapping from names of dimensions to sizes")
    found: dict[str, int] = {}
    for name, size in dims.items():
        number = whole_number(size)
        if not isinstance(name, str) or number is None or not 1 <= number < 1 << 31:
            raise InvalidArgument(
                f"dims gives {shown(name)} the size {shown(size)}; expected names and whole numbers above 0"
            )
        found[name] = number
    return found


def check_freeze(freeze: object) -> dict[str, Any]:
    """Values by input."""
    if freeze is None:
        return {}
    if not isinstance(freeze, Mapping) or not all(isinstance(name, str) for name in freeze):
        raise InvalidArgument(f"freeze is {shown(freeze)}; expected a mapping from names of inputs to values")
    return dict(freeze)
