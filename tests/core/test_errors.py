"""The one exception tree and the numbers it carries."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import re
from pathlib import Path

import pytest

import openhtp
from openhtp.core import errors, status
from openhtp.core.errors import QnnError, error_context, error_for_status
from openhtp.core.status import ALL, Status, for_code

CLASSES = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, QnnError)]


def drawn_tree() -> dict[str, str | None]:
    """Class to parent, as the drawing at the top of the module has it."""
    found: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        drawn = re.match(r"( +)([A-Z]\w+)  ", line)
        if drawn:
            depth, name = len(drawn[1]), drawn[2]
            above = [(other, parent) for other, parent in above if other < depth]
            found[name] = above[-1][1] if above else None
            above.append((depth, name))
    return found


def test_the_drawing_is_the_tree() -> None:
    assert drawn_tree() == {
        kind.__name__: None if kind is QnnError else kind.__bases__[0].__name__ for kind in CLASSES
    }


def test_every_error_can_be_caught_by_its_public_name() -> None:
    assert [kind.__name__ for kind in CLASSES if not hasattr(openhtp, kind.__name__)] == []


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_is_the_same_after_a_process_border(kind: type[QnnError]) -> None:
    error = kind("what was given", status.QNN_GRAPH_ERROR_ABORTED)
    error.context.append("graph 'g'")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert (twin.message, twin.status, twin.context) == (error.message, error.status, error.context)
        assert str(twin) == str(error) == "what was given [graph 'g'] (QNN_GRAPH_ERROR_ABORTED, 6031)"


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_has_a_documented_number_without_being_given_one(kind: type[QnnError]) -> None:
    error = kind("m")
    assert ALL[error.name] == error.status == kind.default_status
    assert error.code == error.status.code != 0


def test_places_are_told_from_the_outside_in() -> None:
    with pytest.raises(QnnError) as caught, error_context(graph="g"), error_context(node="c1", input=2):
        raise QnnError("m")
    assert "[graph 'g', node 'c1', input 2]" in str(caught.value)


def test_a_place_is_added_to_our_errors_only() -> None:
    with pytest.raises(ValueError, match=r"^plain$"), error_context(graph="g"):
        raise ValueError("plain")


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (status.QNN_GRAPH_ERROR_ABORTED, errors.Aborted),
        (status.QNN_GRAPH_ERROR_TIMED_OUT, errors.TimedOut),
        (status.QNN_COMMON_ERROR_SYSTEM_COMMUNICATION, errors.DeviceLost),
        (status.QNN_GRAPH_ERROR_MEM_ALLOC, errors.OutOfMemory),
        (status.QNN_GRAPH_ERROR_INVALID_CONTEXT, errors.InvalidHandle),
        (status.QNN_GRAPH_ERROR_GENERAL, errors.ExecutionError),
    ],
)
def test_a_status_from_the_device_is_an_error_of_its_kind(given: Status, kind: type[QnnError]) -> None:
    error = error_for_status(given, "m")
    assert type(error) is kind
    assert error.status == given


def test_statuses_are_called_as_they_say_and_no_name_is_there_twice() -> None:
    assert all(value.name == name for name, value in ALL.items())
    tree = ast.parse(Path(status.__file__).read_text())
    written = [node.targets[0].id for node in tree.body if isinstance(node, ast.Assign)]  # type: ignore[attr-defined]
    names = [name for name in written if name.startswith("QNN_")]
    assert len(names) == len(set(names)) == len(ALL)


def area_of(name: str) -> str:
    return name.removeprefix("QNN_").split("_ERROR")[0].split("_NO_ERROR")[0]


def test_a_number_means_one_thing_in_one_area() -> None:
    seen: dict[tuple[str, int], str] = {}
    for name, value in ALL.items():
        # The ends of an area's range name no status of their own.
        if "MINERROR" not in name and "MAXERROR" not in name and "_ERROR" in name:
            assert seen.setdefault((area_of(name), value.code), name) == name


@pytest.mark.parametrize("name", [name for name in ALL if "_ERROR_" in name])
def test_a_number_is_read_back_in_its_area(name: str) -> None:
    value = ALL[name]
    assert for_code(value.code, area=area_of(name)) == value
    assert str(value) == f"{name} ({value.code})"


def test_an_unknown_number_stays_what_it_is() -> None:
    assert for_code(65_000) == Status("QNN_STATUS_65000", 65_000)
    assert for_code(0) == status.QNN_SUCCESS
