"""NonZero and the sparse ops: lists of places, of a fixed length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from one_op import Given, check, run

from openhtp.core.errors import InvalidArgument, UnsupportedOp
from openhtp.core.quant import ScaleOffset

SOME = arrays(
    np.int64, array_shapes(min_dims=1, max_dims=4, max_side=4), elements=st.sampled_from([0, 0, 0, 1, 2, 250])
)


def filled(rows: np.ndarray, count: int, filler: int) -> np.ndarray:
    rows = rows[:count]
    return np.concatenate([rows, np.full((count - len(rows), *rows.shape[1:]), filler)])


@settings(max_examples=50, deadline=None)
@given(
    x=SOME, word=st.sampled_from(["u8", "b"]), out=st.sampled_from(["i32", "n32"]), zero=st.sampled_from([0, 5])
)
def test_places_of_what_is_not_zero(x: Any, word: str, out: str, zero: int) -> None:
    quant = ScaleOffset(0.5, -zero) if word == "u8" else None
    numbers = np.minimum(x, 200) * 0.5 if word == "u8" else x != 0
    (got,) = run("NonZero", [Given(numbers, word, quant)], [((x.size, x.ndim), out)])
    wanted = filled(np.argwhere(x), x.size, -1)
    np.testing.assert_array_equal(got, wanted.astype(got.dtype))


def test_there_is_room_for_every_element() -> None:
    with pytest.raises(InvalidArgument, match=r"has shape \[4, 2\]; expected \[6, 2\]"):
        check("NonZero", [Given(np.zeros((2, 3)), "u8")], [((4, 2), "i32")])
    with pytest.raises(UnsupportedOp, match="rank 5; expected at most 4"):
        check("NonZero", [Given(np.zeros((1, 1, 1, 1, 2)), "u8")], [((2, 5), "i32")])


@settings(max_examples=50, deadline=None)
@given(x=SOME, data=st.data())
def test_a_sparse_tensor_taken_apart_and_put_together(x: Any, data: Any) -> None:
    depth = data.draw(st.integers(1, x.ndim))
    rest = x.shape[depth:]
    count = int(np.prod(x.shape[:depth])) + data.draw(st.integers(0, 3))
    (indices,) = run("GetSparseIndices", [Given(x, "u8")], [((count, depth), "i32")])
    (values,) = run("GetSparseValues", [Given(x, "u8")], [((count, *rest), "u8")])
    there = np.argwhere(x.reshape(*x.shape[:depth], -1).any(axis=-1))
    np.testing.assert_array_equal(indices, filled(there, count, -1))
    np.testing.assert_array_equal(values, filled(x[tuple(there.T)], count, 0))
    (again,) = run("CreateSparse", [Given(indices, "i32"), Given(values, "u8")], [(x.shape, "u8")])
    np.testing.assert_array_equal(again, x)


def test_more_than_there_is_room_for_is_cut_off() -> None:
    x = np.array([[0, 3], [4, 5]])
    assert run("GetSparseIndices", [Given(x, "u8")], [((2, 2), "n32")])[0].tolist() == [[0, 1], [1, 0]]
    assert run("GetSparseValues", [Given(x, "u8")], [((2,), "u8")])[0].tolist() == [3, 4]


def test_unspecified_elements_are_real_zeros() -> None:
    quant = ScaleOffset(0.5, -7)
    (got,) = run(
        "CreateSparse", [Given([[1], [4], [9]], "n32"), Given([2.0, 3.5, 5.0], "u8", quant)], [((5,), "u8", quant)]
    )
    # Index 9 lies outside and is skipped.
    assert got.tolist() == [0, 2.0, 0, 0, 3.5]


@pytest.mark.parametrize(
    ("op", "inputs", "output", "reason"),
    [
        ("CreateSparse", [Given([[1, 2, 3]], "i32"), Given([1], "u8")], ((5, 5), "u8"), "do not fit"),
        ("CreateSparse", [Given([[1]], "i32"), Given([1], "u8")], ((5, 5), "u8"), "what stands at each index"),
        ("GetSparseIndices", [Given(np.zeros((2, 2)), "u8")], ((4, 3), "i32"), r"expected \[elements, 1..2\]"),
        ("GetSparseValues", [Given(np.zeros((2, 3)), "u8")], ((4, 2), "u8"), "the last axes"),
    ],
)
def test_shapes_that_do_not_fit(op: str, inputs: list[Given], output: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        check(op, inputs, [output])


@pytest.mark.parametrize("word", ["u8", "f32", "i32"])
@pytest.mark.parametrize(("largest", "places"), [(True, [5, 2, 1, 4]), (False, [3, 0, 4, 5])])
def test_of_equal_values_the_last_is_first(word: str, largest: bool, places: list[int]) -> None:
    x = Given(np.array([[0, 3, 3, 0, 1, 3]]), word)
    values, found = run("TopK", [x], [((1, 4), word), ((1, 4), "i32")], k=4, largest=largest)
    assert found.ravel().tolist() == places
    assert values.ravel().tolist() == np.asarray(x.numbers)[0, places].tolist()
