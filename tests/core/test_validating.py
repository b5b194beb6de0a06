"""The one validator: what it refuses, and how it names the place."""

from __future__ import annotations

import enum
from types import MappingProxyType

import pytest

from openhtp.core import status as st
from openhtp.core.errors import FormatError, InvalidArgument
from openhtp.core.validating import ArgumentPlace, KeyPlace, PointerPlace, did_you_mean, written
from openhtp.core.value_kinds import Flag, ListOf, RefusedValue, Text, Whole


def _written(value):
    return written(value, KeyPlace("plan", error=FormatError))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (
            ArgumentPlace("graph", "vtcm_mb", st.QNN_GRAPH_ERROR_INVALID_ARGUMENT),
            "graph option vtcm_mb is 9; expected a whole number of MB from 0 to 8",
        ),
        (
            PointerPlace("c.json").inside("graphs").inside(0).inside("a/b"),
            "c.json: /graphs/0/a~1b is 9; expected a whole number of MB from 0 to 8",
        ),
        (
            KeyPlace("s.yaml", error=InvalidArgument).inside("clients").inside(0).inside("vtcm_mb", 4),
            "s.yaml:4: clients[0].vtcm_mb: expected a whole number of MB from 0 to 8, found 9",
        ),
        (
            KeyPlace("scenario", error=InvalidArgument).inside("vtcm_mb"),
            "scenario: vtcm_mb: expected a whole number of MB from 0 to 8, found 9",
        ),
    ],
)
def test_every_place_refuses_in_its_own_words(place, message):
    with pytest.raises(InvalidArgument) as refused:
        place.read(9, Whole(0, 8, "MB"))
    assert refused.value.message == message
    assert place.read(8, Whole(0, 8, "MB")) == 8


def test_a_mapping_is_read_as_a_mapping():
    top = _written(MappingProxyType({"clients": ({"name": "cam", "on": True},), "size": 1.5}))
    client = top.fields(["clients", "size"])["clients"].items()[0].fields(["name", "on"])
    assert (client["name"].text(), client["on"].flag(), client.get("size")) == ("cam", True, None)
    with pytest.raises(FormatError, match=r"^plan: clients\[0\]: 'core' is missing"):
        client["core"]


class _Word(enum.StrEnum):
    HIGH = "high"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [{"b": {1, 2}}]}, r"^plan: a\[0\]\.b: expected what a file can hold"),
        ({"a": 1 << 70}, r"^plan: a: a number of more than 64 bits"),
        ({"a": {1: 2}}, r"^plan: a: the key 1 is no text"),
        ({"a": "\ud800"}, r"^plan: a: .* is no text that a file can hold"),
        ({"a": [0] * 250_000}, r"^plan: a\[\d+\]: more than 200000 values"),
    ],
)
def test_a_mapping_is_held_to_what_a_file_can_say(value, message):
    with pytest.raises(FormatError, match=message):
        _written(value)


def test_a_mapping_that_holds_itself_is_refused():
    endless: dict[str, object] = {}
    endless["a"] = endless
    with pytest.raises(FormatError, match="nested deeper than 16 levels"):
        _written(endless)


def test_values_are_python_s_own():
    assert type(_written(_Word.HIGH).raw) is str
    assert type(_written(True).raw) is bool


def test_names_that_are_spelled_alike():
    assert did_you_mean("vtcm", ["vtcm_mb", "hvx"]) == "did you mean vtcm_mb?"
    assert did_you_mean("vtcm", ["vtcm_mb", "hvx"], form=repr) == "did you mean 'vtcm_mb'?"
    assert did_you_mean("colour", ["vtcm_mb", "hvx"]) is None


def test_a_list_is_refused_for_the_item_that_is_wrong():
    assert ListOf(Flag()).read([True, False]) == (True, False)
    with pytest.raises(RefusedValue, match="a name"):
        ListOf(Text("a name")).read(["a", 1])
