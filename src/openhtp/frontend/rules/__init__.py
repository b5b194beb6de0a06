"""How ONNX operators become QNN ops, one function per operator, one module per family.

A rule gets a ``Site`` and emits QNN nodes on it. Operators that only differ in name are not here: their mapping is
in the op's own file (``OnnxRule``) and ``plain.py`` applies it.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping

from openhtp.frontend.site import Site

Rule = Callable[[Site], None]


@functools.cache
def rules() -> Mapping[str, Rule]:
    """All rules by ONNX operator, found by listing this folder."""
    found: dict[str, Rule] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.name.startswith("_"):
            continue
        found.update(importlib.import_module(f"{__name__}.{module.name}").RULES)
    return found
