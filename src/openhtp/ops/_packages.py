"""Op packages of users: operators written in Python, and the packages that this process knows.

An ``Operator`` becomes an ``OpDef``, so everything that checks, prices and plans ops treats it like any other.
Nothing here trusts the user's functions: whatever they raise or return becomes an error that names the operator.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import numpy as np

from openhtp.core import status as st
from openhtp.core.checks import shown
from openhtp.core.dtype import DType
from openhtp.core.errors import InternalError, InvalidArgument, NameClash, QnnError, UnsupportedOp
from openhtp.core.tensor import MAX_RANK
from openhtp.ops._node import Arrays, Emitter, Node, Results, Shapes
from openhtp.ops._opdef import Constraint, OpDef, Param, Port, TypeRow, Work, rows, vector_work
from openhtp.ops._tiles import TileAxis, broadcast_axes

BUILT_IN = "qti.aisw"
"""The package of the operations that every HTP has."""

DEFAULT_TIME_LIMIT_S = 10.0

_INVALID = st.QNN_OP_PACKAGE_ERROR_INVALID_INFO
_VERSION = re.compile(r"\d{1,6}(\.\d{1,6}){0,2}")
_NAME = re.compile(r"[A-Za-z_][\w.\-]{0,254}")
_ANY = (tuple(dtype for dtype in DType if dtype.bits >= 8),)
_SCALARS = {bool: DType.BOOL_8, int: DType.INT_32, float: DType.FLOAT_32}

_R = TypeVar("_R")


Compute = Callable[[Node, Arrays], Results]


@dataclass(frozen=True, slots=True)
class Operator:
    """A user's operator. All functions get the checked node: its tensors' specs and its parameters.

    * ``infer`` gives the shapes of the outputs; None takes them as the graph declares them.
    * ``compute`` gives the results for arrays of real numbers (float32), or of integers where a tensor has plain
      ones. Results are stored as the outputs' types and encodings say. With ``stored`` it gets and gives numbers
      as they are stored. It is called on a thread of its own, and for one execution at a time or several.
      ``prepare`` makes such a function for one node when its graph is loaded; give one of the two.
    * ``work`` says how much that is; without it, one vector operation per result and all bytes once.
    * ``inputs`` and ``outputs`` are how many there are, None for any number; the last ``optional`` inputs may be
      left out.
    * ``params`` has each parameter's default, or a type (``float``, ``[int]``) for one that must be given. None
      takes whatever a node has.
    * ``constraints`` maps a sentence to a check. If the check fails, the sentence is the error.
    * ``types`` are the accepted combinations, as ``"f32 > f32"`` (docs/add-an-op.md); without any, all are.
    * ``onnx_types`` are the outputs' types in an ONNX file; without one, an output has its first input's.
    * ``split_axis`` is an axis of the first output along which results can be computed piece by piece, in
      ``pieces``; the device may turn to more urgent work in between. Inputs are cut where broadcasting aligns
      them with that axis.
    * An execution fails when ``compute`` takes longer than ``time_limit_s``.
    """

    name: str
    infer: Callable[[Node], Shapes] | None
    compute: Compute | None = None
    prepare: Callable[[Node], Compute] | None = field(default=None, kw_only=True)
    work: Callable[[Node], Work] | None = field(default=None, kw_only=True)
    summary: str = field(default="", kw_only=True)
    inputs: int | None = field(default=1, kw_only=True)
    optional: int = field(default=0, kw_only=True)
    outputs: int | None = field(default=1, kw_only=True)
    params: Mapping[str, Any] | None = field(default_factory=dict, kw_only=True)
    constraints: Mapping[str, Callable[[Node], bool]] = field(default_factory=dict, kw_only=True)
    types: Sequence[str] = field(default=(), kw_only=True)
    onnx_types: Sequence[str | None] = field(default=(), kw_only=True)
    stored: bool = field(default=False, kw_only=True)
    split_axis: int | None = field(default=None, kw_only=True)
    pieces: int = field(default=4, kw_only=True)
    time_limit_s: float = field(default=DEFAULT_TIME_LIMIT_S, kw_only=True)


@dataclass(frozen=True, slots=True)
class OwnOp:
    """Computes an operator of a package: the engine calls ``compute`` with arrays and checks its results."""

    package: str
    operator: Operator

    @property
    def title(self) -> str:
        """The operator with its package, as errors name it."""
        return f"{self.package}::{self.operator.name}"

    def function(self, node: Node) -> Compute:
        """The function that computes a node."""
        operator = self.operator
        if operator.prepare is not None:
            prepare = operator.prepare
            return _guarded(self, "prepare", lambda: prepare(node))
        assert operator.compute is not None
        return operator.compute


class OpPackage:
    """Operators under one name and version. A context binary names both, and is only loaded where both are there.

    ``reference`` is where another process finds the package: ``module:attribute``. It is found by itself if the
    package is an attribute of the module that defines one of its functions.
    """

    def __init__(
        self, name: str, version: str, operators: Sequence[Operator], *, reference: str | None = None
    ) -> None:
        self.name = _checked(name, _NAME, "name", "a word, as my.ops")
        self.version = _checked(version, _VERSION, f"version of {name!r}", "up to three numbers, as 1.0.0")
        if name == BUILT_IN:
            raise NameClash(f"package {name!r} is the HTP's own; choose another name", _INVALID)
        self.operators = tuple(operators)
        if not self.operators or not all(isinstance(operator, Operator) for operator in self.operators):
            raise InvalidArgument(f"operators of {name!r} are {shown(operators)}; expected Operators", _INVALID)
        self._reference = reference
        self._defs = {operator.name: _opdef(self.name, operator) for operator in self.operators}
        if len(self._defs) != len(self.operators):
            raise NameClash(f"package {name!r} has two operators of one name", _INVALID)

    @property
    def reference(self) -> str:
        """``module:attribute``; empty if no other process can import it."""
        if self._reference is None:
            self._reference = self._look_around()
        return self._reference

    def op(self, name: str) -> OpDef | None:
        """The definition of an operator."""
        return self._defs.get(name)

    def op_names(self) -> tuple[str, ...]:
        """Names of its operators."""
        return tuple(self._defs)

    def _look_around(self) -> str:
        """Look for the package in the modules that define its functions. A script has no name to import it by."""
        for operator in self.operators:
            module = sys.modules.get(getattr(operator.compute or operator.prepare, "__module__", None) or "")
            if module is not None and module.__name__ != "__main__":
                for name, value in list(vars(module).items()):
                    if value is self:
                        return f"{module.__name__}:{name}"
        return ""

    def __repr__(self) -> str:
        return f"<OpPackage {self.name} {self.version}: {', '.join(self.op_names())}>"


def _checked(value: object, pattern: re.Pattern[str], what: str, expected: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise InvalidArgument(f"{what} of an op package is {shown(value)}; expected {expected}", _INVALID)
    return value


# From an operator to the definition that everything else uses


def _opdef(package: str, operator: Operator) -> OpDef:
    name = _checked(operator.name, _NAME, f"operator of {package!r}", "a name, as MyOp")
    own = OwnOp(package, operator)
    _check_numbers(own)

    def infer(node: Node) -> Shapes:
        rule = operator.infer
        if rule is None:
            return tuple(spec.shape for spec in node.outputs)
        return _shapes(own, node, _guarded(own, "infer", lambda: rule(node)))

    def work(node: Node) -> Work:
        amount = _guarded(own, "work", lambda: (operator.work or vector_work(1))(node))
        if not isinstance(amount, Work):
            _blame(own, f"work gives {shown(amount)}; expected an openhtp.Work")
        return amount

    def tile(node: Node) -> tuple[TileAxis, ...]:
        axis = operator.split_axis
        if axis is None:
            return ()
        rank = node.outputs[0].rank
        axis %= rank
        return (TileAxis(axis=axis, inputs=broadcast_axes(node, axis - rank)),)

    return OpDef(
        name=name,
        summary=operator.summary,
        types=_types(own),
        infer=infer,
        reference=lambda node, arrays: own.function(node)(node, arrays),
        lower=_not_lowered,
        inputs=_ports("in", operator.inputs, operator.optional),
        outputs=_ports("out", operator.outputs, 0),
        work=work,
        params=tuple(_param(own, key, value) for key, value in (operator.params or {}).items()),
        any_params=operator.params is None,
        constraints=(
            Constraint("a package's operators take fixed shapes only", _is_fixed),
            *(_constraint(own, sentence, check) for sentence, check in operator.constraints.items()),
        ),
        max_rank=MAX_RANK,
        # Its function is the user's: the compiler does not call it ahead of time.
        random=True,
        tile=tile,
        own=own,
    )


def _ports(side: str, count: int | None, optional: int) -> tuple[Port, ...]:
    if count is None:
        return (Port(f"{side}[..]", optional=True, variadic=True),)
    return tuple(Port(f"{side}[{index}]", optional=index >= count - optional) for index in range(count))


def _check_numbers(own: OwnOp) -> None:
    operator = own.operator
    if (operator.compute is None) == (operator.prepare is None):
        _refuse(own, "compute and prepare are both given, or neither; expected one of them")
    for name in ("infer", "compute", "prepare", "work"):
        function = getattr(operator, name)
        if function is not None and not callable(function):
            _refuse(own, f"{name} is {shown(function)}; expected a function")
    whole = {"inputs": operator.inputs, "optional": operator.optional, "outputs": operator.outputs}
    for name, count in {**whole, "pieces": operator.pieces}.items():
        least = 1 if name in ("outputs", "pieces") else 0
        if count is None and name in ("inputs", "outputs"):
            continue
        if not isinstance(count, int) or isinstance(count, bool) or not least <= count <= 1024:
            _refuse(own, f"{name} is {shown(count)}; expected {least} to 1024")
    limit = operator.time_limit_s
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit <= 86400:
        _refuse(own, f"time_limit_s is {shown(limit)}; expected seconds above 0, a day at most")
    if operator.split_axis is not None and not isinstance(operator.split_axis, int):
        _refuse(own, f"split_axis is {shown(operator.split_axis)}; expected an axis or None")


def _types(own: OwnOp) -> tuple[TypeRow, ...]:
    if not own.operator.types:
        return (TypeRow("any* > any*", _ANY, _ANY, variadic_input=True, variadic_output=True),)
    try:
        return rows(*own.operator.types)
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        _refuse(own, f"types are {shown(own.operator.types)}; expected rows as 'f32 > f32' ({error})")


def _param(own: OwnOp, name: object, value: Any) -> Param:
    """A parameter from its default, or from its type if it has none."""
    if not isinstance(name, str) or not name:
        _refuse(own, f"a parameter is called {shown(name)}; expected a name")
    if isinstance(value, type) and value in _SCALARS:
        return Param(name, _SCALARS[value], mandatory=True)
    if isinstance(value, list) and len(value) == 1 and value[0] in (int, float):
        return Param(name, _SCALARS[value[0]], rank=1, mandatory=True)
    try:
        array = np.asarray(value)
        kind = {"b": bool, "i": int, "u": int, "f": float}[array.dtype.kind]
    except (KeyError, ValueError, TypeError):
        _refuse(own, f"parameter {name!r} is {shown(value)}; expected a number, a list of numbers or their type")
    return Param(name, _SCALARS[kind], rank=array.ndim, default=value)


def _constraint(own: OwnOp, sentence: str, check: Callable[[Node], bool]) -> Constraint:
    if not isinstance(sentence, str) or not callable(check):
        _refuse(own, f"constraint {shown(sentence)} is {shown(check)}; expected a sentence and a function")
    what = f"the check of {sentence!r}"
    return Constraint(sentence, lambda node: bool(_guarded(own, what, lambda: check(node))))


def _is_fixed(node: Node) -> bool:
    return not any(spec.is_dynamic for spec in (*node.inputs, *node.outputs) if spec is not None)


def _shapes(own: OwnOp, node: Node, inferred: Any) -> Shapes:
    try:
        shapes = tuple(tuple(int(size) for size in shape) for shape in inferred)
    except (TypeError, ValueError):
        _blame(own, f"infer gives {shown(inferred)}; expected a tuple of shapes")
    if len(shapes) != len(node.outputs):
        _blame(own, f"infer gives {len(shapes)} shapes; expected {len(node.outputs)}, one for each output")
    return shapes


def _guarded(own: OwnOp, what: str, call: Callable[[], _R]) -> _R:
    try:
        return call()
    except QnnError:
        raise
    except Exception as error:
        _blame(own, f"{what} raised {type(error).__name__}: {error}", error)


def _blame(own: OwnOp, problem: str, cause: Exception | None = None) -> NoReturn:
    raise UnsupportedOp(f"operator {own.title}: {problem}") from cause


def _refuse(own: OwnOp, problem: str) -> NoReturn:
    raise InvalidArgument(f"operator {own.title}: {problem}", _INVALID)


def _not_lowered(node: Node, emitter: Emitter) -> None:
    raise InternalError(f"operator {node.op} of package {node.package!r} is computed by its own function")


# The packages that this process knows


class _KnownPackages:
    """Packages by name, and how many users each has: one name is one package, wherever it is looked up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[str, int] = {}
        self.packages: dict[str, OpPackage] = {}
        os.register_at_fork(after_in_child=self._start_anew)

    def _start_anew(self) -> None:
        """In the child of a fork: backends are the parent's, and another thread of it may have had the lock."""
        self._lock = threading.Lock()
        self._users.clear()
        self.packages.clear()

    def add(self, package: OpPackage) -> None:
        with self._lock:
            known = self.packages.get(package.name)
            if known is not None and known is not package and self._users[package.name]:
                raise NameClash(
                    f"op package {package.name!r} {package.version} cannot be registered: another package of that"
                    f" name, {known.version}, is in use in this process; free its backends first, or rename one",
                    st.QNN_BACKEND_ERROR_OP_PACKAGE_DUPLICATE,
                )
            self._users[package.name] = self._users.get(package.name, 0) + 1
            self.packages[package.name] = package

    def drop(self, package: OpPackage) -> None:
        with self._lock:
            if self.packages.get(package.name) is package and self._users[package.name]:
                self._users[package.name] -= 1
                if not self._users[package.name]:
                    del self.packages[package.name]


_known = _KnownPackages()


def add_package(package: OpPackage) -> None:
    """Let graphs of this process use a package. Raises NameClash if another of its name is in use."""
    _known.add(package)


def drop_package(package: OpPackage) -> None:
    """One user of the package is gone; with the last, graphs cannot use it any more."""
    _known.drop(package)


def find_package(name: str) -> OpPackage | None:
    """The package of this name."""
    return _known.packages.get(name)


def package_names() -> tuple[str, ...]:
    """Names of the users' packages that are registered."""
    return tuple(sorted(_known.packages))
