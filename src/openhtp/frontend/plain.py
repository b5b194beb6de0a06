"""Operators whose mapping is data in the op's own file: same inputs, same outputs, other names."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from openhtp.frontend import values as vs
from openhtp.frontend.site import Site
from openhtp.frontend.values import Perm
from openhtp.ops import OpDef, find_op, op_names
from openhtp.ops._node import Layout
from openhtp.ops._opdef import OnnxRule


@functools.cache
def plain_rules() -> Mapping[str, tuple[OpDef, OnnxRule]]:
    """Rules of all ops by ONNX operator. The first op that claims an operator has it."""
    found: dict[str, tuple[OpDef, OnnxRule]] = {}
    for name in op_names():
        opdef = find_op(name)
        for rule in opdef.onnx:
            found.setdefault(rule.op_type, (opdef, rule))
    return found


def apply_plain(site: Site, opdef: OpDef, rule: OnnxRule) -> None:
    """Emit the one op that the rule names, in the order of axes that its inputs are in."""
    node = site.node
    rank = len(site.out_type().shape)
    given = [index for index in range(len(node.inputs)) if node.has(index)]
    perm = site.common_perm(given, rank) if opdef.layout is Layout.ANY else vs.identity(rank)
    dtype = site.fixed_type if site.is_fixed else None
    inputs = []
    for index in given:
        value = site.value(index)
        inputs.append(site.aligned(value if dtype is None else site.like(value, dtype), perm))
    params = dict(rule.params)
    for onnx_name, name in rule.attrs.items():
        if site.attr(onnx_name) is not None:
            params[name] = _translated(site, name, site.attr(onnx_name), perm)
    site.emit(opdef.name, inputs, [site.give(0, perm)], params)


def _translated(site: Site, name: str, given: object, perm: Perm) -> object:
    if name == "axis" and isinstance(given, int):
        return perm.index(site.axis(given, len(perm)))
    return given
