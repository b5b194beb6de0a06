"""Every operation the HTP knows, one module per op or close family.

Knows tensor specs, parameters and arrays: an op's name, the inputs that it accepts, the shapes of its results, how
it is computed, how much work it is and of which kind, how it may be cut. Must not know graphs, programs, devices
or time. Start at ``_opdef.py``, then ``relu.py`` for a short op and ``conv.py`` for a long one. docs/add-an-op.md
walks through adding one.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Protocol

from openhtp.core import status as st
from openhtp.core.errors import UnsupportedOp
from openhtp.core.opcall import OpCall
from openhtp.ops._node import Array, Node
from openhtp.ops._opdef import OpDef, Work
from openhtp.ops._packages import BUILT_IN, OpPackage, find_package, package_names
from openhtp.ops._resolve import first_arch, resolve_call
from openhtp.ops._tiles import TileAxis

__all__ = [
    "PACKAGE",
    "Node",
    "OpDef",
    "TileAxis",
    "Work",
    "find_op",
    "op_names",
    "op_of",
    "require_package",
    "resolve",
    "resolve_for",
]

PACKAGE = BUILT_IN


class NamedOp(Protocol):
    """Anything that says which op of which package it is: a call, a node of a graph or of a program."""

    @property
    def op(self) -> str:
        """The op's name in its package."""

    @property
    def package(self) -> str:
        """The package's name."""


@functools.cache
def _registry() -> Mapping[str, OpDef]:
    ops: dict[str, OpDef] = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            for opdef in importlib.import_module(f"{__name__}.{module.name}").OPS:
                ops[opdef.name] = opdef
    return dict(sorted(ops.items()))


def op_names() -> tuple[str, ...]:
    """Names of all known ops, sorted."""
    return tuple(_registry())


def op_of(node: NamedOp) -> OpDef:
    """The op of a node, of whichever package. Raises UnsupportedOp if there is none."""
    return find_op(node.op) if node.package == PACKAGE else _own_op(require_package(node.package), node.op)


def require_package(name: str) -> OpPackage:
    """A user's registered package. Raises UnsupportedOp with the known ones."""
    package = find_package(name)
    if package is None:
        known = ", ".join(map(repr, (PACKAGE, *package_names())))
        raise UnsupportedOp(
            f"op package {name!r} is not registered; expected one of {known}"
            " (backend.register_op_package(...), or --op-package)",
            st.QNN_BACKEND_ERROR_OP_PACKAGE_NOT_FOUND,
        )
    return package


def _own_op(package: OpPackage, name: str) -> OpDef:
    opdef = package.op(name.removeprefix(f"{package.name}::"))
    if opdef is None:
        raise UnsupportedOp(
            f"op package {package.name!r} {package.version} has no operator {name!r}; expected"
            f" {' or '.join(package.op_names())}"
        )
    return opdef


def find_op(name: str) -> OpDef:
    """The HTP's own op of this name. Raises UnsupportedOp with the nearest known names."""
    try:
        return _registry()[name]
    except KeyError:
        near = difflib.get_close_matches(name, _registry(), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UnsupportedOp(
            f"no operation is called {name!r}{hint} (docs/ops.md lists all; docs/add-an-op.md: how to add one)",
            st.QNN_OP_PACKAGE_ERROR_VALIDATION_FAILURE,
        ) from None


def resolve(call: OpCall, statics: Mapping[str, Array] | None = None, *, late: bool = True) -> Node:
    """Check a call fully and fill in its defaults; raise InvalidArgument or UnsupportedOp with what is wrong.

    ``statics`` gives the stored data of static inputs where known. ``late`` includes the rules for nodes of a
    graph.
    """
    return resolve_call(op_of(call), call, statics or {}, late=late)


def resolve_for(arch: int, call: OpCall, statics: Mapping[str, Array] | None = None) -> Node:
    """Validate a call for a chip of an architecture, which may not have what the op needs."""
    node = resolve(call, statics, late=False)
    first = first_arch(op_of(call), node)
    if arch < first:
        types = ", ".join(spec.dtype.short for spec in node.inputs if spec is not None)
        raise UnsupportedOp(
            f"{call.op} {call.name!r} on {types} needs v{first} or later; the device is v{arch}",
            st.QNN_OP_PACKAGE_ERROR_VALIDATION_FAILURE,
        )
    return node
