"""What a caller gives as a model and its sizes, checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openhtp.core.checks import path_of, shown, whole_number
from openhtp.core.errors import InvalidArgument


def check_source(source: object) -> bytes | Path:
    """The bytes of a model, or the path of its file."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    path = path_of(source)
    if path is None:
        raise InvalidArgument(f"model is {shown(source)}; expected the path of a file, or bytes")
    return path


def check_dims(dims: object) -> dict[str, int] | None:
    """Sizes by name."""
    if dims is None:
        return None
    if not isinstance(dims, Mapping):
        raise InvalidArgument(f"dims is {shown(dims)}; expected a mapping from names of dimensions to sizes")
    found: dict[str, Any] = {}
    for name, size in dims.items():
        number = whole_number(size)
        if not isinstance(name, str) or number is None or not 1 <= number < 1 << 31:
            raise InvalidArgument(
                f"dims gives {shown(name)} the size {shown(size)}; expected names and whole numbers above 0"
            )
        found[name] = number
    return found
