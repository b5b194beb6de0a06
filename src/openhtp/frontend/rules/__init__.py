"""How ONNX operators become QNN ops, one function per operator, one module per family.

A rule gets a ``Site`` and emits QNN nodes on it. Operators that only differ in name are not here: their mapping is
in the op's own file (``OnnxRule``) and ``plain.py`` applies it. A module's ``KEEPS`` are those of its operators
whose results are a selection of the first input's values: they fit its encoding without any rounding.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

from openhtp.frontend.plain import plain_rules
from openhtp.frontend.site import Site

Rule = Callable[[Site], None]


@functools.cache
def rules() -> Mapping[str, Rule]:
    """All rules by ONNX operator, found by listing this folder."""
    return {operator: rule for module in _modules() for operator, rule in module.RULES.items()}


@functools.cache
def keeping_values() -> frozenset[str]:
    """ONNX operators whose results are a selection of the first input's values."""
    told = {operator for module in _modules() for operator in getattr(module, "KEEPS", ())}
    # A variadic op, as Concat is, takes values of several encodings.
    plain = {
        operator
        for operator, (opdef, _) in plain_rules().items()
        if opdef.values_kept and not opdef.inputs[0].variadic
    }
    return frozenset(told | plain)


def _modules() -> Iterator[ModuleType]:
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            yield importlib.import_module(f"{__name__}.{module.name}")
