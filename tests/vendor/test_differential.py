"""Every operation on our engine, on the vendor's library and in exact arithmetic: what docs/vendor.md promises."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from openhtp.core.dtype import DType
from openhtp.engine.ort import OrtEngine
from openhtp.ops import op_names
from vendor_agreement.agreement import Agreement, measure, read_deviations, summarize
from vendor_agreement.differential import NotOffered, draw_case, rows_of, run_ours, run_vendor

DEVIATIONS = read_deviations(Path(__file__).with_name("deviations.toml"))
SOC = "SM8650"
ROUNDS = 2


@functools.cache
def engine() -> OrtEngine:
    return OrtEngine()


@functools.cache
def found(op: str) -> tuple[Agreement, ...]:
    """All outputs of an operation that both sides compute."""
    results: list[Agreement] = []
    for row in rows_of(op):
        for number in range(ROUNDS):
            case = draw_case(row, number)
            try:
                theirs = run_vendor(case, SOC)
            except NotOffered:
                continue
            results += measure(case, number, run_ours(case, engine()), theirs)
    return tuple(results)


@pytest.mark.vendor
@pytest.mark.parametrize("op", op_names())
def test_promises_are_kept(op: str, oracle_devices: None) -> None:
    results = found(op)
    if not results:
        pytest.skip("the vendor's library takes no row of it")
    for line in summarize(results, DEVIATIONS):
        assert not line.broken


@pytest.mark.vendor
@pytest.mark.parametrize("number", range(len(DEVIATIONS)), ids=lambda n: f"{DEVIATIONS[n].ops[0]} {n}")
def test_deviations_are_still_needed(number: int, oracle_devices: None) -> None:
    """An entry that covers nothing, or only what agrees, would hide a future difference."""
    deviation = DEVIATIONS[number]
    named = [op for op in op_names() if any(_matches(op, pattern) for pattern in deviation.ops)]
    covered = [item for op in named for item in found(op) if deviation.covers(item)]
    assert any(not item.agrees for item in covered)


def _matches(op: str, pattern: str) -> bool:
    return op.startswith(pattern[:-1]) if pattern.endswith("*") else op == pattern


# Operations that users of 8 bits run most; each is drawn far more often than in the rounds above.
_BUSY = (
    "Conv2d",
    "DepthWiseConv2d",
    "ElementWiseAdd",
    "ElementWiseMultiply",
    "FullyConnected",
    "PoolMax2d",
    "Relu",
    "Sigmoid",
    "Softmax",
    "TransposeConv2d",
)


@pytest.mark.vendor
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(op=st.sampled_from(_BUSY), number=st.integers(2, 2**31), pick=st.integers(0, 2**31))
def test_any_case_of_the_busiest_operations(op: str, number: int, pick: int, oracle_devices: None) -> None:
    """Single cases, so the bounds are those of a case: 2 steps, and never further from exact than theirs."""
    rows = [row for row in rows_of(op) if row.outputs[0].is_fixed_point and row.outputs[0].bits < 32]
    case = draw_case(rows[pick % len(rows)], number)
    try:
        theirs = run_vendor(case, SOC)
    except NotOffered:
        return
    for item in measure(case, number, run_ours(case, engine()), theirs):
        assert item.error_steps <= max(item.vendor_error_steps, 1.0)
        if item.kind == "8" and not any(deviation.covers(item) for deviation in DEVIATIONS):
            assert item.vendor.most <= 2


def test_cases_are_reproducible_and_different() -> None:
    row = next(iter(rows_of("ElementWiseAdd")))
    first, again, other = draw_case(row, 1), draw_case(row, 1), draw_case(row, 2)
    np.testing.assert_array_equal(first.stored["x0"], again.stored["x0"])
    assert first.call == again.call
    assert (first.stored["x0"] != other.stored["x0"]).any()


def test_every_width_of_fixed_point_is_drawn() -> None:
    drawn = {dtype for op in ("Conv2d", "ElementWiseAdd") for row in rows_of(op) for dtype in row.outputs}
    assert {DType.UFIXED_POINT_8, DType.SFIXED_POINT_8, DType.UFIXED_POINT_16, DType.FLOAT_16} <= drawn
