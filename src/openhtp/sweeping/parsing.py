"""From a file, or the same as a mapping, to a ``Study``, with all checks that can be made before it runs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openhtp.core.checks import path_of, shown
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.files import digest_of
from openhtp.core.validating import WrittenValue, did_you_mean
from openhtp.hw.catalog import catalog, find_soc
from openhtp.planning.keys import NumberRange
from openhtp.planning.reading import BadScenario, read_file, read_mapping
from openhtp.sweeping.measures import find_measure, measure_names
from openhtp.sweeping.study import (
    MAX_POINTS,
    OPERATORS,
    Axis,
    BadStudy,
    Objective,
    Scalar,
    Search,
    Study,
    StudyConstraint,
    Values,
    grid,
    grid_size,
)

_TOP = ("name", "measure", "axes", "search", "objectives", "constraints", "each")
_COUNTS = {
    "samples": NumberRange("points", 1, MAX_POINTS),
    "seed": NumberRange("", 0, 2**63 - 1),
    "batch": NumberRange("points", 1, MAX_POINTS),
}
_SEARCH = ("method", *_COUNTS)
_RANGE = ("from", "to", "step")
_BOUND = NumberRange("", -1e300, 1e300, whole=False)
_STEP = NumberRange("", 1e-12, 1e300, whole=False)  # values are told apart to 12 digits
_MAX_VALUES = 1_000_000
_CONSTRAINT = re.compile(r"\s*(.+?)\s*(" + "|".join(OPERATORS) + r")\s*(.+?)\s*")


def load_study(study: Study | Mapping[str, Any] | str | Path, preset: Values | None = None) -> Study:
    """Read and check a study. ``preset``: values of axes that the measure has and the study does not.

    Raises:
        BadStudy: it cannot be run; the message names the place.
        InvalidArgument: it is neither a file nor a mapping.
    """
    if isinstance(study, Study):
        return study
    try:
        if isinstance(study, Mapping):
            return _study(read_mapping(study, "study"), "study", Path(), preset or {})
        path = path_of(study)
        if path is None:
            raise InvalidArgument(f"study is {shown(study)}; expected the path of a file, a mapping or a Study")
        return _study(read_file(path, "a study"), path.stem, path.parent, preset or {})
    except BadScenario as error:
        raise BadStudy(error.message) from error


def _study(value: WrittenValue, name: str, folder: Path, preset: Values) -> Study:
    top = value.fields(_TOP)
    kind: Any = top["measure"].choice(*measure_names())
    measure = find_measure(kind)
    axes_value = top["axes"]
    if not isinstance(axes_value.raw, dict) or not axes_value.raw:
        axes_value.fail("expected axes: a name and its values each")
    axes = tuple(_axis(axis, item) for axis, item in axes_value.raw.items())
    for axis in axes:
        if not measure.takes(axis.name):
            at = axes_value.raw[axis.name]
            at.fail(f"measure {kind!r} has no axis {axis.name!r}; {_hint(axis.name, measure.axes)}")
    axes += tuple(
        Axis(name, (fixed,))
        for name, fixed in preset.items()
        if name not in axes_value.raw and measure.takes(name)
    )
    for needed in measure.needs:
        if all(axis.name != needed for axis in axes):
            axes_value.fail(f"measure {kind!r} needs {needed!r}: give it as an axis, of one value if it is fixed")
    study = Study(
        name=top["name"].text() if "name" in top else name,
        measure=kind,
        axes=axes,
        search=_search(top.get("search")),
        objectives=_objectives(top.get("objectives")) or measure.objectives,
        constraints=_constraints(top.get("constraints")),
        each=_each(top.get("each"), [axis.name for axis in axes]),
        folder=str(folder.resolve()),
    )
    _verify_words(value, study)
    _verify_space(axes_value, study)
    return _with_files(axes_value, study)


def _axis(name: str, value: WrittenValue) -> Axis:
    raw = value.raw
    if isinstance(raw, dict):
        return _range(name, value)
    if name == "soc" and raw == "all":
        return Axis(name, tuple(catalog()))
    items = raw if isinstance(raw, list) else [value]
    if not items:
        value.fail("the axis has no values, so the space is empty")
    values: list[Any] = []
    for item in items:
        if isinstance(item.raw, (dict, list)) or not _is_plain(item.raw):
            item.fail("expected a number, a word, true or false")
        values.append(item.raw)
    if len(set(map(repr, values))) < len(values):
        value.fail("a value is given twice")
    if name == "soc":
        values = [_soc(item) for item in items]
    return Axis(name, tuple(values))


def _is_plain(raw: object) -> bool:
    return raw is None or isinstance(raw, (str, int)) or (isinstance(raw, float) and math.isfinite(raw))


def _soc(value: WrittenValue) -> str:
    try:
        return find_soc(value.text()).name
    except QnnError as error:
        value.fail(error.message)


def _range(name: str, value: WrittenValue) -> Axis:
    fields = value.fields(_RANGE)
    low, high = (fields[key].read(_BOUND) for key in ("from", "to"))
    if low > high:
        value.fail(f"from {low} to {high} is empty")
    whole = isinstance(low, int) and isinstance(high, int)
    if "step" not in fields and not whole:
        return Axis(name, (), low, high)
    step = fields["step"].read(_STEP) if "step" in fields else 1
    count = math.floor((high - low) / step * (1 + 1e-12)) + 1
    if count > _MAX_VALUES:
        value.fail(f"{count} values; an axis has at most {_MAX_VALUES}")
    values = [low + step * number for number in range(count)]
    return Axis(name, tuple(item if isinstance(item, int) else round(item, 12) for item in values))


def _search(value: WrittenValue | None) -> Search:
    if value is None:
        return Search()
    if isinstance(value.raw, str) and value.raw != "grid":
        value.choice("grid", "random", "optuna")
        value.fail(f"{value.raw!r} needs a number of samples: {{method: {value.raw}, samples: 1000}}")
    if isinstance(value.raw, str):
        return Search()
    fields = value.fields(_SEARCH)
    method: Any = fields["method"].choice("grid", "random", "optuna")
    numbers = {key: fields[key].read(_COUNTS[key]) for key in _COUNTS if key in fields}
    if method != "grid" and "samples" not in numbers:
        value.fail(f"{method!r} needs 'samples', the number of points to try")
    return Search(method=method, **numbers)


def _objectives(value: WrittenValue | None) -> tuple[Objective, ...]:
    if value is None:
        return ()
    if not isinstance(value.raw, dict) or not value.raw:
        value.fail("expected names of measured numbers, each with min or max")
    return tuple(Objective(name, item.choice("min", "max") == "max") for name, item in value.raw.items())


def _each(value: WrittenValue | None, axes: list[str]) -> tuple[str, ...]:
    if value is None:
        return ()
    items = value.items() if isinstance(value.raw, list) else [value]
    return tuple(item.choice(*axes) for item in items)


def _constraints(value: WrittenValue | None) -> tuple[StudyConstraint, ...]:
    constraints = []
    for item in value.items() if value is not None else []:
        match = _CONSTRAINT.fullmatch(item.text())
        if match is None:
            item.fail(f"{item.raw!r} is no constraint; expected for example 'margin >= 0.1'")
        name, relation, bound = match.groups()
        try:
            number: Scalar = float(bound)
        except ValueError:
            number = bound
            if relation not in ("==", "!="):
                item.fail(f"{bound!r} is no number; words can be compared with == and != only")
        constraints.append(StudyConstraint(name, relation, number))
    return tuple(constraints)


def _verify_words(value: WrittenValue, study: Study) -> None:
    """Objectives and constraints name what the measure gives, or an axis."""
    measure = find_measure(study.measure)
    numeric = {axis.name for axis in study.axes if all(isinstance(value, int | float) for value in axis.values)}
    for objective in study.objectives:
        if not measure.gives(objective.name) and objective.name not in numeric:
            at = value.fields(_TOP)["objectives"]
            at.fail(
                f"{study.measure!r} does not measure {objective.name!r}; {_hint(objective.name, measure.numbers)}"
            )
    for constraint in study.result_constraints:
        if not measure.gives(constraint.name):
            at = value.fields(_TOP)["constraints"]
            names = [*measure.numbers, *(axis.name for axis in study.axes)]
            at.fail(f"{constraint.name!r} is neither measured nor an axis; {_hint(constraint.name, names)}")


def _verify_space(at: WrittenValue, study: Study) -> None:
    search = study.search
    if search.method == "grid":
        open_axes = [axis.name for axis in study.axes if axis.continuous]
        if open_axes:
            at.fail(f"a grid needs a 'step' for {open_axes[0]!r}; or search at random, or with optuna")
    if search.method != "optuna" and grid_size(study) > MAX_POINTS and all(axis.values for axis in study.axes):
        at.fail(
            f"{grid_size(study):,} points; a study has at most {MAX_POINTS:,}: search at random, or with optuna"
        )
    if all(axis.values for axis in study.axes) and next(grid(study), None) is None:
        words = " and ".join(str(each) for each in study.space_constraints)
        at.fail(f"the space is empty: no point holds {words}")


def _with_files(at: WrittenValue, study: Study) -> Study:
    """The study with the files it reads, and what is in them now."""
    from msgspec.structs import replace

    files = {}
    try:
        for name in find_measure(study.measure).files(study):
            path = Path(study.folder, name)
            files[name] = digest_of(path, what="what a study reads", error=InvalidArgument)
    except OSError as error:
        at.fail(f"{error.filename}: {error.strerror}")
    except InvalidArgument as error:
        at.fail(error.message)
    return replace(study, files=files)


def _hint(name: str, known: list[str] | tuple[str, ...]) -> str:
    return did_you_mean(name, known, form=repr) or f"known: {', '.join(known)}"
