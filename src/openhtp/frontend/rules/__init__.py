"""How ONNX operators become QNN ops, one function per operator, one module per family.

A rule gets a ``Site`` and emits QNN nodes on it. Operators that only differ in name are not here: the op's own
file has their mapping (``OnnxRule``), and ``apply_plain`` applies it. ``KEEPS`` of a module lists the operators
whose results are a selection of the first input's values. Such results fit the input's encoding without rounding.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

from openhtp.frontend import values as vs
from openhtp.frontend.site import Site
from openhtp.ops import OpDef, find_op, op_names
from openhtp.ops._node import Layout
from openhtp.ops._opdef import OnnxRule

Rule = Callable[[Site], None]


@functools.cache
def rules() -> Mapping[str, Rule]:
    """All rules by ONNX operator, found by listing this folder."""
    return {operator: rule for module in _modules() for operator, rule in module.RULES.items()}


@functools.cache
def keeping_values() -> frozenset[str]:
    """ONNX operators whose results are a selection of the first input's values."""
    listed = {operator for module in _modules() for operator in getattr(module, "KEEPS", ())}
    # A variadic op, as Concat is, takes values of several encodings.
    plain = {
        operator
        for operator, (opdef, _) in plain_rules().items()
        if opdef.values_kept and not opdef.inputs[0].variadic
    }
    return frozenset(listed | plain)


def _modules() -> Iterator[ModuleType]:
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            yield importlib.import_module(f"{__name__}.{module.name}")


@functools.cache
def plain_rules() -> Mapping[str, tuple[OpDef, OnnxRule]]:
    """Rules of all ops by ONNX operator. The first op that claims an operator has it."""
    owners: dict[str, tuple[OpDef, OnnxRule]] = {}
    for name in op_names():
        opdef = find_op(name)
        for rule in opdef.onnx:
            owners.setdefault(rule.op_type, (opdef, rule))
    return owners


def apply_plain(site: Site, opdef: OpDef, rule: OnnxRule) -> None:
    """Emit the one op that the rule names, in the order of axes that its inputs are in."""
    node = site.node
    rank = len(site.out_type().shape)
    present = [index for index in range(len(node.inputs)) if node.has(index)]
    perm = site.common_perm(present, rank) if opdef.layout is Layout.ANY else vs.identity(rank)
    dtype = site.fixed_type if site.is_fixed else None
    inputs = []
    for index in present:
        value = site.value(index)
        inputs.append(site.aligned(value if dtype is None else site.like(value, dtype), perm))
    params = dict(rule.params)
    for onnx_name, name in rule.attrs.items():
        if site.attr(onnx_name) is not None:
            value = site.attr(onnx_name)
            is_axis = name == "axis" and isinstance(value, int)
            params[name] = perm.index(site.axis(value, rank)) if is_axis else value
    site.emit(opdef.name, inputs, [site.give(0, perm)], params)
