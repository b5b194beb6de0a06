"""Priorities, levels, tensor kinds and sizes: what is parsed and printed, and the facts in their numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as some

from openhtp.core import option_numbers
from openhtp.core.dtype import DType
from openhtp.core.enumerations import LogLevel, Priority, ProfileLevel
from openhtp.core.errors import InvalidArgument
from openhtp.core.limits import DEFAULT_QUEUE_DEPTH, MAX_QUEUE_DEPTH, SESSION_LIMIT_BYTES
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.core.units import GIB, KIB, MIB, bytes_in_words
from openhtp.records.profile import EVENT_NAMES, EVENT_UNITS


@pytest.mark.parametrize("words", [Priority, LogLevel, ProfileLevel, TensorKind])
def test_members_names_and_numbers_are_read(words: Any) -> None:
    for member in words:
        for given_as in (member, member.name, member.name.lower(), int(member)):
            assert words.parse(given_as) is member


@pytest.mark.parametrize("words", [Priority, LogLevel, ProfileLevel, TensorKind])
@pytest.mark.parametrize("nonsense", ["urgent", "", -1, 10_000])
def test_nonsense_is_answered_with_what_there_is(words: Any, nonsense: Any) -> None:
    with pytest.raises(InvalidArgument, match="expected") as caught:
        words.parse(nonsense)
    assert repr(nonsense) in caught.value.message
    assert next(iter(words)).name.lower() in caught.value.message


@given(some.integers(0, 500))
def test_a_priority_between_two_counts_as_the_lower(number: int) -> None:
    level = Priority.parse(number)
    assert level <= number
    assert not [other for other in Priority if level < other <= number]


@given(some.integers(0, 500), some.integers(0, 500))
def test_more_urgent_is_never_behind(one: int, other: int) -> None:
    low, high = sorted((Priority.parse(one), Priority.parse(other)))
    assert low.thread_priority >= high.thread_priority
    assert (low.thread_priority == high.thread_priority) == (low is high)


@pytest.mark.parametrize(
    ("level", "hmx", "hvx"), [("low", 0xC5, 0xC6), (100, 0xC0, 0xC1), (150, 0xBD, 0xBE), ("high", 0xBB, 0xBC)]
)
def test_hvx_threads_come_right_behind_the_hmx(level: Any, hmx: int, hvx: int) -> None:
    found = Priority.parse(level)
    assert (found.thread_priority, found.hvx_thread_priority) == (hmx, hvx)


@pytest.mark.parametrize("given_as", ["QNN_PRIORITY_HIGH", " high ", "High"])
def test_priorities_as_written_elsewhere(given_as: str) -> None:
    assert Priority.parse(given_as) is Priority.HIGH
    assert Priority.parse("default") is Priority.parse("medium") is Priority.NORMAL
    assert Priority.parse("high-plus") is Priority.HIGH_PLUS


@pytest.mark.parametrize("value", [True, 501, None, 1.5])
def test_what_is_no_priority(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="0 to 500"):
        Priority.parse(value)


def test_kinds_say_who_writes_and_who_reads() -> None:
    both = {TensorKind.APP_READWRITE, TensorKind.UPDATEABLE_APP_READWRITE, TensorKind.OPTIONAL_APP_READWRITE}
    assert {kind for kind in TensorKind if kind.is_input and kind.is_output} == both
    assert {kind for kind in TensorKind if not (kind.is_input or kind.is_output)} == {
        TensorKind.NATIVE,
        TensorKind.STATIC,
        TensorKind.UPDATEABLE_STATIC,
        TensorKind.UPDATEABLE_NATIVE,
        TensorKind.NULL,
    }
    assert all(("OPTIONAL" in kind.name) == kind.is_optional for kind in TensorKind)
    assert all(("UPDATEABLE" in kind.name) == kind.is_updateable for kind in TensorKind)


@given(some.lists(some.integers(1, 9), max_size=5), some.sampled_from(DType))
def test_a_tensor_takes_what_its_elements_take(shape: list[int], dtype: DType) -> None:
    spec = TensorSpec("t", tuple(shape), dtype)
    assert spec.rank == len(shape)
    assert spec.nbytes == spec.elements * dtype.itemsize
    assert str(spec) == f"t: {dtype.short}{shape}"
    assert not spec.is_dynamic
    assert not TensorSpec("t", (2, 3), dtype, dynamic=(False, False)).is_dynamic
    assert TensorSpec("t", (2, 3), dtype, dynamic=(False, True)).is_dynamic


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [(0, "0 B"), (1023, "1023 B"), (KIB, "1 KiB"), (1536, "1.5 KiB"), (8 * MIB, "8 MiB"), (-2 * GIB, "-2 GiB")],
)
def test_sizes_in_words(nbytes: int, words: str) -> None:
    assert bytes_in_words(nbytes) == words


@given(some.integers(0, 1 << 50))
def test_words_are_within_a_thousandth(nbytes: int) -> None:
    number, unit = bytes_in_words(nbytes).split()
    factor = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}[unit]
    assert float(number) * factor == pytest.approx(nbytes, rel=1e-3)


def test_limits_are_the_documented_ones() -> None:
    assert bytes_in_words(SESSION_LIMIT_BYTES) == "3.75 GiB"
    assert (DEFAULT_QUEUE_DEPTH, MAX_QUEUE_DEPTH) == (10, 300)


def test_events_and_units_have_distinct_names() -> None:
    for table in (EVENT_NAMES, EVENT_UNITS):
        assert len(set(table.values())) == len(table)
    # Of the two that are easily mixed up: with and without the time that the accelerator waited.
    assert EVENT_NAMES[3004] == "GRAPH_EXECUTE_ACCEL_TIME_MICROSEC"
    assert EVENT_NAMES[3012] == "GRAPH_EXECUTE_ACCEL_EXCL_WAIT_TIME_MICROSEC"


def test_an_option_list_numbers_nothing_twice() -> None:
    """And has nothing in the place of ``CUSTOM``, except the lists that CUSTOM carries."""
    for name, options in vars(option_numbers).items():
        if isinstance(options, type) and name.endswith("Option"):
            assert len(options) == len(options.__members__), name
            if name in ("BackendOption", "DeviceOption", "ContextOption", "GraphOption", "SignalOption"):
                assert option_numbers.CUSTOM not in options._value2member_map_
