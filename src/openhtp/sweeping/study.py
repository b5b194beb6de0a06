"""A study: what is varied, what is measured, what is wanted, and the files that it reads. Plain frozen data."""

from __future__ import annotations

import hashlib
import operator
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from openhtp.core import status as st
from openhtp.core.checks import real_number, shown
from openhtp.core.errors import FormatError, InvalidArgument
from openhtp.core.files import read_file
from openhtp.core.units import GIB

Scalar = str | int | float | bool | None
Values = Mapping[str, Scalar]
"""The values of a point by axis, or its measured numbers by name."""

MAX_POINTS = 20_000_000

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
OPERATORS = tuple(_OPERATORS)


class BadStudy(FormatError):
    """A study cannot be run; the message names the place and what was expected."""

    default_status = st.QNN_COMMON_ERROR_INVALID_ARGUMENT


class Axis(Struct, frozen=True):
    """One thing that is varied: its values in order, or all numbers from ``low`` to ``high``."""

    name: str
    values: tuple[Scalar, ...] = ()
    low: float = 0.0
    high: float = 0.0

    @property
    def continuous(self) -> bool:
        """Whether it has no values to count."""
        return not self.values


class Objective(Struct, frozen=True):
    """A number that should be small, or large: a measured one, or an axis that should go far."""

    name: str
    largest: bool = False

    def loss(self, row: PointResult) -> float:
        """The number with the sign that makes smaller better."""
        value = row.number(self.name)
        return -value if self.largest else value


class StudyConstraint(Struct, frozen=True):
    """``margin >= 0.1``: on an axis, it shapes the space; on a measured number, it says what is feasible."""

    name: str
    relation: str
    bound: Scalar

    def holds(self, values: Values) -> bool:
        """Whether the constraint holds for a value; it never holds for a value of another kind."""
        value = values.get(self.name)
        if isinstance(value, str) != isinstance(self.bound, str) or value is None:
            return False
        return _OPERATORS[self.relation](value, self.bound)  # type: ignore[arg-type]

    def excess(self, values: Values) -> float:
        """How far it is from holding; 0 or less where it holds."""
        if self.holds(values):
            return 0.0
        value = values.get(self.name)
        if isinstance(value, str) or isinstance(self.bound, str) or value is None or self.bound is None:
            return 1.0
        return abs(value - self.bound) or 1e-9

    def __str__(self) -> str:
        bound = f"{self.bound:g}" if isinstance(self.bound, float) else self.bound
        return f"{self.name} {self.relation} {bound}"


class Search(Struct, frozen=True, kw_only=True):
    """How points are chosen. The optimizer proposes ``batch`` points at a time, however many workers there are."""

    method: Literal["grid", "random", "optuna"] = "grid"
    samples: int = 0
    seed: int = 0
    batch: int = 24


class Study(Struct, frozen=True, kw_only=True):
    """Everything that decides the results.

    ``each`` names axes that are no choice but a given, as the networks that all have to run: the best points and
    the front are found for each of their values. ``files`` are those it reads, with what was in them (SHA-256).
    """

    name: str
    measure: Literal["estimate", "plan", "accuracy", "live"]
    axes: tuple[Axis, ...]
    search: Search = Search()
    objectives: tuple[Objective, ...] = ()
    constraints: tuple[StudyConstraint, ...] = ()
    each: tuple[str, ...] = ()
    folder: str = ""
    files: dict[str, str] = {}

    @property
    def fingerprint(self) -> str:
        """A digest that is equal for studies with equal points, wherever their files lie.

        It covers objectives, and constraints of measured numbers, for the optimizer only; otherwise they may
        change.
        """
        alike = msgspec.structs.replace(self, folder="", name="", each=())
        if self.search.method != "optuna":
            alike = msgspec.structs.replace(alike, objectives=(), constraints=self.space_constraints)
        return hashlib.sha256(msgspec.json.encode(alike, order="sorted")).hexdigest()

    @property
    def space_constraints(self) -> tuple[StudyConstraint, ...]:
        """Constraints on axes, which say what is in the space at all."""
        names = {axis.name for axis in self.axes}
        return tuple(each for each in self.constraints if each.name in names)

    @property
    def result_constraints(self) -> tuple[StudyConstraint, ...]:
        """Constraints on measured numbers."""
        names = {axis.name for axis in self.axes}
        return tuple(each for each in self.constraints if each.name not in names)

    @property
    def varied(self) -> tuple[Axis, ...]:
        """Axes with more than one value."""
        return tuple(axis for axis in self.axes if len(axis.values) != 1)

    def admits(self, values: Values) -> bool:
        """Whether a point belongs to the space."""
        return all(constraint.holds(values) for constraint in self.space_constraints)


class StudyPoint(Struct, frozen=True, array_like=True):
    """One setting. ``number`` is its place in the study's order."""

    number: int
    values: dict[str, Scalar]

    @property
    def key(self) -> str:
        """A text that is equal for equal settings."""
        return key_of(self.values)


