"""The version of the package, and the names of the release before it that it still answers to."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping

VERSION = "0.1.0"
BUILD_ID = f"v{VERSION}.0"


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """The ``__getattr__`` of a module whose names changed: an old one is answered with the new, and a warning."""

    def attribute(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is now {module}.{names[name]}", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], names[name])

    return attribute
