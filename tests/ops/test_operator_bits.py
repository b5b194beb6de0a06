"""Results of two processors are compared bit by bit, and what differs is told in numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import operator_bits


def test_equal_bits_are_no_difference() -> None:
    values = np.array([np.nan, -0.0, 1.0], np.float32)
    assert operator_bits.differences({"a": values}, {"a": values.copy()}) == []


def test_a_difference_says_how_many_numbers_and_how_far(capsys: pytest.CaptureFixture[str]) -> None:
    one = {"a": np.array([[1, 2], [3, 4]], np.uint8), "b": np.zeros(2, np.float32)}
    other = {"a": np.array([[1, 5], [2, 4]], np.uint8), "b": np.array([0.0, -0.0], np.float32)}
    first, second = operator_bits.differences(one, other)
    assert (first.case, first.numbers, first.of, first.widest) == ("a", 2, 4, 3.0)
    assert (second.case, second.numbers, second.of, second.widest) == ("b", 1, 2, 0.0)
    assert operator_bits.report(one, other) == 1
    assert "0 of 2 outputs have the same bits" in capsys.readouterr().out


def test_a_case_of_one_side_only_is_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    one = {"a": np.zeros(1, np.uint8)}
    assert operator_bits.report(one, {}) == 1
    assert "on one side only: a" in capsys.readouterr().out
    assert operator_bits.report(one, one) == 0


def test_cases_are_written_and_read_again(tmp_path: Path) -> None:
    """One of many parts, so that few cases are computed."""
    parts = 1000
    for part in (1, 2):
        assert operator_bits.write(tmp_path / f"{part}.npz", part, parts) == 0
    both = operator_bits.read([str(tmp_path / "1.npz"), str(tmp_path / "2.npz")])
    assert len(both) >= 4
    assert operator_bits.report(both, both) == 0