class PointResult(Struct, frozen=True, array_like=True):
    """A finished point: what was measured, or why nothing was."""

    point: StudyPoint
    measured: dict[str, Scalar] | None = None
    error: str | None = None

    def number(self, name: str) -> float:
        """A measured number, or the place on an axis."""
        measured = self.measured or {}
        return float(measured[name] if name in measured else self.point.values[name])  # type: ignore[arg-type]


def key_of(values: Values) -> str:
    """One text for one setting."""
    return msgspec.json.encode(dict(values), order="sorted").decode()


def feasible(study: Study, row: PointResult) -> bool:
    """Whether a point was measured and holds all constraints."""
    measured = row.measured
    return measured is not None and all(each.holds(measured) for each in study.result_constraints)


def verify_whole(study: Study) -> None:
    """Check a study before it is used, wherever it comes from; types are right already."""
    names = {axis.name for axis in study.axes}
    strange = [name for name in study.each if name not in names]
    if strange or len(names) != len(study.axes):
        raise BadStudy(
            f"its axes are {sorted(names)}; expected each once, and those of each ({study.each}) among them"
        )
    for constraint in study.constraints:
        if constraint.relation not in _OPERATORS:
            raise BadStudy(f"a constraint has {constraint.relation!r}; expected one of {', '.join(OPERATORS)}")
        _verify_value(constraint.bound, f"the bound of {constraint.name!r}")
    for axis in study.axes:
        for value in (*axis.values, axis.low, axis.high):
            _verify_value(value, f"the axis {axis.name!r}")


def verify_row(study: Study, row: PointResult) -> None:
    """Check that a point has the axes and objectives of its study."""
    where = f"point {row.point.number}"
    missing = [axis.name for axis in study.axes if axis.name not in row.point.values]
    if missing:
        raise BadStudy(f"{where} does not set {missing[0]!r}; the study varies it")
    for name, value in (*row.point.values.items(), *(row.measured or {}).items()):
        _verify_value(value, f"{name!r} of {where}")
    if row.measured is None:
        return
    for objective in study.objectives:
        value = row.measured.get(objective.name, row.point.values.get(objective.name))
        if isinstance(value, str) or value is None:
            raise BadStudy(f"{objective.name!r} of {where} is {shown(value)}; expected a number, as it is wanted")


def _verify_value(value: Scalar, what: str) -> None:
    if not isinstance(value, (str, bool)) and value is not None and real_number(value) is None:
        raise BadStudy(f"{what} is {shown(value)}; expected a finite number")


def grid_size(study: Study) -> int:
    """How many combinations the axes have, before constraints."""
    size = 1
    for axis in study.axes:
        size *= len(axis.values)
    return size


def grid_values(study: Study, number: int) -> dict[str, Scalar]:
    """The setting at a place of the grid; the last axis goes fastest."""
    places: list[tuple[str, Scalar]] = []
    for axis in reversed(study.axes):
        number, index = divmod(number, len(axis.values))
        places.append((axis.name, axis.values[index]))
    return dict(reversed(places))


def grid(study: Study) -> Iterator[StudyPoint]:
    """All points of the grid that the constraints of axes leave."""
    limited = bool(study.space_constraints)
    for number in range(grid_size(study)):
        values = grid_values(study, number)
        if not limited or study.admits(values):
            yield StudyPoint(number, values)


_MOST_BYTES = 2 * GIB


class StudyFiles:
    """Finds files by the name that the study has for them, relative to its own folder."""

    def __init__(self, study: Study, shipped: Mapping[str, bytes] | None = None) -> None:
        self._folder = study.folder
        self.shipped = shipped
        self._places: dict[str, Path] = {}
        if shipped is not None:
            self._unpack(shipped)

    def _unpack(self, shipped: Mapping[str, bytes]) -> None:
        folder = tempfile.mkdtemp(prefix="openhtp-sweep-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        for name, data in shipped.items():
            # Names may lead out of the study's folder; here each folder gets one of its own.
            parent = self._places.setdefault(str(Path(name).parent), Path(folder, str(len(self._places))))
            parent.mkdir(exist_ok=True)
            self._places[str(Path(name))] = parent / Path(name).name
            (parent / Path(name).name).write_bytes(data)

    def path(self, name: str) -> Path:
        """Where a file, or a folder of files, lies."""
        if self.shipped is None:
            return Path(self._folder, name)
        return self._places.get(str(Path(name)), Path(self._folder, name))


def read_all(study: Study) -> dict[str, bytes]:
    """The content of the files, to be shipped; external data of models is put inside."""
    from openhtp.frontend.probing import with_fixed_inputs

    files = {}
    for name in study.files:
        path = Path(study.folder, name)
        if path.suffix == ".onnx":
            files[name] = with_fixed_inputs(path, may_stay_open=True)
        else:
            files[name] = read_file(path, most=_MOST_BYTES, what="what a study reads", error=InvalidArgument)
    return files
